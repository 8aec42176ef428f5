"""A query that reads Kinesis in a group: what the agent hands out, where micro-batches end, and the tasks that read them."""

from __future__ import annotations

import asyncio
import json
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

from shardherd.clock import boot_time
from shardherd.core.consumer.tracker import ReadRange
from shardherd.core.model.nouns import Offset, Phase, ShardId
from shardherd.source import look_thread
from shardherd.source.kinesis import deleted
from shardherd.source.kinesis.client import Kinesis, KinesisUnavailableError, StreamAccess
from shardherd.source.kinesis.listing import ListedShard, describe, list_shards
from shardherd.source.kinesis.pacing import COUNTED, OF_LOOKS, OF_TASKS, WHOLE, Pace, Share
from shardherd.source.kinesis.range_reading import RangeReading
from shardherd.source.kinesis.ranges import RecordsLostError, ShardRecords
from shardherd.source.kinesis.searching import Bounds, Found
from shardherd.source.kinesis.shard_reader import ShardGoneError
from shardherd.spark.agent import Agent
from shardherd.spark.available_now import LOOKED_FOR
from shardherd.spark.batch_planner import Latest, ReaderSettings
from shardherd.spark.flow import Limits
from shardherd.spark.kinesis import next_ends
from shardherd.spark.kinesis.group_reader import GroupSlice, KinesisGroupReader
from shardherd.spark.kinesis.next_ends import NextEnds
from shardherd.spark.kinesis.options import KinesisSettings, in_group
from shardherd.spark.kinesis.planner import StreamService
from shardherd.spark.link import SOCKET_VARIABLE, AgentLink
from shardherd.spark.offsets import Offsets, parse
from shardherd.spark.options import OptionError
from shardherd.spark.pod import NotInPodError, read_pod
from shardherd.spark.runtime import AgentRuntime
from shardherd.spark.serve import ReaderServer
from shardherd.spark.source import ShardherdSource
from tests.harness.kinesis import REGION, PlayedKinesis, put, stream
from tests.unit.spark.simulated import GROUP, FakeCoordinator, FakeEnds, Scene, story
from tests.unit.spark.test_agent import holding, spans
from tests.unit.spark.test_pod import POD
from tests.unit.spark.test_serve import READER_SETTINGS, agent, until
from tests.unit.worker.test_kinesis_fetching import failing_once

__all__ = ["agent"]

FIRST, SECOND = "shardId-000000000000", "shardId-000000000001"
A, B = ShardId(f"orders/{FIRST}"), ShardId(f"orders/{SECOND}")
REACHED = {"stream": "orders", "region": REGION, "endpoint": "", "credentials": ""}
NOTHING = Offsets(GROUP)

N = 49590338271490256608559692538361571095921575989136588800
"""As Kinesis gives them: far above 63 bits."""


# --- the agent -----------------------------------------------------------------------------------------------------------


def test_the_agent_hands_out_up_to_the_end_that_was_looked_for_however_far_that_is() -> None:
    async def body(scene: Scene) -> None:
        start = await holding(scene, (A, 4, N), (B, 5, N + 7), records=10**40)
        end = await scene.agent.latest(start, 60)
        assert spans(end) == {A: (N, N + 10**40, 4), B: (N + 7, N + 7 + 10**40, 5)}
        assert await scene.agent.latest(end, 60) is end
        await scene.until(lambda: bool(scene.coordinator.checkpoints))
        assert scene.coordinator.checkpoints == [(A, 4, N + 10**40), (B, 5, N + 7 + 10**40)]
        assert parse(json.dumps(end.as_dict()), GROUP) == end

    story(body)


def test_what_it_is_about_does_not_depend_on_how_far_apart_positions_are() -> None:
    async def body(scene: Scene) -> None:
        start = await holding(scene, (A, 4, N), records=10**40)
        assert scene.agent.readiness().phase is Phase.READING
        end = await scene.agent.latest(start, None)
        assert await scene.agent.latest(end, None) is end
        assert scene.agent.readiness().phase is Phase.IDLE
        assert scene.agent.batch_sizing.bound == 50_000

    story(body)


