"""What a scrape shows."""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path

import pytest
from msgspec import structs
from prometheus_client import CollectorRegistry, generate_latest

from shardherd.core.model.gauges import Gauge, GaugeKind, Stage
from shardherd.core.model.messages import Seconds
from shardherd.core.model.nouns import GroupIdentity, GroupView, ShardId, ShardState, ShardVerdict
from shardherd.core.model.verdicts import Verdict
from shardherd.telemetry import collector
from shardherd.telemetry.background import THREADS
from shardherd.telemetry.collector import GroupCollector, MetricsServer
from shardherd.telemetry.operator_metrics import OperatorMetrics
from shardherd.telemetry.scrapers import REFUSAL, Scrapers, digest, token_in
from tests.harness.slow_callers import outlast
from tests.unit.core.planning.builders import IDENTITY, consumers, shards, view


def scraped(views: dict[GroupIdentity, GroupView], limit: int = 10) -> set[str]:
    """The samples of these groups, without help and types."""
    registry = CollectorRegistry()
    registry.register(GroupCollector(lambda: views, limit))
    return {line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")}


def test_where_no_records_are_counted_no_number_of_records_is_shown() -> None:
    held = (*shards(1, lag_records=None, checkpoint=10**55), *shards(1, ShardState.OVER, lag_records=None, end=10**55))
    found = scraped({IDENTITY: view(held, source="kinesis", counts_records=False)})
    names = {line.partition("{")[0] for line in found}
    assert not {name for name in names if "offset" in name or "records" in name}
    assert {"shardherd_group_shards", "shardherd_shard_owner_info", "shardherd_group_source_reachable"} <= names


def test_before_the_source_was_looked_at_no_sum_of_records_is_shown() -> None:
    held = shards(2, lag_records=None, checkpoint=None)
    found = {line.partition("{")[0] for line in scraped({IDENTITY: view(held, discovered=False)})}
    assert {name for name in found if "offset" in name or "records" in name} == set()
    assert {"shardherd_group_shards", "shardherd_shard_owner_info", "shardherd_group_source_reachable"} <= found


def test_a_group_is_shown_as_its_picture_has_it() -> None:
    held = (
        *shards(1, checkpoint=90, end=100),
        *shards(1, ShardState.NOT_ALLOC, lag_records=None, state_age=4.5),
        *shards(1, ShardState.OVER, lag_records=0, checkpoint=7, end=7),
    )
    group = 'consumergroup="clicks",namespace="shop",source="kafka"'
    shard = 'consumergroup="clicks",namespace="shop",shard="clicks/0",source="kafka"'
    assert scraped({IDENTITY: view(held, consumers=consumers(1), source="kafka")}) == {
        f"shardherd_shard_lag_records{{{shard}}} 10.0",
        f"shardherd_shard_committed_offset{{{shard}}} 90.0",
        f"shardherd_shard_end_offset{{{shard}}} 100.0",
        f'shardherd_shard_owner_info{{consumer="clicks-0",{shard}}} 1.0',
        f"shardherd_shard_unowned_seconds{{{shard}}} 4.5",
        f"shardherd_group_lag_records{{{group}}} 10.0",
        f"shardherd_group_max_lag_records{{{group}}} 10.0",
        f"shardherd_group_end_offset{{{group}}} 107.0",
        f"shardherd_group_committed_offset{{{group}}} 97.0",
        f"shardherd_group_max_unowned_seconds{{{group}}} 4.5",
        f"shardherd_group_max_waiting_seconds{{{group}}} 0.0",
        f"shardherd_group_max_transfer_seconds{{{group}}} 0.0",
        f"shardherd_group_shard_series_omitted{{{group}}} 0.0",
        f'shardherd_group_shards{{{group},state="WAIT"}} 0.0',
        f'shardherd_group_shards{{{group},state="NOT_ALLOC"}} 1.0',
        f'shardherd_group_shards{{{group},state="ALREADY_ALLOC"}} 1.0',
        f'shardherd_group_shards{{{group},state="TRANSFER"}} 0.0',
        f'shardherd_group_shards{{{group},state="OVER"}} 1.0',
        *(f'shardherd_group_shards_by_verdict{{{group},verdict="{each}"}} {1.0 * (each == "Unknown")}' for each in Verdict),
        f"shardherd_group_epoch{{{group}}} 3.0",
        f"shardherd_group_consumers{{{group}}} 1.0",
        f"shardherd_group_source_reachable{{{group}}} 1.0",
        f'shardherd_consumer_shards{{consumer="clicks-0",{group}}} 1.0',
        f'shardherd_heartbeat_age_seconds{{consumer="clicks-0",{group}}} 0.1',
    }


def test_shards_that_wait_are_counted_with_the_longest_time_that_one_has_waited() -> None:
    waiting = tuple(
        structs.replace(each, state_age=Seconds(age))
        for each, age in zip(shards(2, ShardState.WAIT, lag_records=40), (12.0, 90.5), strict=True)
    )
    found = scraped({IDENTITY: view((*shards(1), *waiting), consumers=consumers(1), source="kafka")})
    group = 'consumergroup="clicks",namespace="shop",source="kafka"'

    assert {
        f"shardherd_group_max_waiting_seconds{{{group}}} 90.5",
        f'shardherd_group_shards{{{group},state="WAIT"}} 2.0',
        f"shardherd_group_max_unowned_seconds{{{group}}} 0.0",
    } <= found


def test_how_full_a_consumer_is_is_shown_as_far_as_it_says() -> None:
    full, silent = consumers(1, 1)
    gauges = (Gauge(GaugeKind.DISK, "/data", 91, 100), Gauge(GaugeKind.MEMORY, "memory", 1, 4))
    full = structs.replace(full, stage=Stage.HIGH, gauges=gauges)
    found = scraped({IDENTITY: view(shards(2), consumers=(full, silent), source="kafka")})
    group = 'consumer="clicks-0",consumergroup="clicks"'
    rest = 'namespace="shop",source="kafka"'
    assert {line for line in found if line.startswith(("shardherd_consumer_stage", "shardherd_consumer_used"))} == {
        f"shardherd_consumer_stage{{{group},{rest}}} 2.0",
        f'shardherd_consumer_used_ratio{{{group},gauge="/data",kind="disk",{rest}}} 0.91',
        f'shardherd_consumer_used_ratio{{{group},gauge="memory",kind="memory",{rest}}} 0.25',
    }


def test_of_what_the_source_has_no_more_nothing_is_shown() -> None:
    there = shards(2, checkpoint=90, end=100)
    gone = (
        *shards(3, ShardState.NOT_ALLOC, present=False, checkpoint=5, lag_records=None, state_age=900.0),
        *shards(2, ShardState.TRANSFER, present=False, checkpoint=5, lag_records=None, state_age=900.0),
    )
    assert scraped({IDENTITY: view((*there, *gone))}) == scraped({IDENTITY: view(there)})


def test_the_longest_time_on_the_way_to_another_consumer_is_shown() -> None:
    held = (*shards(1, ShardState.TRANSFER, state_age=3.0), *shards(1, ShardState.TRANSFER, state_age=8.0))
    lines = {line for line in scraped({IDENTITY: view(held)}) if "_max_transfer_seconds" in line}
    assert lines == {'shardherd_group_max_transfer_seconds{consumergroup="clicks",namespace="shop",source=""} 8.0'}


def test_a_group_of_too_many_shards_is_shown_as_a_whole_only() -> None:
    held = (*shards(3, checkpoint=90, end=100), *shards(1, ShardState.OVER, lag_records=0))
    lines = scraped({IDENTITY: view(held)}, limit=2)
    group = 'consumergroup="clicks",namespace="shop",source=""'
    assert [line for line in lines if 'shard="' in line] == []
    assert {line for line in lines if "_records" in line or "omitted" in line} == {
        f"shardherd_group_lag_records{{{group}}} 30.0",
        f"shardherd_group_max_lag_records{{{group}}} 10.0",
        f"shardherd_group_shard_series_omitted{{{group}}} 3.0",
    }


def test_how_shards_are_read_is_counted_and_told_of_those_that_are_shown() -> None:
    said = tuple(
        ShardVerdict(ShardId(f"clicks/{number}"), verdict, Seconds(0.0))
        for number, verdict in enumerate((Verdict.STALLED, Verdict.REWOUND, Verdict.UNKNOWN))
    )
    picture = view(shards(5, checkpoint=90, end=100), verdict=Verdict.STALLED, verdicts=said)
    group = 'consumergroup="clicks",namespace="shop"'
    counts = {
        f'shardherd_group_shards_by_verdict{{{group},source="",verdict="{verdict}"}} {count}'
        for verdict, count in zip(Verdict, (1.0, 0.0, 0.0, 1.0, 1.0, 2.0), strict=True)
    }

    def shown(limit: int) -> set[str]:
        return {line for line in scraped({IDENTITY: picture}, limit) if "verdict" in line}

    assert shown(5) == counts | {
        f'shardherd_shard_verdict_info{{{group},shard="clicks/0",source="",verdict="Stalled"}} 1.0',
        f'shardherd_shard_verdict_info{{{group},shard="clicks/1",source="",verdict="Rewound"}} 1.0',
    }
    assert shown(4) == counts


def test_no_group_no_samples() -> None:
    assert scraped({}) == set()


def test_the_series_of_a_deleted_group_go_with_it() -> None:
    registry = CollectorRegistry()
    metrics = OperatorMetrics(registry)
    for name in ("clicks", "other"):
        metrics.heartbeats.labels("shop", name, "ok").inc()
        metrics.moves.labels("shop", name).inc(3)
    metrics.forget("shop", "clicks")
    lines = generate_latest(registry).decode().splitlines()
    assert [line for line in lines if 'consumergroup="clicks"' in line] == []
    assert 'shardherd_shard_moves_total{consumergroup="other",namespace="shop"} 3.0' in lines


def scrape(server: MetricsServer, authorization: str | None = None) -> tuple[int, str]:
    """Status and text of a scrape with this header."""
    headers = {} if authorization is None else {"Authorization": authorization}
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}/metrics", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=5) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def test_with_a_token_metrics_are_shown_to_who_has_it_and_it_may_be_changed(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    OperatorMetrics(registry).built("1.2.3")
    token = tmp_path / "token"
    token.write_text("first\n")
    server = MetricsServer(0, registry, "127.0.0.1", Scrapers(token_in(token)))
    shown = 'shardherd_build_info{version="1.2.3"} 1.0'
    try:
        for wrong in (None, "", "Bearer", "Bearer ", "Bearer second", "Basic first", f"Bearer {digest('first')}"):
            assert scrape(server, wrong) == (401, REFUSAL)
        status, text = scrape(server, "Bearer first")
        assert (status, shown in text) == (200, True)
        token.write_text("second")
        assert scrape(server, "Bearer first") == (401, REFUSAL)
        assert scrape(server, "Bearer second")[0] == 200
        token.unlink()
        assert [scrape(server, header)[0] for header in (None, "Bearer ", "Bearer second")] == [401, 401, 401]
    finally:
        server.close()


def test_metrics_are_served_until_the_server_is_closed() -> None:
    registry = CollectorRegistry()
    OperatorMetrics(registry).built("1.2.3")
    server = MetricsServer(0, registry, "127.0.0.1")
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=5) as response:
            assert 'shardherd_build_info{version="1.2.3"} 1.0' in response.read().decode()
    finally:
        server.close()


def test_who_sends_the_head_of_a_request_a_little_now_and_then_is_cut_off_and_keeps_no_scrape_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(collector, "SCRAPE_WITHIN", 0.3)
    registry = CollectorRegistry()
    OperatorMetrics(registry).built("1.2.3")
    server = MetricsServer(0, registry, "127.0.0.1")
    try:
        outlast(server.port, THREADS, b"GET /metrics HTTP/1.1\r\nX-Slow: ")
        assert scrape(server)[0] == 200
    finally:
        server.close()
