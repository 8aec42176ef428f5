"""What a worker does with its shards, in simulated time: batches, failures, positions, and the end."""

from __future__ import annotations

import asyncio
import logging

import pytest

from shardherd.client.consumer import CANCEL_GRACE
from shardherd.core.model.errors import (
    ConsumerStoppedError,
    CoordinatorUnavailableError,
    FencedEpochError,
    StaleIncarnationError,
)
from shardherd.core.model.nouns import Phase, ShardId
from shardherd.source.kafka.cluster_connection import BrokersUnavailableError, SourceRefusedError
from shardherd.worker.processor import AsyncCheckpoint
from shardherd.worker.records import Records
from tests.unit.spark.simulated import simulate
from tests.unit.worker.scene import A, B, Scene, story


def test_a_shard_is_processed_in_batches_in_order_from_its_position_on() -> None:
    async def body(scene: Scene) -> None:
        scene.logs.append(A, 25)
        scene.coordinator.assign((A, 1, 5))
        await scene.until(lambda: len(scene.program.seen.get(A, [])) == 20)
        assert scene.program.calls == [
            ("initialize", A),
            ("process", A, 5, 15),
            ("process", A, 15, 25),
        ]
        assert scene.program.seen[A] == list(range(5, 25))

    story(body, batch_size=10)


def test_what_has_no_record_is_gone_past_without_a_call() -> None:
    async def body(scene: Scene) -> None:
        scene.logs.append(A, 3, gap=7)
        scene.logs.append(A, 2)
        scene.logs.append(B, 0, gap=4)
        scene.coordinator.assign((A, 1, 0), (B, 1, 0))
        await scene.until(lambda: set(scene.coordinator.checkpoints) == {(A, 1, 12), (B, 1, 4)})
        assert (scene.program.batches(A), scene.program.batches(B)) == ([(0, 12)], [])

    story(body, save_interval=1.0)


def test_each_shard_has_a_processor_of_its_own_and_they_work_at_once() -> None:
    async def body(scene: Scene) -> None:
        shards = [ShardId(f"t/{number}") for number in range(6)]
        for shard in shards:
            scene.logs.append(shard, 4)
        scene.program.takes = 1.0
        scene.coordinator.assign(*((shard, 1, 0) for shard in shards))
        await scene.until(lambda: scene.program.seen == {shard: [0, 1, 2, 3] for shard in shards})
        assert (scene.program.made, scene.program.most_at_once) == (6, 3)

    story(body, threads=3)


def test_shards_take_turns_where_more_of_them_have_batches_than_are_processed_at_once() -> None:
    async def body(scene: Scene) -> None:
        scene.logs.append(A, 6)
        scene.logs.append(B, 6)
        scene.program.takes = 1.0
        scene.coordinator.assign((A, 1, 0), (B, 1, 0))
        await scene.until(lambda: scene.program.seen == {A: [0, 1, 2, 3, 4, 5], B: [0, 1, 2, 3, 4, 5]})
        turns = [call[1] for call in scene.program.calls if call[0] == "process"]
        assert turns == [A, B, A, B, A, B]

    story(body, threads=1, batch_size=2)


def test_shards_that_were_read_to_their_ends_are_not_asked_for_while_others_stand_in_line() -> None:
    """A Fetch brings a record of each: their processing takes 40 ms, and what comes meanwhile is one answer."""

    async def body(scene: Scene) -> None:
        scene.program.takes = 0.02
        scene.coordinator.assign((A, 1, 0), (B, 1, 0))
        await scene.until(lambda: len(scene.logs.asked) > 2)
        for _ in range(100):
            scene.logs.append(A, 1)
            scene.logs.append(B, 1)
            await asyncio.sleep(0.03)
        await scene.until(lambda: scene.program.seen == {A: list(range(100)), B: list(range(100))})
        batches = len(scene.program.batches(A)) + len(scene.program.batches(B))
        assert batches < 140, "they had more than one record"

    story(body, threads=1, fetch_interval=0.0)


def test_but_after_a_moment_they_are_so_that_their_ends_are_known() -> None:
    async def body(scene: Scene) -> None:
        scene.logs.append(A, 1)
        scene.logs.append(B, 1)
        scene.program.takes = 60.0
        scene.coordinator.assign((A, 1, 0), (B, 1, 0))
        await scene.until(lambda: bool(scene.program.batches(A) or scene.program.batches(B)))
        await asyncio.sleep(1)
        scene.logs.append(A, 7)
        assert await scene.until(lambda: scene.processing.picture().held[0].end == 8) < 0.2

    story(body, threads=1, fetch_interval=0.0)