def test_available_now_reads_up_to_what_there_was_as_far_as_the_ends_of_micro_batches_are_found() -> None:
    async def body(scene: Scene) -> None:
        scene.end_offsets.reach = {A: N + 100, B: 0}
        prepared = asyncio.create_task(scene.agent.prepare_available_now())
        await asyncio.sleep(5)
        assert not prepared.done()
        scene.coordinator.assign((A, 4, N), (B, 5, N))
        await scene.until(prepared.done)
        assert (await scene.agent.latest(NOTHING, None), scene.agent.unread()) == (NOTHING, True), "it is looked for yet"
        scene.end_offsets.end_offsets = {A: N + 60}
        end = await scene.agent.latest(NOTHING, None)
        assert spans(end) == {A: (N, N + 60, 4), B: (N, N, 5)}
        assert (await scene.agent.latest(end, None), scene.agent.unread()) == (end, True), "Kinesis has nothing for a moment"
        scene.end_offsets.end_offsets = {A: N + 500, B: N + 500}
        end = await scene.agent.latest(end, None)
        assert spans(end) == {A: (N + 60, N + 100, 4), B: (N, N, 5)}
        assert (await scene.agent.latest(end, None), scene.agent.unread()) == (end, False)
        scene.agent.query_ended()
        assert spans(await scene.agent.latest(end, None)) == {A: (N + 100, N + 500, 4), B: (N, N + 500, 5)}, "the next query"

    story(body)


def test_available_now_does_not_wait_for_what_has_moved_and_leaves_out_what_came_later() -> None:
    async def body(scene: Scene) -> None:
        scene.end_offsets.reach = {A: N + 100, B: N + 100}
        scene.coordinator.assign((A, 4, N))
        await scene.agent.prepare_available_now()
        assert scene.agent.unread()
        scene.coordinator.assign((B, 5, N))
        scene.end_offsets.end_offsets = {A: N + 60, B: N + 60}
        await scene.until(lambda: scene.agent.tracker.positions().keys() == {B})
        assert (await scene.agent.latest(NOTHING, None), scene.agent.unread()) == (NOTHING, False)
        scene.coordinator.assign((A, 6, N + 60), (B, 5, N))
        await scene.until(lambda: scene.agent.tracker.positions().keys() == {A, B})
        scene.end_offsets.end_offsets = {A: N + 200, B: N + 60}
        assert spans(await scene.agent.latest(NOTHING, None)) == {A: (N + 60, N + 100, 6), B: (N, N, 5)}, "it came back"

    story(body)


def test_while_it_is_asked_how_far_its_shards_reach_others_may_come_and_are_asked_for_alone() -> None:
    async def body(scene: Scene) -> None:
        ends = scene.end_offsets
        ends.reach, ends.answers = {A: N + 100, B: N + 7}, asyncio.Event()
        scene.coordinator.assign((A, 4, N))
        prepared = asyncio.create_task(scene.agent.prepare_available_now())
        await scene.until(lambda: {A} in ends.asked)
        scene.coordinator.assign((A, 4, N), (B, 5, N))
        await scene.until(lambda: B in scene.agent.tracker.positions())
        ends.answers.set()
        await scene.until(prepared.done)
        assert ends.asked == [{A}, {B}]
        ends.end_offsets = {A: N + 500, B: N + 500}
        assert spans(await scene.agent.latest(NOTHING, None)) == {A: (N, N + 100, 4), B: (N, N + 7, 5)}

    story(body)


@pytest.mark.parametrize("away", [False, True])
def test_what_is_not_found_for_a_minute_is_handed_out_unless_kinesis_is_away(away: bool) -> None:
    async def body(scene: Scene) -> None:
        scene.end_offsets.reach = {A: N + 100}
        scene.coordinator.assign((A, 4, N))
        await scene.agent.prepare_available_now()
        await asyncio.sleep(LOOKED_FOR - 1.0)
        assert (await scene.agent.latest(NOTHING, None), scene.agent.unread()) == (NOTHING, True)
        scene.end_offsets.away = away
        await asyncio.sleep(1.0)
        assert spans(await scene.agent.latest(NOTHING, None)) == ({} if away else {A: (N, N + 100, 4)})
        assert scene.agent.unread() is away

    story(body)


