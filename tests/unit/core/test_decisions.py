"""What of a decision is let into the ownership though it could stay out: new shards, and a reset."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardherd.core.model.nouns import Condition, ConsumerId, Heartbeat, Leave, Reset, ResetTo
from shardherd.core.model.requests import ConditionsChanged, ConsumerDied, Request, ResetDue, ShardsDiscovered, Tick
from tests.builders import Play, incarnation, info, started, topic, with_settings


def grows(play: Play, request: Request) -> str:
    decision = play.group.decide(request, play.now)
    play.group.roll_back()
    return decision.grows


def test_shards_that_appear_grow_it() -> None:
    play = started(2, 1)
    shown = topic(13)
    assert grows(play, ShardsDiscovered(shown)) == "11 new shards (t/2, t/3, t/4 and others)"
    assert grows(play, ShardsDiscovered(shown[:3])) == "1 new shard (t/2)"


def test_a_look_that_shows_no_new_shard_does_not() -> None:
    play = started(2, 1)
    assert grows(play, ShardsDiscovered(tuple(info(name, end=9) for name in ("0", "1")))) == ""


def test_a_reset_grows_it_when_it_is_decided_and_not_when_it_goes_on_or_is_made() -> None:
    play = started(3, 1)
    play.change(replace(with_settings(play.group.spec, paused=True), reset=Reset("r1", ResetTo.EARLIEST)))
    due = play.group.reset_due
    assert due is not None
    assert grows(play, due) == "the reset r1 of 3 shards"
    play.ask(due)
    assert play.group.reset_due is None or grows(play, ResetDue("r1")) == ""
    play.restart()
    assert grows(play, Tick()) == ""


def test_a_refused_reset_does_not() -> None:
    play = started(3, 1)
    wrong = Reset("r1", ResetTo.OFFSETS, offsets=(("t/9", 1),))  # type: ignore[arg-type]
    play.change(replace(with_settings(play.group.spec, paused=True), reset=wrong))
    due = play.group.reset_due
    assert due is not None
    assert grows(play, due) == ""


@pytest.mark.parametrize(
    "request_",
    [
        Heartbeat(ConsumerId("g-2"), incarnation("g-2", 1), 1, 0),
        Heartbeat(ConsumerId("g-0"), incarnation("g-0", 1, pod=2), 1, 0),
        Leave(ConsumerId("g-0"), incarnation("g-0", 1)),
        ConsumerDied(ConsumerId("g-0"), incarnation("g-0", 1)),
    ],
    ids=["a consumer comes", "a pod is replaced", "a consumer leaves", "a consumer dies"],
)
def test_who_comes_and_goes_does_not(request_: Request) -> None:
    play = started(4, 2)
    decision = play.group.decide(request_, play.now)
    assert (decision.persist, decision.grows) == (True, "")


def test_what_is_kept_out_is_shown_and_withholds_nothing() -> None:
    play = started(4, 2)
    full = Condition("SnapshotTooLarge", "too large")
    play.ask(ConditionsChanged(limits=(full,)))
    play.ask(ConsumerDied(ConsumerId("g-0"), incarnation("g-0", 1)))
    assert play.view.withheld == (full,)
    assert {row.holder for row in play.view.shards} == {ConsumerId("g-1")}