def test_what_is_done_is_durable_after_the_save_interval_in_one_request() -> None:
    async def body(scene: Scene) -> None:
        scene.coordinator.assign((A, 1, 0), (B, 1, 0))
        scene.logs.append(A, 5)
        await scene.until(lambda: scene.program.seen == {A: [0, 1, 2, 3, 4]})
        began = scene.loop.time()
        scene.logs.append(A, 5)
        scene.logs.append(B, 7)
        await scene.until(lambda: bool(scene.coordinator.checkpoints))
        assert scene.coordinator.checkpoints == [(A, 1, 10), (B, 1, 7)]
        assert 59.0 < scene.loop.time() - began < 60.5

    story(body)


def test_a_batch_that_failed_is_tried_again_with_pauses_that_double_and_is_named(caplog: pytest.LogCaptureFixture) -> None:
    async def body(scene: Scene) -> None:
        scene.logs.append(A, 10)
        scene.program.results = [RuntimeError("the sink is away")] * 4
        scene.coordinator.assign((A, 1, 0))
        began = await scene.until(lambda: bool(scene.program.calls))
        await scene.until(lambda: bool(scene.processing.troubles))
        assert scene.processing.troubles == {
            A: "process of <10 records of t/0 from 0 up to 10> failed, attempt 1: RuntimeError: the sink is away"
        }
        took = await scene.until(lambda: not scene.processing.troubles)
        assert 0.5 + 1 + 2 + 4 <= took + began < 8
        assert scene.program.batches(A) == [(0, 10)] * 5
        await scene.until(lambda: scene.coordinator.checkpoints == [(A, 1, 10)])

    story(body, save_interval=1.0)
    lines = [record for record in caplog.records if "failed, attempt" in record.getMessage()]
    assert [line.getMessage().rpartition("; ")[2] for line in lines] == [
        f"trying again in {pause} s" for pause in ("0.5", "1", "2", "4")
    ]
    assert [line.exc_info is None for line in lines] == [False, True, True, True]


def test_a_position_goes_back_to_it_and_what_is_before_is_done() -> None:
    async def body(scene: Scene) -> None:
        scene.logs.append(A, 20)
        scene.program.results = [4]
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: len(scene.program.seen.get(A, [])) == 26)
        assert scene.program.batches(A) == [(0, 10), (4, 10), (10, 20)]

    story(body, batch_size=10)


def test_a_position_before_what_is_done_is_refused_and_the_batch_is_tried_again() -> None:
    async def body(scene: Scene) -> None:
        scene.logs.append(A, 20)
        scene.program.results = [None, 6]
        scene.coordinator.assign((A, 1, 3))
        await scene.until(lambda: bool(scene.processing.troubles))
        assert scene.processing.troubles[A].endswith(
            "ValueError: process returned position 6 of shard t/0, which is not between what is done, 13, and the end of the"
            " batch, 20: the batch is tried again from 13"
        )
        await scene.until(lambda: not scene.processing.troubles)
        assert scene.program.batches(A) == [(3, 13), (13, 20), (13, 20)]

    story(body, batch_size=10)


def test_a_position_at_the_end_of_a_batch_that_was_cut_short_does_not_pass_the_rest() -> None:
    async def body(scene: Scene) -> None:
        async def save(records: Records, checkpoint: AsyncCheckpoint) -> None:
            await checkpoint.save(records.next)

        scene.logs.append(A, 10)
        scene.program.takes = 1.0
        scene.program.save = save
        scene.program.results = [10]
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: len(scene.program.seen.get(A, [])) == 3)
        scene.coordinator.assign()
        await scene.until(lambda: scene.coordinator.named == [])
        assert (scene.program.seen[A], scene.coordinator.checkpoints) == ([0, 1, 2, 3], [(A, 1, 4)])

    story(body)


def test_a_position_after_what_was_given_out_is_refused() -> None:
    async def body(scene: Scene) -> None:
        async def save(records: Records, checkpoint: AsyncCheckpoint) -> None:
            await checkpoint.save(records.next + 1)

        scene.logs.append(A, 10)
        scene.program.save = save
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: bool(scene.processing.troubles))
        assert "shard t/0 was given out up to 5; a checkpoint at 6" in scene.processing.troubles[A]

    story(body, batch_size=5)