def test_a_query_of_available_now_that_drains_or_is_refused_ends_although_it_has_not_read_all() -> None:
    async def body(scene: Scene) -> None:
        scene.end_offsets.reach = {A: N + 100}
        scene.coordinator.assign((A, 4, N))
        await scene.agent.prepare_available_now()
        assert scene.agent.unread()
        assert await scene.agent.drain(scene.loop.time() + 30)
        assert not scene.agent.unread()

    story(body)


@pytest.fixture
async def server(agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ReaderServer]:
    monkeypatch.setenv(SOCKET_VARIABLE, str(tmp_path / "agent.sock"))
    settings = {**READER_SETTINGS, "bootstrapServers": "", "kinesis": REACHED}
    made = ReaderServer(agent, tmp_path / "agent.sock", settings, read_committed=lambda _: None)
    await made.start()
    yield made
    await made.close()


async def test_a_stream_reader_is_told_how_the_stream_is_reached(agent: Agent, server: ReaderServer) -> None:
    link = AgentLink(Limits(max_span=5.0))
    await asyncio.to_thread(link.replay, Offsets(GROUP).as_dict())
    assert link.reader_settings == ReaderSettings(GROUP, "", 1, {}, kinesis=REACHED)
    assert agent.limits.max_span == 5.0
    link.close()


async def test_a_stream_reader_is_told_that_there_is_more_to_read_up_to_what_there_was(
    agent: Agent, server: ReaderServer
) -> None:
    coordinator, ends = agent.session._coordinator, agent._end_offsets
    assert isinstance(coordinator, FakeCoordinator)
    assert isinstance(ends, FakeEnds)
    ends.reach, ends.end_offsets = {A: N + 100}, {}
    coordinator.assign((A, 4, N))
    link, start = AgentLink(Limits()), Offsets(GROUP).as_dict()
    await asyncio.to_thread(link.prepare)
    assert await asyncio.to_thread(link.latest, start, once=False) == Latest(None, {}, unread=True)
    ends.end_offsets = {A: N + 200}
    found = await asyncio.to_thread(link.latest, start, once=False)
    assert found.end is not None
    assert (spans(parse(found.end, GROUP)), found.unread) == ({A: (N, N + 100, 4)}, False)
    assert not (await asyncio.to_thread(link.latest, found.end, once=False)).unread
    link.close()


# --- where a micro-batch ends --------------------------------------------------------------------------------------------


class Shards:
    """Shards of a stream, what follows in each, and what was asked."""

    def __init__(self, *shards: ListedShard) -> None:
        self.listed = shards
        self.following: dict[str, Found | Exception] = {}
        self.asked: list[tuple[str, Offset, Bounds]] = []
        self.latest: dict[str, int | Exception] = {}
        """The newest record of each shard."""
        self.asked_newest: list[str] = []

    def shards(self) -> tuple[ListedShard, ...]:
        return self.listed

    def newest(self, shard: ListedShard) -> int | None:
        self.asked_newest.append(shard.id)
        found = self.latest.get(shard.id)
        if isinstance(found, Exception):
            raise found
        return found

    def next(self, shard: ListedShard, position: int, bounds: Bounds) -> Found | None:
        self.asked.append((shard.id, position, bounds))
        found = self.following.get(shard.id)
        if isinstance(found, Exception):
            raise found
        return found if found is not None and found.stop > position else None


def shard(name: str, end: Offset | None = None) -> ListedShard:
    return ListedShard(name, N, end, (), (0, 2**128 - 1))


class Watched:
    """What is known of the ends of shards that are held at these positions."""

    def __init__(self, service: Shards, **positions: Offset) -> None:
        self.service = service
        self.positions = {ShardId(f"orders/shardId-{name.removeprefix('s')}"): at for name, at in positions.items()}
        self.limits = Limits()
        self.changed = threading.Event()
        self.ends = NextEnds(service, self.changed.set, lambda: (self.positions, self.limits), interval=0.01)

    def __enter__(self) -> Watched:
        self.watch()
        self.ends.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ends.close()

    def watch(self, epoch: int = 1) -> None:
        self.ends.watch(dict.fromkeys(self.positions, epoch))

    def until(self, known: Mapping[ShardId, Offset]) -> None:
        deadline = boot_time() + 10
        while self.ends.known() != known:
            assert boot_time() < deadline, self.ends.known()
            self.changed.wait(0.01)


