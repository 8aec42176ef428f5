"""A consumer from its first heartbeat to its end, in simulated time against a simulated coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from shardherd.core.consumer.tracker import ReadRange
from shardherd.core.model.errors import (
    CoordinatorUnavailableError,
    GroupReplacedError,
    ShardherdError,
    StaleIncarnationError,
    UnknownGroupError,
)
from shardherd.core.model.nouns import CheckpointResult, ConfirmedShard, ShardId
from shardherd.source.kafka.leader_epochs import Mark
from shardherd.spark.agent import EVENT_WAIT
from shardherd.spark.flow import Limits
from shardherd.spark.logged_epochs import marks_of
from shardherd.spark.offsets import Offsets
from tests.unit.spark.simulated import GROUP, Scene, SimulatedLoop, story

A, B = ShardId("clicks/0"), ShardId("clicks/1")
NOTHING = Offsets(GROUP)


def spans(end: Offsets) -> dict[str, tuple[int, int, int]]:
    return {shard: (each.start, each.stop, each.epoch) for shard, each in end.shards.items()}


async def warmed(scene: Scene) -> Offsets:
    """The query's warm-up micro-batch."""
    end = await scene.agent.latest(NOTHING, None)
    assert end == Offsets(GROUP, 1)
    assert await scene.agent.latest(end, None) is end
    assert scene.agent.ready
    return end


async def holding(scene: Scene, *shards: tuple[str, int, int], records: int = 100) -> Offsets:
    """Warm, and with these shards (name, epoch, position), each of which has so many records."""
    end = await warmed(scene)
    scene.end_offsets.end_offsets = {ShardId(name): position + records for name, _, position in shards}
    scene.coordinator.assign(*shards)
    await scene.until(lambda: len(scene.agent.tracker.shards) == len(shards))
    return end


def test_a_consumer_is_ready_only_after_its_first_empty_micro_batch() -> None:
    async def body(scene: Scene) -> None:
        await scene.until(lambda: bool(scene.coordinator.heartbeats))
        assert not scene.coordinator.heartbeats[-1].ready
        warm = await scene.agent.latest(NOTHING, None)
        assert (warm.warm, dict(warm.shards)) == (1, {})
        await asyncio.sleep(2)
        assert not scene.coordinator.heartbeats[-1].ready
        reported = scene.until(lambda: scene.coordinator.heartbeats[-1].ready)
        scene.agent.finished(warm)
        assert await reported < 0.01

    story(body)


def test_what_was_granted_is_handed_out_once_and_checkpointed_when_it_is_finished() -> None:
    async def body(scene: Scene) -> None:
        start = await holding(scene, (A, 4, 10), (B, 5, 0))
        end = await scene.agent.latest(start, None)
        assert spans(end) == {A: (10, 110, 4), B: (0, 100, 5)}
        await asyncio.sleep(5)
        assert scene.coordinator.checkpoints == [], "nothing is checkpointed before Spark has committed it"
        assert await scene.agent.latest(end, None) is end
        await scene.until(lambda: bool(scene.coordinator.checkpoints))
        assert scene.coordinator.checkpoints == [(A, 4, 110), (B, 5, 100)]
        assert scene.observed.records == 200

    story(body)


def test_what_is_handed_out_is_noted_with_the_epoch_of_the_shards_leader() -> None:
    async def body(scene: Scene) -> None:
        start = await holding(scene, (A, 4, 10), (B, 5, 0))
        scene.end_offsets.leaders = {A: 7, B: 2}
        first = await scene.agent.latest(start, None)
        assert first.leaders == {A: 7, B: 2}
        scene.end_offsets.leaders, scene.end_offsets.end_offsets[A] = {A: 8, B: 3}, 150
        second = await scene.agent.latest(first, None)
        assert (spans(second), second.leaders) == ({A: (110, 150, 4), B: (100, 100, 5)}, {A: 8, B: 2})
        assert marks_of(first, second) == {A: (Mark(110, 7), Mark(150, 8))}

    story(body)


async def _begun_and_not_yet_accepted(scene: Scene) -> Offsets:
    """A query whose first progress event will tell whether it keeps state, and where its shard stands."""
    start = await holding(scene, (A, 4, 0))
    scene.agent.events_arrive = True
    scene.agent.query_began(Limits())
    return start


def test_of_a_query_that_may_be_refused_nothing_is_finished_before_its_first_progress_event() -> None:
    async def body(scene: Scene) -> None:
        start = await _begun_and_not_yet_accepted(scene)
        end = await scene.agent.latest(start, None)
        scene.end_offsets.end_offsets[A] = 200
        asked = asyncio.create_task(scene.agent.latest(end, None))
        await asyncio.sleep(5)
        assert (scene.coordinator.checkpoints, asked.done()) == ([], False)
        scene.agent.event_accepted()
        assert spans(await asked) == {A: (100, 200, 4)}
        await scene.until(lambda: scene.coordinator.checkpoints == [(A, 4, 100)])

    story(body)


def test_a_query_of_which_no_progress_event_comes_goes_on() -> None:
    async def body(scene: Scene) -> None:
        start = await _begun_and_not_yet_accepted(scene)
        end = await scene.agent.latest(start, None)
        begun = scene.loop.time()
        assert await scene.agent.latest(end, None) is end
        assert EVENT_WAIT <= scene.loop.time() - begun < EVENT_WAIT + 1.0
        await scene.until(lambda: scene.coordinator.checkpoints == [(A, 4, 100)])

    story(body)


