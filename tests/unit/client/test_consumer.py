"""The consumer against the real core: what it takes, saves and gives up, and when it stops."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest

from shardherd.client import AsyncConsumer
from shardherd.core.model.errors import (
    ConsumerStoppedError,
    CoordinatorUnavailableError,
    FencedEpochError,
    InvalidRequestError,
    ShardherdError,
)
from shardherd.core.model.nouns import (
    CheckpointReply,
    CheckpointRequest,
    ConsumerId,
    Heartbeat,
    HeartbeatReply,
    Incarnation,
    Leave,
    ShardId,
)
from shardherd.core.model.requests import ForceCheckpoint
from tests.builders import IDENTITY, Play, shard, spec, topic, with_settings

NAME, RUN = ConsumerId("me"), Incarnation("uid-me", 1)


class Coordinator:
    """A group that is asked directly. `failing` is raised instead of an answer; `checkpoints` are the requests that came.
    `refusals` are what the next leaves are answered with. With `hasty` a heartbeat is answered at once, news or not.

    Who leaves is told so once `goodbye` is set.
    """

    def __init__(self, shards: int = 2, **settings: Any) -> None:
        self.play = Play(spec(1, **{"heartbeat_interval": 0.02, "session_timeout": 60.0, **settings}))
        self.play.discover(topic(shards))
        self.failing: ShardherdError | None = None
        self.refusals: list[ShardherdError] = []
        self.checkpoints: list[CheckpointRequest] = []
        self.heartbeats = 0
        self.said: list[Heartbeat] = []
        self.defect: Exception | None = None
        self.hasty = False
        self.goodbye = asyncio.Event()
        self.goodbye.set()

    async def heartbeat(self, heartbeat: Heartbeat, wait: float) -> HeartbeatReply:
        self._fail()
        self.heartbeats += 1
        self.said.append(heartbeat)
        self.play.ask(heartbeat)
        until = asyncio.get_running_loop().time() + wait
        while not self.hasty and self.play.group.may_park(heartbeat) and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(0.001)
            self._fail()
        return self.play.group.confirmed(heartbeat)

    async def checkpoint(self, request: CheckpointRequest) -> CheckpointReply:
        await asyncio.sleep(0)
        self._fail()
        self.checkpoints.append(request)
        reply = self.play.ask(request).reply
        assert isinstance(reply, CheckpointReply)
        return reply

    async def leave(self, leave: Leave) -> None:
        self._fail()
        if self.refusals:
            raise self.refusals.pop()
        self.play.ask(leave)
        await self.goodbye.wait()

    def _fail(self) -> None:
        if self.defect is not None:
            raise self.defect
        if self.failing is not None:
            raise self.failing


@pytest.fixture
def group() -> Coordinator:
    return Coordinator()


def consumer_of(group: Coordinator, **options: Any) -> AsyncConsumer:
    return AsyncConsumer(group, NAME, RUN, group_uid=IDENTITY.uid, **options)


@pytest.fixture
async def consumer(group: Coordinator) -> AsyncIterator[AsyncConsumer]:
    async with consumer_of(group) as consumer:
        yield consumer


async def becomes(what: Callable[[], bool]) -> None:
    until = time.monotonic() + 5
    while not what():
        assert time.monotonic() < until, "it did not become true within 5 s"
        await asyncio.sleep(0.002)


async def test_shards_take_turns_and_start_at_the_durable_position(group: Coordinator, consumer: AsyncConsumer) -> None:
    taken = []
    for _ in range(4):
        async with consumer.take() as each:
            taken.append((each.name, each.position))
            await each.save_checkpoint(each.position + 5, now=False)
    assert taken == [("t/0", 0), ("t/1", 0), ("t/0", 5), ("t/1", 5)]


async def test_two_tasks_never_have_one_shard_in_hand(consumer: AsyncConsumer) -> None:
    async with consumer.take() as one, consumer.take() as two:
        assert {one.name, two.name} == {"t/0", "t/1"}
        third = asyncio.ensure_future(consumer.take().__aenter__())
        await asyncio.sleep(0.05)
        assert not third.done()
        third.cancel()


async def test_saving_now_is_durable_when_it_returns(group: Coordinator, consumer: AsyncConsumer) -> None:
    async with consumer.take() as each:
        await each.save_checkpoint(7, now=True)
        assert group.play.log[each.name] == 7


async def test_saving_later_coalesces_into_one_request(group: Coordinator) -> None:
    async with consumer_of(group, save_interval=1.0) as consumer:
        for step in range(10):
            async with consumer.take() as each:
                await each.save_checkpoint(each.position + 1 + step % 2, now=False)
        assert group.checkpoints == []
        await becomes(lambda: bool(group.checkpoints))
    (request,) = group.checkpoints
    assert [(each.shard, each.offset) for each in request.checkpoints] == [("t/0", 5), ("t/1", 10)]


async def test_what_was_not_saved_is_read_again(consumer: AsyncConsumer) -> None:
    with pytest.raises(KeyError):
        async with consumer.take() as each:
            raise KeyError(each.name)
    async with consumer.take(), consumer.take() as again:
        assert (again.name, again.position) == ("t/0", 0)


async def test_a_checkpoint_does_not_go_back(consumer: AsyncConsumer) -> None:
    async with consumer.take() as each:
        await each.save_checkpoint(9, now=False)
        with pytest.raises(ValueError, match="t/0 is done up to 9; a checkpoint at 3 would go back"):
            await each.save_checkpoint(3, now=False)


@pytest.mark.parametrize("given", [2.0, True, "2", None])
async def test_what_is_no_position_is_refused_and_keeps_no_other_shard_back(
    group: Coordinator, consumer: AsyncConsumer, given: Any
) -> None:
    async with consumer.take() as first, consumer.take() as second:
        with pytest.raises(TypeError, match=f"a checkpoint of shard {first.name} must be saved at a position, which is an int"):
            await first.save_checkpoint(given, now=False)
        with pytest.raises(TypeError):
            first.note_checkpoint(given, now=True)
        await second.save_checkpoint(2, now=True)
    assert [(each.shard, each.offset) for each in group.checkpoints[-1].checkpoints] == [(second.name, 2)]


async def test_a_position_may_be_a_number_of_numpys(group: Coordinator, consumer: AsyncConsumer) -> None:
    offsets = np.array([0, 1, 2])
    async with consumer.take() as each:
        await each.save_checkpoint(offsets.max() + 1, now=True)
        assert each.durable == 3
    assert [type(saved.offset) for saved in group.checkpoints[-1].checkpoints] == [int]


async def test_a_failed_save_says_so_and_keeps_the_position(group: Coordinator, consumer: AsyncConsumer) -> None:
    async with consumer.take() as each:
        group.failing = CoordinatorUnavailableError("the coordinator is away")
        with pytest.raises(CoordinatorUnavailableError, match=r"t/0 at 7 is not durable yet .*it is sent again"):
            await each.save_checkpoint(7, now=True)
        group.failing = None
        await becomes(lambda: group.play.log[each.name] == 7)


async def test_a_revoked_shard_is_saved_and_given_up_only_when_it_is_put_back(
    group: Coordinator, consumer: AsyncConsumer
) -> None:
    async with consumer.take() as one, consumer.take() as two:
        group.play.beat("other")
        await becomes(lambda: one.wanted or two.wanted)
        moving = one if one.wanted else two
        await moving.save_checkpoint(42, now=False)
        await asyncio.sleep(0.05)
        assert group.play.shard(moving.name).state == "TRANSFER"
    await becomes(lambda: group.play.shard(moving.name).holder == "other")
    group.play.beat("other")
    assert group.play.confirmed("other")[moving.name.removeprefix("t/")].position == 42


async def test_a_shard_that_was_forced_is_fenced_in_hand_and_read_from_there_next(
    group: Coordinator, consumer: AsyncConsumer
) -> None:
    async with consumer.take() as each:
        group.play.ask(ForceCheckpoint(shard("0"), 60))
        await becomes(lambda: each.wanted)
        with pytest.raises(FencedEpochError, match="t/0 is not held under epoch 1 any more") as refusal:
            await each.save_checkpoint(5, now=True)
        assert (refusal.value.shard, refusal.value.expected_epoch) == ("t/0", 1)
    positions = {}
    for _ in range(2):
        async with consumer.take() as each:
            positions[each.name] = (each.position, each.epoch)
    assert positions == {"t/0": (60, 2), "t/1": (0, 1)}


@pytest.mark.parametrize("name", ["save_interval", "loss_limit", "drain_timeout"])
@pytest.mark.parametrize("given", [None, "60", math.nan, -1])
async def test_times_that_are_none_are_refused_before_anything_is_read(group: Coordinator, name: str, given: Any) -> None:
    with pytest.raises(InvalidRequestError, match=f"^{name} must be "):
        consumer_of(group, **{name: given})


async def test_leaving_the_block_drains_and_leaves(group: Coordinator) -> None:
    async with consumer_of(group) as consumer, consumer.take() as each:
        await each.save_checkpoint(5, now=False)
    assert group.play.log[shard("0")] == 5
    assert group.play.counts() == {}
    assert consumer.stopped == "this consumer has left the group"
    with pytest.raises(ConsumerStoppedError, match="has left the group"):
        await consumer.take().__aenter__()


async def test_who_leaves_is_not_refused_by_the_answer_to_a_heartbeat_that_the_leave_overtook(
    group: Coordinator, consumer: AsyncConsumer
) -> None:
    await becomes(lambda: consumer.joined)
    group.goodbye.clear()
    leaving = asyncio.create_task(consumer.drain(5))
    await becomes(lambda: group.play.counts() == {})
    await becomes(lambda: all(task.done() for task in consumer.session._tasks))
    group.goodbye.set()
    assert await leaving
    assert consumer.stopped == "this consumer has left the group"


@pytest.mark.parametrize(("patience", "left"), [(5.0, {}), (0.0, {"me": 2})], ids=["again", "in vain"])
async def test_a_leave_that_fails_is_said_again_for_as_long_as_there_is_time(
    group: Coordinator, caplog: pytest.LogCaptureFixture, patience: float, left: dict[str, int]
) -> None:
    async with consumer_of(group) as consumer:
        await becomes(lambda: len(consumer.held()) == 2)
        group.refusals = [CoordinatorUnavailableError("no answer")]
        assert await consumer.drain(patience)
    assert consumer.stopped == "this consumer has left the group"
    assert "leaving of me failed (CoordinatorUnavailable): no answer" in caplog.messages
    assert group.play.counts() == left


async def test_news_do_not_wait_for_the_answer_to_a_heartbeat_that_is_parked() -> None:
    group = Coordinator(heartbeat_interval=30.0)
    async with consumer_of(group, ready=False) as consumer:
        await becomes(lambda: group.heartbeats == 2)
        consumer.become_ready()
        await becomes(lambda: len(consumer.held()) == 2)


async def test_a_drain_waits_for_what_is_in_hand_and_takes_nothing_more(group: Coordinator, consumer: AsyncConsumer) -> None:
    async with consumer.take() as each:
        draining = asyncio.create_task(consumer.drain(5))
        await asyncio.sleep(0.05)
        assert not draining.done()
        with pytest.raises(ConsumerStoppedError, match="drains"):
            await consumer.take().__aenter__()
        await each.save_checkpoint(11, now=False)
    assert await draining
    assert group.play.log[each.name] == 11


async def test_a_drain_that_takes_too_long_is_not_clean(consumer: AsyncConsumer) -> None:
    async def hang() -> None:
        async with consumer.take():
            await asyncio.Event().wait()

    hanging = asyncio.create_task(hang())
    await becomes(lambda: consumer.holdings.busy)
    assert not await consumer.drain(0.05)
    with pytest.raises(ConsumerStoppedError):
        await hanging


class Writing:
    """A reader that writes again and again until it is cancelled, and then for a while; `late`: since its group let it go."""

    def __init__(self, group: Coordinator, consumer: AsyncConsumer) -> None:
        self.late = 0
        self.writes = 0
        self._group = group
        self._consumer = consumer
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async with self._consumer.take() as each:
            try:
                while True:
                    await self._write(each.name)
            finally:
                for _ in range(28):
                    await self._write(each.name)

    async def _write(self, name: ShardId) -> None:
        await asyncio.sleep(0.001)
        self.writes += 1
        self.late += self._group.play.shard(name).holder != NAME


@pytest.mark.parametrize("ordered", [True, False])
async def test_a_drain_whose_time_is_over_leaves_when_what_it_cancelled_has_ended(ordered: bool) -> None:
    group = Coordinator(ordered=ordered)
    async with consumer_of(group) as consumer:
        writing = Writing(group, consumer)
        await becomes(lambda: writing.writes > 0)
        assert not await consumer.drain(0.05)
        group.play.beat("other")
        assert group.play.counts() == {"other": 2}
        with pytest.raises(ConsumerStoppedError):
            await writing.task
    assert (writing.late, writing.writes > 28) == (0, True)


@pytest.mark.parametrize(("ordered", "moved"), [(True, {"other": 0}), (False, {"other": 2})])
async def test_what_cannot_be_cancelled_is_not_said_to_have_ended(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, ordered: bool, moved: dict[str, int]
) -> None:
    """A thread, which the synchronous client reads in, has no task that could be cancelled."""
    monkeypatch.setattr("shardherd.client.consumer.CANCEL_GRACE", 0.05)
    group = Coordinator(ordered=ordered)
    async with consumer_of(group) as consumer:
        in_hand = consumer.take()
        await asyncio.create_task(in_hand.__aenter__())
        assert not await consumer.drain(0.05)
        group.play.settle("other")
        assert group.play.counts() == moved
        await in_hand.__aexit__(None, None, None)
    assert "me leaves although something that it has in hand goes on: an ordered group waits for it" in caplog.messages


async def test_a_drain_in_the_hand_of_a_reader_does_not_cancel_itself(
    monkeypatch: pytest.MonkeyPatch, group: Coordinator, consumer: AsyncConsumer
) -> None:
    monkeypatch.setattr("shardherd.client.consumer.CANCEL_GRACE", 0.05)
    async with consumer.take():
        assert not await consumer.drain(0.05)
    assert group.play.counts() == {}


async def test_whoever_drains_again_waits_for_the_first_drain(group: Coordinator) -> None:
    async with consumer_of(group) as consumer:
        await becomes(lambda: consumer.joined)
        group.goodbye.clear()
        first = asyncio.create_task(consumer.drain(5))
        await becomes(lambda: group.play.counts() == {})
        second = asyncio.create_task(consumer.drain(5))
        await asyncio.sleep(0.02)
        assert not second.done()
        group.goodbye.set()
        assert [await first, await second] == [True, True]


async def test_a_drain_in_which_something_done_was_lost_is_not_clean(group: Coordinator, consumer: AsyncConsumer) -> None:
    async with consumer.take() as each:
        await each.save_checkpoint(5, now=False)
        group.play.ask(ForceCheckpoint(each.name, 3))
        draining = asyncio.create_task(consumer.drain(5))
        await asyncio.sleep(0.02)
    assert not await draining


@pytest.mark.parametrize("saved", [True, False], ids=["what was done is not durable", "what was in hand was cancelled"])
async def test_a_drain_that_is_cut_short_by_silence_is_not_clean(monkeypatch: pytest.MonkeyPatch, saved: bool) -> None:
    monkeypatch.setattr("shardherd.consumer.session.LOOK", 0.01)
    group = Coordinator()
    now = [0.0]
    async with consumer_of(group, now=lambda: now[0]) as consumer:

        async def read() -> None:
            async with consumer.take() as each:
                group.failing = CoordinatorUnavailableError("away")
                if saved:
                    await each.save_checkpoint(5, now=False)
                else:
                    await asyncio.Event().wait()

        reading = asyncio.create_task(read())
        await becomes(lambda: group.failing is not None and (reading.done() or not saved))
        draining = asyncio.create_task(consumer.drain(5))
        await becomes(lambda: consumer.draining)
        now[0] = 301.0
        assert not await draining
        await asyncio.gather(reading, return_exceptions=True)
    assert consumer.stopped.startswith("no heartbeat of me was acknowledged for 301 s")


async def test_a_newer_run_of_its_name_stops_it_and_whatever_it_has_in_hand(
    group: Coordinator, consumer: AsyncConsumer
) -> None:
    async def read() -> None:
        async with consumer.take():
            await asyncio.Event().wait()

    reading = asyncio.create_task(read())
    await becomes(lambda: consumer.holdings.busy)
    group.play.ask(Heartbeat(NAME, Incarnation("uid-me", 2), 1, 0))
    with pytest.raises(ConsumerStoppedError, match="start 2 of the same pod has taken over"):
        await reading
    with pytest.raises(ConsumerStoppedError):
        await consumer.take().__aenter__()


async def test_a_cancellation_of_ones_own_stays_one(consumer: AsyncConsumer) -> None:
    async def read() -> None:
        async with consumer.take():
            await asyncio.Event().wait()

    reading = asyncio.create_task(read())
    await becomes(lambda: consumer.holdings.busy)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert not consumer.holdings.busy


@pytest.mark.parametrize(("ordered", "limit"), [(True, 60.0 - 5.0), (False, 300.0)])
async def test_without_answers_it_stops_by_itself(ordered: bool, limit: float) -> None:
    group = Coordinator(ordered=ordered)
    now = [0.0]
    async with consumer_of(group, now=lambda: now[0]) as consumer:

        async def read() -> None:
            async with consumer.take():
                await asyncio.Event().wait()

        reading = asyncio.create_task(read())
        await becomes(lambda: consumer.holdings.busy)
        group.failing = CoordinatorUnavailableError("away")
        now[0] = limit - 1.0
        await asyncio.sleep(0.02)
        assert consumer.stopped == ""
        now[0] = limit + 1.0
        with pytest.raises(ConsumerStoppedError, match="no heartbeat of me was acknowledged for"):
            await reading
        group.failing = None


async def test_a_paused_group_hands_out_nothing(group: Coordinator, consumer: AsyncConsumer) -> None:
    await becomes(lambda: len(consumer.held()) == 2)
    group.play.change(with_settings(group.play.group.spec, paused=True))
    await becomes(lambda: consumer.holdings.paused)
    waiting = asyncio.ensure_future(consumer.take().__aenter__())
    await asyncio.sleep(0.05)
    assert not waiting.done()
    group.play.change(with_settings(group.play.group.spec, paused=False))
    assert (await asyncio.wait_for(waiting, 5)).name == "t/0"


async def test_who_is_not_ready_joins_and_is_given_nothing(group: Coordinator) -> None:
    async with consumer_of(group, ready=False) as consumer:
        await becomes(lambda: group.play.counts() == {"me": 0})
        assert consumer.held() == ()
        consumer.become_ready()
        await becomes(lambda: len(consumer.held()) == 2)


async def test_an_answer_that_changes_nothing_is_no_reason_to_hurry(group: Coordinator, consumer: AsyncConsumer) -> None:
    await becomes(lambda: len(consumer.held()) == 2)
    group.hasty = True
    before = group.heartbeats
    await asyncio.sleep(0.3)
    assert group.heartbeats - before < 30


async def test_a_consumer_whose_machine_was_suspended_past_its_session_hands_out_nothing_more() -> None:
    slept = 0.0
    group = Coordinator(ordered=True)
    consumer = consumer_of(group, now=lambda: asyncio.get_running_loop().time() + slept)
    async with consumer:
        async with consumer.take():
            group.failing = CoordinatorUnavailableError("no answer")

        slept = 3600.0
        with pytest.raises(ConsumerStoppedError, match="no heartbeat of me was acknowledged for 3600 s"):
            async with consumer.take():
                raise AssertionError("it is somebody else's by now")


async def test_an_answer_after_a_suspension_past_the_session_does_not_let_it_go_on() -> None:
    slept = 0.0
    group = Coordinator(ordered=True)
    consumer = consumer_of(group, now=lambda: asyncio.get_running_loop().time() + slept)

    async def read() -> None:
        async with consumer.take():
            await asyncio.Event().wait()

    async with consumer:
        reading = asyncio.create_task(read())
        await becomes(lambda: bool(consumer.holdings.busy))
        before, slept = group.heartbeats, 3600.0
        with pytest.raises(ConsumerStoppedError, match="no heartbeat of me was acknowledged for 3600 s"):
            await asyncio.wait_for(reading, 5)
        assert group.heartbeats <= before + 1, "the first answer was the end"


async def test_a_block_that_is_cancelled_in_its_drain_leaves_no_task_behind(group: Coordinator) -> None:
    before = asyncio.all_tasks()

    async def program() -> None:
        async with consumer_of(group) as consumer:
            in_hand = consumer.take()
            await asyncio.create_task(in_hand.__aenter__())

    running = asyncio.create_task(program())
    await becomes(lambda: group.play.group.ownership.consumers.get(NAME) is not None and len(group.play.counts()) == 1)
    await becomes(lambda: any(each.draining for each in group.said[-1:]))
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert asyncio.all_tasks() == before


async def test_a_defect_is_the_cause_of_what_a_reader_is_told_and_is_raised_at_the_end(group: Coordinator) -> None:
    causes: list[BaseException | None] = []

    async def program() -> None:
        async with consumer_of(group) as consumer:
            try:
                async with consumer.take() as each:
                    group.defect = KeyError("offset")
                    await each.save_checkpoint(7, now=True)
            except ConsumerStoppedError as stopped:
                causes.append(stopped.__cause__)

    with pytest.raises(KeyError, match="offset"):
        await program()
    assert causes == [group.defect]
    assert group.play.counts() == {"me": 2}, "who has a defect does not know what it leaves behind, and does not leave"