def test_behind_the_position_of_each_shard_an_end_is_looked_for_and_known_until_it_is_passed() -> None:
    service = Shards(shard(FIRST), shard(SECOND))
    service.following[FIRST] = Found(N + 16, N + 33)
    with Watched(service, s000000000000=N + 1, s000000000001=N + 2) as watched:
        watched.until({A: N + 33})
        assert not watched.ends.failing()
        asked = len([each for each in service.asked if each[0] == FIRST])
        assert asked == 1, "what is known is not looked for again"
        service.following[FIRST] = Found(N + 48, N + 65)
        watched.positions[A] = N + 33
        watched.until({A: N + 65})
    assert {each[1:] for each in service.asked if each[0] == FIRST} == {
        (N + 1, Bounds(next_ends.SPAN)),
        (N + 33, Bounds(next_ends.SPAN)),
    }


def test_an_end_that_was_found_before_a_reset_is_not_known_any_more_when_the_shard_is_granted_anew() -> None:
    service = Shards(shard(FIRST), shard(SECOND))
    service.following = {FIRST: Found(N + 900, N + 901), SECOND: Found(N + 16, N + 17)}
    with Watched(service, s000000000000=N + 800, s000000000001=N + 2) as watched:
        watched.until({A: N + 901, B: N + 17})
        service.following[FIRST] = Found(N + 16, N + 33)
        watched.positions[A] = N
        watched.ends.watch({A: 2, B: 1})
        assert watched.ends.known().get(A) in (None, N + 33), (
            "a micro-batch from the new position must not reach to the old end"
        )
        watched.until({A: N + 33, B: N + 17})


def test_an_end_that_is_found_while_the_shard_is_granted_anew_is_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    service, asked, may_answer = Shards(shard(FIRST)), threading.Event(), threading.Event()
    service.following[FIRST] = Found(N + 900, N + 901)
    answer = service.next

    def late(listed: ListedShard, position: int, bounds: Bounds) -> Found | None:
        found = answer(listed, position, bounds)
        asked.set()
        assert may_answer.wait(10)
        return found

    monkeypatch.setattr(service, "next", late)
    with Watched(service, s000000000000=N + 800) as watched:
        assert asked.wait(10)
        service.following[FIRST] = Found(N + 16, N + 33)
        watched.positions[A] = N
        watched.watch(2)
        may_answer.set()
        watched.until({A: N + 33})
    assert [each[1] for each in service.asked] == [N + 800, N]


