"""The rules of a consumer that need no clock: what ends a run, when it saves, how long it may be silent, what is news."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from shardherd import protocol
from shardherd.core.consumer.heartbeats import is_news, pause_after
from shardherd.core.consumer.holdings import Holdings
from shardherd.core.consumer.refusals import MEANINGS, Refusal, Retries, ends_run, may_pass, meaning_of
from shardherd.core.consumer.saving import Saving
from shardherd.core.consumer.settings import DrainTimes, SessionSettings, until, with_room_to_leave
from shardherd.core.model import errors
from shardherd.core.model.errors import ShardherdError
from shardherd.core.model.gauges import Gauge, GaugeKind
from shardherd.core.model.messages import Seconds
from shardherd.core.model.nouns import (
    ConsumerId,
    Heartbeat,
    HeartbeatReply,
    HeldShard,
    Incarnation,
    Phase,
    ShardId,
)

ME, RUN = ConsumerId("clicks-0"), Incarnation("pod-uid", 1)


def test_the_table_has_every_error_that_a_coordinator_answers_with() -> None:
    assert set(protocol._STATUS) == set(MEANINGS)


def test_what_passes_is_what_programs_are_told_to_try_again() -> None:
    assert {kind for kind, meaning in MEANINGS.items() if meaning is Refusal.PASSES} == {
        kind for kind in MEANINGS if kind.retryable
    }


@pytest.mark.parametrize(
    ("error", "before_joining", "after_joining", "again_at_leaving"),
    [
        (errors.CoordinatorUnavailableError, False, False, True),
        (errors.NotLeadingError, False, False, True),
        (errors.TooManyRequestsError, False, False, True),
        (errors.UnknownGroupError, True, False, False),
        (errors.ForbiddenError, True, False, False),
        (errors.UnauthenticatedError, True, False, False),
        (errors.ProtocolVersionError, True, False, False),
        (errors.InvalidRequestError, True, False, False),
        (errors.StaleIncarnationError, True, True, False),
        (errors.GroupReplacedError, True, True, False),
    ],
)
def test_which_errors_end_a_run(
    error: type[ShardherdError], before_joining: bool, after_joining: bool, again_at_leaving: bool
) -> None:
    said = error("no")
    assert (ends_run(said, joined=False), ends_run(said, joined=True)) == (before_joining, after_joining)
    assert may_pass(said) is again_at_leaving


def test_an_error_that_is_not_in_the_table_holds_for_as_long_as_it_says_itself() -> None:
    class SomeError(ShardherdError):
        retryable = True

    assert meaning_of(SomeError("busy")) is Refusal.PASSES
    assert meaning_of(errors.OwnershipDamagedError("damaged")) is Refusal.STANDS


def test_pauses_double_up_to_a_second_and_begin_anew_after_a_success() -> None:
    retries = Retries()
    seen = [(retries.begun, retries.pause()) for _ in range(6)]
    assert seen == [(False, 0.1), (True, 0.2), (True, 0.4), (True, 0.8), (True, 1.0), (True, 1.0)]
    retries.succeeded()
    assert (retries.begun, retries.pause()) == (False, 0.1)


class TestSaving:
    def test_nothing_pending_is_never_due(self) -> None:
        saving = Saving(60.0)
        saving.hurry()
        assert saving.due_in(0.0, pending=False) is None

    def test_without_an_interval_everything_is_due_at_once(self) -> None:
        assert Saving(0.0).due_in(5.0, pending=True) == 0.0

    def test_what_comes_within_the_interval_is_gathered_from_the_first_on(self) -> None:
        saving = Saving(60.0)
        assert saving.due_in(100.0, pending=True) == 60.0
        assert saving.due_in(150.0, pending=True) == 10.0
        assert saving.due_in(170.0, pending=True) == 0.0

    def test_the_interval_begins_anew_once_everything_is_durable(self) -> None:
        saving = Saving(60.0)
        saving.due_in(100.0, pending=True)
        saving.due_in(150.0, pending=False)
        assert saving.due_in(170.0, pending=True) == 60.0

    def test_who_is_waited_for_does_not_gather_until_it_was_sent(self) -> None:
        saving = Saving(60.0)
        saving.hurry()
        assert saving.due_in(100.0, pending=True) == 0.0
        saving.sent(draining=False)
        saving.answered(101.0, moved=True)
        assert saving.due_in(101.0, pending=True) == 60.0

    def test_what_could_not_be_saved_is_due_again_at_once(self) -> None:
        saving = Saving(60.0)
        saving.hurry()
        saving.sent(draining=False)
        saving.answered(101.0, moved=False)
        assert saving.due_in(101.0, pending=True) == 0.0

    def test_who_is_about_to_leave_never_gathers(self) -> None:
        saving = Saving(60.0)
        saving.sent(draining=True)
        saving.answered(101.0, moved=True)
        assert saving.due_in(101.0, pending=True) == 0.0


class TestSettings:
    settings = SessionSettings("group-uid", ME, RUN)

    @pytest.mark.parametrize(
        ("changes", "limit"),
        [
            ({}, 300.0),
            ({"ordered": True}, 45.0 - 6.0),
            ({"ordered": True, "heartbeat_interval": 1.0}, 45.0 - 5.0),
            ({"ordered": True, "session_timeout": 90.0}, 90.0 - 6.0),
            ({"coordinator_loss_limit": 60.0}, 60.0),
        ],
    )
    def test_how_long_a_consumer_may_be_silent(self, changes: dict[str, float], limit: float) -> None:
        assert replace(self.settings, **changes).silence_limit == limit  # type: ignore[arg-type]

    def test_the_coordinator_has_the_last_word(self) -> None:
        reply = HeartbeatReply(1, (), ordered=True, heartbeat_interval=Seconds(5.0), session_timeout=Seconds(30.0))
        said = self.settings.answered(reply)
        assert said == replace(self.settings, ordered=True, heartbeat_interval=5.0, session_timeout=30.0)
        assert said.answered(reply) is said

    def test_a_drain_keeps_time_for_leaving(self) -> None:
        assert with_room_to_leave(100.0, 180.0, 60.0) == DrainTimes(reading=160.0, saving=175.0, leaving=180.0)
        assert with_room_to_leave(100.0, 140.0, 60.0) == DrainTimes(reading=135.0, saving=135.0, leaving=140.0)
        assert with_room_to_leave(100.0, 108.0, 60.0) == DrainTimes(reading=106.0, saving=106.0, leaving=108.0)

    def test_a_drain_may_have_its_whole_time_for_everything(self) -> None:
        assert until(140.0) == DrainTimes(140.0, 140.0, 140.0)


class TestHeartbeats:
    sent = Heartbeat(ME, RUN, 7, 3, (HeldShard(ShardId("t/0"), 4),), phase=Phase.IDLE, phase_age=Seconds(1.0))

    def test_only_what_the_coordinator_acts_on_is_news(self) -> None:
        later = structs.replace(
            self.sent,
            seq=8,
            progress=5,
            phase=Phase.READING,
            phase_age=Seconds(0.5),
            goes_on_in=Seconds(2.0),
            gauges=(Gauge(GaugeKind.DISK, "/data", 1, 2),),
        )
        assert not is_news(self.sent, later)
        for change in ({"held": ()}, {"revision": 4}, {"ready": False}, {"draining": True}):
            assert is_news(self.sent, structs.replace(later, **change))

    def test_an_answer_before_its_time_that_changed_nothing_is_no_reason_to_hurry(self) -> None:
        assert pause_after(self.sent, self.sent, 0.5, 3.0) == 2.5

    @pytest.mark.parametrize("took", [1.5, 3.0])
    def test_an_answer_in_time_is_followed_at_once(self, took: float) -> None:
        assert pause_after(self.sent, self.sent, took, 3.0) == 0.0

    def test_news_are_told_at_once(self) -> None:
        assert pause_after(self.sent, structs.replace(self.sent, held=()), 0.5, 3.0) == 0.0


def test_what_is_in_hand_is_held_and_nothing_of_a_program_drifts() -> None:
    holdings = Holdings(ME)
    assert (holdings.holds_any, holdings.busy, dict(holdings.adrift)) == (False, False, {})