FINISHED = Offsets(GROUP, 3, {A: ReadRange(0, 40, 2)}, accepted=True)
"""Where the last micro-batch ends of which Spark's commit log says that it is finished."""


async def _restarted(scene: Scene, *, epoch: int = 5, since: int = 2, position: int = 0) -> None:
    """A query on the checkpoint location of an earlier run."""
    scene.end_offsets.end_offsets = {A: 100}
    scene.coordinator.assign((A, epoch, position), since=since)
    await scene.until(lambda: bool(scene.agent.tracker.shards))
    scene.agent.events_arrive = True
    scene.agent.query_began(Limits())


def test_what_spark_has_committed_before_a_restart_is_adopted() -> None:
    async def body(scene: Scene) -> None:
        await _restarted(scene)
        assert spans(await scene.agent.latest(FINISHED, None)) == {A: (40, 100, 5)}
        await scene.until(lambda: scene.coordinator.checkpoints == [(A, 5, 40)])

    story(body)


def test_it_is_adopted_once_it_is_known_what_is_held() -> None:
    async def body(scene: Scene) -> None:
        scene.end_offsets.end_offsets = {A: 100}
        warm = await scene.agent.latest(FINISHED, None)
        assert (warm.warm, spans(warm)) == (4, {}), "the coordinator has not answered yet"
        scene.coordinator.assign((A, 5, 0), since=2)
        await scene.until(lambda: bool(scene.agent.tracker.shards))
        assert spans(await scene.agent.latest(warm, None)) == {A: (40, 100, 5)}

    story(body)


def test_what_was_left_out_of_a_replay_is_not_adopted_when_its_shard_comes_back() -> None:
    async def body(scene: Scene) -> None:
        scene.end_offsets.end_offsets = {A: 100}
        scene.agent.query_began(Limits())
        assert await scene.agent.replay(FINISHED) == (), "the coordinator waits for the end of the run before"
        scene.coordinator.assign((A, 5, 0), since=2)
        await scene.until(lambda: bool(scene.agent.tracker.shards))
        end = await scene.agent.latest(FINISHED, None)
        assert spans(end) == {A: (0, 100, 5)}, "Spark has committed a micro-batch without these records"
        scene.agent.query_ended()
        scene.agent.query_began(Limits())
        assert spans(await scene.agent.latest(FINISHED, None)) == {A: (0, 100, 5)}, "so it is for the next query"
        await asyncio.sleep(5)
        assert scene.coordinator.checkpoints == []

    story(body)


@pytest.mark.parametrize(("epoch", "since"), [(5, 3), (5, 5), (1, 1)])
def test_a_shard_that_may_have_been_elsewhere_is_not_adopted(epoch: int, since: int) -> None:
    async def body(scene: Scene) -> None:
        await _restarted(scene, epoch=epoch, since=since)
        assert spans(await scene.agent.latest(FINISHED, None)) == {A: (0, 100, epoch)}
        await asyncio.sleep(5)
        assert scene.coordinator.checkpoints == []

    story(body)


def test_what_a_query_had_committed_that_may_have_been_refused_is_not_adopted() -> None:
    async def body(scene: Scene) -> None:
        await _restarted(scene)
        unknown = replace(FINISHED, accepted=False)
        assert spans(await scene.agent.latest(unknown, None)) == {A: (0, 100, 5)}

    story(body)


def test_only_what_was_handed_out_after_the_querys_first_progress_event_may_be_adopted_later() -> None:
    async def body(scene: Scene) -> None:
        start = await _begun_and_not_yet_accepted(scene)
        first = await scene.agent.latest(start, None)
        scene.agent.event_accepted()
        scene.end_offsets.end_offsets[A] = 200
        second = await scene.agent.latest(first, None)
        scene.agent.query_began(Limits())
        scene.end_offsets.end_offsets[A] = 300
        third = await scene.agent.latest(second, None)
        assert [each.accepted for each in (first, second, third)] == [False, True, False]

    story(body)


def test_what_this_run_has_handed_out_is_not_adopted_when_it_asks_again() -> None:
    async def body(scene: Scene) -> None:
        await _restarted(scene, position=40)
        end = await scene.agent.latest(FINISHED, None)
        assert spans(end) == {A: (40, 100, 5)}
        assert spans(await scene.agent.latest(FINISHED, None)) == {A: (40, 100, 5)}, "it was not finished"
        assert scene.coordinator.checkpoints == []

    story(body)


def test_nothing_is_adopted_while_tasks_of_before_may_still_write() -> None:
    async def body(scene: Scene) -> None:
        scene.coordinator.ordered = True
        start = await holding(scene, (A, 2, 40))
        assert spans(await scene.agent.latest(start, None)) == {A: (40, 140, 2)}
        scene.tasks = True
        scene.agent.query_ended()
        scene.agent.query_began(Limits())
        asked = Offsets(GROUP, 3, {A: ReadRange(0, 60, 2)}, accepted=True)
        assert await scene.agent.latest(asked, None) is asked
        assert dict(scene.agent.tracker.adrift) == {A: 2}
        scene.tasks = False
        await scene.until(lambda: not scene.agent.tracker.adrift)
        assert spans(await scene.agent.latest(asked, None)) == {A: (60, 140, 2)}

    story(body)