class BeforeIt:
    """A lock; before it is taken for the first time, this is called."""

    def __init__(self, first: Callable[[], None]) -> None:
        self._lock = threading.Lock()
        self._first: list[Callable[[], None]] = [first]

    def __enter__(self) -> None:
        while self._first:
            self._first.pop()()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_a_look_that_begins_while_a_grant_becomes_another_one_takes_nothing_of_before_for_a_find(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service, asked, may_answer = Shards(shard(FIRST), shard(SECOND)), threading.Event(), threading.Event()
    service.following[FIRST] = Found(N + 900, N + 901)
    watched = Watched(service, s000000000000=N + 800, s000000000001=N + 2)
    watched.watch()
    with ThreadPoolExecutor(1) as beside:
        watched.ends._look()
        assert watched.ends.known() == {A: N + 901}
        answer = service.next

        def late(listed: ListedShard, position: int, bounds: Bounds) -> Found | None:
            asked.set()
            assert may_answer.wait(10)
            return answer(listed, position, bounds)

        def look() -> None:
            looks.append(beside.submit(watched.ends._look))
            assert asked.wait(10), "the other shard, of which nothing is known"

        looks: list[Future[float | None]] = []
        monkeypatch.setattr(service, "next", late)
        monkeypatch.setattr(watched.ends, "_keeping", BeforeIt(look))
        watched.positions[A] = N
        watched.watch(2)
        may_answer.set()
        looks[0].result(10)
    assert watched.ends.known() == {}


def test_limits_are_in_equal_parts_for_the_shards_that_are_looked_at() -> None:
    service = Shards(shard(FIRST), shard(SECOND))
    service.following = {FIRST: Found(N + 16, N + 17), SECOND: Found(N + 32, N + 33)}
    watched = Watched(service, s000000000000=N, s000000000001=N)
    watched.limits = Limits(max_records=10, max_bytes=3, max_span=5.0)
    with watched:
        watched.until({A: N + 17, B: N + 33})
    assert {each[2] for each in service.asked} == {Bounds(5.0, 5, 1)}


def test_a_closed_shard_ends_where_its_listing_says_and_is_asked_for_no_more() -> None:
    service = Shards(shard(FIRST, N + 100))
    service.following[FIRST] = Found(N + 100, N + 100)
    with Watched(service, s000000000000=N + 17) as watched:
        watched.until({A: N + 100})
        watched.positions[A] = N + 100
        asked = len(service.asked)
        listed = service.listed
        watched.changed.clear()
        service.following[SECOND] = Found(N + 200, N + 201)
        service.listed = (*listed, shard(SECOND))
        watched.ends._listed_at = float("-inf")
        watched.positions[B] = N
        watched.watch()
        watched.until({A: N + 100, B: N + 201})
        assert [each[0] for each in service.asked[asked:]] == [SECOND]


def test_kinesis_that_is_away_is_told_once_and_then_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    service = Shards(shard(FIRST))
    service.following[FIRST] = KinesisUnavailableError("no answer")
    with Watched(service, s000000000000=N) as watched:
        deadline = boot_time() + 10
        while len(service.asked) < 3:
            assert boot_time() < deadline
            watched.changed.wait(0.01)
        assert watched.ends.failing()
        service.following[FIRST] = Found(N + 16, N + 17)
        watched.until({A: N + 17})
        assert not watched.ends.failing()
    told = [record.message for record in caplog.records if record.name == next_ends.__name__]
    assert told == ["cannot learn what follows in the shards, trying on: no answer", "Kinesis answers again"]


async def test_how_far_shards_reach_is_looked_for_until_it_is_known_of_each(caplog: pytest.LogCaptureFixture) -> None:
    ids = [f"shardId-{number:012}" for number in range(5)]
    service = Shards(shard(ids[0]), shard(ids[1]), shard(ids[2], N + 900), shard(ids[3]))
    service.latest = {ids[0]: N + 16, ids[1]: KinesisUnavailableError("no answer"), ids[3]: ShardGoneError("it is gone")}
    with Watched(service, s000000000000=N) as watched:
        names = [ShardId(f"orders/{each}") for each in ids]
        asking = asyncio.create_task(watched.ends.reached(names))
        await until(lambda: service.asked_newest.count(ids[1]) >= 2)
        assert not asking.done()
        del service.latest[ids[1]]
        assert await asking == {
            names[0]: N + 17,
            names[1]: 0,  # it has no records
            names[2]: N + 900,  # closed
            names[3]: 0,  # it vanishes
            names[4]: 0,  # it is listed no more
        }
    assert service.asked_newest.count(ids[0]) == 1, "what is known is not asked again"
    assert "cannot learn what follows in the shards, trying on: no answer" in caplog.text


async def test_nobody_is_answered_who_asks_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look_thread, "RETRY_DELAY", 0.01)
    service = Shards(shard(FIRST))
    service.latest[FIRST] = KinesisUnavailableError("no answer")
    with Watched(service, s000000000000=N) as watched:
        asking = asyncio.create_task(watched.ends.reached([A]))
        await until(lambda: bool(service.asked_newest))
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        service.latest[FIRST] = N + 16
        assert await watched.ends.reached([A]) == {A: N + 17}


# --- the tasks -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def orders(kinesis: PlayedKinesis, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("SHARDHERD_KINESIS_STREAM", "orders")
    with stream(kinesis, "orders") as client:
        yield client


