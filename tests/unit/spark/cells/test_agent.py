"""The agent of a consumer that runs cells, in simulated time against a simulated coordinator."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from msgspec import UNSET
from msgspec.structs import replace as told

from shardherd.core.consumer.cells import CellStart
from shardherd.core.consumer.settings import SessionSettings
from shardherd.core.consumer.tracker import ReadRange
from shardherd.core.model.gauges import Gauge, GaugeKind
from shardherd.core.model.nouns import FailingCell, Heartbeat, HeartbeatReply, Phase, ShardId
from shardherd.spark.cells.agent import CellAgent, _shown
from shardherd.spark.cells.logged import committed_by
from shardherd.spark.cells.readers import CellReader, NoCellError
from shardherd.spark.cells.serve import CellServer
from shardherd.spark.decode_stats import ReceivedCounts, new_address
from shardherd.spark.flow import Limits
from shardherd.spark.metrics import AgentMetrics, serve_http
from shardherd.spark.offsets import Offsets
from shardherd.spark.running_batch import Running, ranges_of
from tests.unit.spark.simulated import GROUP, ME, RUN, FakeCoordinator, FakeEnds, Observed, simulate

A0, A1, A2, B0, B2 = (ShardId(name) for name in ("clicks/0", "clicks/1", "clicks/2", "views/0", "views/2"))
NOTHING = Offsets(GROUP)


class CellCoordinator(FakeCoordinator):
    """That of a group of two cells, whose state begins at 0 unless `starts` says otherwise."""

    starts: dict[str, int] = {}  # noqa: RUF012  (replaced by tests)
    generation = 0

    async def heartbeat(self, heartbeat: Heartbeat, wait: float) -> HeartbeatReply:
        reply = await super().heartbeat(heartbeat, wait)
        confirmed = tuple(told(each, start=self.starts.get(each.shard, 0)) for each in reply.confirmed)
        return HeartbeatReply(reply.revision, confirmed, paused=reply.paused, cells=2, state_generation=self.generation)


class Scene:
    def __init__(self) -> None:
        self.coordinator = CellCoordinator()
        self.ends = FakeEnds({A0: 100, A1: 100, A2: 100, B0: 50})
        self.stopped: list[str] = []
        loop = asyncio.get_running_loop()
        settings = SessionSettings(GROUP, ME, RUN)
        self.agent = CellAgent(settings, self.coordinator, self.ends, Observed(), self._stop, loop.time)
        self.task = loop.create_task(self.agent.run())

    async def _stop(self, reason: str) -> None:
        self.stopped.append(reason)

    async def holding(self, *shards: tuple[str, int, int], trigger_interval: float = 0.0) -> None:
        self.agent.warmed(trigger_interval)
        self.coordinator.assign(*shards)
        await self.until(lambda: len(self.agent.ledger.shards) == len(shards))

    def order(self, cell: int) -> CellStart:
        return next(each for each in self.agent.ledger.to_start() if each.cell == cell)

    async def query(self, cell: int, *topics: str) -> CellReader:
        """The query of this cell is started, and its reader is there."""
        start = self.agent.began(self.order(cell))
        assert start is not None
        return self.agent.reader_began(cell, start, frozenset(topics), Limits())

    async def until(self, true: Callable[[], bool]) -> None:
        for _ in range(10_000):
            if true():
                return
            await asyncio.sleep(0.01)
        raise AssertionError("it never happened")


def story(body: Callable[[Scene], Awaitable[Any]]) -> None:
    async def play() -> None:
        scene = Scene()
        try:
            await body(scene)
        finally:
            scene.task.cancel()
            await asyncio.gather(scene.task, return_exceptions=True)

    simulate(play)


def spans(end: Offsets) -> dict[str, tuple[int, int, int]]:
    return {shard: (each.start, each.stop, each.epoch) for shard, each in end.shards.items()}


def test_no_cell_is_granted_before_it_is_warm_and_all_that_are_held_are_ordered_to_start() -> None:
    async def body(scene: Scene) -> None:
        await scene.until(lambda: bool(scene.coordinator.heartbeats))
        assert not scene.coordinator.heartbeats[-1].ready
        await scene.holding((A0, 1, 0), (A1, 2, 0), (A2, 3, 0))
        orders = await scene.agent.orders(1.0)
        assert ([each.cell for each in orders.start], orders.stop, orders.over) == ([0, 1], (), False)

    story(body)


def test_a_query_goes_on_where_sparks_log_ends_and_not_where_the_coordinator_stands() -> None:
    async def body(scene: Scene) -> None:
        await scene.holding((A0, 7, 10), (A2, 8, 0))
        reader = await scene.query(0)
        logged = Offsets(GROUP, 0, {A0: ReadRange(20, 40, 3), A2: ReadRange(0, 5, 2), B0: ReadRange(1, 2, 1)})
        end = await scene.agent.latest(reader, logged, 30)
        assert spans(end) == {A0: (40, 52, 7), A2: (5, 23, 8), B0: (2, 2, 1)}, "what is not held stays in the log"
        batch = scene.agent.batch(0)
        assert batch is not None
        assert dict(batch.ranges) == {A0: (40, 52, 7), A2: (5, 23, 8)}

    story(body)


def test_two_readers_of_one_query_read_their_topics() -> None:
    async def body(scene: Scene) -> None:
        await scene.holding((A0, 1, 0), (B0, 2, 0))
        agent = scene.agent
        start = agent.began(scene.order(0))
        assert start is not None
        clicks, views = (agent.reader_began(0, start, frozenset({topic}), Limits()) for topic in ("clicks", "views"))
        assert spans(await agent.latest(clicks, NOTHING, None)) == {A0: (0, 100, 1)}
        assert spans(await agent.latest(views, NOTHING, None)) == {B0: (0, 50, 2)}
        batch = agent.batch(0)
        assert batch is not None
        assert batch.ranges.keys() == {A0, B0}

    story(body)


def test_micro_batches_without_records_have_no_ranges_be_they_run_again_or_one_after_the_other() -> None:
    async def body(scene: Scene) -> None:
        await scene.holding((A0, 1, 0))
        reader = await scene.query(0)
        # Spark asks no reader of a micro-batch that it had planned without records: of windows that were over, say.
        assert told_of(scene.agent, 4) == {}
        assert told_of(scene.agent, 4) == {}, "asked twice"
        read = await scene.agent.latest(reader, NOTHING, None)
        assert told_of(scene.agent, 5) == {A0: (0, 100, 1)}
        for batch_id in (6, 7):
            await scene.agent.latest(reader, read, None)
            assert told_of(scene.agent, batch_id) == {}

    story(body)


def test_a_query_that_is_to_be_stopped_may_still_begin_a_micro_batch_without_records() -> None:
    async def body(scene: Scene) -> None:
        await scene.holding((A0, 1, 0))
        reader = await scene.query(0)
        read = await scene.agent.latest(reader, NOTHING, None)
        assert told_of(scene.agent, 5) == {A0: (0, 100, 1)}
        scene.coordinator.assign()
        await scene.until(lambda: scene.agent.ledger.to_stop() == (0,))
        assert await scene.agent.latest(reader, read, None) is read
        assert told_of(scene.agent, 6) == {}

    story(body)


def told_of(agent: CellAgent, batch_id: int) -> dict[str, tuple[int, int, int]]:
    """What a sink is told that this micro-batch of cell 0 has read."""
    return dict(ranges_of(agent.batch(0), GROUP, batch_id, Running("run", batch_id)))


def test_what_was_logged_and_not_finished_is_read_again_whoever_planned_it() -> None:
    async def body(scene: Scene) -> None:
        await scene.holding((A0, 9, 10))
        reader = await scene.query(0)
        logged = Offsets(GROUP, 0, {A0: ReadRange(10, 40, 2), A2: ReadRange(0, 5, 3), B0: ReadRange(4, 4, 1)})
        assert scene.agent.replay(reader, logged) == (A0, A2)

    story(body)


def test_a_micro_batch_is_of_the_topic_that_it_was_planned_for_also_when_it_is_read_again() -> None:
    async def body(scene: Scene) -> None:
        scene.coordinator.source_ids = {A0: "id-2", B0: "id-9"}
        await scene.holding((A0, 9, 10), (B0, 9, 0))
        reader = await scene.query(0)
        logged = Offsets(GROUP, 0, {A0: ReadRange(10, 40, 2)}, {"clicks": "id-1"})
        scene.agent.replay(reader, logged)
        again = scene.agent.batch(0)
        end = await scene.agent.latest(reader, logged, None)
        batch = scene.agent.batch(0)
        assert again is not None
        assert batch is not None
        assert again.topic_ids == {A0: "id-1"}
        assert end.topics == {"clicks": "id-2", "views": "id-9"}
        assert batch.topic_ids == {A0: "id-2", B0: "id-9"}

    story(body)


def test_a_topic_that_comes_again_as_another_one_is_read_from_where_it_begins() -> None:
    async def body(scene: Scene) -> None:
        scene.coordinator.source_ids = {A0: "id-1"}
        await scene.holding((A0, 1, 0))
        reader = await scene.query(0)
        left = {A0: ReadRange(0, 40, 1), B0: ReadRange(0, 30, 1), B2: ReadRange(0, 30, 1)}
        kept = await scene.agent.latest(reader, Offsets(GROUP, 0, left, {"clicks": "id-1", "views": "id-8"}), 10)
        assert spans(kept) == {A0: (40, 50, 1), B0: (30, 30, 1), B2: (30, 30, 1)}
        assert kept.topics == {"clicks": "id-1", "views": "id-8"}

        scene.coordinator.source_ids[B0] = "id-9"
        scene.coordinator.assign((A0, 1, 0), (B0, 5, 0))
        await scene.until(lambda: B0 in scene.agent.ledger.readable(0))
        scene.agent.committed(0, committed_by([json.dumps(kept.as_dict())], GROUP))
        await scene.until(lambda: scene.coordinator.checkpoints == [(A0, 1, 50)])
        end = await scene.agent.latest(reader, kept, None)
        assert spans(end) == {A0: (50, 100, 1), B0: (0, 50, 5)}, "what is left of the topic before is no place in this one"
        assert end.topics == {"clicks": "id-1", "views": "id-9"}
        scene.agent.committed(0, committed_by([json.dumps(end.as_dict())], GROUP))
        await scene.until(lambda: scene.coordinator.checkpoints[1:] == [(A0, 1, 100), (B0, 5, 50)])

    story(body)


def test_a_topic_that_comes_again_as_the_same_one_goes_on_where_its_state_stands() -> None:
    async def body(scene: Scene) -> None:
        scene.coordinator.source_ids = {A0: "id-1", B0: "id-8"}
        await scene.holding((A0, 1, 0), (B0, 5, 0))
        reader = await scene.query(0)
        logged = Offsets(GROUP, 0, {A0: ReadRange(0, 40, 1), B0: ReadRange(0, 30, 1)}, {"clicks": "id-1", "views": "id-8"})
        assert spans(await scene.agent.latest(reader, logged, None)) == {A0: (40, 100, 1), B0: (30, 50, 5)}

    story(body)


def test_a_query_that_is_to_be_stopped_gets_no_answer_and_its_cell_is_let_go_after_its_end() -> None:
    async def body(scene: Scene) -> None:
        await scene.holding((A0, 1, 0), (A2, 2, 0))
        reader = await scene.query(0)
        end = await scene.agent.latest(reader, NOTHING, None)
        scene.coordinator.assign()
        await scene.until(lambda: scene.agent.ledger.to_stop() == (0,))
        assert (await scene.agent.orders(0.1)).stop == (0,)
        assert not scene.agent.parked(0), "its micro-batch runs"
        asked = asyncio.ensure_future(scene.agent.latest(reader, end, None))
        await scene.until(lambda: scene.agent.parked(0))
        assert scene.coordinator.named == [(A0, 1), (A2, 2)]
        scene.agent.ended(0, {A0: 100, A2: 100})
        assert await asked is end
        await scene.until(lambda: scene.coordinator.named == [])
        assert scene.coordinator.checkpoints == [(A0, 1, 100), (A2, 2, 100)]

    story(body)


def test_a_shard_that_has_been_read_and_is_not_in_the_log_makes_its_cell_lost() -> None:
    async def body(scene: Scene) -> None:
        await scene.holding((A0, 1, 0), (A2, 2, 5))
        reader = await scene.query(0)
        logged = Offsets(GROUP, 0, {A0: ReadRange(0, 0, 1)})
        assert await scene.agent.latest(reader, logged, None) is logged
        await scene.until(lambda: scene.coordinator.heartbeats[-1].state_lost == (0,))
        assert (await scene.agent.orders(0.1)).stop == (0,)

    story(body)


def test_a_failing_cell_rests_and_the_others_are_not_touched() -> None:
    async def body(scene: Scene) -> None:
        await scene.holding((A0, 1, 0), (A1, 2, 0))
        await scene.query(0)
        await scene.query(1)
        scene.agent.ended(0, {}, "out of luck\n\tat org.apache.spark")
        assert scene.agent.trouble == "the query of cell 0 fails: out of luck"
        orders = await scene.agent.orders(0.0)
        assert (orders.start, orders.stop) == ((), ())
        await asyncio.sleep(1.0)
        orders = await scene.agent.orders(0.1)
        assert ([each.cell for each in orders.start], orders.stop) == ([0], ())
        assert scene.coordinator.named == [(A0, 1), (A1, 2)]

    story(body)


@pytest.mark.parametrize(("failure", "told"), [("a\tb\nc", "a b"), ("", "it does not say why"), ("x" * 400, "x" * 300)])
def test_what_is_told_of_a_failure_is_one_printable_line(failure: str, told: str) -> None:
    assert _shown(failure) == told


def test_what_was_handed_out_of_a_cell_is_unfinished_until_spark_says_otherwise() -> None:
    async def body(scene: Scene) -> None:
        await scene.holding((A0, 1, 0), (A1, 2, 0))
        agent, reader = scene.agent, await scene.query(0)
        assert not agent.unfinished(0)
        await agent.latest(reader, NOTHING, None)
        assert (agent.unfinished(0), agent.unfinished(1)) == (True, False)
        agent.committed(0, {A0: 100})
        assert not agent.unfinished(0)

    story(body)


def test_what_spark_has_told_nothing_of_is_unfinished_also_if_its_query_asks_for_more_and_there_is_none() -> None:
    async def body(scene: Scene) -> None:
        await scene.holding((A0, 1, 0))
        agent, reader = scene.agent, await scene.query(0)
        end = await agent.latest(reader, NOTHING, None)
        assert await agent.latest(reader, end, None) == end, "the progress event comes later than this question"
        assert agent.unfinished(0)
        agent.committed(0, {A0: 99})
        assert agent.unfinished(0)
        agent.committed(0, {A0: 100})
        assert not agent.unfinished(0)

    story(body)


def test_a_reader_of_an_earlier_start_is_refused() -> None:
    async def body(scene: Scene) -> None:
        await scene.holding((A0, 1, 0))
        await scene.query(0)
        with pytest.raises(NoCellError, match="the query of cell 0 is not run by this consumer any more"):
            scene.agent.reader_began(0, 7, frozenset(), Limits())

    story(body)


def test_a_drain_stops_all_queries_mirrors_and_leaves() -> None:
    async def body(scene: Scene) -> None:
        await scene.holding((A0, 1, 0), (A1, 2, 0))
        await scene.query(0)
        await scene.query(1)
        draining = asyncio.ensure_future(scene.agent.drain(asyncio.get_running_loop().time() + 60))
        await asyncio.sleep(0.1)
        orders = await scene.agent.orders(0.1)
        assert (orders.start, orders.stop, orders.over) == ((), (0, 1), False)
        scene.agent.ended(0, {A0: 30})
        scene.agent.ended(1, {A1: 40})
        assert await draining
        assert scene.coordinator.leaves == 1
        assert sorted(scene.coordinator.checkpoints) == [(A0, 1, 30), (A1, 2, 40)]
        assert (await scene.agent.orders(0.1)).over

    story(body)


def test_what_there_was_is_read_once_with_available_now() -> None:
    async def body(scene: Scene) -> None:
        await scene.holding((A0, 1, 0))
        reader = await scene.query(0)
        await scene.agent.prepare_available_now(reader)
        scene.ends.end_offsets[A0] = 500
        end = await scene.agent.latest(reader, NOTHING, None)
        assert spans(end) == {A0: (0, 100, 1)}
        assert await scene.agent.latest(reader, end, None) is end
        scene.agent.ended(0, {A0: 100}, finished=True)
        orders = await scene.agent.orders(0.1)
        assert (orders.start, orders.finished) == ((), True)

    story(body)


def test_a_query_that_ended_because_it_was_to_be_stopped_has_not_read_what_there_was() -> None:
    async def body(scene: Scene) -> None:
        await scene.holding((A0, 1, 0))
        reader = await scene.query(0)
        await scene.agent.prepare_available_now(reader)
        end = await scene.agent.latest(reader, NOTHING, 10)
        scene.coordinator.assign()
        await scene.until(lambda: scene.agent.ledger.to_stop() == (0,))
        assert await scene.agent.latest(reader, end, 10) is end, "which ends it before it is stopped"
        scene.agent.ended(0, {A0: 10}, finished=True)
        await scene.until(lambda: scene.coordinator.named == [])

        scene.coordinator.assign((A0, 2, 10))
        await scene.until(lambda: A0 in scene.agent.ledger.shards)
        orders = await scene.agent.orders(0.1)
        assert ([each.cell for each in orders.start], orders.finished) == ([0], False)

    story(body)


def test_an_order_that_is_not_up_to_date_starts_nothing() -> None:
    async def body(scene: Scene) -> None:
        await scene.holding((A0, 1, 0))
        (early,) = (await scene.agent.orders(0.1)).start
        scene.coordinator.assign((A0, 1, 0), (A2, 2, 7))
        await scene.until(lambda: A2 in scene.agent.ledger.shards)
        assert scene.agent.began(early) is None, "nobody has looked whether the state of the shard that joined is there"
        assert scene.agent.ledger.running == ()
        (now,) = (await scene.agent.orders(0.1)).start
        assert scene.agent.began(replace(now, generation=4)) is None
        assert scene.agent.began(now) == 1

    story(body)


def test_a_reader_that_was_behind_the_other_of_its_shard_begins_with_the_state() -> None:
    async def body(scene: Scene) -> None:
        await scene.holding((A0, 1, 0))
        start = scene.agent.began(scene.order(0))
        assert start is not None
        first, second = (scene.agent.reader_began(0, start, frozenset(), Limits()) for _ in range(2))
        await scene.agent.latest(first, NOTHING, None)
        scene.agent.committed(0, {A0: 100})
        await scene.until(lambda: scene.coordinator.checkpoints == [(A0, 1, 100)])
        assert spans(await scene.agent.latest(second, NOTHING, None)) == {A0: (0, 100, 1)}
        assert scene.agent.ledger.lost == ()

    story(body)


def test_a_query_that_has_its_answer_is_not_taken_for_one_that_waits() -> None:
    async def body(scene: Scene) -> None:
        await scene.holding((A0, 1, 0))
        reader = await scene.query(0)
        scene.coordinator.assign()
        await scene.until(lambda: scene.agent.ledger.to_stop() == (0,))
        assert await scene.agent.latest(reader, NOTHING, None) is NOTHING
        assert not scene.agent.parked(0), "it may run a micro-batch without records now"

    story(body)


def test_queries_that_are_about_to_be_stopped_are_handed_nothing_more() -> None:
    async def body(scene: Scene) -> None:
        await scene.holding((A0, 1, 0))
        reader = await scene.query(0)
        scene.agent.close()
        asked = asyncio.ensure_future(scene.agent.latest(reader, NOTHING, None))
        await scene.until(lambda: scene.agent.parked(0))
        assert await asked is NOTHING

    story(body)


def test_a_paused_group_has_not_been_read_with_available_now() -> None:
    async def body(scene: Scene) -> None:
        scene.coordinator.paused = True
        await scene.holding((A0, 1, 0))
        orders = await scene.agent.orders(0.1)
        assert (orders.start, orders.finished) == ((), False)

    story(body)


def test_a_group_that_is_paused_meanwhile_has_not_been_read_with_available_now() -> None:
    async def body(scene: Scene) -> None:
        scene.coordinator.starts = {A2: 100}
        await scene.holding((A0, 1, 0), (A2, 2, 100))
        reader = await scene.query(0)
        server = CellServer(scene.agent, Path("agent.sock"), {}, read_committed=lambda _: None)
        await server._do(reader, {"op": "prepare"})
        end = await scene.agent.latest(reader, NOTHING, 10)
        scene.coordinator.paused = True
        scene.agent.session.heartbeat_now()
        await scene.until(lambda: scene.agent.ledger.paused)

        async def asked(start: Offsets, limit: int | None = None) -> tuple[Any, bool]:
            answer = await server._do(reader, {"op": "latest", "start": start.as_dict(), "limit": limit})
            return answer["end"], answer["unread"]

        assert await asked(end) == (None, True), "it is asked again, and does not end"
        assert await asked(Offsets(GROUP, 0, {A0: ReadRange(0, 100, 1)})) == (None, False), "it has read all there was"
        scene.coordinator.paused = False
        await scene.until(lambda: not scene.agent.ledger.paused)
        last = await scene.agent.latest(reader, end, None)
        assert spans(last) == {A0: (10, 100, 1), A2: (100, 100, 2)}
        assert await asked(last) == (None, False)
        scene.coordinator.assign()
        await scene.until(lambda: scene.agent.ledger.to_stop() == (0,))
        assert await asked(end) == (None, False), "others read it"

    story(body)


def test_a_query_between_two_triggers_waits_and_does_not_hang() -> None:
    async def body(scene: Scene) -> None:
        await scene.holding((A0, 1, 0), trigger_interval=3600.0)
        reader = await scene.query(0)
        await scene.agent.latest(reader, NOTHING, None)
        asked = asyncio.get_running_loop().time()
        scene.agent.committed(0, {A0: 100})
        scene.ends.end_offsets[A0] = 200
        said = scene.agent.readiness()
        assert (said.phase, round(said.goes_on_in)) == (
            Phase.WAITING,
            round(asked + 3600.0 - asyncio.get_running_loop().time()),
        )

    story(body)


def test_how_full_it_is_goes_with_every_heartbeat() -> None:
    async def body(scene: Scene) -> None:
        await scene.holding((A0, 1, 0))
        full = Gauge(GaugeKind.MEMORY, "memory", 9, 10)
        scene.agent.gauges = lambda: (full,)
        assert scene.agent.readiness().gauges == (full,)
        await asyncio.sleep(30.0)
        assert scene.coordinator.heartbeats[-1].gauges == (full,)

    story(body)


def test_a_cell_is_no_trouble_any_more_once_it_has_finished_a_micro_batch_or_is_another_consumers() -> None:
    async def body(scene: Scene) -> None:
        await scene.holding((A0, 1, 0), (A1, 2, 0))
        for cell in (0, 1):
            await scene.query(cell)
            scene.agent.ended(cell, {}, "out of luck")
        await asyncio.sleep(2.0)
        await scene.query(0)
        assert scene.agent.trouble == "the query of cell 0 fails: out of luck; the query of cell 1 fails: out of luck"
        scene.agent.committed(0, {A0: 5})
        assert scene.agent.trouble == "the query of cell 1 fails: out of luck"
        await scene.until(lambda: scene.coordinator.heartbeats[-1].cells_failing == (FailingCell(1, "out of luck"),))
        scene.coordinator.assign((A0, 1, 0))
        await scene.until(lambda: scene.agent.trouble == "")
        await scene.until(lambda: scene.coordinator.heartbeats[-1].cells_failing is UNSET)

    story(body)


def test_a_cell_that_was_started_again_and_has_nothing_to_read_is_no_trouble() -> None:
    async def body(scene: Scene) -> None:
        await scene.holding((A0, 1, 0))
        await scene.query(0)
        scene.agent.ended(0, {}, "out of luck")
        await asyncio.sleep(1.0)
        reader = await scene.query(0)
        end = await scene.agent.latest(reader, NOTHING, None)
        assert scene.agent.trouble == "the query of cell 0 fails: out of luck", "it has only been given what it may fail at"
        assert await scene.agent.latest(reader, end, None) is end
        assert scene.agent.trouble == ""

    story(body)


def test_readiness_tells_what_a_consumer_of_cells_waits_for_and_which_cell_fails(unused_tcp_port: int) -> None:
    """In real time: the server is a real one."""

    async def got() -> tuple[int, str]:
        url = f"http://127.0.0.1:{unused_tcp_port}/readyz"
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            return response.status, await response.text()

    async def play() -> None:
        scene = Scene()
        metrics = AgentMetrics("demo", "clicks", ME)
        counts = ReceivedCounts(new_address("127.0.0.1", unused_tcp_port))
        server = await serve_http(scene.agent, metrics, unused_tcp_port, counts)
        await scene.until(lambda: scene.agent.acknowledged_at is not None)
        status, text = await got()
        assert (status, text.startswith("not warm yet: shardherd.spark.run_cells(build) has not been called")) == (503, True)
        await scene.holding((A0, 1, 0))
        assert await got() == (200, "ready\n")
        await scene.query(0)
        scene.agent.ended(0, {}, "out of luck")
        assert await got() == (200, "ready, but the query of cell 0 fails: out of luck\n")
        await server.cleanup()
        scene.task.cancel()
        await asyncio.gather(scene.task, return_exceptions=True)

    asyncio.run(play())


def test_a_reader_none_of_whose_topics_shards_is_in_the_cell_has_read_all_there_was() -> None:
    async def body(scene: Scene) -> None:
        await scene.holding((A1, 1, 0))
        start = scene.agent.began(scene.order(1))
        assert start is not None
        views = scene.agent.reader_began(1, start, frozenset({"views"}), Limits())
        async with asyncio.timeout(60.0):
            await scene.agent.prepare_available_now(views)
        assert await scene.agent.latest(views, NOTHING, None) is NOTHING

    story(body)


def test_what_was_read_with_available_now_is_read_anew_after_its_state_was_discarded() -> None:
    async def body(scene: Scene) -> None:
        await scene.holding((A0, 1, 0))
        await scene.query(0)
        scene.agent.ended(0, {A0: 100}, finished=True)
        assert (await scene.agent.orders(0.1)).finished
        scene.coordinator.generation = 1
        scene.coordinator.assign((A0, 2, 0))
        await scene.until(lambda: scene.agent.ledger.generation == 1)
        orders = await scene.agent.orders(0.1)
        assert ([each.cell for each in orders.start], orders.finished) == ([0], False)

    story(body)