def test_a_processor_that_always_goes_back_to_where_it_began_is_no_tight_loop() -> None:
    async def body(scene: Scene) -> None:
        scene.logs.append(A, 10)
        scene.program.results = [0] * 1000
        scene.coordinator.assign((A, 1, 0))
        await asyncio.sleep(60)
        assert len(scene.program.batches(A)) == 7  # after 0, 0.5, 1.5, 3.5, 7.5, 15.5, 31.5 s
        assert "went back to where it began" in scene.processing.troubles[A]

    story(body)


@pytest.mark.parametrize("error", [FencedEpochError("of another shard"), ConsumerStoppedError("of another worker")], ids=repr)
def test_what_would_end_a_shard_that_is_lost_is_a_failure_as_any_other_of_one_that_is_not(error: Exception) -> None:
    """A program may have kept the checkpoint of another shard, or of an earlier grant."""

    async def body(scene: Scene) -> None:
        scene.program.results = [error] * 3
        scene.logs.append(A, 3)
        scene.coordinator.assign((A, 1, 0))
        took = await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 3)])
        assert 0.5 + 1 + 2 <= took < 6
        assert (scene.program.made, scene.program.batches(A)) == (1, [(0, 3)] * 4)
        assert scene.processing.counts.failures == {"process": 3}

    story(body, save_interval=1.0)


def test_what_a_failed_batch_has_saved_is_not_tried_again() -> None:
    async def body(scene: Scene) -> None:
        async def save(records: Records, checkpoint: AsyncCheckpoint) -> None:
            if records.position == 0:
                await checkpoint.save(7)

        scene.logs.append(A, 10)
        scene.program.save = save
        scene.program.results = [RuntimeError("after seven")]
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.program.batches(A) == [(0, 10), (7, 10)])

    story(body)


def test_a_revoked_shard_ends_its_record_is_saved_and_released_while_the_others_go_on() -> None:
    async def body(scene: Scene) -> None:
        scene.logs.append(A, 100)
        scene.logs.append(B, 100)
        scene.program.takes = 1.0
        scene.coordinator.assign((A, 1, 0), (B, 2, 0))
        await scene.until(lambda: len(scene.program.seen.get(A, [])) == 3)
        scene.coordinator.assign((B, 2, 0))
        took = await scene.until(lambda: scene.coordinator.named == [(B, 2)])
        done = len(scene.program.seen[A])
        assert (took < 1.5, done) == (True, 4)
        assert scene.coordinator.checkpoints == [(A, 1, 4)]
        assert ("shutdown", A, 4) in scene.program.calls
        await scene.until(lambda: len(scene.program.seen[B]) == 100, within=200)

    story(body, threads=2)


def test_a_batch_that_does_not_end_keeps_a_wanted_shard_no_longer_than_the_bound() -> None:
    async def body(scene: Scene) -> None:
        scene.logs.append(A, 10)
        scene.program.takes = 1000.0
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: bool(scene.program.batches(A)))
        scene.coordinator.assign()
        took = await scene.until(lambda: scene.coordinator.named == [])
        assert 30 <= took < 31
        assert scene.coordinator.checkpoints == []
        assert scene.program.calls == [("initialize", A), ("process", A, 0, 10), ("shutdown", A, 0)]

    story(body)


def test_a_shutdown_that_does_not_end_has_what_is_left_of_that_bound_and_at_least_a_moment() -> None:
    async def body(scene: Scene) -> None:
        scene.logs.append(A, 10)
        scene.program.takes = 1000.0
        scene.program.long["shutdown"] = 1000.0
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: bool(scene.program.batches(A)))
        scene.coordinator.assign()
        took = await scene.until(lambda: scene.coordinator.named == [])
        assert 30 + CANCEL_GRACE <= took < 31 + CANCEL_GRACE
        assert scene.program.calls[-1] == ("shutdown", A, 0)

    story(body)


def test_no_more_shards_are_initialized_or_shut_down_at_once_than_are_processed() -> None:
    async def body(scene: Scene) -> None:
        shards = [ShardId(f"t/{number}") for number in range(6)]
        scene.program.long = {"initialize": 1.0, "shutdown": 1.0}
        scene.coordinator.assign(*((shard, 1, 0) for shard in shards))
        for shard in shards:
            scene.logs.append(shard, 1)
        await scene.until(lambda: len(scene.program.seen) == 6)
        scene.coordinator.assign()
        took = await scene.until(lambda: scene.coordinator.named == [])
        assert scene.program.most_in == {"initialize": 2, "shutdown": 2}
        assert 3 <= took < 4

    story(body, threads=2)