class Planner:
    """An agent that has handed out these ranges."""

    def __init__(self, service: PlayedKinesis) -> None:
        kinesis = {"stream": "orders", "region": REGION, "endpoint": service.url, "credentials": ""}
        self.reader_settings = ReaderSettings(GROUP, "", 2, kinesis=kinesis)
        self.ordered = True
        self.end: dict[str, Any] | None = None
        self.answers: list[Latest] = []

    def latest(self, start: dict[str, Any], *, once: bool) -> Latest:
        return self.answers.pop(0) if self.answers else Latest(self.end, {})

    def replay(self, end: dict[str, Any]) -> frozenset[ShardId]:
        return frozenset(parse(end, GROUP).shards)

    def prepare(self) -> None:
        raise AssertionError("not asked for")

    def close(self) -> None:
        pass


def reader_of(service: PlayedKinesis, **options: str) -> tuple[KinesisGroupReader, Planner]:
    source = ShardherdSource(options)
    made = source.streamReader(source.schema())
    assert isinstance(made, KinesisGroupReader)
    planner = Planner(service)
    made._batch_planner = planner
    return made, planner


def offsets(*ranges: tuple[ShardId, Offset, Offset], warm: int = 1) -> dict[str, Any]:
    return Offsets(GROUP, warm, {shard: ReadRange(start, stop, 4) for shard, start, stop in ranges}).as_dict()


def rows(reader: KinesisGroupReader, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[str, str]]:
    """What the tasks of a micro-batch read, each in a worker that got nothing but what Spark pickles."""
    found: list[tuple[str, str]] = []
    for task in reader.partitions(start, end):
        there, given = cloudpickle.loads(cloudpickle.dumps((reader, task)))  # type: ignore[no-untyped-call]
        for batch in there.read(given):
            found += [(row["shard"], row["value"].decode()) for row in batch.to_pylist()]
    return found


def write(client: Any, *texts: str) -> None:
    put(client, "orders", [("k", text.encode()) for text in texts])


def test_a_micro_batch_has_what_is_between_its_positions_and_the_same_when_it_is_replayed(
    kinesis: PlayedKinesis, orders: Any
) -> None:
    write(orders, *"abcd")
    one, two, three, _ = kinesis.numbers("orders", FIRST)
    begin = int(kinesis.shard("orders", FIRST).begin)
    reader, planner = reader_of(kinesis)
    start, end = offsets((A, begin, begin)), offsets((A, begin, two + 1))
    planner.end = end
    assert reader.latestOffset(start, reader.getDefaultReadLimit()) == end
    assert rows(reader, start, end) == [(A, "a"), (A, "b")]
    later = offsets((A, two + 1, three + 1))
    assert rows(reader, end, later) == [(A, "c")]
    write(orders, "e")
    again, _ = reader_of(kinesis)
    assert rows(again, start, end) == [(A, "a"), (A, "b")]
    assert rows(again, end, later) == [(A, "c")]
    assert reader.reportLatestOffset() is None
    assert one < two


def test_a_query_that_must_not_end_yet_is_told_so_until_there_is_something(kinesis: PlayedKinesis, orders: Any) -> None:
    reader, planner = reader_of(kinesis)
    end = offsets((A, N, N + 1))
    planner.answers = [Latest(None, {}, unread=True), Latest(None, {}, unread=True), Latest(end, {})]
    assert reader.latestOffset(offsets(), reader.getDefaultReadLimit()) == end
    assert planner.answers == []


def test_a_position_of_a_reset_may_stand_anywhere_between_records(kinesis: PlayedKinesis, orders: Any) -> None:
    write(orders, *"abc")
    one, two, three = kinesis.numbers("orders", FIRST)
    reader, _ = reader_of(kinesis)
    assert rows(reader, offsets(), offsets((A, one + 5, three + 1))) == [(A, "b"), (A, "c")]
    assert rows(reader, offsets(), offsets((A, two, three + 1))) == [(A, "b"), (A, "c")]


def test_the_rest_of_a_closed_shard_is_its_end(kinesis: PlayedKinesis, orders: Any) -> None:
    write(orders, "a")
    orders.split_shard(StreamName="orders", ShardToSplit=FIRST, NewStartingHashKey=str(2**127))
    (number,) = kinesis.numbers("orders", FIRST)
    end = int(kinesis.shard("orders", FIRST).end) + 1
    reader, _ = reader_of(kinesis)
    assert rows(reader, offsets(), offsets((A, number + 1, end))) == []
    assert rows(reader, offsets(), offsets((A, number, end))) == [(A, "a")]


