"""The agent's socket, ports and threads: real sockets and real time, for a few milliseconds each."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from shardherd.core.consumer.settings import SessionSettings
from shardherd.core.model.nouns import ShardId
from shardherd.source import look_thread
from shardherd.source.kafka.batch_headers import event_times
from shardherd.source.kafka.cluster_connection import BrokersUnavailableError
from shardherd.source.kafka.end_offsets import EndWatcher
from shardherd.source.kafka.fetching import Fetched
from shardherd.spark import metrics as agent_metrics
from shardherd.spark import serve
from shardherd.spark.agent import Agent
from shardherd.spark.batch_planner import Latest, ReaderSettings
from shardherd.spark.decode_stats import ReceivedCounts, new_address
from shardherd.spark.flow import Limits
from shardherd.spark.link import SOCKET_VARIABLE, AgentGoneError, AgentLink
from shardherd.spark.metrics import AgentMetrics, serve_http
from shardherd.spark.offsets import Offsets
from shardherd.spark.slots import Slots
from shardherd.telemetry.scrapers import Scrapers, digest, digest_in
from tests.harness.slow_callers import outlast
from tests.unit.source.kafka_bytes import Record, batch_of
from tests.unit.spark.simulated import GROUP, ME, RUN, FakeCoordinator, FakeEnds, Observed, nobody_knows

A = ShardId("clicks/0")
READER_SETTINGS = {"group": GROUP, "bootstrapServers": "kafka:9092", "slots": 1, "kafka": {}, "countsAddress": None}


async def nothing(_reason: str) -> None:
    return


@pytest.fixture
async def agent() -> Any:
    coordinator = FakeCoordinator()
    end_offsets = FakeEnds({A: 100})
    made = Agent(SessionSettings(GROUP, ME, RUN), coordinator, end_offsets, Observed(), nothing, nobody_knows)
    coordinator.assign((A, 4, 0))
    running = asyncio.create_task(made.run())
    yield made
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.fixture
def isolations() -> list[bool]:
    """Of each query that connected, whether it reads committed records only."""
    return []


@pytest.fixture
async def server(agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isolations: list[bool]) -> Any:
    monkeypatch.setattr(serve, "PREDECESSOR_WAIT", 1.0)
    monkeypatch.setattr(serve, "LAST_WORD_WAIT", 0.05)
    monkeypatch.setenv(SOCKET_VARIABLE, str(tmp_path / "agent.sock"))
    made = serve.ReaderServer(agent, tmp_path / "agent.sock", READER_SETTINGS, read_committed=isolations.append)
    await made.start()
    yield made
    await made.close()


async def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline, "it never happened"
        await asyncio.sleep(0.002)


async def latest(link: AgentLink, group: str = GROUP) -> Latest:
    """As the stream reader asks: blocking, in a thread of its own."""
    return await asyncio.to_thread(link.latest, Offsets(group).as_dict(), once=False)


async def replayed(link: AgentLink) -> frozenset[ShardId]:
    return await asyncio.to_thread(link.replay, Offsets(GROUP).as_dict())


async def test_a_stream_reader_reads_what_the_agent_holds(agent: Agent, server: serve.ReaderServer) -> None:
    await until(lambda: agent.tracker.shards == (A,))
    link = AgentLink(Limits(max_records=60, target_seconds=2.5))
    answer = await latest(link)

    assert answer == Latest({"group": GROUP, "shards": {A: [0, 60, 4]}, "v": 1, "warm": 1}, {A: 100})
    assert link.reader_settings == ReaderSettings(GROUP, "kafka:9092", 1, {})
    assert not link.ordered
    assert agent.batch_sizing.target == 2.5
    assert await replayed(link) == frozenset()
    link.close()
    link.close()


async def test_a_number_of_tasks_that_changes_is_told_with_every_answer(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isolations: list[bool]
) -> None:
    await until(lambda: agent.tracker.shards == (A,))
    slots = Slots(cores=2, least=1, most=4)
    server = serve.ReaderServer(
        agent,
        tmp_path / "agent.sock",
        READER_SETTINGS,
        read_committed=isolations.append,
        slots=lambda news: slots.wanted(news=news),
    )
    await server.start()
    monkeypatch.setenv(SOCKET_VARIABLE, str(tmp_path / "agent.sock"))
    link = AgentLink(Limits(max_records=10))
    found = []
    for executors, took in ((1, 0.5), (1, 4.0), (3, 4.0), (3, 1.0)):
        slots.runs(executors)
        slots.took(took)
        await latest(link)
        found.append(link.reader_settings.slots)
    link.close()
    await server.close()

    assert found == [2, 4, 8, 6]


async def test_every_query_says_whether_it_reads_committed_records_only(
    server: serve.ReaderServer, isolations: list[bool]
) -> None:
    for committed in (True, False):
        link = AgentLink(Limits(), committed=committed)
        await replayed(link)
        link.close()

    assert isolations == [True, False]


@pytest.mark.parametrize(
    ("declared", "asked", "reads"), [(None, None, False), (True, None, True), (False, None, False), (True, True, True)]
)
async def test_a_query_that_says_nothing_reads_as_its_consumer_group_declares(
    agent: Agent,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    isolations: list[bool],
    declared: bool | None,
    asked: bool | None,
    reads: bool,
) -> None:
    monkeypatch.setenv(SOCKET_VARIABLE, str(tmp_path / "agent.sock"))
    server = serve.ReaderServer(
        agent, tmp_path / "agent.sock", READER_SETTINGS, read_committed=isolations.append, committed=declared
    )
    await server.start()
    link = AgentLink(Limits(), committed=asked)
    await replayed(link)
    link.close()
    await server.close()

    assert (link.reader_settings.committed, isolations) == (reads, [reads])


async def test_a_query_that_reads_otherwise_than_its_consumer_group_declares_is_refused(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isolations: list[bool]
) -> None:
    monkeypatch.setenv(SOCKET_VARIABLE, str(tmp_path / "agent.sock"))
    server = serve.ReaderServer(
        agent, tmp_path / "agent.sock", READER_SETTINGS, read_committed=isolations.append, committed=False
    )
    await server.start()
    link = AgentLink(Limits(), committed=True)
    with pytest.raises(AgentGoneError) as refused:
        await replayed(link)
    link.close()
    await server.close()

    assert (str(refused.value), isolations) == (
        "the option kafka.isolation.level is read_committed, and spec.source.kafka.isolationLevel of the ConsumerGroup says"
        " read_uncommitted: leave the option out, or make both the same",
        [],
    )


async def test_that_the_lag_of_such_a_query_counts_open_transactions_is_said_unless_its_group_declares_it(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(SOCKET_VARIABLE, str(tmp_path / "agent.sock"))
    logged = []
    for declared in (None, True):
        caplog.clear()
        server = serve.ReaderServer(
            agent, tmp_path / "agent.sock", READER_SETTINGS, read_committed=lambda _: None, committed=declared
        )
        await server.start()
        link = AgentLink(Limits(), committed=True)
        await replayed(link)
        link.close()
        await server.close()
        logged.append([record.getMessage() for record in caplog.records if "isolationLevel" in record.getMessage()])

    assert logged == [[serve.LAG_OF_OPEN_TRANSACTIONS], []]


async def test_the_offsets_of_another_group_are_refused_in_words(agent: Agent, server: serve.ReaderServer) -> None:
    link = AgentLink(Limits())
    with pytest.raises(AgentGoneError, match="of group other, this consumer belongs to group-uid"):
        await latest(link, "other")
    link.close()


async def test_an_application_whose_query_is_refused_is_given_nothing_more(agent: Agent, server: serve.ReaderServer) -> None:
    for _ in range(2):
        link = AgentLink(Limits())
        await replayed(link)
        agent.refuse("it keeps state")
        with pytest.raises(AgentGoneError, match="it keeps state"):
            await latest(link)
        link.close()
    assert not agent.tracker.busy


async def test_a_second_query_is_refused_while_the_first_one_reads(agent: Agent, server: serve.ReaderServer) -> None:
    first, second = AgentLink(Limits()), AgentLink(Limits())
    await latest(first)
    with pytest.raises(AgentGoneError, match=r"another streaming query .* with foreachBatch, or stop it first"):
        await latest(second)
    first.close()
    third = AgentLink(Limits())
    assert await replayed(third) == frozenset()
    third.close()


async def test_a_query_that_ends_gives_back_what_it_did_not_finish(agent: Agent, server: serve.ReaderServer) -> None:
    await until(lambda: agent.tracker.shards == (A,))
    link = AgentLink(Limits(max_records=60))
    await latest(link)
    assert agent.tracker.busy
    link.close()
    await until(lambda: not agent.tracker.busy)
    assert agent.tracker.positions() == {A: 0}


async def test_a_query_that_ends_for_good_makes_the_consumer_leave(
    agent: Agent, server: serve.ReaderServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "LEAVE_AFTER", 0.2)
    coordinator = agent.session._coordinator
    assert isinstance(coordinator, FakeCoordinator)
    for _ in range(2):  # the second one is started in time
        link = AgentLink(Limits())
        await latest(link)
        link.close()
        await asyncio.sleep(0.1)
        assert not agent.gone
    await until(lambda: coordinator.leaves == 1)
    with pytest.raises(AgentGoneError, match="this consumer has left its group, because its streaming query had ended"):
        await latest(AgentLink(Limits()))
    assert await agent.drain(time.monotonic() + 1), "SIGTERM comes after it"
    assert coordinator.leaves == 1


async def test_a_query_of_available_now_may_be_started_again_much_later(
    agent: Agent, server: serve.ReaderServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "LEAVE_AFTER", 0.0)
    link = AgentLink(Limits())
    await asyncio.to_thread(link.prepare)
    link.close()
    await asyncio.sleep(0.3)
    assert not agent.gone


async def test_an_agent_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SOCKET_VARIABLE, str(tmp_path / "nobody.sock"))
    with pytest.raises(AgentGoneError, match=r"does not listen on .*nobody\.sock"):
        await asyncio.to_thread(AgentLink(Limits()).prepare)


async def test_a_driver_knows_who_may_scrape_it_by_a_digest_and_is_ready_for_anybody(
    agent: Agent, unused_tcp_port: int, tmp_path: Path
) -> None:
    metrics = AgentMetrics("demo", "clicks", "clicks-0")
    metrics.watch(agent)
    known = tmp_path / "scrapers.sha256"
    known.write_text(digest("token"))
    received = ReceivedCounts(new_address("127.0.0.1", unused_tcp_port))
    runner = await serve_http(agent, metrics, unused_tcp_port, received, Scrapers(digest_in(known)))

    async with aiohttp.ClientSession(f"http://127.0.0.1:{unused_tcp_port}") as session:

        async def status(path: str, authorization: str = "") -> int:
            async with session.get(path, headers={"Authorization": authorization}) as response:
                return response.status

        refused = [await status("/metrics", header) for header in ("", "Bearer other", f"Bearer {known.read_text()}")]
        admitted = await status("/metrics", "Bearer token")
        assert (refused, admitted, await status("/readyz")) == ([401, 401, 401], 200, 503)
    await runner.cleanup()


async def test_who_sends_the_head_of_a_scrape_byte_by_byte_loses_the_connection(
    agent: Agent, unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_metrics, "HEAD_WITHIN", 0.2)
    metrics = AgentMetrics("demo", "clicks", "clicks-0")
    runner = await serve_http(agent, metrics, unused_tcp_port, ReceivedCounts(new_address("127.0.0.1", unused_tcp_port)))

    slow = asyncio.to_thread(outlast, unused_tcp_port, 3, b"GET /metrics HTTP/1.1\r\nX-Slow: ")
    await asyncio.wait_for(slow, timeout=10)

    await runner.cleanup()


def test_how_long_a_micro_batch_took_is_told_apart_for_as_long_as_a_sink_may_hold_it() -> None:
    metrics = AgentMetrics("demo", "clicks", "clicks-0")
    for seconds in (20.0, 90.0, 1500.0):
        metrics.batch({}, seconds)
    name, labels = "shardherd_source_batch_duration_seconds_bucket", {"namespace": "demo", "consumergroup": "clicks"}
    bounds = ("10.0", "30.0", "60.0", "120.0", "600.0", "1800.0")
    found = [metrics.registry.get_sample_value(name, {**labels, "consumer": "clicks-0", "le": bound}) for bound in bounds]
    assert found == [0, 1, 1, 2, 2, 3]


async def test_metrics_and_readiness_show_the_agents_state(agent: Agent, unused_tcp_port: int) -> None:
    metrics = AgentMetrics("demo", "clicks", "clicks-0")
    metrics.watch(agent)
    metrics.heartbeat("ok")
    metrics.checkpoint("fenced")
    runner = await serve_http(agent, metrics, unused_tcp_port, ReceivedCounts(new_address("127.0.0.1", unused_tcp_port)))
    await until(lambda: agent.tracker.shards == (A,))
    labels = 'consumer="clicks-0",consumergroup="clicks",namespace="demo"'

    async with aiohttp.ClientSession(f"http://127.0.0.1:{unused_tcp_port}") as session:

        async def got(path: str) -> tuple[int, str]:
            async with session.get(path) as response:
                return response.status, await response.text()

        assert await got("/readyz") == (503, "not warm yet: the first micro-batch of the streaming query has not run\n")
        end = await agent.latest(Offsets(GROUP), 60)
        metrics.batch(end.shards, 0.5)
        metrics.trigger(55, {"addBatch": 1500, "walCommit": 20, "triggerExecution": 1600})
        assert metrics.last_records() == {A: 59}
        metrics.event_times({A: 1.7e9, ShardId("clicks/9"): 5.0})
        agent.finished(end)
        assert await got("/readyz") == (200, "ready\n")
        lines = (await got("/metrics"))[1].splitlines()
        agent.session.draining = True
        assert await got("/readyz") == (503, "draining\n")
    await runner.cleanup()

    assert f'shardherd_agent_heartbeats_total{{{labels},result="ok"}} 1.0' in lines
    assert f'shardherd_agent_checkpoints_total{{{labels},result="fenced"}} 1.0' in lines
    assert f"shardherd_agent_shards{{{labels}}} 1.0" in lines
    assert f"shardherd_source_records_total{{{labels}}} 60.0" in lines
    assert f"shardherd_source_batch_duration_seconds_sum{{{labels}}} 0.5" in lines
    assert f'shardherd_source_position{{{labels},shard="clicks/0"}} 60.0' in lines
    assert f"shardherd_source_rows_total{{{labels}}} 55.0" in lines
    assert f'shardherd_source_phase_seconds_total{{{labels},phase="addBatch"}} 1.5' in lines
    assert not any("triggerExecution" in line for line in lines), "it is the sum of the others"
    assert [line for line in lines if line.startswith("shardherd_source_event_time_seconds{")] == [
        f'shardherd_source_event_time_seconds{{{labels},shard="clicks/0"}} 1.7e+09'
    ]
    assert f"shardherd_source_in_flight_records{{{labels}}} 0.0" in lines


class FakeKafka:
    """Ends of shards, or a failure."""

    def __init__(self) -> None:
        self.ends_of: dict[ShardId, int] = {}
        self.failure: Exception | None = None
        self.asked: list[tuple[ShardId, ...]] = []
        self.committed = False

    def end_offsets(self, shards: Iterable[ShardId], timeout: float) -> Mapping[ShardId, int]:
        self.asked.append(tuple(shards))
        if self.failure is not None:
            raise self.failure
        return {shard: self.ends_of[shard] for shard in self.asked[-1]}

    def begin_fetch(self, positions: Mapping[ShardId, int], timeout: float, *, shard_bytes: int) -> Callable[[], list[Fetched]]:
        def answer() -> list[Fetched]:
            if self.failure is not None:
                raise self.failure
            batch = batch_of([Record(at, value=b"x" * 100) for at in range(4)])
            return [Fetched(shard, at, batch[:shard_bytes], at + 4) for shard, at in positions.items()]

        return answer


def wait_for(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.002)


def test_ends_are_asked_of_the_watched_shards_only_and_changes_are_told() -> None:
    kafka, changed = FakeKafka(), threading.Event()
    kafka.ends_of = {A: 5, ShardId("clicks/1"): 9}
    watcher = EndWatcher(kafka, changed.set, interval=0.005)
    watcher.start()
    try:
        watcher.watch([A])
        assert changed.wait(30)
        assert watcher.known() == {A: 5}
        changed.clear()
        kafka.ends_of[A] = 6
        assert changed.wait(30)
        assert watcher.known() == {A: 6}
        watcher.watch([ShardId("clicks/1")])
        wait_for(lambda: watcher.known() == {"clicks/1": 9})
        assert set(kafka.asked) == {(A,), ("clicks/1",)}
    finally:
        watcher.close()


def test_the_time_of_a_record_is_that_of_the_newest_one_in_its_batch() -> None:
    assert event_times(FakeKafka(), {A: 3}, 1.0) == {A: 1_700_000_000.0}


async def test_sizes_are_those_of_the_next_batch_and_none_where_kafka_is_away() -> None:
    kafka = FakeKafka()
    watcher = EndWatcher(kafka, lambda: None)
    whole = len(batch_of([Record(at, value=b"x" * 100) for at in range(4)]))

    assert await watcher.sizes({A: 7}) == {A: whole / 4}
    assert await watcher.sizes({}) == {}
    kafka.failure = BrokersUnavailableError("connection refused")
    assert await watcher.sizes({A: 7}) == {}


def test_a_kafka_that_is_away_keeps_what_is_known_and_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(look_thread, "RETRY_DELAY", 0.002)
    kafka = FakeKafka()
    kafka.ends_of = {A: 5}
    watcher = EndWatcher(kafka, lambda: None, interval=0.002)
    watcher.start()
    try:
        watcher.watch([A])
        wait_for(lambda: watcher.known() == {A: 5})
        kafka.failure = BrokersUnavailableError("connection refused")
        asked_before = len(kafka.asked)
        wait_for(lambda: len(kafka.asked) > asked_before + 3)
        assert watcher.known() == {A: 5}
        kafka.ends_of, kafka.failure = {A: 8}, None
        wait_for(lambda: watcher.known() == {A: 8})
    finally:
        watcher.close()
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert warnings == ["cannot learn where the shards end, trying on: connection refused"]
