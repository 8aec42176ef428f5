"""The specification's own examples of a worker, with its figures: the client's processor, and consumers with threads."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from contextlib import ExitStack
from itertools import pairwise

import pytest

from shardherd.core.model.errors import CoordinatorUnavailableError
from shardherd.core.model.nouns import Offset, ShardId
from shardherd.testing.group import PlayedGroup
from shardherd.worker import AsyncCheckpoint, Records
from shardherd.worker.worker import SHUTDOWN
from tests.unit.worker.scene import A, B, Logs, Scene, story
from tests.unit.worker.test_worker import Seen, running, worker_of

FETCH_INTERVAL = 0.2
MAX_POLL_INTERVAL, MAX_POLL_RECORDS = 300.0, 500


# The client's worker.


def test_a_processor_is_initialized_once_called_serially_and_shut_down_with_a_durable_save() -> None:
    async def body(scene: Scene) -> None:
        for shard in (A, B):
            scene.logs.append(shard, 4)
        scene.program.takes = 1.0
        scene.coordinator.assign((A, 1, 0), (B, 1, 0))
        await scene.until(lambda: scene.program.seen == {A: [0, 1, 2, 3], B: [0, 1, 2, 3]})
        scene.coordinator.assign((B, 1, 0))
        await scene.until(lambda: scene.coordinator.named == [(B, 1)])
        calls = [call[:2] for call in scene.program.calls]
        assert [call for call in calls if call[1] == A] == [
            ("initialize", A),
            ("process", A),
            ("process", A),
            ("shutdown", A),
        ]
        assert (scene.program.made, scene.coordinator.checkpoints[0]) == (2, (A, 1, 4))

    story(body, batch_size=2)


def test_null_is_done_and_a_checkpoint_rolls_back_to_it() -> None:
    async def body(scene: Scene) -> None:
        fails = [True]

        async def save(records: Records, checkpoint: AsyncCheckpoint) -> None:
            if records.position == 0:
                await checkpoint.save(now=True)
            elif fails:
                fails.pop()
                scene.program.results.append(None)

        scene.logs.append(A, 30)
        scene.program.save = save
        # Null for the first batch; for the second one what getCheckpoint says, which is 10.
        scene.program.results = [None, 10]
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.program.batches(A)[-1:] == [(20, 30)])
        assert scene.program.batches(A) == [(0, 10), (10, 20), (10, 20), (20, 30)], "the unit of a roll-back is the batch"

    story(body, batch_size=10)


def test_more_than_sixty_seconds_after_the_last_durable_save_the_sample_saves_at_once() -> None:
    async def body(scene: Scene) -> None:
        last = [scene.loop.time()]

        async def sample(records: Records, checkpoint: AsyncCheckpoint) -> None:
            if scene.loop.time() - last[0] > 60 * 1000 / 1000:
                await checkpoint.save(now=True)
                last[0] = scene.loop.time()
                assert checkpoint.position == records.next
            else:
                await checkpoint.save(now=False)

        scene.program.save = sample
        scene.program.takes = 25.0
        scene.logs.append(A, 6)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: len(scene.program.seen.get(A, [])) == 6, within=200)
        # Each of the six says that its record is done. After 25 and 50 s nothing is durable; at 75 s the third is, by itself,
        # and 25 s later what was done after 60 s would have been anyway.
        assert [offset for _, _, offset in scene.coordinator.checkpoints] in ([3, 6], [2, 3, 6])
        assert scene.consumer.holdings.uncommitted() == ()

    story(body, batch_size=1)


def test_a_save_that_fails_is_an_error_that_the_program_may_log_and_the_position_is_not_lost() -> None:
    async def body(scene: Scene) -> None:
        failed: list[str] = []

        async def save(records: Records, checkpoint: AsyncCheckpoint) -> None:
            try:
                await checkpoint.save(now=True)
            except CoordinatorUnavailableError as error:
                failed.append(str(error))
                assert (checkpoint.position, checkpoint.done) == (0, records.next)

        scene.program.save = save
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.program.calls == [("initialize", A)])
        scene.coordinator.fault = CoordinatorUnavailableError("away")
        scene.logs.append(A, 20)
        await scene.until(lambda: len(failed) == 2)
        assert "is not durable yet" in failed[0]
        scene.coordinator.fault = None
        await scene.until(lambda: scene.coordinator.checkpoints == [(A, 1, 20)])

    story(body, batch_size=10)


def test_a_fetch_interval_of_200_ms_is_kept_to() -> None:
    async def body(scene: Scene) -> None:
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: bool(scene.logs.asked))
        before = len(scene.logs.asked)
        await asyncio.sleep(10.0)
        assert len(scene.logs.asked) - before <= 10.0 / FETCH_INTERVAL + 1

    story(body, fetch_interval=FETCH_INTERVAL)


def test_shutdown_stops_the_worker_and_waits_for_its_tasks_for_thirty_seconds() -> None:
    with PlayedGroup(shards=1) as group:
        logs, entered = Logs(), threading.Event()
        logs.append(group.shards[0], 1)

        def work(records: Records, checkpoint: object) -> None:
            entered.set()

        worker = worker_of(group, "played-0", Seen(work), logs)
        with running(worker):
            assert entered.wait(5)
            assert worker.shutdown()
            assert (SHUTDOWN, group.checkpoints(), group.holders()) == (30.0, {group.shards[0]: 1}, {})


# Consumers with threads.


def test_eight_partitions_on_four_threads_are_2_2_2_2() -> None:
    with PlayedGroup(shards=8) as group, ExitStack() as stack:
        logs, seen = Logs(), Seen()
        for shard in group.shards:
            logs.append(shard, 1)
        for number in range(4):
            stack.enter_context(running(worker_of(group, f"played-{number}", seen, logs, threads=1)))
        group.until("each has its part", lambda: sorted(Counter(group.holders().values()).values()) == [2, 2, 2, 2])
        group.until("all is processed", lambda: set(group.checkpoints().values()) == {1})


def test_sink_outage_keeps_membership_and_position() -> None:
    async def body(scene: Scene) -> None:
        scene.logs.append(A, 2 * MAX_POLL_RECORDS)
        scene.program.results = [None] + [ConnectionError("the sink is away")] * 1000
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: bool(scene.processing.troubles))
        outage = 3 * MAX_POLL_INTERVAL
        await asyncio.sleep(outage)
        heartbeats = [at for at in scene.coordinator.answered if at > scene.loop.time() - outage]
        assert max(later - at for at, later in pairwise(heartbeats)) < 4.0
        assert scene.coordinator.named == [(A, 1)], "it holds the shard"
        assert scene.coordinator.checkpoints == [(A, 1, MAX_POLL_RECORDS)], "and has not gone on"
        assert len(scene.program.batches(A)) < 60, "nor tried again without a pause"
        scene.program.results = []
        await scene.until(lambda: scene.program.seen[A][-1] == 2 * MAX_POLL_RECORDS - 1)

    story(body)


def test_at_most_one_task_has_a_shard_and_each_has_one_while_there_are_threads() -> None:
    async def body(scene: Scene) -> None:
        partitions = [ShardId(f"t/{number}") for number in range(5)]
        for shard in partitions:
            scene.logs.append(shard, 20)
        scene.program.takes = 1.0
        scene.coordinator.assign(*((shard, 1, 0) for shard in partitions))
        # The recorder fails where a shard is in two hands.
        await scene.until(lambda: scene.program.seen == {shard: list(range(20)) for shard in partitions}, within=200)
        assert (scene.program.most_at_once, scene.processing.troubles) == (2, {})

    story(body, threads=2, batch_size=5)


def test_positions_are_committed_every_5_000_ms_and_stay_queued_after_a_commit_that_failed() -> None:
    async def body(scene: Scene) -> None:
        scene.logs.append(A, 1000)
        scene.program.takes = 1.0
        scene.coordinator.assign((A, 1, 0))
        for count in (1, 2, 3):
            took = await scene.until(lambda count=count: len(scene.coordinator.checkpoints) == count)  # type: ignore[misc]
        # Five seconds after the first record that the last commit has not had, which is done a second after it.
        assert 5.9 < took < 6.1
        durable = scene.coordinator.checkpoints[-1][2]
        scene.coordinator.fault = CoordinatorUnavailableError("away")
        await asyncio.sleep(20)
        scene.coordinator.fault = None
        await scene.until(lambda: len(scene.coordinator.checkpoints) == 4)
        assert scene.coordinator.checkpoints[-1][2] >= durable + 20

    story(body, save_interval=5.0, batch_size=1)


# The registrar, and how many readers begin.


@pytest.mark.parametrize(("interval", "sent"), [(0.0, [2, 4, 6, 8]), (5.0, [8])])
def test_a_registry_flush_of_0_saves_each_batch_at_once_and_else_a_burst_is_saved_once(
    interval: float, sent: list[int]
) -> None:
    async def body(scene: Scene) -> None:
        scene.logs.append(A, 8)
        scene.program.takes = 0.5
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: bool(scene.coordinator.checkpoints) and scene.coordinator.checkpoints[-1] == (A, 1, 8))
        assert [offset for _, _, offset in scene.coordinator.checkpoints] == sent

    story(body, save_interval=interval, batch_size=2)


def test_no_more_readers_begin_at_once_than_their_limit_and_those_above_it_begin_later() -> None:
    async def body(scene: Scene) -> None:
        partitions = [ShardId(f"t/{number}") for number in range(7)]
        scene.program.long = {"initialize": 3.0}
        scene.coordinator.assign(*((shard, 1, 0) for shard in partitions))
        began = scene.loop.time()
        await scene.until(lambda: len(scene.program.calls) == len(partitions), within=60)
        assert [call[0] for call in scene.program.calls] == ["initialize"] * 7
        # Seven, at most three at once: the last one begins when the second three have.
        assert scene.program.most_in == {"initialize": 3}
        assert 6.0 <= scene.loop.time() - began < 7.0

    story(body, threads=3)


def test_revoke_finishes_one_record_and_commits_it() -> None:
    async def body(scene: Scene) -> None:
        scene.logs.append(A, MAX_POLL_RECORDS)
        scene.program.takes = 1.0
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: len(scene.program.seen.get(A, [])) == 7)
        scene.coordinator.assign()
        took = await scene.until(lambda: scene.coordinator.named == [])
        assert (scene.program.seen[A], took < 1.5) == (list(range(8)), True), "the record in hand, not the batch"
        assert scene.coordinator.checkpoints == [(A, 1, 8)]

    story(body)


def test_a_revoke_whose_commit_fails_gives_the_shard_up_once_it_succeeds() -> None:
    async def body(scene: Scene) -> None:
        scene.logs.append(A, 10)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: len(scene.program.seen.get(A, [])) == 10)
        scene.coordinator.assign()
        scene.coordinator.fault = CoordinatorUnavailableError("away")
        await asyncio.sleep(20)
        scene.coordinator.fault = None
        await scene.until(lambda: scene.coordinator.named == [])
        assert scene.coordinator.checkpoints == [(A, 1, 10)]

    story(body)


def test_a_task_that_has_not_started_ends_at_once_and_commits_nothing() -> None:
    async def body(scene: Scene) -> None:
        scene.logs.append(A, 100)
        scene.logs.append(B, 100)
        scene.program.takes = 1.0
        scene.coordinator.assign((A, 1, 0), (B, 1, 0))
        await scene.until(lambda: len(scene.program.seen) == 1)
        (busy,) = scene.program.seen
        waiting = B if busy == A else A
        scene.coordinator.assign((busy, 1, 0))
        took = await scene.until(lambda: scene.coordinator.named == [(busy, 1)])
        assert (took < 0.5, scene.program.batches(waiting), scene.coordinator.checkpoints) == (True, [], [])

    story(body, threads=1)


def test_a_shard_that_was_paused_in_an_earlier_ownership_is_read_on_in_the_next() -> None:
    async def body(scene: Scene) -> None:
        scene.logs.size = 1024 * 1024
        scene.logs.append(A, 40)
        scene.program.takes = 100.0
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.processing.paused == (A,))
        scene.coordinator.assign()
        await scene.until(lambda: scene.coordinator.named == [], within=200)
        assert scene.processing.paused == ()
        scene.program.takes = 0.0
        scene.coordinator.assign((A, 2, 1))
        await scene.until(lambda: scene.program.seen.get(A, [0])[-1] == 39)

    story(body, memory=16 * 1024 * 1024)


def test_an_exception_in_a_record_leaves_no_shard_paused_and_holds_up_no_rebalance() -> None:
    async def body(scene: Scene) -> None:
        scene.logs.append(A, 5)
        scene.program.results = [ValueError("a record that nobody can read")] * 1000
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: len(scene.program.batches(A)) == 8)
        scene.coordinator.assign()
        took = await scene.until(lambda: scene.coordinator.named == [])
        assert (took < 0.5, scene.coordinator.checkpoints) == (True, [])

    story(body)


@pytest.mark.parametrize("saves_before", [True, False])
def test_at_most_once_saves_and_then_processes_at_least_once_the_other_way_round(saves_before: bool) -> None:
    async def body(scene: Scene) -> None:
        committed: list[Offset] = []

        async def save(records: Records, checkpoint: AsyncCheckpoint) -> None:
            if saves_before:
                await checkpoint.save(now=True)
                committed.append(checkpoint.position)
                raise RuntimeError("after the save")

        scene.logs.append(A, 10)
        scene.program.save = save
        scene.program.results = [] if saves_before else [RuntimeError("before the save")]
        scene.coordinator.assign((A, 1, 0))
        await asyncio.sleep(10)
        assert scene.program.batches(A) == ([(0, 10)] if saves_before else [(0, 10), (0, 10)])
        assert committed == ([10] if saves_before else [])

    story(body)