def test_a_warm_up_has_a_task_for_every_slot_and_empty_ranges_have_none(kinesis: PlayedKinesis, orders: Any) -> None:
    reader, _ = reader_of(kinesis)
    warm = reader.partitions(offsets(warm=0), offsets(warm=1))
    assert [(type(each), each.ranges) for each in warm if isinstance(each, GroupSlice)] == [(GroupSlice, ()), (GroupSlice, ())]
    assert rows(reader, offsets(warm=0), offsets(warm=1)) == []
    assert reader.partitions(offsets((A, N, N)), offsets((A, N, N), (B, N, N))) == []


@pytest.mark.parametrize(
    ("options", "share"),
    [({}, OF_TASKS), ({"maxOffsetsPerTrigger": "10"}, COUNTED), ({"maxBytesPerTrigger": "10"}, COUNTED)],
)
def test_tasks_leave_the_driver_what_it_needs_to_look_ahead_meanwhile(
    options: dict[str, str], share: Share, kinesis: PlayedKinesis, orders: Any
) -> None:
    reader, _ = reader_of(kinesis, **options)
    tasks = reader.partitions(offsets((A, N, N)), offsets((A, N, N + 1)))
    assert [each.settings.of_tasks for each in tasks if isinstance(each, GroupSlice)] == [share]


@pytest.mark.parametrize(
    ("executors", "bounds", "rate"),
    [
        (False, Bounds(60.0), WHOLE.rate),
        (True, Bounds(60.0), OF_LOOKS.rate),
        (True, Bounds(60.0, records=1000), COUNTED.rate),
    ],
)
def test_a_driver_looks_ahead_with_what_its_tasks_leave_if_those_are_elsewhere(
    executors: bool, bounds: Bounds, rate: float, kinesis: PlayedKinesis, orders: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    write(orders, "a" * 900_000)
    settings = KinesisSettings("orders", REGION, kinesis.url)
    service = StreamService(settings, executors=executors)
    (listed,) = service.shards()
    before = boot_time()
    assert service.next(listed, listed.begin, bounds) is not None
    (_, _, size), after = kinesis.played.read[-1], boot_time()
    assert before - 0.01 < settings.pace().due(FIRST) - size / rate < after + 0.01


@pytest.mark.parametrize(("instances", "elsewhere"), [("0", False), ("2", True)])
def test_a_driver_knows_whether_its_tasks_run_elsewhere(
    instances: str, elsewhere: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[bool] = []

    def service(settings: KinesisSettings, *, executors: bool) -> StreamService:
        said.append(executors)
        return StreamService(settings, executors=executors)

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("shardherd.spark.kinesis.planner.StreamService", service)
    stream_of = {"SHARDHERD_KINESIS_STREAM": "orders", "SHARDHERD_KINESIS_REGION": REGION}
    AgentRuntime(read_pod(POD | stream_of | {"SHARDHERD_EXECUTOR_INSTANCES": instances}))._next_ends()
    assert said == [elsewhere]


def reading(service: PlayedKinesis, first: Offset, stop: Offset, *, fail: bool = True) -> list[bytes]:
    kinesis = Kinesis(StreamAccess("orders", REGION, service.url), client=service.client)
    (listed,) = list_shards(kinesis)
    wanted = ShardRecords(FIRST, first, stop, listed.hashes, listed.begin)
    found = RangeReading(kinesis, Pace(Share(1e6, 1e15)), [wanted], fail_on_data_loss=fail)
    return [record.data for _, records in found.records() for record in records]


@pytest.mark.parametrize("hours", [2, 23])
def test_a_range_before_which_the_last_record_is_gone_is_lost_only_if_retention_has_caught_up(
    kinesis: PlayedKinesis, orders: Any, hours: int, caplog: pytest.LogCaptureFixture
) -> None:
    write(orders, "read", "next")
    read, following = kinesis.numbers("orders", FIRST)
    kinesis.trim("orders", FIRST, following)
    kinesis.age("orders", FIRST, lambda _: hours * 3600)
    if hours == 23:
        with pytest.raises(RecordsLostError, match=f"{A}: records from {read + 1} up to {following} are lost.*reset the shard"):
            reading(kinesis, read + 1, following + 1)
    assert reading(kinesis, read + 1, following + 1, fail=hours != 23) == [b"next"]
    assert str(read + 1) in caplog.text


def test_nothing_of_a_range_is_lost_where_the_retention_cannot_be_asked_for_at_once(
    kinesis: PlayedKinesis, orders: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(orders, "read", "next", "last")
    read, following, last = kinesis.numbers("orders", FIRST)
    kinesis.trim("orders", FIRST, following)
    monkeypatch.setattr(deleted, "describe", failing_once(describe))
    assert reading(kinesis, read + 1, last + 1) == [b"next", b"last"]


# --- options and the pod -------------------------------------------------------------------------------------------------


def test_a_query_reads_the_stream_of_its_group_unless_it_names_another_source() -> None:
    pod = {"SHARDHERD_KINESIS_STREAM": "orders"}
    assert in_group({}, pod)
    assert in_group({"kinesis.maxSpanPerTrigger": "5s"}, pod)
    assert not in_group({}, {})
    assert not in_group({"Kinesis.Stream": "others"}, pod)
    assert not in_group({"kafka.bootstrap.servers": "kafka:9092"}, pod)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"startingOffsets": "earliest"}, "option startingOffsets has no meaning in a ConsumerGroup, which says itself"),
        ({"kinesis.region": "eu-central-1"}, "option kinesis.region has no meaning in a ConsumerGroup"),
        ({"includeHeaders": "true"}, "option includeHeaders has no meaning for Kinesis: records of Kinesis have no headers"),
        ({"maxOffsetsPerTrigger": "0"}, "option maxOffsetsPerTrigger must be a whole number above 0"),
    ],
)
def test_an_option_that_has_no_meaning_there_is_refused(orders: Any, options: dict[str, str], why: str) -> None:
    def read() -> None:
        source = ShardherdSource(options)
        source.streamReader(source.schema())

    with pytest.raises(OptionError, match=why):
        read()


