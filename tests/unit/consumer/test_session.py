"""What every consumer does towards the coordinator, whoever owns its session: the agent, and a plain consumer."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from shardherd.core.consumer.refusals import MEANINGS, Refusal
from shardherd.core.model.errors import (
    CoordinatorUnavailableError,
    ForbiddenError,
    NotLeadingError,
    ShardherdError,
    UnknownGroupError,
)
from shardherd.core.model.nouns import CheckpointReply, CheckpointRequest, CheckpointResult, Heartbeat, Leave, ShardId
from tests.unit.consumer.owners import OWNERS, Played, Scene, story
from tests.unit.spark.simulated import ME

A, B = ShardId("clicks/0"), ShardId("clicks/1")
Owner = Callable[..., Played]

both = pytest.mark.parametrize("owner", OWNERS, ids=["agent", "plain"])


def errors_that(*meanings: Refusal) -> pytest.MarkDecorator:
    """Each error of the table with such a meaning, as `error`."""
    found = [kind("the coordinator's words") for kind, meaning in MEANINGS.items() if meaning in meanings]
    return pytest.mark.parametrize("error", found, ids=lambda error: str(error.code))


def gaps(times: list[float]) -> list[float]:
    return [round(after - before, 3) for before, after in itertools.pairwise(times)]


def calls(scene: Scene, request: str, call: Callable[..., Any]) -> None:
    """From now on this is called for such a request."""
    setattr(scene.coordinator, request, call)


# Heartbeats.


@both
def test_heartbeats_follow_the_interval_and_are_counted(owner: Owner) -> None:
    async def body(scene: Scene) -> None:
        await scene.consumer.start()
        await scene.until(lambda: scene.session.joined)
        before = len(scene.coordinator.heartbeats)
        await asyncio.sleep(60)
        assert 19 <= len(scene.coordinator.heartbeats) - before <= 22
        assert [beat.seq for beat in scene.coordinator.heartbeats] == list(range(1, len(scene.coordinator.heartbeats) + 1))

    story(owner, body)


@both
@errors_that(Refusal.PASSES)
def test_a_heartbeat_whose_error_may_pass_is_made_again_after_pauses_that_grow(owner: Owner, error: ShardherdError) -> None:
    async def body(scene: Scene) -> None:
        times: list[float] = []
        beat = scene.coordinator.heartbeat

        async def timed(*arguments: Any) -> Any:
            times.append(scene.loop.time())
            return await beat(*arguments)

        calls(scene, "heartbeat", timed)
        scene.coordinator.fault = error
        # What a warm-up tells is news, which waits for no pause.
        await scene.consumer.start()
        await asyncio.sleep(0.05)
        began = len(times)
        await asyncio.sleep(6)
        pauses = gaps(times[began - 1 :])
        assert pauses[-2:] == [1.0, 1.0]
        assert pauses == sorted(pauses)
        assert pauses[0] <= 0.4

    story(owner, body)


@both
def test_the_pauses_between_heartbeats_that_fail_begin_anew_after_one_that_was_answered(owner: Owner) -> None:
    async def body(scene: Scene) -> None:
        times: list[float] = []
        beat = scene.coordinator.heartbeat

        async def timed(*arguments: Any) -> Any:
            times.append(scene.loop.time())
            return await beat(*arguments)

        await scene.holding((A, 4, 0))
        for _ in range(2):
            scene.coordinator.fault = CoordinatorUnavailableError("no answer")
            calls(scene, "heartbeat", timed)
            await scene.until(lambda: len(times) == 4)
            assert gaps(times) == [0.2, 0.4, 0.8]
            scene.coordinator.fault = None
            calls(scene, "heartbeat", beat)
            await scene.until(lambda: scene.session.trouble is None)
            times.clear()

    story(owner, body)


@both
@errors_that(Refusal.PASSES)
def test_an_error_that_may_pass_never_ends_a_consumer_that_holds_nothing(owner: Owner, error: ShardherdError) -> None:
    async def body(scene: Scene) -> None:
        scene.coordinator.fault = error
        await scene.consumer.start()
        await asyncio.sleep(3600)
        assert scene.session.over == ""
        scene.coordinator.fault = None
        await scene.until(lambda: scene.session.joined)

    story(owner, body)


@both
def test_who_has_joined_and_holds_nothing_is_not_ended_by_its_silence(owner: Owner) -> None:
    async def body(scene: Scene) -> None:
        await scene.consumer.start()
        await scene.until(lambda: scene.session.joined)
        scene.coordinator.fault = CoordinatorUnavailableError("no answer")
        await asyncio.sleep(3600)
        scene.coordinator.fault = None
        scene.coordinator.assign((A, 4, 0))
        await scene.until(lambda: A in scene.session.ledger.readable_epochs())
        assert scene.session.over == ""

    story(owner, body)


@both
def test_shards_are_read_through_a_change_of_who_leads(owner: Owner) -> None:
    async def body(scene: Scene) -> None:
        await scene.holding((A, 4, 0))
        scene.coordinator.fault = NotLeadingError("this coordinator does not lead; ask again")
        await asyncio.sleep(20)
        assert await scene.consumer.begin()
        await scene.consumer.finish()
        scene.coordinator.fault = None
        await scene.until(lambda: scene.coordinator.checkpoints == [(A, 4, 100)])
        assert scene.session.over == ""

    story(owner, body)


@both
def test_a_failure_is_logged_once_and_its_end_too(owner: Owner, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")

    async def body(scene: Scene) -> None:
        await scene.holding((A, 4, 0))
        scene.coordinator.fault = CoordinatorUnavailableError("no answer")
        await asyncio.sleep(20)
        scene.coordinator.fault = None
        await scene.until(lambda: scene.session.trouble is None)

    story(owner, body)
    said = [record.getMessage() for record in caplog.records if "failed" in record.message or "again" in record.message]
    assert [line.partition(" ")[0] for line in said] == ["heartbeat", "the"]
    assert said[0].endswith("failed (CoordinatorUnavailable), trying on: no answer")
    assert said[1] == "the coordinator answers again"


# What ends a run.


@both
@errors_that(Refusal.OVER)
@pytest.mark.parametrize("joined", [True, False])
def test_a_run_that_is_over_stops_at_once(owner: Owner, error: ShardherdError, joined: bool) -> None:
    async def body(scene: Scene) -> None:
        if joined:
            await scene.holding((A, 4, 0))
            assert await scene.consumer.begin()
        scene.coordinator.fault = error
        if not joined:
            await scene.consumer.start()
        assert await scene.until(lambda: bool(scene.session.over)) <= 3.1
        await asyncio.sleep(0.01)
        assert scene.session.over == f"the coordinator says that this run of {ME} is over: the coordinator's words"
        assert scene.consumer.stopped_reading or not joined
        assert not await scene.consumer.begin()
        beats = len(scene.coordinator.heartbeats)
        await asyncio.sleep(60)
        assert (len(scene.coordinator.heartbeats), scene.coordinator.leaves) == (beats, 0)

    story(owner, body)


@both
@errors_that(Refusal.STANDS)
def test_a_consumer_that_is_refused_before_it_has_joined_ends_and_says_why(owner: Owner, error: ShardherdError) -> None:
    """Wrong rights, a wrong name or a version that is not served: it was set up wrongly, and waiting would hide that."""

    async def body(scene: Scene) -> None:
        scene.coordinator.fault = error
        await scene.consumer.start()
        await scene.until(lambda: bool(scene.session.over))
        assert scene.session.over == f"the coordinator refuses {ME} ({error.code}): the coordinator's words"
        assert not await scene.consumer.begin()

    story(owner, body)


@both
@errors_that(Refusal.STANDS)
def test_a_consumer_that_is_refused_after_it_has_joined_goes_on_asking(owner: Owner, error: ShardherdError) -> None:
    """Whoever refuses may be wrong for a while: an operator that was rolled back, tokens that cannot be reviewed."""

    async def body(scene: Scene) -> None:
        await scene.holding((A, 4, 0))
        scene.coordinator.fault = error
        await asyncio.sleep(200)
        assert await scene.consumer.begin()
        await scene.consumer.finish()
        assert scene.session.over == ""
        scene.coordinator.fault = None
        await scene.until(lambda: scene.coordinator.checkpoints == [(A, 4, 100)])

    story(owner, body)


@both
def test_a_refusal_that_stands_ends_a_joined_consumer_by_its_silence(owner: Owner) -> None:
    async def body(scene: Scene) -> None:
        scene.coordinator.ordered = True
        await scene.holding((A, 4, 0))
        scene.coordinator.fault = ForbiddenError("the service account is another")
        await scene.until(lambda: bool(scene.session.over), within=60)
        assert "no heartbeat of clicks-0 was acknowledged for 39 s (limit 39 s)" in scene.session.over

    story(owner, body)


# Silence.


@both
@pytest.mark.parametrize(("ordered", "limit"), [(True, 45 - 6), (False, 300)])
def test_without_an_acknowledged_heartbeat_it_stops_reading_at_its_limit(owner: Owner, ordered: bool, limit: int) -> None:
    async def body(scene: Scene) -> None:
        scene.coordinator.ordered = ordered
        await scene.holding((A, 4, 0))
        assert await scene.consumer.begin()
        sent_at = scene.session.acknowledged_at
        assert sent_at is not None
        scene.coordinator.fault = CoordinatorUnavailableError("no answer")
        await asyncio.sleep(sent_at + limit - 0.5 - scene.loop.time())
        assert (scene.session.over, scene.consumer.stopped_reading) == ("", False)
        await scene.until(lambda: bool(scene.session.over))
        assert scene.loop.time() - sent_at == pytest.approx(limit, abs=0.1)
        await asyncio.sleep(0.01)
        assert scene.consumer.stopped_reading
        assert not await scene.consumer.begin()

    story(owner, body)


@both
def test_silence_is_counted_from_the_sending_of_what_was_answered_and_not_from_the_answer(owner: Owner) -> None:
    async def body(scene: Scene) -> None:
        await scene.holding((A, 4, 0))
        sent: list[float] = []
        beat = scene.coordinator.heartbeat

        async def slow(*arguments: Any) -> Any:
            sent.append(scene.loop.time())
            reply = await beat(*arguments)
            await asyncio.sleep(2.0)
            return reply

        calls(scene, "heartbeat", slow)
        await scene.until(lambda: len(sent) == 3, within=20.0)
        assert scene.session.acknowledged_at == sent[1]

    story(owner, body)


@both
def test_a_consumer_whose_machine_was_suspended_stops_although_it_is_answered_again(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardherd.consumer.session.LOOK", 3600.0)

    async def body(scene: Scene) -> None:
        scene.coordinator.ordered = True
        await scene.holding((A, 4, 0))
        assert await scene.consumer.begin()
        scene.consumer.slept = 60.0
        scene.coordinator.assign((A, 4, 0))
        await scene.until(lambda: bool(scene.session.over))
        assert scene.session.over == (
            "no heartbeat of clicks-0 was acknowledged for 60 s (limit 39 s): check that the operator runs and can be reached"
        )

    story(owner, body)


@both
def test_nothing_is_begun_after_a_suspension_even_before_anybody_has_looked(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardherd.consumer.session.LOOK", 3600.0)

    async def body(scene: Scene) -> None:
        await scene.holding((A, 4, 0))
        scene.coordinator.fault = CoordinatorUnavailableError("no answer")
        scene.consumer.slept = 300.0
        assert not await scene.consumer.begin()

    story(owner, body)


# Checkpoints.


async def finished(scene: Scene) -> None:
    """It holds a shard, and has finished a hundred records of it."""
    await scene.holding((A, 4, 0))
    assert await scene.consumer.begin()
    await scene.consumer.finish()


@both
def test_what_is_finished_is_checkpointed_under_its_epoch(owner: Owner) -> None:
    async def body(scene: Scene) -> None:
        await finished(scene)
        assert await scene.until(lambda: not scene.session.ledger.uncommitted()) <= 0.01
        assert scene.coordinator.checkpoints == [(A, 4, 100)]

    story(owner, body)


@both
@errors_that(Refusal.PASSES, Refusal.STANDS)
def test_a_checkpoint_that_fails_is_sent_again_after_pauses_that_grow(owner: Owner, error: ShardherdError) -> None:
    async def body(scene: Scene) -> None:
        times: list[float] = []

        async def refuse(_request: CheckpointRequest) -> CheckpointReply:
            times.append(scene.loop.time())
            raise error

        answer = scene.coordinator.checkpoint
        calls(scene, "checkpoint", refuse)
        await finished(scene)
        await asyncio.sleep(5)
        assert gaps(times)[:5] == [0.1, 0.2, 0.4, 0.8, 1.0]
        assert (scene.session.unsaved, scene.session.over) == (error, "")
        calls(scene, "checkpoint", answer)
        await scene.until(lambda: scene.coordinator.checkpoints == [(A, 4, 100)])

    story(owner, body)


@both
@errors_that(Refusal.OVER)
def test_a_checkpoint_of_a_run_that_is_over_ends_it(owner: Owner, error: ShardherdError) -> None:
    async def body(scene: Scene) -> None:
        async def refuse(_request: CheckpointRequest) -> CheckpointReply:
            raise error

        calls(scene, "checkpoint", refuse)
        await finished(scene)
        await asyncio.sleep(0.01)
        assert scene.session.over == f"the coordinator says that this run of {ME} is over: the coordinator's words"

    story(owner, body)


@both
def test_a_withheld_checkpoint_is_sent_again_until_it_is_durable(owner: Owner) -> None:
    async def body(scene: Scene) -> None:
        scene.coordinator.outcome = CheckpointResult.WITHHELD
        await finished(scene)
        await scene.until(lambda: len(scene.coordinator.checkpoints) >= 2)
        scene.coordinator.outcome = CheckpointResult.OK
        await scene.until(lambda: not scene.session.ledger.uncommitted())
        sent = len(scene.coordinator.checkpoints)
        await asyncio.sleep(30)
        assert len(scene.coordinator.checkpoints) == sent

    story(owner, body)


@both
def test_a_fenced_checkpoint_drops_the_shard_and_the_coordinator_hears_of_it_at_once(owner: Owner) -> None:
    async def body(scene: Scene) -> None:
        scene.coordinator.outcome = CheckpointResult.FENCED
        await scene.holding((A, 4, 0))
        assert await scene.consumer.begin()
        scene.coordinator.assigned = {}
        await scene.consumer.finish()
        assert await scene.until(lambda: scene.coordinator.named == []) < 0.05
        assert not await scene.consumer.begin()
        assert scene.session.over == "", "the others are read on"

    story(owner, body)


# Moving, and leaving.


@both
def test_a_revoked_shard_is_named_until_it_is_finished_and_durable(owner: Owner) -> None:
    async def body(scene: Scene) -> None:
        await scene.holding((A, 4, 0))
        assert await scene.consumer.begin()
        scene.coordinator.assign()
        await asyncio.sleep(10)
        assert scene.coordinator.named == [(A, 4)]
        await scene.consumer.finish()
        assert await scene.until(lambda: scene.coordinator.named == []) < 0.05
        assert scene.coordinator.checkpoints == [(A, 4, 100)]

    story(owner, body)


@both
def test_a_drain_waits_for_what_is_read_saves_it_and_leaves(owner: Owner) -> None:
    async def body(scene: Scene) -> None:
        await scene.holding((A, 4, 0))
        assert await scene.consumer.begin()
        draining = asyncio.create_task(scene.consumer.drain(80))
        await asyncio.sleep(10)
        assert scene.coordinator.heartbeats[-1].draining
        assert scene.coordinator.leaves == 0
        await scene.consumer.finish()
        await scene.until(draining.done)
        assert draining.result()
        assert scene.coordinator.checkpoints == [(A, 4, 100)]
        assert (scene.coordinator.leaves, scene.coordinator.stopped) == (1, True)
        assert scene.session.over == "this consumer has left the group"
        beats = len(scene.coordinator.heartbeats)
        assert not await scene.consumer.begin()
        await asyncio.sleep(60)
        assert len(scene.coordinator.heartbeats) == beats
        assert await scene.consumer.drain(80), "once is enough"
        assert scene.coordinator.leaves == 1

    story(owner, body)


@both
def test_nothing_else_is_on_its_way_when_a_consumer_leaves(owner: Owner) -> None:
    async def body(scene: Scene) -> None:
        await scene.holding((A, 4, 0))
        beat, leave = scene.coordinator.heartbeat, scene.coordinator.leave
        under_way: list[int] = []
        at_the_leave: list[list[int]] = []

        async def noted(heartbeat: Heartbeat, wait: float) -> Any:
            under_way.append(heartbeat.seq)
            try:
                return await beat(heartbeat, wait)
            finally:
                under_way.remove(heartbeat.seq)

        async def left(request: Leave) -> None:
            await asyncio.sleep(0.001)  # in which what was cancelled ends
            at_the_leave.append(list(under_way))
            await leave(request)

        calls(scene, "heartbeat", noted)
        calls(scene, "leave", left)
        assert await scene.consumer.begin()
        draining = asyncio.create_task(scene.consumer.drain(30))
        await asyncio.sleep(10)
        await scene.consumer.finish()
        assert await draining
        assert at_the_leave == [[]]

    story(owner, body)


@both
def test_a_leave_that_may_succeed_later_is_said_again_and_one_that_is_refused_is_not(owner: Owner) -> None:
    async def leaving(scene: Scene, error: ShardherdError) -> float:
        await scene.holding((A, 4, 0))
        scene.coordinator.fault = error
        began = scene.loop.time()
        assert await scene.consumer.drain(20)
        return scene.loop.time() - began

    async def passing(scene: Scene) -> None:
        assert 18 < await leaving(scene, CoordinatorUnavailableError("no answer")) <= 20

    async def standing(scene: Scene) -> None:
        assert await leaving(scene, UnknownGroupError("there is no such group")) < 1

    story(owner, passing)
    story(owner, standing)


@both
def test_a_drain_does_not_wait_for_checkpoints_of_a_group_that_was_deleted(owner: Owner) -> None:
    async def body(scene: Scene) -> None:
        await scene.holding((A, 4, 0))
        assert await scene.consumer.begin()
        scene.coordinator.fault = UnknownGroupError("there is no group demo/clicks")
        began = scene.loop.time()
        draining = asyncio.create_task(scene.consumer.drain(80))
        await asyncio.sleep(5)
        assert not draining.done(), "what is being read is still awaited"
        await scene.consumer.finish()
        assert not await draining
        assert scene.loop.time() - began < 7

    story(owner, body)


@both
def test_a_run_that_ends_in_its_drain_does_not_leave(owner: Owner) -> None:
    async def body(scene: Scene) -> None:
        await scene.holding((A, 4, 0))
        assert await scene.consumer.begin()
        draining = asyncio.create_task(scene.consumer.drain(80))
        await asyncio.sleep(1)
        scene.session.end("the test says so")
        assert not await draining
        assert scene.coordinator.leaves == 0

    story(owner, body)


# Defects.


class Defect(Exception):  # noqa: N818
    """What nobody expects."""


def breaks(scene: Scene, request: str) -> None:
    async def fail(*_arguments: Any) -> Any:
        raise Defect(f"in the {request}")

    calls(scene, request, fail)


@both
@pytest.mark.parametrize("request_", ["heartbeat", "checkpoint"])
def test_a_defect_in_a_task_of_the_session_stops_the_consumer_and_is_raised(
    owner: Owner, request_: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(scene: Scene) -> None:
        await scene.holding((A, 4, 0), (B, 4, 0))
        assert await scene.consumer.begin()
        await scene.consumer.finish()
        await scene.until(lambda: not scene.session.ledger.uncommitted())
        scene.coordinator.assign((A, 4, 100), (B, 4, 100))
        assert await scene.consumer.begin()
        breaks(scene, request_)
        if request_ == "checkpoint":
            await scene.consumer.finish()
        await scene.until(lambda: bool(scene.session.over))
        await asyncio.sleep(0.01)
        assert scene.session.over.endswith(f"Defect: in the {request_}")
        assert scene.consumer.stopped_reading or request_ == "checkpoint"
        assert not await scene.consumer.begin()

    with pytest.raises(Defect, match=f"in the {request_}"):
        story(owner, body)
    assert [record.getMessage() for record in caplog.records if record.exc_info] == ["a defect ends this consumer"]


@both
def test_a_request_that_somebody_else_cancels_is_a_defect_and_no_silent_end(owner: Owner) -> None:
    async def body(scene: Scene) -> None:
        await scene.holding((A, 4, 0))

        async def cancelled(*_arguments: Any) -> Any:
            raise asyncio.CancelledError

        calls(scene, "heartbeat", cancelled)
        await scene.until(lambda: bool(scene.session.over))
        assert "a request was cancelled, and not by the session" in scene.session.over

    with pytest.raises(RuntimeError, match="a request was cancelled"):
        story(owner, body)


@both
def test_an_owner_that_fails_to_hear_of_something_ends_too(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(scene: Scene) -> None:
        await scene.holding((A, 4, 0))
        owner_of = scene.session._owner
        hear = owner_of.hear

        def fails(notice: Any) -> None:
            if type(notice).__name__ == "Assigned":
                raise Defect("in the owner")
            hear(notice)

        monkeypatch.setattr(owner_of, "hear", fails)
        await scene.until(lambda: bool(scene.session.over))
        assert not await scene.consumer.begin()

    with pytest.raises(Defect, match="in the owner"):
        story(owner, body)