def test_a_shutdown_waits_neither_for_the_batch_of_another_shard_nor_for_ever_for_another_shutdown() -> None:
    async def body(scene: Scene) -> None:
        scene.program.long = {"shutdown": 1000.0}
        scene.coordinator.assign((A, 1, 0), (B, 1, 0))
        await scene.until(lambda: scene.program.made == 2)
        scene.program.takes = 1000.0
        scene.logs.append(B, 1)
        await scene.until(lambda: bool(scene.program.batches(B)))
        scene.coordinator.assign((B, 1, 0))
        await scene.until(lambda: ("shutdown", A, 0) in scene.program.calls, within=2)
        scene.coordinator.assign()
        took = await scene.until(lambda: scene.coordinator.named == [])
        assert 30 <= took < 31 + CANCEL_GRACE

    story(body, threads=1)


def test_an_exception_in_shutdown_keeps_nothing_from_being_saved_and_released(caplog: pytest.LogCaptureFixture) -> None:
    async def body(scene: Scene) -> None:
        scene.logs.append(A, 10)
        scene.program.failing["shutdown"] = [OSError("no disk")]
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: len(scene.program.seen.get(A, [])) == 10)
        scene.coordinator.assign()
        await scene.until(lambda: scene.coordinator.named == [])
        assert scene.coordinator.checkpoints == [(A, 1, 10)]

    story(body)
    assert "shutdown failed; what is done is saved all the same" in caplog.text


def test_initialize_that_failed_is_tried_again_on_another_processor() -> None:
    async def body(scene: Scene) -> None:
        scene.logs.append(A, 2)
        scene.program.failing["initialize"] = [OSError("no disk"), OSError("no disk")]
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.program.seen == {A: [0, 1]})
        assert scene.program.calls == [("initialize", A)] * 3 + [("process", A, 0, 2)]
        assert scene.program.made == 3

    story(body)


def test_a_shard_that_comes_back_under_another_position_is_processed_from_there_by_a_new_processor() -> None:
    async def body(scene: Scene) -> None:
        scene.logs.append(A, 10)
        scene.program.takes = 1.0
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: len(scene.program.seen.get(A, [])) == 2)
        scene.coordinator.assign((A, 2, 8))
        await scene.until(lambda: scene.program.batches(A) == [(0, 10), (8, 10)])
        await scene.until(lambda: scene.program.seen[A][-2:] == [8, 9])
        assert scene.program.made == 2
        assert all(epoch == 2 for _, epoch, _ in scene.coordinator.checkpoints)

    story(body, save_interval=1.0)


def test_a_paused_group_ends_the_batch_in_hand_and_begins_none_until_it_goes_on() -> None:
    async def body(scene: Scene) -> None:
        scene.logs.append(A, 30)
        scene.program.takes = 1.0
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: len(scene.program.seen.get(A, [])) == 3)
        scene.coordinator.paused = True
        scene.coordinator.assign((A, 1, 0))
        await asyncio.sleep(60)
        assert scene.program.batches(A) == [(0, 10)]
        scene.coordinator.paused = False
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: len(scene.program.seen[A]) == 30)

    story(body, batch_size=10)


def test_a_drain_hands_out_nothing_more_ends_the_batch_saves_and_leaves() -> None:
    async def body(scene: Scene) -> None:
        scene.logs.append(A, 30)
        scene.program.takes = 0.5
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: len(scene.program.seen.get(A, [])) == 3)
        assert await scene.consumer.drain(20.0)
        await scene.ended()
        assert scene.program.calls == [("initialize", A), ("process", A, 0, 10), ("shutdown", A, 10)]
        assert (scene.coordinator.checkpoints, scene.coordinator.leaves, scene.coordinator.stopped) == ([(A, 1, 10)], 1, True)

    story(body, batch_size=10)


def test_a_drain_whose_time_is_over_cancels_what_is_in_hand_and_leaves() -> None:
    async def body(scene: Scene) -> None:
        scene.logs.append(A, 10)
        scene.program.takes = 1000.0
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: bool(scene.program.batches(A)))
        assert not await scene.consumer.drain(5.0)
        await scene.ended()
        assert (scene.coordinator.checkpoints, scene.coordinator.stopped) == ([], True)

    story(body)


def test_a_run_that_is_superseded_ends_and_processes_nothing_more() -> None:
    async def body(scene: Scene) -> None:
        scene.logs.append(A, 30)
        scene.program.takes = 1.0
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: len(scene.program.seen.get(A, [])) == 3)
        scene.coordinator.fault = StaleIncarnationError("another run of this name")
        await scene.until(lambda: bool(scene.consumer.stopped))
        await scene.ended()
        assert len(scene.program.seen[A]) <= 6
        assert (scene.coordinator.checkpoints, scene.coordinator.leaves) == ([], 0)

    story(body)