def test_options_bound_its_micro_batches(kinesis: PlayedKinesis, orders: Any) -> None:
    reader, _ = reader_of(kinesis, **{"kinesis.maxSpanPerTrigger": "5s", "maxBytesPerTrigger": "9", "failOnDataLoss": "false"})
    assert (reader._settings.limits, reader._settings.fail_on_data_loss) == (Limits(max_bytes=9, max_span=5.0), False)


def test_a_driver_pod_of_a_group_that_reads_kinesis_needs_no_kafka() -> None:
    pod = {name: text for name, text in POD.items() if name != "SHARDHERD_KAFKA_BOOTSTRAP_SERVERS"}
    stream_of = {"SHARDHERD_KINESIS_STREAM": "orders", "SHARDHERD_KINESIS_REGION": REGION}
    assert read_pod(pod | stream_of).kinesis == {"stream": "orders", "region": REGION, "endpoint": "", "credentials": ""}
    assert read_pod(POD).kinesis is None
    with pytest.raises(NotInPodError, match="not set here: SHARDHERD_KAFKA_BOOTSTRAP_SERVERS"):
        read_pod(pod)
    with pytest.raises(NotInPodError, match="SHARDHERD_KINESIS_REGION is not set"):
        read_pod(pod | {"SHARDHERD_KINESIS_STREAM": "orders"})


def test_the_real_service_finds_where_a_micro_batch_of_a_group_ends(kinesis: PlayedKinesis, orders: Any) -> None:
    write(orders, *"abc")
    numbers, begin = kinesis.numbers("orders", FIRST), int(kinesis.shard("orders", FIRST).begin)
    service = StreamService(KinesisSettings("orders", REGION, kinesis.url))
    known = threading.Event()
    ends = NextEnds(service, known.set, lambda: ({A: begin}, Limits()))
    ends.watch({A: 1})
    ends.start()
    try:
        assert known.wait(20)
        assert ends.known() == {A: numbers[-1] + 1}
    finally:
        ends.close()
