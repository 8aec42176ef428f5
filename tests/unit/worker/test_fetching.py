"""What a worker fetches of Kafka's bytes, from brokers that are played by the test."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from shardherd.core.model.nouns import Offset, ShardId
from shardherd.source.decoding import record_batches
from shardherd.source.kafka.fetching import Fetched
from shardherd.source.reading.lost_records import RangeLostError
from shardherd.worker import fetching
from shardherd.worker.fetched import Part, batches
from shardherd.worker.fetching import LARGE, KafkaFetcher
from shardherd.worker.records import Record
from shardherd.worker.stream import Wanted
from tests.unit.source import kafka_bytes
from tests.unit.source.kafka_bytes import batch_of, control_batch, empty_batch
from tests.unit.source.test_range_reader import FakeBrokers, log_of

A, B = ShardId("clicks/0"), ShardId("clicks/1")


def fetcher_of(brokers: Any, *, ends: Any = None, fail: bool = True, batch_size: int = 500) -> KafkaFetcher:
    return KafkaFetcher(brokers, ends or brokers, memory=1 << 20, fail_on_data_loss=fail, batch_size=batch_size)


def fetch(fetcher: KafkaFetcher, wanted: Mapping[ShardId, Wanted], *, behind: bool) -> list[Part]:
    return asyncio.run(fetcher.fetch(wanted, behind=behind))


def offsets_in(part: Part, most: int = 1000) -> list[list[Offset]]:
    return [[record.offset for record in records] for records in batches(part, most)]


def test_what_decodes_is_loaded_before_anything_is_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(fetching, "KERNELS", SimpleNamespace(functions=lambda: done.append("loaded")))
    fetcher_of(SimpleNamespace(connect=lambda _: done.append("connected"))).connect()
    assert done == ["loaded", "connected", "connected"]


async def test_heartbeats_go_on_between_the_parts_of_an_answer() -> None:
    fetcher = fetcher_of(FakeBrokers({A: log_of((0, 4)), B: log_of((0, 4))}, {A: 5, B: 5}))
    turns, over = 0, asyncio.create_task(fetcher.fetch({A: Wanted(0, 1 << 20), B: Wanted(0, 1 << 20)}, behind=True))
    while not over.done():
        await asyncio.sleep(0)
        turns += 1
    assert ([part.next for part in over.result()], turns) == ([5, 5], 2)


def test_a_fetch_asks_for_all_that_is_wanted_and_says_where_to_go_on() -> None:
    brokers = FakeBrokers({A: log_of((0, 4), (5, 9)), B: log_of((0, 19))}, {A: 10, B: 30})
    parts = fetch(fetcher_of(brokers), {A: Wanted(3, 4000), B: Wanted(0, 9000)}, behind=True)
    assert (brokers.asked, brokers.bytes_asked) == ([{A: 3, B: 0}], [{A: 4000, B: 9000}])
    assert [(each.shard, each.asked, each.next, each.end) for each in parts] == [(A, 3, 10, 10), (B, 0, 20, 30)]
    assert [offsets_in(each) for each in parts] == [[list(range(3, 10))], [list(range(20))]]


def test_what_is_at_the_end_of_a_shard_that_is_read_up_to_there_and_after_it_is_left_out() -> None:
    """Records 5 to 7 of a batch are wanted, then none of those that follow the end, as what was before it is compacted away."""
    data = batch_of([kafka_bytes.Record(5), kafka_bytes.Record(7), kafka_bytes.Record(8)], last_offset=9)
    fetcher = fetcher_of(FakeBrokers({A: [(9, data)], B: [(12, batch_of([kafka_bytes.Record(12)]))]}, {A: 30, B: 30}))
    one, other = fetch(fetcher, {A: Wanted(5, 1 << 20, 8), B: Wanted(3, 1 << 20, 10)}, behind=True)
    assert (one.next, one.end, offsets_in(one)) == (8, 8, [[5, 7]])
    assert (other.next, other.end, offsets_in(other)) == (10, 10, [[]])


def test_shards_that_were_read_to_their_end_are_asked_for_on_connections_of_their_own() -> None:
    more, ends = FakeBrokers({A: log_of((0, 4))}, {A: 5}), FakeBrokers({A: []}, {A: 5})
    fetcher = fetcher_of(more, ends=ends)
    fetch(fetcher, {A: Wanted(0, 1)}, behind=True)
    (part,) = fetch(fetcher, {A: Wanted(5, 1)}, behind=False)
    assert (more.asked, ends.asked) == ([{A: 0}], [{A: 5}])
    assert (part.asked, part.next, part.end) == (5, 5, 5)


def test_of_shards_without_news_nothing_is_scanned(monkeypatch: pytest.MonkeyPatch) -> None:
    scanned = list[ShardId]()

    def scan(shard: ShardId, *data: Any, **more: Any) -> Any:
        scanned.append(shard)
        return whole_scan(shard, *data, **more)

    whole_scan = record_batches.scan
    monkeypatch.setattr(record_batches, "scan", scan)
    brokers = FakeBrokers({A: [], B: log_of((7, 7))}, {A: 5, B: 8})
    parts = fetch(fetcher_of(brokers), {A: Wanted(5, 1), B: Wanted(7, 1)}, behind=False)
    assert [(each.shard, each.asked, each.next, each.end, each.size > 0) for each in parts] == [
        (A, 5, 5, 5, False),
        (B, 7, 8, 8, True),
    ]
    assert scanned == [B]


def test_batches_reach_over_gaps_and_what_has_no_record_is_one_of_none() -> None:
    compacted = [(4, batch_of([kafka_bytes.Record(0), kafka_bytes.Record(2)], last_offset=4)), (5, control_batch(5))]
    gone = [(9, empty_batch(0, 9))]
    fetcher = fetcher_of(FakeBrokers({A: compacted, B: gone}, {A: 6, B: 10}))
    one, other = fetch(fetcher, {A: Wanted(0, 1 << 20), B: Wanted(0, 1 << 20)}, behind=True)
    assert [(len(each), each.position, each.next) for each in batches(one, 1)] == [(1, 0, 1), (1, 1, 6)]
    assert [(len(each), each.position, each.next) for each in batches(other, 1)] == [(0, 0, 10)]


def test_a_record_has_its_key_value_time_and_headers() -> None:
    data = batch_of(
        [
            kafka_bytes.Record(7, key=b"k", value=b"v", timestamp=1_700_000_000_123, headers=(("trace", b"1"), ("none", None))),
            kafka_bytes.Record(8, key=None, value=None, timestamp=1_700_000_000_124),
        ]
    )
    (part,) = fetch(fetcher_of(FakeBrokers({A: [(8, data)]}, {A: 9})), {A: Wanted(7, 1 << 20)}, behind=True)
    assert [record for records in batches(part, 10) for record in records] == [
        Record(7, b"k", b"v", 1_700_000_000_123, (("trace", b"1"), ("none", None))),
        Record(8, None, None, 1_700_000_000_124, ()),
    ]


def test_records_that_are_gone_are_an_error_that_names_them() -> None:
    brokers = FakeBrokers({A: log_of((50, 59))}, {A: 60})
    brokers.beginning = 50
    with pytest.raises(RangeLostError, match="shard clicks/0: the records from offset 20 up to 50 are lost; it starts at 50"):
        fetch(fetcher_of(brokers), {A: Wanted(20, 1)}, behind=True)


def test_or_a_warning_and_the_rest_is_read_on(caplog: pytest.LogCaptureFixture) -> None:
    brokers = FakeBrokers({A: log_of((50, 59))}, {A: 60})
    brokers.beginning = 50
    fetcher = fetcher_of(brokers, fail=False)
    (part,) = fetch(fetcher, {A: Wanted(20, 1)}, behind=True)
    assert [(len(each), each.position, each.next) for each in batches(part, 100)] == [(0, 20, 50)]
    (part,) = fetch(fetcher, {A: Wanted(50, 1)}, behind=True)
    assert offsets_in(part) == [list(range(50, 60))]
    assert "the records from offset 20 up to 50 are lost" in caplog.text


def test_a_topic_that_was_made_anew_is_noticed_once() -> None:
    class Renewed(FakeBrokers):
        topic_id = "one"

        def _answer(self, shard: ShardId, position: int, first: bool) -> Fetched:
            found = super()._answer(shard, position, first)
            return Fetched(found.shard, found.asked, found.data, found.end, self.topic_id)

    brokers = Renewed({A: log_of((0, 9))}, {A: 10})
    fetcher, strict = fetcher_of(brokers, fail=False), fetcher_of(brokers)
    for each in (fetcher, strict):
        fetch(each, {A: Wanted(0, 1)}, behind=True)
    brokers.topic_id = "two"
    with pytest.raises(RangeLostError, match="was deleted and made anew"):
        fetch(strict, {A: Wanted(0, 1)}, behind=True)
    (part,) = fetch(fetcher, {A: Wanted(0, 1)}, behind=True)
    assert part.next == 0
    (part,) = fetch(fetcher, {A: Wanted(0, 1)}, behind=True)
    assert offsets_in(part) == [list(range(10))]


def test_large_batches_are_decoded_into_memory_that_is_used_again_but_not_while_somebody_has_it() -> None:
    def value(at: Offset) -> bytes:
        return bytes([at]) * 100_000

    log = [
        (last, batch_of([kafka_bytes.Record(at, value=value(at)) for at in range(last - 9, last + 1)]))
        for last in range(9, 120, 10)
    ]
    brokers = FakeBrokers({A: log}, {A: 120}, size=1 << 30)
    (part,) = fetch(fetcher_of(brokers, batch_size=100_000), {A: Wanted(0, 1 << 30)}, behind=True)

    kept = [records.table for records in batches(part, 100_000)]
    assert [each.nbytes <= 2 * LARGE for each in kept] == [True] * len(kept)
    assert [row for table in kept for row in table.column("value").to_pylist()] == [value(at) for at in range(120)]
    del kept

    def place(table: Any) -> int:
        return int(table.column("value").buffers()[2].address)

    places = [place(records.table) for _ in range(4) for records in batches(part, 100_000)]
    assert len(set(places)) <= len(places) / 2
