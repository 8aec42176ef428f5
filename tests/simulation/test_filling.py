"""Consumers that fill up in the simulation: what they report, and that the judge sees what must not follow from it."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from shardherd.core.group.records import ConsumerRecord, ShardRecord
from shardherd.core.model.gauges import Gauge, GaugeKind
from shardherd.core.model.nouns import ConsumerId, Heartbeat, HeldShard, ShardId, ShardInfo, ShardState
from tests.simulation.filling import HIGH, LEVELS, LOW, WATERMARKS, Disks, Reported
from tests.simulation.history_entries import BrokenError, Shard
from tests.simulation.judging import Judge
from tests.simulation.plan import FILLING_SHARE, plan
from tests.simulation.test_judging import (
    CONFIRMED,
    CONSUMERS,
    FREE,
    HELD,
    LEADER,
    MOVING,
    RUNS,
    T0,
    THIRD,
    A,
    B,
    call_off,
    given,
    heartbeat,
    judging,
    moving_beside,
    owned,
    reply,
)


def full(name: ConsumerId, seq: int, percent: int, **fields: Any) -> Any:
    return heartbeat(name, seq, gauges=(Gauge(GaugeKind.DISK, "/data", percent, 100),), **fields)


def hearing(*rows: ShardRecord, for_long: float = 100.0, **percent: int) -> Judge:
    """A judge who has heard for so long how full these consumers are."""
    judge = judging(*rows, watermarks=WATERMARKS)
    for seq, (name, each) in enumerate(percent.items(), 2):
        judge.hears(full({"a": A, "b": B}[name], seq, each), LEADER)
    judge.timeline.now += for_long
    return judge


# What is reported.


def test_a_disk_is_the_same_for_the_same_seed_and_has_room_once_the_world_has_healed() -> None:
    first, again = Disks(7, 1.0), Disks(7, 1.0)
    times = [float(time) for time in range(0, 600, 10)]
    seen = [first.gauge(A, time, healed=False).used for time in times]
    # Asked in another order, and of another consumer between.
    assert [again.gauge(A, time, healed=False).used for time in reversed(times) if again.gauge(B, time, healed=False)] == seen[
        ::-1
    ]
    assert set(seen) <= {*LEVELS}
    assert len(set(seen)) > 2
    assert first.gauge(A, 500.0, healed=True).used == LEVELS[0]


def test_a_tenth_of_all_schedules_has_watermarks() -> None:
    found = sum(bool(plan(seed).spec.settings.watermarks) for seed in range(1000))
    assert abs(found - 1000 * FILLING_SHARE) < 40


def test_what_was_said_counts_from_when_it_arrived() -> None:
    reported, key = Reported(), (LEADER, A, RUNS[A])
    for when, percent in ((10.0, 50), (20.0, 91), (40.0, 86)):
        reported.hears(key, full(A, 1, percent), when)
    assert reported.last(key) == 86
    assert [reported.was_above(key, HIGH, since) for since in (19.0, 20.0, 39.0)] == [False, False, False]
    assert [reported.was_above(key, LOW, since) for since in (19.0, 20.0, 45.0)] == [False, True, True]
    assert [reported.was_never_above(key, HIGH, since) for since in (39.0, 40.0)] == [False, True]
    assert [reported.filled_up(key, LOW, since) for since in (19.0, 20.0)] == [True, False]
    assert reported.last((LEADER, B, RUNS[B])) is None


# Who is given shards.


@pytest.mark.parametrize(("for_long", "right"), [(5.0, True), (100.0, False)])
def test_a_shard_stays_where_it_is_when_who_was_chosen_between_two_writes_fills_up_by_the_second(
    for_long: float, right: bool
) -> None:
    judge = moving_beside(watermarks=WATERMARKS)
    judge.hears(full(B, 2, 50), LEADER)
    for seq, percent in ((2, 50), (3, 92)):
        gauge = Gauge(GaugeKind.DISK, "/data", percent, 100)
        judge.hears(Heartbeat(THIRD.consumer, THIRD.incarnation, seq, 6, ready=True, gauges=(gauge,)), LEADER)
        judge.timeline.now += for_long
    if right:
        call_off(judge, THIRD)
        assert judge.stored is not None
        assert judge.stored.shards == {T0: HELD._replace(revision=7)}
        return
    with pytest.raises(BrokenError, match="stays with g-0, though g-1 waits for it"):
        call_off(judge, THIRD)


@pytest.mark.parametrize(("heard_again", "right"), [(5.0, True), (45.0, False)])
def test_a_shard_stays_where_it_is_while_who_was_to_take_it_has_not_been_heard_below_low_for_long(
    heard_again: float, right: bool
) -> None:
    judge = hearing(MOVING, for_long=3.0, b=88)
    judge.hears(full(B, 3, 84), LEADER)
    judge.timeline.now += heard_again
    judge.hears(full(B, 4, 84), LEADER)
    judge.timeline.now += 100.0
    kept = owned(MOVING._replace(state=ShardState.ALREADY_ALLOC, next_consumer=None, revision=7), revision=7)
    with nullcontext() if right else pytest.raises(BrokenError, match="stays with g-0, though g-1 waits for it"):
        judge.store(kept, LEADER)


def test_it_sees_a_shard_that_is_given_to_who_is_above_high() -> None:
    with pytest.raises(BrokenError, match="t/0 was given to g-0, which is above high"):
        hearing(FREE, a=91).store(owned(given(FREE, A), revision=7), LEADER)


def test_it_sees_a_shard_that_is_given_to_who_is_above_low_while_others_have_room() -> None:
    with pytest.raises(BrokenError, match=r"t/0 was given to g-0, which is above low, and \['g-1'\] have room"):
        hearing(FREE, a=86, b=50).store(owned(given(FREE, A), revision=7), LEADER)


@pytest.mark.parametrize("percent", [{"a": 86, "b": 86}, {"a": 86}, {"a": 84, "b": 50}])
def test_a_shard_may_be_given_to_who_has_room_or_as_much_as_the_others(percent: dict[str, int]) -> None:
    hearing(FREE, **percent).store(owned(given(FREE, A), revision=7), LEADER)


def test_what_was_heard_a_moment_ago_may_not_have_been_decided_upon() -> None:
    hearing(FREE, for_long=5.0, a=98, b=50).store(owned(given(FREE, A), revision=7), LEADER)


def test_a_shard_stays_where_it_is_when_who_was_to_take_it_is_too_full() -> None:
    kept = MOVING._replace(state=ShardState.ALREADY_ALLOC, next_consumer=None, revision=7)
    hearing(MOVING, b=86).store(owned(kept, revision=7), LEADER)
    with pytest.raises(BrokenError, match="stays with g-0, though g-1 waits for it"):
        hearing(MOVING, b=50).store(owned(kept, revision=7), LEADER)


# Who gives some away.


def of(count: int) -> list[ShardRecord]:
    return [HELD._replace(shard=ShardId(f"t/{2 * number}")) for number in range(count)]


def gives(judge: Judge, rows: list[ShardRecord], number: int) -> None:
    """So many of the shards are asked for."""
    for row in rows:
        judge.shards.setdefault(row.shard, Shard(row.shard, end=10, durable=4, highest=4))
    judge.stored = judge.written = owned(*rows)
    moving = [row._replace(state=ShardState.TRANSFER, next_consumer=B, revision=7) for row in rows[:number]]
    judge.store(owned(*moving, *rows[number:], revision=7), LEADER)


def test_who_is_above_high_may_give_away_what_is_beyond_its_share_and_a_tenth() -> None:
    gives(hearing(HELD, a=91, b=50), of(6), 5)


def test_it_sees_that_who_is_above_high_gives_all_away_at_once() -> None:
    with pytest.raises(BrokenError, match="g-0 is above high, and gives 6 of 6 shards away at once"):
        gives(hearing(HELD, a=91, b=50), of(6), 6)
    gives(hearing(HELD, a=89, b=50), of(6), 6)


@pytest.mark.parametrize(
    "why", ["its holder has gone", "it is not there", "it was away a moment ago", "its checkpoint is lost"]
)
def test_what_nobody_can_be_given_is_in_nobodys_share(why: str) -> None:
    judge, rows = hearing(HELD, a=91, b=50), of(8)
    others = [HELD._replace(shard=ShardId(f"t/{2 * number + 1}"), holder=B, incarnation=RUNS[B]) for number in range(6)]
    there = {**CONSUMERS, THIRD.consumer: THIRD}

    def give_away(consumers: dict[ConsumerId, ConsumerRecord], *, durable: int | None = 4) -> None:
        judge.shards |= {row.shard: Shard(row.shard, end=10, durable=4, highest=4) for row in rows}
        judge.shards |= {row.shard: Shard(row.shard, end=10, durable=durable, highest=4) for row in others}
        judge.stored = judge.written = owned(*rows, *others, consumers=consumers)
        moving = [row._replace(state=ShardState.TRANSFER, next_consumer=THIRD.consumer, revision=7) for row in rows[:7]]
        judge.store(owned(*moving, *rows[7:], *others, consumers=consumers, revision=7), LEADER)

    with pytest.raises(BrokenError, match="gives 7 of 8 shards away at once"):
        give_away(there)
    if why == "its holder has gone":
        give_away({**there, B: replace(there[B], present=False)})
    elif why == "its checkpoint is lost":
        give_away(there, durable=None)
    else:
        judge.sightings.looked(LEADER, [ShardInfo(row.shard, 0, 10) for row in rows], judge.timeline.now)
        if why == "it was away a moment ago":
            judge.sightings.looked(LEADER, [ShardInfo(row.shard, 0, 10) for row in (*rows, *others)], judge.timeline.now)
        give_away(there)


# Who is paused.


@pytest.mark.parametrize(
    ("percent", "paused", "right"),
    [(96, True, True), (96, False, False), (93, True, True), (93, False, True), (90, True, False), (90, False, True)],
)
def test_it_sees_who_is_paused_and_should_not_be_and_who_is_not_and_should(percent: int, paused: bool, right: bool) -> None:
    judge = hearing(HELD, a=percent)
    asked = full(A, 2, percent, held=(HeldShard(ShardId("t/0"), 4),))
    if right:
        judge.heartbeat_answered(asked, reply(CONFIRMED, paused=paused), LEADER)
        return
    with pytest.raises(BrokenError, match="and the spec is"):
        judge.heartbeat_answered(asked, reply(CONFIRMED, paused=paused), LEADER)