def test_nothing_that_a_refused_query_has_read_is_checkpointed() -> None:
    async def body(scene: Scene) -> None:
        start = await _begun_and_not_yet_accepted(scene)
        end = await scene.agent.latest(start, None)
        scene.agent.refuse("it keeps state")
        scene.agent.finished(end)
        assert await scene.agent.latest(end, None) is end
        await asyncio.sleep(5)
        assert scene.coordinator.checkpoints == []

    story(body)


def test_an_idle_query_checkpoints_by_its_progress_event() -> None:
    async def body(scene: Scene) -> None:
        end = await scene.agent.latest(await holding(scene, (A, 4, 0)), None)
        scene.agent.finished(end)
        await scene.until(lambda: scene.coordinator.checkpoints == [(A, 4, 100)])

    story(body)


def test_a_shard_without_news_is_named_and_nothing_new_answers_the_same_start() -> None:
    async def body(scene: Scene) -> None:
        start = await holding(scene, (A, 4, 0), (B, 5, 7))
        scene.end_offsets.end_offsets[B] = 7
        end = await scene.agent.latest(start, None)
        assert spans(end) == {A: (0, 100, 4), B: (7, 7, 5)}
        assert await scene.agent.latest(end, None) is end

    story(body)


def test_a_question_is_answered_as_soon_as_there_are_records() -> None:
    async def body(scene: Scene) -> None:
        start = await holding(scene, (A, 4, 0), records=0)
        asked = asyncio.create_task(scene.agent.latest(start, None))
        await asyncio.sleep(0.01)
        scene.end_offsets.end_offsets[A] = 3
        scene.agent.ends_changed()
        took = await scene.until(asked.done)
        assert took <= 0.002
        assert spans(asked.result()) == {A: (0, 3, 4)}

    story(body)


def test_the_limit_is_shared_by_backlog_and_the_rest_comes_next() -> None:
    async def body(scene: Scene) -> None:
        start = await holding(scene, (A, 4, 0), (B, 5, 0))
        scene.end_offsets.end_offsets[B] = 10
        end = await scene.agent.latest(start, 50)
        assert spans(end) == {A: (0, 45, 4), B: (0, 5, 5)}
        assert spans(await scene.agent.latest(end, 50)) == {A: (45, 91, 4), B: (5, 9, 5)}

    story(body)


def test_bytes_are_bounded_by_the_size_of_the_next_records() -> None:
    async def body(scene: Scene) -> None:
        start = await holding(scene, (A, 4, 0), (B, 5, 0))
        scene.agent.query_began(Limits(max_bytes=5000))
        end = await scene.agent.latest(start, None)
        assert spans(end) == {A: (0, 25, 4), B: (0, 25, 5)}
        assert spans(await scene.agent.latest(end, 30)) == {A: (25, 40, 4), B: (25, 40, 5)}

    story(body)


def test_few_records_wait_for_more_until_the_delay_is_over() -> None:
    async def body(scene: Scene) -> None:
        start = await holding(scene, (A, 4, 0), records=10)
        scene.agent.query_began(Limits(min_records=11, max_delay=20))
        await asyncio.sleep(19)
        assert await scene.agent.latest(start, None) is start
        await asyncio.sleep(1)
        end = await scene.agent.latest(start, None)
        assert spans(end) == {A: (0, 10, 4)}
        scene.end_offsets.end_offsets[A] = 21
        assert spans(await scene.agent.latest(end, None)) == {A: (10, 21, 4)}

    story(body)


def test_a_revoked_shard_with_nothing_in_flight_is_released_at_once() -> None:
    async def body(scene: Scene) -> None:
        await holding(scene, (A, 4, 0), (B, 5, 0))
        scene.coordinator.assign((A, 4, 0))
        assert await scene.until(lambda: scene.coordinator.named == [(A, 4)]) < 0.01
        assert scene.coordinator.heartbeats[-1].revision == scene.coordinator.revision

    story(body)


def test_a_revoked_shard_in_flight_is_released_after_its_micro_batch_and_its_checkpoint() -> None:
    async def body(scene: Scene) -> None:
        scene.coordinator.checkpoint_time = 0.5
        start = await holding(scene, (A, 4, 0), (B, 5, 0))
        end = await scene.agent.latest(start, None)
        scene.coordinator.assign((A, 4, 0))
        await asyncio.sleep(20)
        assert scene.coordinator.named == [(A, 4), (B, 5)]
        after = await scene.agent.latest(end, None)
        assert after is end, "nothing of a revoked shard is handed out"
        took = await scene.until(lambda: scene.coordinator.named == [(A, 4)])
        assert (B, 5, 100) in scene.coordinator.checkpoints
        assert 0.44 <= took <= 0.52

    story(body)