def test_a_shard_whose_queue_is_full_is_paused_and_read_on_when_there_is_room() -> None:
    async def body(scene: Scene) -> None:
        scene.logs.size = 1024 * 1024
        scene.logs.append(A, 40)
        scene.program.takes = 10.0
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.processing.paused == (A,))
        last, asked = scene.logs.asked[-1][1][A], len(scene.logs.asked)
        # Half of the memory is for what waits and what is in hand.
        assert last.position + last.most // scene.logs.size == 8
        await asyncio.sleep(30)
        assert len(scene.logs.asked) == asked
        scene.program.takes = 0.0
        await scene.until(lambda: scene.program.seen.get(A) == list(range(40)))
        assert scene.processing.paused == ()

    story(body, batch_size=5, memory=16 * 1024 * 1024)


def test_phases_tell_what_the_worker_is_about() -> None:
    async def body(scene: Scene) -> None:
        async def reported() -> Phase | None:
            count = len(scene.coordinator.heartbeats)
            await scene.until(lambda: len(scene.coordinator.heartbeats) > count)
            return scene.coordinator.heartbeats[-1].phase

        scene.program.long["initialize"] = 10.0
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: bool(scene.program.calls))
        assert await reported() is Phase.WRITING
        await asyncio.sleep(10)
        assert await reported() is Phase.IDLE
        scene.program.takes = 10.0
        scene.logs.append(A, 1)
        await scene.until(lambda: bool(scene.program.batches(A)))
        assert await reported() is Phase.WRITING
        scene.program.takes = 0.0
        scene.program.results = [RuntimeError("the sink is away")] * 5
        scene.logs.append(A, 1)
        await scene.until(lambda: len(scene.program.batches(A)) == 4)
        assert await reported() is Phase.WRITING
        await scene.until(lambda: not scene.processing.troubles)
        assert await reported() is Phase.IDLE
        scene.logs.failing = BrokersUnavailableError("no broker")
        await asyncio.sleep(2)
        assert await reported() is Phase.READING

    story(body)


def test_kafka_may_be_away_for_a_while(caplog: pytest.LogCaptureFixture) -> None:
    async def body(scene: Scene) -> None:
        scene.logs.append(A, 5)
        scene.logs.failing = BrokersUnavailableError("no broker")
        scene.coordinator.assign((A, 1, 0))
        await asyncio.sleep(30)
        scene.logs.failing = None
        await scene.until(lambda: scene.program.seen == {A: [0, 1, 2, 3, 4]})

    caplog.set_level(logging.INFO)
    story(body)
    assert [record.getMessage() for record in caplog.records if "Kafka" in record.getMessage()] == [
        "Kafka cannot be read, trying on: no broker",
        "Kafka answers again",
    ]


def test_what_kafka_refuses_for_good_ends_the_worker_after_a_drain() -> None:
    async def body(scene: Scene) -> None:
        scene.logs.append(A, 5)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.program.seen == {A: [0, 1, 2, 3, 4]})
        scene.logs.failing = SourceRefusedError("shard t/0: Kafka refuses to read it")
        with pytest.raises(SourceRefusedError, match="refuses to read it"):
            await scene.ended()
        assert (scene.coordinator.checkpoints, scene.coordinator.leaves) == ([(A, 1, 5)], 1)

    story(body)


def test_the_coordinator_may_be_away_and_what_is_done_meanwhile_is_saved_afterwards() -> None:
    async def body(scene: Scene) -> None:
        scene.logs.append(A, 5)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.program.seen == {A: [0, 1, 2, 3, 4]})
        scene.coordinator.fault = CoordinatorUnavailableError("away")
        scene.logs.append(A, 5)
        await asyncio.sleep(120)
        assert (len(scene.program.seen[A]), scene.coordinator.checkpoints) == (10, [])
        scene.coordinator.fault = None
        await scene.until(lambda: scene.coordinator.checkpoints == [(A, 1, 10)])

    story(body)


def test_a_worker_that_hears_nothing_for_too_long_ends_in_an_ordered_group_before_it_can_be_expired() -> None:
    async def play() -> float:
        async with Scene() as scene:
            scene.coordinator.ordered = True
            scene.coordinator.assign((A, 1, 0))
            await scene.until(lambda: bool(scene.program.calls))
            scene.coordinator.fault = CoordinatorUnavailableError("away")
            took = await scene.until(lambda: bool(scene.consumer.stopped))
            await scene.ended()
            return took

    assert simulate(play) < 45.0