def test_the_log_says_group_shard_and_epoch(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")

    async def body(scene: Scene) -> None:
        await holding(scene, (A, 4, 0), (B, 5, 0))
        scene.coordinator.assign((A, 4, 0))
        await scene.until(lambda: scene.coordinator.named == [(A, 4)])

    story(body, group="demo/clicks")

    said = [(r.getMessage(), r.__dict__["shard"], r.__dict__["epoch"]) for r in caplog.records if "shard" in r.__dict__]
    assert said == [("gained", A, 4), ("gained", B, 5), ("is to give up", B, 5), ("released", B, 5)]
    assert {r.__dict__["group"] for r in caplog.records if r.name == "shardherd.consumer.session"} == {"demo/clicks"}


def test_a_refused_checkpoint_drops_the_shard_at_once() -> None:
    async def body(scene: Scene) -> None:
        scene.coordinator.outcome = CheckpointResult.FENCED
        end = await scene.agent.latest(await holding(scene, (A, 4, 0)), None)
        scene.coordinator.assigned = {}
        scene.agent.finished(end)
        took = await scene.until(lambda: scene.coordinator.named == [])
        assert took < 0.05, "and the coordinator hears of it without waiting for the next heartbeat"
        scene.end_offsets.end_offsets[A] = 500
        assert await scene.agent.latest(end, None) is end
        assert scene.observed.checkpoints == ["fenced"]

    story(body)


def test_a_withheld_checkpoint_is_sent_again() -> None:
    async def body(scene: Scene) -> None:
        scene.coordinator.outcome = CheckpointResult.WITHHELD
        end = await scene.agent.latest(await holding(scene, (A, 4, 0)), None)
        scene.agent.finished(end)
        await scene.until(lambda: len(scene.coordinator.checkpoints) >= 2)
        scene.coordinator.outcome = CheckpointResult.OK
        await scene.until(lambda: scene.observed.checkpoints[-1] == "ok")
        sent = len(scene.coordinator.checkpoints)
        await asyncio.sleep(30)
        assert len(scene.coordinator.checkpoints) == sent

    story(body)


def test_a_new_epoch_starts_over_at_the_coordinators_position() -> None:
    async def body(scene: Scene) -> None:
        end = await scene.agent.latest(await holding(scene, (A, 4, 0)), None)
        scene.coordinator.assign((A, 9, 20))
        await scene.until(lambda: scene.coordinator.named == [(A, 4), (A, 9)])
        assert spans(await scene.agent.latest(end, None)) == {A: (20, 100, 9)}
        assert scene.coordinator.checkpoints == [], "the range of the old epoch is not checkpointed"
        assert scene.end_offsets.watched == {A: 9}, "an end that was found under the old one may lie too far ahead"

    story(body)


def test_a_paused_group_hands_out_nothing_until_it_goes_on() -> None:
    async def body(scene: Scene) -> None:
        scene.coordinator.paused = True
        start = await holding(scene, (A, 4, 0))
        assert await scene.agent.latest(start, None) is start
        scene.coordinator.paused = False
        scene.coordinator.assign((A, 4, 0))
        await scene.until(lambda: not scene.agent.tracker.paused)
        assert spans(await scene.agent.latest(start, None)) == {A: (0, 100, 4)}

    story(body)


def test_a_replay_waits_for_the_first_answer_and_reads_only_what_is_still_ours() -> None:
    async def body(scene: Scene) -> None:
        c, d = ShardId("clicks/2"), ShardId("clicks/3")
        logged = Offsets(
            GROUP, 1, {A: ReadRange(0, 50, 3), B: ReadRange(0, 60, 2), c: ReadRange(5, 9, 3), d: ReadRange(4, 4, 3)}
        )
        asked = asyncio.create_task(scene.agent.replay(logged))
        await asyncio.sleep(0)
        assert not asked.done()
        scene.end_offsets.end_offsets = {A: 80, B: 80, c: 80}
        # A is ours since epoch 3; B was somewhere else between epochs 2 and 6; c is durable up to its end already.
        scene.coordinator.assign((A, 7, 0), since=3)
        scene.coordinator.assigned |= {B: ConfirmedShard(B, 8, 6, 10), c: ConfirmedShard(c, 9, 3, 9)}
        await scene.until(asked.done)
        assert asked.result() == (A,)
        after = await scene.agent.latest(logged, None)
        await scene.until(lambda: bool(scene.coordinator.checkpoints))
        assert scene.coordinator.checkpoints == [(A, 7, 50)], "a replayed range is checkpointed under the present epoch"
        assert spans(after) == {A: (50, 80, 7), B: (10, 80, 8), c: (9, 80, 9)}

    story(body)


def test_a_micro_batch_names_the_topics_of_its_positions_and_so_do_its_ranges() -> None:
    async def body(scene: Scene) -> None:
        scene.coordinator.source_ids = {A: "id-1"}
        start = await holding(scene, (A, 4, 0), (B, 5, 0))
        end = await scene.agent.latest(start, None)
        scene.coordinator.source_ids = {A: "id-2"}
        scene.coordinator.assign((A, 6, 0))
        await scene.until(lambda: scene.agent.tracker.readable_epochs() == {A: 6})
        assert end.topics == {"clicks": "id-1"}
        assert scene.agent.batch is not None
        assert scene.agent.batch.topic_ids == {A: "id-1"}, "what was handed out is of the topic of then"
        assert (await scene.agent.latest(end, None)).topics == {"clicks": "id-2"}

    story(body)


def test_ranges_of_an_earlier_run_prove_nothing() -> None:
    async def body(scene: Scene) -> None:
        scene.end_offsets.end_offsets = {A: 100}
        scene.coordinator.assign((A, 7, 20))
        await scene.until(lambda: scene.agent.tracker.shards == (A,))
        end = await scene.agent.latest(Offsets(GROUP, 3, {A: ReadRange(20, 60, 6)}), None)
        assert spans(end) == {A: (20, 100, 7)}
        assert end.warm == 4
        await asyncio.sleep(5)
        assert scene.coordinator.checkpoints == []

    story(body)


def test_a_query_that_ended_gives_its_unfinished_range_back() -> None:
    async def body(scene: Scene) -> None:
        start = await holding(scene, (A, 4, 0))
        await scene.agent.latest(start, 30)
        scene.agent.query_ended()
        scene.coordinator.assign()
        await scene.until(lambda: scene.coordinator.named == [])
        assert scene.coordinator.checkpoints == []

    story(body)


def test_an_idle_consumer_keeps_its_workers_warm() -> None:
    async def body(scene: Scene) -> None:
        end = await holding(scene, (A, 4, 0), records=0)
        asked = [end]
        while asked[-1].warm == 1:
            asked.append(await scene.agent.latest(asked[-1], None))
            assert scene.loop.time() < 60
        assert 44 < scene.loop.time() < 47
        assert spans(asked[-1]) == {A: (0, 0, 4)}

    story(body)


def test_heartbeats_follow_the_interval_and_never_spin() -> None:
    async def body(scene: Scene) -> None:
        await warmed(scene)
        before = len(scene.coordinator.heartbeats)
        await asyncio.sleep(60)
        assert 19 <= len(scene.coordinator.heartbeats) - before <= 22
        assert [beat.seq for beat in scene.coordinator.heartbeats] == list(range(1, len(scene.coordinator.heartbeats) + 1))

    story(body)


def test_an_unordered_consumer_reads_on_without_the_coordinator_until_the_limit() -> None:
    async def body(scene: Scene) -> None:
        start = await holding(scene, (A, 4, 0))
        scene.coordinator.fault = CoordinatorUnavailableError("no answer")
        lost_at = scene.coordinator.answered[-1]
        await asyncio.sleep(200)
        end = await scene.agent.latest(start, 10)
        assert spans(end) == {A: (0, 10, 4)}
        assert scene.stopped == []
        await scene.until(lambda: bool(scene.stopped), within=200)
        assert 295 <= scene.loop.time() - lost_at <= 301
        assert "no heartbeat of clicks-0 was acknowledged" in scene.stopped[0]

    story(body)


def test_an_ordered_consumer_stops_before_it_can_be_expired() -> None:
    async def body(scene: Scene) -> None:
        scene.coordinator.ordered = True
        await holding(scene, (A, 4, 0))
        scene.coordinator.fault = CoordinatorUnavailableError("no answer")
        sent_at = scene.agent.acknowledged_at
        assert sent_at is not None
        await scene.until(lambda: bool(scene.stopped), within=60)
        assert scene.loop.time() - sent_at == pytest.approx(45 - 6, abs=0.1)

    story(body)


def test_a_consumer_that_holds_nothing_waits_for_its_coordinator_for_ever() -> None:
    async def body(scene: Scene) -> None:
        await warmed(scene)
        scene.coordinator.fault = CoordinatorUnavailableError("no answer")
        await asyncio.sleep(3600)
        assert scene.stopped == []
        scene.coordinator.fault = None
        await scene.until(lambda: scene.observed.heartbeats[-1] == "ok")

    story(body)


@pytest.mark.parametrize(
    "refusal",
    [StaleIncarnationError("start 2 of this pod is the current run"), GroupReplacedError("the group was deleted")],
    ids=lambda refusal: str(refusal.code),
)
def test_a_run_that_is_over_stops_at_once(refusal: ShardherdError) -> None:
    async def body(scene: Scene) -> None:
        await holding(scene, (A, 4, 0))
        scene.coordinator.fault = refusal
        assert await scene.until(lambda: bool(scene.stopped)) <= 3.1
        assert str(refusal) in scene.stopped[0]

    story(body)


def test_every_request_names_the_group_and_a_heartbeat_where_it_comes_from() -> None:
    async def body(scene: Scene) -> None:
        scene.agent.session.settings = replace(scene.agent.settings, zone="eu-1a", capacity=4)
        end = await scene.agent.latest(await holding(scene, (A, 4, 0)), None)
        scene.agent.finished(end)
        assert await scene.agent.drain(scene.loop.time() + 80)
        said = scene.coordinator.heartbeats[-1]
        assert (said.group_uid, said.zone, said.capacity) == (GROUP, "eu-1a", 4)
        assert scene.coordinator.groups == {GROUP}

    story(body)


def test_a_drain_waits_for_the_micro_batch_checkpoints_and_leaves() -> None:
    async def body(scene: Scene) -> None:
        start = await holding(scene, (A, 4, 0))
        end = await scene.agent.latest(start, None)
        draining = asyncio.create_task(scene.agent.drain(scene.loop.time() + 80))
        await asyncio.sleep(10)
        assert scene.coordinator.heartbeats[-1].draining
        assert scene.coordinator.leaves == 0
        scene.end_offsets.end_offsets[A] = 900
        assert await scene.agent.latest(end, None) is end, "a draining consumer hands out nothing"
        await scene.until(draining.done)
        assert draining.result()
        assert scene.coordinator.checkpoints == [(A, 4, 100)]
        assert scene.coordinator.leaves == 1
        assert scene.stopped == []

    story(body)


def test_a_drain_gives_a_micro_batch_up_that_does_not_end() -> None:
    async def body(scene: Scene) -> None:
        await scene.agent.latest(await holding(scene, (A, 4, 0)), None)
        began = scene.loop.time()
        assert not await scene.agent.drain(began + 80)
        assert scene.loop.time() - began == pytest.approx(60, abs=0.2)
        assert scene.stopped == ["the running micro-batch did not end within drainTimeout"]
        assert scene.coordinator.leaves == 1

    story(body)


def test_a_process_that_stood_still_for_too_long_hands_out_nothing_even_before_it_has_looked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shardherd.consumer.session.LOOK", 3600.0)

    async def body(scene: Scene) -> None:
        start = await holding(scene, (A, 4, 0))
        scene.coordinator.fault = CoordinatorUnavailableError("no answer")
        scene.slept = scene.agent.settings.silence_limit
        assert await scene.agent.latest(start, None) is start
        scene.slept = 0.0
        assert await scene.agent.latest(start, None) is not start

    story(body)


def test_a_consumer_whose_machine_was_suspended_past_its_session_stops_although_it_is_answered_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shardherd.consumer.session.LOOK", 3600.0)

    async def body(scene: Scene) -> None:
        scene.coordinator.ordered = True
        start = await holding(scene, (A, 4, 0))
        await scene.agent.latest(start, None)
        assert scene.agent.settings.silence_limit == 39.0
        scene.slept = 60.0
        scene.coordinator.assign((A, 4, 0))
        await scene.until(lambda: bool(scene.stopped))
        assert scene.stopped == [
            "no heartbeat of clicks-0 was acknowledged for 60 s (limit 39 s): check that the operator runs and can be reached"
        ]

    story(body)


def test_a_drain_does_not_wait_for_checkpoints_of_a_group_that_was_deleted() -> None:
    async def body(scene: Scene) -> None:
        end = await scene.agent.latest(await holding(scene, (A, 4, 0)), None)
        began = scene.loop.time()
        scene.coordinator.fault = UnknownGroupError("there is no group demo/clicks", group="demo/clicks")
        draining = asyncio.create_task(scene.agent.drain(began + 80))
        await asyncio.sleep(5)
        assert not draining.done(), "the micro-batch is still awaited"
        scene.agent.finished(end)
        assert not await draining
        assert scene.loop.time() - began < 7

    story(body)


def test_a_drain_that_waits_for_a_checkpoint_lets_the_loop_sleep() -> None:
    async def body(scene: Scene) -> None:
        end = await scene.agent.latest(await holding(scene, (A, 4, 0)), None)
        scene.coordinator.fault = CoordinatorUnavailableError("no answer")
        scene.agent.finished(end)
        draining = asyncio.create_task(scene.agent.drain(scene.loop.time() + 80))
        assert isinstance(scene.loop, SimulatedLoop)
        turns = scene.loop.jumping.turns
        await asyncio.sleep(20)
        assert scene.loop.jumping.turns - turns < 200, "it looked again and again"
        scene.coordinator.fault = None
        assert await scene.until(draining.done) <= 2.1
        assert draining.result()
        assert scene.coordinator.checkpoints == [(A, 4, 100)]

    story(body)


def test_a_drain_does_not_wait_on_once_its_run_is_over() -> None:
    async def body(scene: Scene) -> None:
        await scene.agent.latest(await holding(scene, (A, 4, 0)), None)
        draining = asyncio.create_task(scene.agent.drain(scene.loop.time() + 80))
        await asyncio.sleep(1)
        scene.coordinator.fault = StaleIncarnationError("start 2 of this pod is the current run")
        assert await scene.until(draining.done) <= 3.2
        assert not draining.result()

    story(body)


def test_a_drain_ends_by_its_deadline_without_a_coordinator() -> None:
    async def body(scene: Scene) -> None:
        await holding(scene, (A, 4, 0))
        scene.coordinator.fault = CoordinatorUnavailableError("no answer")
        began = scene.loop.time()
        await scene.agent.drain(began + 80)
        assert scene.loop.time() - began <= 80

    story(body)


def test_a_drain_checkpoints_what_is_finished_for_as_long_as_there_is_time() -> None:
    """Also after `drainTimeout`, which is for the micro-batch: who leaves before has others write it again."""

    async def body(scene: Scene) -> None:
        end = await scene.agent.latest(await holding(scene, (A, 4, 0)), None)
        scene.agent.finished(end)
        scene.coordinator.fault = CoordinatorUnavailableError("no answer")
        draining = asyncio.create_task(scene.agent.drain(scene.loop.time() + 80))
        await asyncio.sleep(70)
        assert not draining.done()
        scene.coordinator.fault = None
        assert await scene.until(draining.done) <= 2.1
        assert (draining.result(), scene.coordinator.checkpoints) == (True, [(A, 4, 100)])

    story(body, coordinator_loss_limit=300.0)


@pytest.mark.parametrize("left", [True, False], ids=["has left", "drains"])
def test_who_goes_reads_no_logged_micro_batch_again(left: bool) -> None:
    """Its query may have begun just before: what it read would be written beside the next holder."""

    async def body(scene: Scene) -> None:
        start = await holding(scene, (A, 4, 0), (B, 5, 0))
        if not left:
            scene.coordinator.outcome = CheckpointResult.WITHHELD
            scene.agent.finished(await scene.agent.latest(start, None))
        draining = asyncio.create_task(scene.agent.drain(scene.loop.time() + 80))
        await asyncio.sleep(1)
        assert draining.done() is left
        assert await scene.agent.replay(Offsets(GROUP, 1, {B: ReadRange(0, 500, 5)})) == ()
        assert not scene.agent.tracker.busy

    story(body)


def test_a_drain_keeps_time_for_leaving() -> None:
    async def body(scene: Scene) -> None:
        end = await scene.agent.latest(await holding(scene, (A, 4, 0)), None)
        scene.coordinator.outcome = CheckpointResult.WITHHELD
        scene.agent.finished(end)
        began = scene.loop.time()
        assert not await scene.agent.drain(began + 80)
        assert scene.loop.time() - began == pytest.approx(75)
        assert scene.coordinator.leaves == 1

    story(body)


def test_a_drain_in_which_something_finished_was_lost_is_not_clean() -> None:
    async def body(scene: Scene) -> None:
        end = await scene.agent.latest(await holding(scene, (A, 4, 0)), None)
        scene.coordinator.outcome = CheckpointResult.FENCED
        draining = asyncio.create_task(scene.agent.drain(scene.loop.time() + 80))
        await asyncio.sleep(1)
        scene.agent.finished(end)
        assert not await draining
        assert not await scene.agent.drain(scene.loop.time() + 80), "nor is it when it is asked again"

    story(body)


def test_what_became_ours_anew_while_something_finished_was_not_durable_makes_a_drain_unclean() -> None:
    async def body(scene: Scene) -> None:
        end = await scene.agent.latest(await holding(scene, (A, 4, 0)), None)
        scene.coordinator.outcome = CheckpointResult.WITHHELD
        draining = asyncio.create_task(scene.agent.drain(scene.loop.time() + 80))
        scene.agent.finished(end)
        await asyncio.sleep(1)
        scene.coordinator.assign((A, 5, 0))
        assert not await draining

    story(body)


def ordered_story(body: Callable[[Scene], Awaitable[None]]) -> None:
    async def play(scene: Scene) -> None:
        scene.coordinator.ordered = True
        await body(scene)

    story(play, ordered=True)


class TestAnOrderedGroup:
    """What goes on in executors after its query ended, or was cancelled, must not be written beside."""

    def test_who_leaves_with_a_micro_batch_running_says_that_it_has_not_stopped(self) -> None:
        async def body(scene: Scene) -> None:
            await scene.agent.latest(await holding(scene, (A, 4, 0)), None)
            scene.tasks = True
            assert not await scene.agent.drain(scene.loop.time() + 80)
            assert (scene.coordinator.stopped, len(scene.stopped)) == (False, 1)

        ordered_story(body)

    @pytest.mark.parametrize(("tasks", "stopped"), [(False, True), (True, False)], ids=["have ended", "go on"])
    def test_who_cancelled_its_micro_batch_leaves_once_its_query_and_its_tasks(self, tasks: bool, stopped: bool) -> None:
        async def body(scene: Scene) -> None:
            await scene.agent.latest(await holding(scene, (A, 4, 0)), None)
            scene.tasks = True
            draining = asyncio.create_task(scene.agent.drain(scene.loop.time() + 80))
            await scene.until(lambda: bool(scene.stopped), within=61)
            assert scene.coordinator.leaves == 0, "it is awaited what was cancelled"
            await asyncio.sleep(0.5)
            scene.agent.query_ended()
            await asyncio.sleep(0.5)
            scene.tasks = tasks
            await draining
            assert scene.coordinator.stopped is stopped

        ordered_story(body)

    def test_a_clean_drain_says_that_nothing_goes_on(self) -> None:
        async def body(scene: Scene) -> None:
            end = await scene.agent.latest(await holding(scene, (A, 4, 0)), None)
            scene.tasks = True  # of a query of another source
            scene.agent.finished(end)
            assert await scene.agent.drain(scene.loop.time() + 80)
            assert scene.coordinator.stopped is True

        ordered_story(body)

    def test_a_query_that_ended_gives_its_shards_up_when_its_tasks_have_ended(self) -> None:
        async def body(scene: Scene) -> None:
            await scene.agent.latest(await holding(scene, (A, 4, 0), (B, 5, 0)), None)
            scene.tasks = True
            scene.agent.query_ended()
            scene.coordinator.assign((A, 4, 0))
            await asyncio.sleep(30)
            assert scene.coordinator.named == [(A, 4), (B, 5)]
            scene.tasks = False
            await scene.until(lambda: scene.coordinator.named == [(A, 4)])

        ordered_story(body)

    def test_who_leaves_after_a_query_that_ended_waits_for_its_tasks(self) -> None:
        async def body(scene: Scene) -> None:
            await scene.agent.latest(await holding(scene, (A, 4, 0)), None)
            scene.tasks = True
            scene.agent.query_ended()
            draining = asyncio.create_task(scene.agent.drain(scene.loop.time() + 30))
            await asyncio.sleep(10)
            assert scene.coordinator.leaves == 0
            scene.tasks = False
            assert await scene.until(draining.done) < 1.0
            assert (draining.result(), scene.coordinator.stopped) == (True, True)

        ordered_story(body)

    def test_who_never_learns_that_they_ended_leaves_in_time_and_says_so(self) -> None:
        async def body(scene: Scene) -> None:
            await scene.agent.latest(await holding(scene, (A, 4, 0)), None)
            scene.tasks = True
            scene.agent.query_ended()
            began = scene.loop.time()
            await scene.agent.drain(began + 30)
            assert scene.coordinator.stopped is False
            assert scene.loop.time() - began == pytest.approx(27, abs=0.5)

        ordered_story(body)

    def test_a_later_micro_batch_shows_that_they_have_ended(self) -> None:
        async def body(scene: Scene) -> None:
            start = await holding(scene, (A, 4, 0))
            await scene.agent.latest(start, None)
            scene.tasks = True
            scene.agent.query_ended()
            again = await scene.agent.latest(start, None)
            scene.agent.finished(again)
            scene.coordinator.assign()
            await scene.until(lambda: scene.coordinator.named == [])

        ordered_story(body)

    def test_what_is_abandoned_while_it_looks_is_looked_for_again(self) -> None:
        async def body(scene: Scene) -> None:
            start = await holding(scene, (A, 4, 0))
            await scene.agent.latest(start, None)

            async def late() -> bool:
                await asyncio.sleep(1)
                return False

            scene.agent._running = late
            scene.agent.query_ended()
            await asyncio.sleep(0.5)
            await scene.agent.latest(start, None)
            scene.agent.query_ended()
            await asyncio.sleep(0.9)
            assert dict(scene.agent.tracker.adrift) == {A: 4}
            await scene.until(lambda: not scene.agent.tracker.adrift)

        ordered_story(body)


def test_an_unordered_group_waits_for_no_tasks() -> None:
    async def body(scene: Scene) -> None:
        await scene.agent.latest(await holding(scene, (A, 4, 0)), None)
        scene.tasks = True
        scene.agent.query_ended()
        scene.coordinator.assign()
        await scene.until(lambda: scene.coordinator.named == [], within=1.0)

    story(body)


def test_available_now_needs_no_warm_up_and_reads_up_to_what_there_was() -> None:
    async def body(scene: Scene) -> None:
        scene.end_offsets.end_offsets = {A: 100}
        prepared = asyncio.create_task(scene.agent.prepare_available_now())
        await asyncio.sleep(5)
        assert not prepared.done()
        scene.coordinator.assign((A, 4, 0))
        await scene.until(prepared.done)
        scene.end_offsets.end_offsets = {A: 500}
        end = await scene.agent.latest(NOTHING, 60)
        assert spans(end) == {A: (0, 60, 4)}
        end = await scene.agent.latest(end, 60)
        assert spans(end) == {A: (60, 100, 4)}
        assert await scene.agent.latest(end, 60) is end

    story(body)


def test_a_paused_group_has_not_been_read_by_available_now() -> None:
    async def body(scene: Scene) -> None:
        start = await holding(scene, (A, 4, 0))
        await scene.agent.prepare_available_now()
        first = await scene.agent.latest(start, 60)
        scene.coordinator.paused = True
        scene.coordinator.assign((A, 4, 0))
        await scene.until(lambda: scene.agent.tracker.paused)
        assert await scene.agent.latest(first, 60) is first
        assert scene.agent.unread(), "it goes on when it is resumed"
        scene.coordinator.paused = False
        scene.coordinator.assign((A, 4, 0))
        await scene.until(lambda: not scene.agent.tracker.paused)
        second = await scene.agent.latest(first, 60)
        assert spans(second) == {A: (60, 100, 4)}
        assert await scene.agent.latest(second, 60) is second
        assert not scene.agent.unread()

    story(body)


def test_a_query_that_follows_one_of_available_now_at_once_reads_what_comes_too() -> None:
    async def body(scene: Scene) -> None:
        start = await holding(scene, (A, 4, 0))
        await scene.agent.prepare_available_now()
        first = await scene.agent.latest(start, None)
        assert spans(first) == {A: (0, 100, 4)}
        scene.agent.finished(first)
        scene.end_offsets.end_offsets[A] = 150
        assert await scene.agent.latest(first, None) is first
        scene.agent.query_began(Limits())  # its process is there before the end of the one before it is acted upon
        assert spans(await scene.agent.latest(first, None)) == {A: (100, 150, 4)}
        assert scene.agent.query_ended(), "such a query is not started again by itself"

    story(body)


def test_a_shard_is_read_up_to_its_end_also_by_available_now_which_waits_until_that_is_known() -> None:
    async def body(scene: Scene) -> None:
        scene.end_offsets.end_offsets = {A: 100}
        prepared = asyncio.create_task(scene.agent.prepare_available_now())
        scene.coordinator.assigned = {A: ConfirmedShard(A, 4, 4, 0, end=0)}
        scene.coordinator.revision += 1
        await asyncio.sleep(10)
        assert (len(scene.agent.tracker.shards), prepared.done()) == (1, False), "the coordinator has not looked yet"
        scene.coordinator.assigned = {A: ConfirmedShard(A, 4, 4, 0, end=40)}
        await scene.until(prepared.done)
        end = await scene.agent.latest(NOTHING, 60)
        assert spans(end) == {A: (0, 40, 4)}
        assert await scene.agent.latest(end, 60) is end

    story(body)
