"""The judge sees what it must: each of its rules fails when it is broken, and holds when it is kept."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec import structs

from shardherd.core.group.notes import text
from shardherd.core.group.records import Clocks, ConsumerRecord, EndReason, GroupRecord, Ownership, ShardRecord
from shardherd.core.group.state import State
from shardherd.core.model.errors import IllegalTransitionError, StaleIncarnationError
from shardherd.core.model.gauges import Watermarks
from shardherd.core.model.messages import Seconds
from shardherd.core.model.nouns import (
    CheckpointOutcome,
    CheckpointReply,
    CheckpointRequest,
    CheckpointResult,
    ConfirmedShard,
    ConsumerId,
    GroupSpec,
    Growth,
    Heartbeat,
    HeartbeatReply,
    HeldShard,
    Incarnation,
    Leave,
    ResetReport,
    ResetRow,
    ResetState,
    ResetTo,
    ShardCheckpoint,
    ShardId,
    ShardInfo,
    ShardState,
)
from tests.builders import restore, spec
from tests.simulation import changes, days, notices, resting
from tests.simulation.faults import reset_lost
from tests.simulation.history_entries import BrokenError, Grown, Run, Shard
from tests.simulation.judging import Judge, listening
from tests.simulation.plan import plan
from tests.simulation.servers import Kafka
from tests.simulation.source import Source
from tests.simulation.virtual import Timeline
from tests.simulation.world import World

T0, T1 = ShardId("t/0"), ShardId("t/1")
A, B = ConsumerId("g-0"), ConsumerId("g-1")
RUNS = {A: Incarnation("uid-a", 1), B: Incarnation("uid-b", 1)}
RUN_OF = {name: Run(name, run) for name, run in RUNS.items()}
LEADER = "operator-1"

FREE = ShardRecord(T0, ShardState.NOT_ALLOC, 0, started=True, owner_epoch=4, held_since_epoch=3, revision=5)
HELD = FREE._replace(state=ShardState.ALREADY_ALLOC, holder=A, incarnation=RUNS[A], last_holder=A)
MOVING = HELD._replace(state=ShardState.TRANSFER, next_consumer=B, revision=6)
GROUP = GroupRecord("uid", leader_epoch=1, group_epoch=3, revision=6, discovered=True)
CONSUMERS = {name: ConsumerRecord(name, run) for name, run in RUNS.items()}


def owned(*rows: ShardRecord, consumers: dict[ConsumerId, ConsumerRecord] | None = None, **group: Any) -> Ownership:
    return Ownership(replace(GROUP, **group), {row.shard: row for row in rows}, consumers or CONSUMERS)


def judging(*rows: ShardRecord, ordered: bool = False, **settings: Any) -> Judge:
    """A judge who has seen these rows, at 1,000 s; both consumers are heard and ready."""
    timeline = Timeline()
    judge = Judge(timeline, ordered, 90.0, 120.0)
    judge.shards[T0] = Shard(T0, end=10, durable=4, highest=4)
    judge.shards[T1] = Shard(T1, (T0,), end=10, durable=4, highest=4)
    of = spec(2)
    judge.specified(replace(of, settings=replace(of.settings, session_timeout=90.0, **settings)))
    timeline.now = 100.0
    judge.writer = LEADER
    judge.store(owned(*rows), LEADER)
    for name in (A, B):
        judge.hears(heartbeat(name), LEADER)
    timeline.now = 1000.0
    return judge


def heartbeat(name: ConsumerId, seq: int = 1, **changes: Any) -> Heartbeat:
    return Heartbeat(name, RUNS[name], seq, 6, **{"ready": True, **changes})


def given(row: ShardRecord, to: ConsumerId, **changes: Any) -> ShardRecord:
    """The row, granted under the next epoch in revision 7."""
    epoch = row.owner_epoch + 1
    return row._replace(
        **{
            "state": ShardState.ALREADY_ALLOC,
            "holder": to,
            "incarnation": RUNS[to],
            "next_consumer": None,
            "last_holder": to,
            "owner_epoch": epoch,
            "held_since_epoch": epoch,
            "revision": 7,
            **changes,
        }
    )


def test_what_keeps_to_the_rules_is_no_news() -> None:
    judge = judging(FREE)
    judge.store(owned(given(FREE, A), revision=7), LEADER)
    moving = given(FREE, A, state=ShardState.TRANSFER, next_consumer=B, revision=8)
    judge.store(owned(moving, revision=8), LEADER)
    judge.store(owned(given(moving, B, revision=9), revision=9), LEADER)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (FREE, given(FREE, A, parents=(T1,)), r"has parents \('t/1',\), its source says \(\)"),
        (FREE, given(FREE, A, held_since_epoch=9), "is of the future"),
        (FREE, given(FREE, A, last_holder=B), "its last holder is g-1"),
        (FREE, given(FREE, A, started=False), "was started, and is not any more"),
        (FREE, given(FREE, A, revision=6), "its revision 6 is not above 6"),
        (FREE, given(FREE, A, held_since_epoch=4), "held since epoch 4"),
        (FREE, given(FREE, A, owner_epoch=4, held_since_epoch=4), "held since epoch 4"),
        (HELD, HELD._replace(held_since_epoch=2, owner_epoch=4), "one grant is held since epoch 3, then 2"),
        (HELD, given(HELD, A, held_since_epoch=2), "was held since epoch 3, and now since 2"),
        (HELD, MOVING._replace(next_consumer=A, revision=7), "is to go from g-0 to itself"),
        (HELD, FREE._replace(state=ShardState.OVER, last_holder=A), "is OVER, durable is 4 of 10"),
        (FREE, FREE._replace(state=ShardState.WAIT), "was NOT_ALLOC and waits"),
        (MOVING, HELD._replace(revision=7), "stays with g-0, though g-1 waits for it"),
    ],
)
def test_it_sees_a_row_that_breaks_a_rule(before: ShardRecord, after: ShardRecord, message: str) -> None:
    judge = judging(before)
    with pytest.raises(BrokenError, match=message):
        judge.store(owned(after, revision=7), LEADER)


@pytest.mark.parametrize(
    ("after", "message"),
    [
        (owned(given(FREE, A, revision=6), revision=6), "is not above 6"),
        (owned(FREE._replace(parents=()), discovered=False), "became"),
        (owned(FREE, uid="another"), "became"),
        (owned(FREE, growths=(Growth("u", 1, 2, ((T0, 4),)),)), "no topic grew like this"),
        (owned(FREE, growths=(Growth("t", 2, 2, ((T0, 4),)),)), "no topic grew like this"),
        (owned(FREE, growths=(Growth("t", 1, 2, ((T0, 11),)),)), "are not those of its shards"),
        (owned(FREE, consumers={A: CONSUMERS[A]}), r"consumers \['g-1'\] are forgotten"),
        (owned(FREE, consumers={**CONSUMERS, B: replace(CONSUMERS[B], present=False)}), "the group's epoch is still 3"),
        (owned(FREE, consumers={**CONSUMERS, B: replace(CONSUMERS[B], zone="a")}), "its place changed"),
        (owned(FREE, consumers={**CONSUMERS, B: ConsumerRecord(B, Incarnation("uid-c", 1))}, group_epoch=4), "went back"),
    ],
)
def test_it_sees_a_group_that_breaks_a_rule(after: Ownership, message: str) -> None:
    with pytest.raises(BrokenError, match=message):
        judging(FREE).store(after, LEADER)


THIRD = ConsumerRecord(ConsumerId("g-2"), Incarnation("uid-c", 1))
GONE = replace(THIRD, present=False, ended=THIRD.incarnation, end_reason=EndReason.LEFT)
ANOTHER_RUN = replace(THIRD, incarnation=Incarnation("uid-c", 2))


def moving_beside(third: ConsumerRecord = THIRD, watermarks: Watermarks | None = None, **says: Any) -> Judge:
    """A judge who has seen a shard on its way from g-0 to g-1, and this third consumer, which says this 50 s later."""
    judge = judging(MOVING, watermarks=watermarks or Watermarks())
    judge.store(owned(MOVING, consumers={**CONSUMERS, THIRD.consumer: third}, group_epoch=4), LEADER)
    judge.hears(Heartbeat(THIRD.consumer, THIRD.incarnation, 1, 6, **{"ready": True, **says}), LEADER)
    judge.timeline.now += 50.0
    return judge


def call_off(judge: Judge, third: ConsumerRecord) -> None:
    """It is stored that the shard stays with g-0, and what became of the third consumer."""
    consumers = {**CONSUMERS, THIRD.consumer: third}
    judge.store(owned(HELD._replace(revision=7), consumers=consumers, revision=7, group_epoch=5), LEADER)


@pytest.mark.parametrize("third", [GONE, replace(THIRD, present=False), ANOTHER_RUN])
def test_a_shard_stays_where_it_is_when_who_was_chosen_between_two_writes_is_over_by_the_second(third: ConsumerRecord) -> None:
    judge = moving_beside()
    call_off(judge, third)
    assert judge.stored is not None
    assert judge.stored.shards == {T0: HELD._replace(revision=7)}


def test_a_shard_stays_where_it_is_when_who_was_chosen_between_two_writes_drains_by_the_second() -> None:
    judge = moving_beside()
    judge.hears(Heartbeat(THIRD.consumer, THIRD.incarnation, 2, 6, ready=True, draining=True), LEADER)
    call_off(judge, THIRD)
    assert judge.stored is not None
    assert judge.stored.shards == {T0: HELD._replace(revision=7)}


@pytest.mark.parametrize("edited", [spec(3, leaving=[THIRD.consumer]), spec(3, cordoned=[THIRD.consumer])])
def test_a_shard_stays_where_it_is_when_who_was_chosen_between_two_writes_is_emptied_by_the_second(edited: GroupSpec) -> None:
    judge = moving_beside()
    judge.specified(edited)
    call_off(judge, THIRD)
    assert judge.stored is not None
    assert judge.stored.shards == {T0: HELD._replace(revision=7)}


@pytest.mark.parametrize(
    ("before", "says", "after"),
    [
        pytest.param(THIRD, {}, THIRD, id="it could still take the shard"),
        pytest.param(GONE, {}, GONE, id="it went before that"),
        pytest.param(THIRD, {"ready": False}, GONE, id="it was never ready"),
        pytest.param(THIRD, {"draining": True}, GONE, id="it drained long before it went"),
        pytest.param(THIRD, {"draining": True}, THIRD, id="it drains for long"),
    ],
)
def test_it_sees_a_transfer_that_is_called_off_though_nobody_else_can_have_been_chosen(
    before: ConsumerRecord, says: dict[str, Any], after: ConsumerRecord
) -> None:
    with pytest.raises(BrokenError, match="stays with g-0, though g-1 waits for it"):
        call_off(moving_beside(before, **says), after)


def test_it_sees_a_transfer_that_is_called_off_when_the_only_other_choice_is_to_be_emptied_for_long() -> None:
    judge = moving_beside()
    judge.specified(spec(3, leaving=[THIRD.consumer]))
    judge.timeline.now += 50.0
    with pytest.raises(BrokenError, match="stays with g-0, though g-1 waits for it"):
        call_off(judge, THIRD)


def test_it_sees_a_transfer_that_is_called_off_when_its_holder_alone_is_not_what_it_was() -> None:
    judge = judging(MOVING)
    judge.hears(heartbeat(A, 2, draining=True), LEADER)
    with pytest.raises(BrokenError, match="stays with g-0, though g-1 waits for it"):
        judge.store(owned(HELD._replace(revision=7), revision=7), LEADER)


def test_the_ends_of_a_growth_are_those_of_the_shards_that_the_coordinator_saw() -> None:
    row, grew = FREE._replace(source_id="id-1"), (Growth("t", 1, 2, ((T0, 8),)),)
    judge = judging(row)
    judge.shards[T0] = Shard(T0, end=3, durable=0, highest=0, born=judge.timeline.now, source_id="id-2")
    judge.store(owned(row, growths=grew), LEADER)
    with pytest.raises(BrokenError, match="are not those of its shards"):
        judge.store(owned(row._replace(source_id="id-2", revision=7), growths=grew, revision=7), LEADER)


def test_it_sees_a_reset_that_is_said_to_be_made_before_it_set_every_position() -> None:
    begun = ResetReport("one", ResetTo.EARLIEST, ResetState.APPLYING, "", rows=(ResetRow(T0, 4, 0),))
    made = structs.replace(begun, state=ResetState.DONE)
    judge = judging(FREE)
    judge.store(owned(FREE, reset=begun), LEADER)
    with pytest.raises(BrokenError, match="reset one is made, and did not set"):
        judge.store(owned(FREE, reset=made, last_reset=made), LEADER)
    judge = judging(FREE)
    judge.store(owned(FREE, reset=begun), LEADER)
    judge.reset(T0, 0)
    judge.store(owned(FREE, reset=made, last_reset=made), LEADER)


def test_a_position_that_a_user_asked_for_in_vain_is_set_by_the_reset_that_is_being_made() -> None:
    begun = ResetReport("one", ResetTo.EARLIEST, ResetState.APPLYING, "", rows=(ResetRow(T0, 4, 0),))
    made = structs.replace(begun, state=ResetState.DONE)
    judge = judging(FREE)
    kafka = Kafka(judge)
    judge.store(owned(FREE, reset=begun), LEADER)
    kafka.forcing.add((T0, 0))
    kafka.commit(kafka.initialise(LEADER, 1000.0), {T0: 0}, {}, LEADER)
    judge.store(owned(FREE, reset=made, last_reset=made), LEADER)
    assert judge.counts["resets made"] == 1


@pytest.mark.parametrize(
    ("rows", "position", "seen"),
    [
        ((ResetRow(T0, 4, 7),), 4, False),
        ((ResetRow(T0, 4, 7),), 3, True),
        ((ResetRow(T0, 4, 6),), 4, True),
        ((ResetRow(T1, 4, 7),), 4, True),
        ((), 4, True),
    ],
    ids=["set by it", "from elsewhere", "to elsewhere", "of another shard", "no reset"],
)
def test_who_is_told_of_its_grant_when_a_reset_has_set_the_shard_and_is_not_made_is_told_where_it_stood(
    rows: tuple[ResetRow, ...], position: int, seen: bool
) -> None:
    judge = judging(HELD)
    begun = ResetReport("one", ResetTo.LATEST, ResetState.APPLYING, "", rows=rows) if rows else None
    judge.store(owned(HELD, reset=begun), LEADER)
    judge.force(T0, 7)
    reply = HeartbeatReply(6, (ConfirmedShard(T0, 4, 3, position),), session_timeout=Seconds(90.0))
    with pytest.raises(BrokenError, match="granted epoch 4 at position") if seen else nullcontext():
        judge.heartbeat_answered(heartbeat(A), reply, LEADER)


def reset_to_where_it_stands() -> tuple[Judge, Kafka]:
    """A judge who has seen a reset set t/0 to 4, where it stood; A wrote 4 to 7 before. The reset has more to set yet."""
    begun = ResetReport("one", ResetTo.EARLIEST, ResetState.APPLYING, "", rows=(ResetRow(T0, 4, 4), ResetRow(T1, 4, 0)))
    judge = judging(HELD)
    kafka = Kafka(judge)
    kafka.committed[T0] = 4
    kafka.initialise(LEADER, 1000.0)
    judge.write(T0, 4, 7, 4, RUN_OF[A])
    judge.store(owned(HELD, reset=begun), LEADER)
    kafka.commit(kafka.epoch, {T0: 4}, {T0: text("uid", 1, 4, "id-1", forced=True)}, LEADER)
    judge.store(owned(given(HELD, A), reset=begun, revision=7), LEADER)
    return judge, kafka


def test_what_was_read_since_a_reset_set_its_shard_is_in_the_sink_though_that_position_is_committed_again() -> None:
    judge, kafka = reset_to_where_it_stands()
    noted = {T0: text("uid", 1, 5, "id-1")}
    judge.write(T0, 4, 7, 5, RUN_OF[A])
    kafka.commit(kafka.epoch, {T0: 4}, noted, LEADER)
    kafka.commit(kafka.epoch, {T0: 7}, noted, LEADER)
    assert (judge.shards[T0].durable, judge.counts["positions committed again as they were"]) == (7, 2)


def test_it_sees_a_position_that_counts_what_was_read_before_a_reset_set_its_shard_to_where_it_stood() -> None:
    _, kafka = reset_to_where_it_stands()
    noted = {T0: text("uid", 1, 5, "id-1")}
    kafka.commit(kafka.epoch, {T0: 4}, noted, LEADER)
    with pytest.raises(BrokenError, match="position 7 is durable, but records 4 to 7 never reached the sink"):
        kafka.commit(kafka.epoch, {T0: 7}, noted, LEADER)


def test_what_a_holder_wrote_before_a_reset_fenced_it_is_written_again_though_the_position_was_only_read_back() -> None:
    begun = ResetReport("one", ResetTo.EARLIEST, ResetState.APPLYING, "", rows=(ResetRow(T0, 4, 4), ResetRow(T1, 4, 0)))
    judge = judging(HELD)
    judge.write(T0, 4, 7, 4, RUN_OF[A])
    judge.store(owned(HELD, reset=begun), LEADER)
    judge.store(owned(given(HELD, A), reset=begun, revision=7), LEADER)
    judge.write(T0, 4, 7, 5, RUN_OF[A])
    assert judge.counts["records written again"] == 3


@pytest.mark.parametrize(
    "rows", [(ResetRow(T1, 4, 0),), (ResetRow(T0, 4, 0), ResetRow(T1, 4, 0))], ids=["of another shard", "to elsewhere"]
)
def test_it_sees_what_is_written_again_by_a_holder_that_was_fenced_during_a_reset_which_did_not_set_its_shard(
    rows: tuple[ResetRow, ...],
) -> None:
    begun = ResetReport("one", ResetTo.EARLIEST, ResetState.APPLYING, "", rows=rows)
    judge = judging(HELD)
    judge.write(T0, 4, 7, 4, RUN_OF[A])
    judge.store(owned(HELD, reset=begun), LEADER)
    judge.store(owned(given(HELD, A), reset=begun, revision=7), LEADER)
    with pytest.raises(BrokenError, match=r"g-0 .* writes records 4 to 7 under epoch 5, which g-0 .* wrote under epoch 4"):
        judge.write(T0, 4, 7, 5, RUN_OF[A])


def test_it_sees_a_position_that_was_decided_for_the_shard_that_bore_the_name_before() -> None:
    begun = ResetReport("one", ResetTo.LATEST, ResetState.APPLYING, "", rows=(ResetRow(T0, 4, 7),))
    judge = judging(FREE)
    judge.store(owned(FREE, reset=begun), LEADER)
    assert judge.sets(T0, 7)
    judge.timeline.now += 1.0
    judge.shards[T0] = Shard(T0, end=10, born=judge.timeline.now, source_id="id-2")
    judge.store(owned(FREE, reset=begun), LEADER)
    assert not judge.sets(T0, 7)
    with pytest.raises(BrokenError, match="position 7 is durable, but records 0 to 7 never reached the sink"):
        judge.land(T0, 7, LEADER)


def world_in_which_a_user_has_asked_for(*positions: tuple[ShardId, int], alive: bool, vanished: bool = False) -> Any:
    """As much of a world as makes t/0 anew, or has it vanish. Nobody has answered the user; whom he asked is `alive`."""
    judge = judging(FREE, FREE._replace(shard=T1))
    kafka, asked = Kafka(judge), list[tuple[ShardId, int]]()
    kafka.forcing.update(positions)
    kafka.unanswered.update(positions)
    leader = SimpleNamespace(process=SimpleNamespace(loop=None), force=lambda *position: asked.append(position))
    world = SimpleNamespace(
        history=judge,
        kafka=kafka,
        timeline=judge.timeline,
        time=judge.timeline.now,
        rng=random.Random(1),
        operators=[SimpleNamespace(alive=alive, asking=set(positions))],
        plan=plan(0),
        leader=lambda: leader,
        say=lambda _: None,
        asked=asked,
    )
    world.source = Source(cast("World", world))
    if vanished:
        world.source.vanish([judge.shards[T0]])
        return world
    world.source.make_anew([judge.shards[T0]])
    judge.shards[T0].end = 10
    return world


def test_no_user_asks_a_shard_that_was_made_anew_for_the_position_that_he_wanted_of_the_one_before() -> None:
    world = world_in_which_a_user_has_asked_for((T0, 7), (T1, 3), alive=False)
    reset_lost(world)
    world.timeline.run(world.time)
    assert world.asked == [(T1, 3), (T0, 0)]


def test_it_sees_a_position_of_a_shard_that_was_made_anew_which_a_user_has_asked_for_of_the_one_before() -> None:
    kafka = world_in_which_a_user_has_asked_for((T0, 7), (T1, 3), alive=False).kafka
    epoch = kafka.initialise(LEADER, 1000.0)
    kafka.commit(epoch, {T1: 3}, {}, LEADER)
    with pytest.raises(BrokenError, match="position 7 is durable, but records 0 to 7 never reached the sink"):
        kafka.commit(epoch, {T0: 7}, {}, LEADER)


def test_what_an_operator_is_being_asked_for_may_be_done_to_the_shard_that_was_made_anew_meanwhile() -> None:
    kafka = world_in_which_a_user_has_asked_for((T0, 7), alive=True).kafka
    kafka.commit(kafka.initialise(LEADER, 1000.0), {T0: 7}, {}, LEADER)
    assert kafka.history.shards[T0].durable == 7


def test_what_an_operator_is_being_asked_for_may_be_done_to_a_shard_that_vanished_meanwhile() -> None:
    world = world_in_which_a_user_has_asked_for((T0, 2), alive=True, vanished=True)
    world.source.come_back([world.history.shards[T0]])
    world.kafka.commit(world.kafka.initialise(LEADER, 1000.0), {T0: 2}, {}, LEADER)
    assert (world.history.shards[T0].durable, world.history.shards[T0].rewound) == (2, True)


def test_it_sees_a_position_that_went_back_to_what_a_user_asked_for_in_vain_before_its_shard_vanished() -> None:
    world = world_in_which_a_user_has_asked_for((T0, 2), alive=False, vanished=True)
    world.source.come_back([world.history.shards[T0]])
    with pytest.raises(BrokenError, match="the durable position went back from 4 to 2"):
        world.kafka.commit(world.kafka.initialise(LEADER, 1000.0), {T0: 2}, {}, LEADER)


def test_who_drains_and_did_not_speak_while_the_ownership_was_rebuilt_may_have_written_what_others_write_again() -> None:
    world = World(plan(0))
    for name in (A, B):
        world.pods.add(name)
    del world.pods.wanted[A]  # scaled in, and not ended yet
    world._heard[B, RUNS[B]] = world.time
    world.event(cast("Any", SimpleNamespace(name=LEADER)), "OwnershipRebuilt", "0 shards were claimed by their holders")
    assert {run.run.consumer: run.run.violent for run in world.pods.everyone()} == {
        A: "silent while the ownership was rebuilt",
        B: "",
    }


@pytest.mark.parametrize(("before", "expired"), [(91.0, True), (50.0, False)])
def test_who_was_expired_was_not_heard_in_time_if_he_was_heard_while_that_was_stored(before: float, expired: bool) -> None:
    world = World(plan(0))
    timeout = world.spec.settings.session_timeout
    world.timeline.now = world.time + 1000.0
    world.history.writer = LEADER
    world.history.led_since = world.time - 500.0
    world.history.stored = owned(HELD)
    world._in_time[A, RUNS[A]] = [world.time - before / 90.0 * timeout, world.time - 0.02]
    operator = cast("Any", SimpleNamespace(name=LEADER))
    world.timeline.now -= 0.03
    world.expiry_decided(operator, A, RUNS[A])
    world.timeline.now += 0.03
    with nullcontext() if expired else pytest.raises(BrokenError, match="g-0 was expired, but was heard"):
        world.event(operator, "SessionTimeout", "g-0 was silent for 90 s")


@pytest.mark.parametrize("fault", [changes.scale_out, days.shut_down])
@pytest.mark.parametrize("deleted", [True, False])
def test_nobody_scales_or_shuts_down_a_group_that_is_deleted(fault: changes.Fault, deleted: bool) -> None:
    world = World(plan(0))
    world.deleted = deleted
    before = (dict(world.pods.wanted), world.spec, world.asleep)
    assert fault(world) is not deleted
    assert ((world.pods.wanted, world.spec, world.asleep) == before) is deleted


def test_nothing_is_written_to_shards_that_are_closed_when_their_topic_grows() -> None:
    world = World(plan(0))
    for number in range(8):
        world.source.add(world.source.name(number))
    shards = world.history.shards
    world.history.stored = cast("Any", SimpleNamespace(shards=dict(shards)))
    closed = dict.fromkeys(shards, 0)
    for name in closed:
        shards[name].open = False
        closed[name] = shards[name].end
    assert changes.grow_topic(world)
    (grown,) = world.history.grown
    world.timeline.run(grown.noticed + 1.0)
    assert grown.ends == closed


def away_while_the_ownership_was_rebuilt(*rows: ShardRecord, has_position: bool = True, heard: bool = True) -> Judge:
    """A judge who has seen t/0 granted and read, and these rows when the time for claims was over; A reads t/0 on from 4.

    `heard`: whether A was heard in that time.
    """
    judge = judging(HELD)
    if not has_position:
        judge.shards[T0].highest = judge.shards[T0].durable = None
    judge.write(T0, 4, 6, 4, RUN_OF[A])
    judge.lose()
    judge.store(owned(*rows, discovered=False, rebuilding=True, leader_epoch=2), "operator-2")
    for name in (A, B) if heard else (B,):
        judge.hears(heartbeat(name), "operator-2")
    judge.store(owned(*rows, rebuilding=True, leader_epoch=2), "operator-2")
    judge.store(owned(*rows, leader_epoch=2, revision=7), "operator-2")
    if not has_position:
        judge.land(T0, 4, "operator-2")
    given_to_b = HELD._replace(holder=B, incarnation=RUNS[B], last_holder=B, owner_epoch=5, held_since_epoch=5, revision=8)
    judge.store(owned(given_to_b, leader_epoch=2, revision=8, group_epoch=4), "operator-2")
    return judge


def test_what_was_written_of_a_shard_that_could_not_be_claimed_may_be_written_again_but_once() -> None:
    judge = away_while_the_ownership_was_rebuilt()
    judge.write(T0, 4, 7, 5, RUN_OF[B])
    judge.write(T0, 6, 8, 4, RUN_OF[A])
    given_back = given(HELD._replace(owner_epoch=5), A, held_since_epoch=6, revision=9)
    judge.store(owned(given_back, leader_epoch=2, revision=9, group_epoch=4), "operator-2")
    with pytest.raises(BrokenError, match=r"g-0 .* writes records 5 to 7 under epoch 6, which g-1 .* wrote under epoch 5"):
        judge.write(T0, 5, 8, 6, RUN_OF[A])


def test_the_epoch_of_a_grant_that_could_not_be_claimed_may_be_given_out_again_and_what_it_wrote_written_again_but_once() -> (
    None
):
    judge = judging(HELD)
    judge.write(T0, 4, 6, 4, RUN_OF[A])
    judge.shards[T0].miss_claims()
    for owner_epoch in (4, 5):
        judge._grant_changed(None, HELD._replace(owner_epoch=owner_epoch))
    judge._grant_changed(None, HELD._replace(holder=B, incarnation=RUNS[B], owner_epoch=6))
    judge.write(T0, 4, 6, 5, RUN_OF[A])
    with pytest.raises(BrokenError, match=r"g-1 .* writes records 4 to 6 under epoch 6, which g-0 .* wrote under epoch 5"):
        judge.write(T0, 4, 6, 6, RUN_OF[B])


def test_what_was_written_by_who_was_silent_while_it_was_found_out_who_holds_what_may_be_written_again() -> None:
    judge = away_while_the_ownership_was_rebuilt(FREE, heard=False)
    judge.write(T0, 4, 7, 5, RUN_OF[B])


def test_who_leads_after_one_that_was_finding_out_who_holds_what_has_expired_nobody_by_its_first_writes() -> None:
    judge = judging(HELD)
    judge.shards[T0].highest = judge.shards[T0].durable = 4
    judge.lose()
    judge.store(owned(FREE, discovered=False, rebuilding=False, leader_epoch=2), "operator-2")
    judge.store(owned(FREE, rebuilding=True, leader_epoch=2), "operator-2")
    for name in (A, B):
        judge.hears(heartbeat(name), "operator-2")
    judge.lose()
    judge.timeline.now += 1.0
    judge.store(owned(discovered=False, leader_epoch=3, revision=1), "operator-3")
    judge.hears(heartbeat(B, 2), "operator-3")
    judge.store(owned(discovered=False, leader_epoch=3, revision=2), "operator-3")
    assert (A, RUNS[A]) not in judge._expired


def test_it_sees_what_is_written_again_of_a_shard_that_could_be_claimed() -> None:
    judge = away_while_the_ownership_was_rebuilt(FREE)
    with pytest.raises(BrokenError, match=r"g-1 .* writes records 4 to 6 under epoch 5, which g-0 .* wrote under epoch 4"):
        judge.write(T0, 4, 7, 5, RUN_OF[B])


@pytest.mark.parametrize("named", [False, True])
def test_a_shard_that_comes_late_could_be_claimed_only_by_who_is_heard_before_the_time_for_claims_is_over(named: bool) -> None:
    judge = judging(HELD)
    judge.write(T0, 4, 6, 4, RUN_OF[A])
    judge.lose()
    judge.store(owned(discovered=False, rebuilding=True, leader_epoch=2), "operator-2")
    judge.store(owned(rebuilding=True, leader_epoch=2), "operator-2")
    judge.store(owned(FREE, rebuilding=True, leader_epoch=2, revision=7, group_epoch=4), "operator-2")
    judge.timeline.now += 1.0
    judge.hears(heartbeat(A, 2, held=(HeldShard(T0, 4),) if named else ()), "operator-2")
    judge.hears(heartbeat(B), "operator-2")
    judge.store(owned(FREE, leader_epoch=2, revision=8, group_epoch=4), "operator-2")
    given_to_b = HELD._replace(holder=B, incarnation=RUNS[B], last_holder=B, owner_epoch=5, held_since_epoch=5, revision=9)
    judge.hears(heartbeat(B, 2), "operator-2")
    judge.store(owned(given_to_b, leader_epoch=2, revision=9, group_epoch=4), "operator-2")
    with pytest.raises(BrokenError, match="writes records 4 to 6 under epoch 5") if named else nullcontext():
        judge.write(T0, 4, 7, 5, RUN_OF[B])


def test_a_shard_without_a_position_could_not_be_claimed_and_what_was_written_of_it_may_be_written_again() -> None:
    judge = away_while_the_ownership_was_rebuilt(FREE._replace(started=False), has_position=False)
    judge.write(T0, 4, 7, 5, RUN_OF[B])


def granted_after_it_was_not_there(*, position_is_lost: bool, knows: bool) -> None:
    """B is granted t/0 under epoch 4, which A had; it was not there, unless somebody `knows` it, when claims were made."""
    judge = judging(HELD)
    judge.shards[T0].landed, judge.grants[T0, 4] = (4, 4), (A, RUNS[A])
    judge.lose()
    rows = (FREE,) if knows else ()
    judge.store(owned(*rows, discovered=False, rebuilding=True, leader_epoch=2), "operator-2")
    judge.store(owned(*rows, rebuilding=True, leader_epoch=2), "operator-2")
    judge.store(owned(*rows, leader_epoch=2, revision=7), "operator-2")
    judge.hears(heartbeat(B), "operator-2")
    if position_is_lost:
        judge.lose_epochs(T0)
    given_to_b = HELD._replace(holder=B, incarnation=RUNS[B], last_holder=B, held_since_epoch=4, revision=8)
    judge._grant_changed(None, given_to_b)


def test_the_epochs_of_a_shard_that_nobody_knew_when_claims_were_made_are_lost_with_its_position() -> None:
    granted_after_it_was_not_there(position_is_lost=True, knows=False)


@pytest.mark.parametrize(("position_is_lost", "knows"), [(False, False), (True, True), (False, True)])
def test_it_sees_an_epoch_that_is_given_out_again_though_something_tells_of_it(position_is_lost: bool, knows: bool) -> None:
    with pytest.raises(BrokenError, match="epoch 4 was granted to"):
        granted_after_it_was_not_there(position_is_lost=position_is_lost, knows=knows)


def made_anew_under(row: ShardRecord) -> tuple[Judge, Kafka]:
    """A judge who has seen this row, and Kafka; then t/0 is made anew, and nobody has looked at it since."""
    judge = judging(row)
    judge.shards[T0] = Shard(T0, end=10, born=judge.timeline.now, source_id="id-2")
    kafka = Kafka(judge)
    kafka.initialise(LEADER, 1000.0)
    return judge, kafka


def shown_as_started(row: ShardRecord, *, succeeds_started: bool) -> None:
    """A row of t/0, which was made anew and has no position yet, is stored; whether the one before had one is said."""
    judge, _ = made_anew_under(FREE._replace(source_id="id-1"))
    judge.shards[T0].succeeds_started = succeeds_started
    judge.store(owned(row._replace(source_id="id-2", revision=7), revision=7), LEADER)


def test_a_claim_that_was_refused_tells_of_a_position_of_the_shard_that_bore_the_name_before() -> None:
    shown_as_started(FREE, succeeds_started=True)


@pytest.mark.parametrize(("row", "succeeds_started"), [(FREE, False), (HELD, True), (HELD, False)])
def test_it_sees_a_shard_that_is_said_to_be_started_though_nothing_tells_of_a_position(
    row: ShardRecord, succeeds_started: bool
) -> None:
    with pytest.raises(BrokenError, match="t/0 is said to be started, and no position of it was ever durable"):
        shown_as_started(row, succeeds_started=succeeds_started)


def commits(kafka: Kafka, offset: int, source_id: str, *, forced: bool) -> None:
    """The leader commits this position of the shard that it takes t/0 for."""
    kafka.commit(kafka.epoch, {T0: offset}, {T0: text("uid", 1, 4, source_id, forced=forced)}, LEADER)


FENCED = HELD._replace(owner_epoch=5, held_since_epoch=5, revision=7)
"""HELD, once a position is forced."""


@pytest.mark.parametrize(("committed", "forced", "seen"), [(2, True, True), (3, True, False), (2, False, False)])
def test_a_reset_whose_commit_was_under_way_when_its_shard_was_made_anew_has_set_it(
    committed: int, forced: bool, seen: bool
) -> None:
    row = HELD._replace(source_id="id-1")
    begun = ResetReport("one", ResetTo.OFFSETS, ResetState.APPLYING, "", Seconds(1.0), 1, rows=(ResetRow(T0, 4, 2),))
    judge, kafka = made_anew_under(row)
    judge.store(owned(row, reset=begun), LEADER)
    judge.shards[T0].born += 1.0
    commits(kafka, committed, "id-1", forced=forced)
    done = structs.replace(begun, state=ResetState.DONE)
    made = owned(FENCED._replace(source_id="id-1"), reset=done, last_reset=done, reset_ids=("one",), revision=7)
    if seen:
        judge.store(made, LEADER)
        return
    with pytest.raises(BrokenError, match="reset one is made, and did not set"):
        judge.store(made, LEADER)


@pytest.mark.parametrize("what_became_of_it", ["lost", "made"])
def test_a_commit_for_a_reset_that_was_lost_with_the_ownership_may_land_afterwards_and_for_one_that_was_made_it_may_not(
    what_became_of_it: str,
) -> None:
    begun = ResetReport("one", ResetTo.OFFSETS, ResetState.APPLYING, "", Seconds(1.0), 1, rows=(ResetRow(T0, 4, 2),))
    judge = judging(HELD)
    kafka = Kafka(judge)
    judge.store(owned(HELD, reset=begun), LEADER)
    asked = judge.asked_by_reset({T0: 2, T1: 2})
    assert asked == {T0: "one"}
    if what_became_of_it == "made":
        judge.reset(T0, 2)
        done = structs.replace(begun, state=ResetState.DONE)
        judge.store(owned(FENCED, reset=done, last_reset=done, reset_ids=("one",), revision=7), LEADER)
        judge.shards[T0] = replace(judge.shards[T0], highest=4, durable=4, rewound=False)
        with pytest.raises(BrokenError, match="the durable position went back from 4 to 2"):
            kafka.commit(kafka.epoch, {T0: 2}, {}, LEADER, asked)
        return
    judge.lose()
    judge.store(owned(leader_epoch=2, revision=0, group_epoch=0, discovered=False), "operator-2")
    kafka.commit(kafka.epoch, {T0: 2}, {}, LEADER, asked)
    assert (judge.shards[T0].durable, judge.shards[T0].prefix) == (2, 2), "what it skips need not be read"


@pytest.mark.parametrize(("known_as", "read_before"), [("id-1", True), ("id-1", False), ("id-2", False)])
def test_what_a_holder_wrote_of_a_shard_made_anew_before_it_heard_of_a_forced_position_may_be_written_again_but_once(
    known_as: str, *, read_before: bool
) -> None:
    judge, kafka = made_anew_under(HELD._replace(source_id=known_as))
    if read_before:
        judge.read(T0, 0, 6, RUN_OF[A])
    kafka.forcing.add((T0, 0))
    commits(kafka, 0, known_as, forced=True)
    judge.store(owned(FENCED._replace(source_id=known_as), revision=7), LEADER)
    judge.forced(T0, 0)
    if not read_before:
        judge.read(T0, 0, 6, RUN_OF[A])
    judge.write(T0, 0, 6, 4, RUN_OF[A])
    judge.write(T0, 0, 6, 5, RUN_OF[A])
    with pytest.raises(BrokenError, match=r"g-1 .* writes records 0 to 6 under epoch 6, which g-0 .* wrote under epoch 5"):
        judge.write(T0, 0, 6, 6, RUN_OF[B])


def test_what_was_written_under_a_grant_that_no_forced_position_ended_may_not_be_written_again() -> None:
    judge, kafka = made_anew_under(HELD._replace(source_id="id-1"))
    commits(kafka, 0, "id-1", forced=False)
    judge.store(owned(FENCED._replace(source_id="id-1"), revision=7), LEADER)
    judge.write(T0, 0, 6, 4, RUN_OF[A])
    with pytest.raises(BrokenError, match=r"g-0 .* writes records 0 to 6 under epoch 5, which g-0 .* wrote under epoch 4"):
        judge.write(T0, 0, 6, 5, RUN_OF[A])


def test_what_a_holder_wrote_of_a_shard_made_anew_before_it_heard_of_a_reset_may_be_written_again() -> None:
    begun = ResetReport("one", ResetTo.EARLIEST, ResetState.APPLYING, "", rows=(ResetRow(T0, 4, 0), ResetRow(T1, 4, 0)))
    row = HELD._replace(source_id="id-2")
    judge, kafka = made_anew_under(row)
    judge.store(owned(row, reset=begun), LEADER)
    commits(kafka, 0, "id-2", forced=True)
    judge.store(owned(FENCED._replace(source_id="id-2"), reset=begun, revision=7), LEADER)
    judge.write(T0, 0, 6, 4, RUN_OF[A])
    judge.write(T0, 0, 6, 5, RUN_OF[A])


def test_what_is_made_anew_after_a_position_was_forced_is_still_read_under_the_grant_that_this_ended() -> None:
    judge = judging(HELD)
    kafka = Kafka(judge)
    kafka.initialise(LEADER, 1000.0)
    kafka.forcing.add((T0, 2))
    commits(kafka, 2, "id-1", forced=True)
    judge.store(owned(FENCED, revision=7), LEADER)
    world: Any = SimpleNamespace(
        history=judge, kafka=kafka, operators=[], rng=Random(1), time=judge.now, say=lambda _: None, plan=plan(0)
    )
    Source(world).make_anew([judge.shards[T0]])
    judge.shards[T0].end = 10
    judge.write(T0, 0, 6, 4, RUN_OF[A])
    judge.write(T0, 0, 6, 5, RUN_OF[A])
    with pytest.raises(BrokenError, match=r"g-1 .* writes records 0 to 6 under epoch 6, which g-0 .* wrote under epoch 5"):
        judge.write(T0, 0, 6, 6, RUN_OF[B])


@pytest.mark.parametrize(
    "over",
    [
        {"present": False},
        {"present": False, "ended": RUNS[A], "end_reason": EndReason.PROGRESS_TIMEOUT},
        {"present": False, "ended": RUNS[A], "end_reason": EndReason.RELEASE_TIMEOUT},
        {"present": False, "ended": RUNS[A], "end_reason": EndReason.EXPIRED_AND_DIED},
    ],
    ids=["silent", "hung", "did not release", "is dead by now"],
)
def test_what_an_expired_consumer_wrote_may_be_written_again_though_nobody_told_of_its_expiry(over: dict[str, Any]) -> None:
    judge = judging(HELD)
    judge.write(T0, 4, 6, 4, RUN_OF[A])
    judge.store(owned(HELD, consumers={**CONSUMERS, A: replace(CONSUMERS[A], **over)}, group_epoch=4), LEADER)
    judge.write(T0, 4, 6, 5, RUN_OF[B])


def test_it_sees_what_a_consumer_that_has_left_wrote_and_another_writes_again() -> None:
    judge = judging(HELD)
    judge.write(T0, 4, 6, 4, RUN_OF[A])
    left = replace(CONSUMERS[A], present=False, ended=RUNS[A], end_reason=EndReason.LEFT)
    judge.store(owned(HELD, consumers={**CONSUMERS, A: left}, group_epoch=4), LEADER)
    with pytest.raises(BrokenError, match=r"g-1 .* writes records 4 to 6 under epoch 5, which g-0 .* wrote under epoch 4"):
        judge.write(T0, 4, 6, 5, RUN_OF[B])


def test_it_sees_a_superseded_pod_and_an_end_that_are_forgotten() -> None:
    ended = replace(CONSUMERS[A], ended=RUNS[A], present=False, end_reason=EndReason.DIED)
    newer = ConsumerRecord(A, Incarnation("uid-c", 1), superseded=("uid-a",))
    judge = judging(FREE)
    judge.store(owned(FREE, consumers={**CONSUMERS, A: ended}, group_epoch=4), LEADER)
    with pytest.raises(BrokenError, match="went back"):
        judge.store(owned(FREE, consumers={**CONSUMERS, A: replace(ended, ended=None)}, group_epoch=5), LEADER)
    judge = judging(FREE)
    judge.store(owned(FREE, consumers={**CONSUMERS, A: newer}, group_epoch=4), LEADER)
    newest = ConsumerRecord(A, Incarnation("uid-d", 1), superseded=("uid-c",))
    with pytest.raises(BrokenError, match="superseded pods are forgotten"):
        judge.store(owned(FREE, consumers={**CONSUMERS, A: newest}, group_epoch=5), LEADER)


def test_it_sees_who_is_given_shards_that_he_may_not_have() -> None:
    judge = judging(FREE)
    judge.heard_of.clear()
    with pytest.raises(BrokenError, match="never said to operator-1 that it is ready"):
        judge.store(owned(given(FREE, A), revision=7), LEADER)
    judge = judging(FREE)
    judge.hears(heartbeat(A, 2, draining=True), LEADER)
    judge.timeline.now += 30.0
    with pytest.raises(BrokenError, match="which drains"):
        judge.store(owned(given(FREE, A), revision=7), LEADER)
    with pytest.raises(BrokenError, match="while the group was paused"):
        judging(FREE, paused=True).store(owned(given(FREE, A), revision=7), LEADER)
    judge = judging(FREE)
    assert judge.spec is not None
    judge.spec = replace(judge.spec, leaving=frozenset({A}))
    with pytest.raises(BrokenError, match="which is to lose all"):
        judge.store(owned(given(FREE, A), revision=7), LEADER)


def test_one_write_may_hold_a_grant_to_who_was_ready_and_that_its_next_run_keeps_the_shard() -> None:
    next_run = replace(CONSUMERS[A], incarnation=Incarnation("uid-a", 2))
    kept = given(FREE, A, incarnation=next_run.incarnation, owner_epoch=6, held_since_epoch=5)
    after = owned(kept, consumers={**CONSUMERS, A: next_run}, revision=7, group_epoch=4)
    judging(FREE).store(after, LEADER)
    unheard = judging(FREE)
    unheard.heard_of.clear()
    once = replace(after, shards={T0: kept._replace(owner_epoch=5)})
    for judge, stored in ((unheard, after), (judging(FREE), once)):
        with pytest.raises(BrokenError, match="never said to operator-1 that it is ready"):
            judge.store(stored, LEADER)


def test_it_sees_a_shard_that_is_taken_from_who_may_come_back() -> None:
    gone = {**CONSUMERS, A: replace(CONSUMERS[A], present=False)}
    freed = owned(
        HELD._replace(state=ShardState.NOT_ALLOC, holder=None, incarnation=None), consumers=gone, revision=7, group_epoch=4
    )
    judging(HELD).store(freed, LEADER)
    judge = judging(HELD, rejoin_grace=90.0)
    judge.hears(heartbeat(A, 2), LEADER)
    judge.timeline.now += 40.0
    with pytest.raises(BrokenError, match=r"40\.0 s after it was heard, within its grace of 90 s"):
        judge.store(freed, LEADER)


@pytest.mark.parametrize("decided", [True, False])
def test_a_shard_is_freed_of_who_was_silent_though_he_is_heard_while_that_is_stored(decided: bool) -> None:
    gone = {**CONSUMERS, A: replace(CONSUMERS[A], present=False)}
    taken = HELD._replace(state=ShardState.NOT_ALLOC, holder=None, incarnation=None)
    judge = judging(HELD, rejoin_grace=90.0)
    judge.hears(heartbeat(A, 2), LEADER)
    judge.timeline.now += 95.0
    if decided:
        judge.expiry_decided(LEADER, A, RUNS[A])
    judge.hears(heartbeat(A, 3), LEADER)
    judge.timeline.now += 0.1
    with nullcontext() if decided else pytest.raises(BrokenError, match=r"0\.1 s after it was heard"):
        judge.store(owned(taken, consumers=gone, revision=7, group_epoch=4), LEADER)


EXPIRED = replace(CONSUMERS[A], present=False, ended=RUNS[A], end_reason=EndReason.PROGRESS_TIMEOUT)
REPLACED = ConsumerRecord(A, Incarnation("uid-c", 1), superseded=("uid-a",))
TAKEN = HELD._replace(state=ShardState.NOT_ALLOC, holder=None, incarnation=None)


@pytest.mark.parametrize(
    "after",
    [EXPIRED, replace(EXPIRED, end_reason=EndReason.EXPIRED_AND_DIED), REPLACED],
    ids=["expired", "died since", "another pod has its name since"],
)
def test_a_shard_of_who_was_expired_waits_for_nobody_whatever_is_written_of_him_with_it(after: ConsumerRecord) -> None:
    judge = judging(HELD, rejoin_grace=90.0)
    judge.store(owned(HELD, consumers={**CONSUMERS, A: EXPIRED}, group_epoch=4), LEADER)
    judge.hears(heartbeat(A, 2), LEADER)
    judge.store(owned(TAKEN, consumers={**CONSUMERS, A: after}, revision=7, group_epoch=5), LEADER)


@pytest.mark.parametrize(
    "before",
    [CONSUMERS[A], replace(CONSUMERS[A], present=False), replace(EXPIRED, ended=Incarnation("uid-a", 0))],
    ids=["was there", "was silent", "had been expired before this run"],
)
@pytest.mark.parametrize("after", [replace(EXPIRED, end_reason=EndReason.DIED), REPLACED], ids=["died", "replaced"])
def test_it_sees_a_shard_that_is_taken_within_its_grace_from_who_was_not_expired(
    before: ConsumerRecord, after: ConsumerRecord
) -> None:
    judge = judging(HELD, rejoin_grace=90.0)
    judge.store(owned(HELD, consumers={**CONSUMERS, A: before}, group_epoch=4), LEADER)
    judge.hears(heartbeat(A, 2), LEADER)
    with pytest.raises(BrokenError, match=r"t/0 was taken from g-0 0\.0 s after it was heard, within its grace of 90 s"):
        judge.store(owned(TAKEN, consumers={**CONSUMERS, A: after}, revision=7, group_epoch=5), LEADER)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize(("cells", "kept"), [(0, True), (1, False)], ids=["a shard that moves by itself", "one of a cell"])
def test_a_shard_of_a_cell_that_is_gone_waits_for_nobody_who_has_let_go_of_it(cells: int, kept: bool, ordered: bool) -> None:
    judge = judging(HELD, ordered=ordered, rejoin_grace=90.0)
    judge.world = world_in_which_runs(A)
    judge.cells = cells
    judge.sightings.looked(LEADER, (ShardInfo(T0, 0, 10), ShardInfo(T1, 0, 10)), judge.timeline.now - 1)
    judge.sightings.looked(LEADER, (ShardInfo(T1, 0, 10),), judge.timeline.now)
    judge.hears(heartbeat(A, 2), LEADER)
    with pytest.raises(BrokenError, match="within its grace of 90 s") if kept else nullcontext():
        judge.store(owned(TAKEN, revision=7), LEADER)


@pytest.mark.parametrize(("found_again", "right"), [(1.0, True), (40.0, False)])
def test_a_shard_of_a_cell_that_is_found_again_while_its_freeing_is_stored_was_gone_when_that_was_decided(
    found_again: float, right: bool
) -> None:
    judge = judging(HELD, rejoin_grace=90.0)
    judge.cells = 1
    both = (ShardInfo(T0, 0, 10), ShardInfo(T1, 0, 10))
    for shown, ago in ((both, 60.0), (both[1:], 50.0), (both, found_again)):
        judge.sightings.looked(LEADER, shown, judge.timeline.now - ago)
    judge.hears(heartbeat(A, 2), LEADER)
    with nullcontext() if right else pytest.raises(BrokenError, match="within its grace of 90 s"):
        judge.store(owned(TAKEN, revision=7), LEADER)


@pytest.mark.parametrize("cells", [0, 1])
@pytest.mark.parametrize("named", [True, False], ids=["which its holder names", "which its holder has let go of"])
@pytest.mark.parametrize("there", [True, False], ids=["there", "away"])
def test_a_cell_on_its_way_stays_with_its_holder_only_for_a_shard_that_is_away_and_that_he_names(
    cells: int, named: bool, there: bool
) -> None:
    judge = judging(MOVING, MOVING._replace(shard=T1, parents=(T0,)))
    judge.cells = cells
    shown = (ShardInfo(T0, 0, 10), ShardInfo(T1, 0, 10))
    judge.sightings.looked(LEADER, shown, judge.timeline.now - 1)
    judge.sightings.looked(LEADER, shown if there else shown[:1], judge.timeline.now)
    judge.hears(heartbeat(A, 2, held=(HeldShard(T1, 4),) if named else ()), LEADER)
    stays = [HELD._replace(revision=7), HELD._replace(shard=T1, parents=(T0,), revision=7)]
    right = bool(cells) and named and not there
    with nullcontext() if right else pytest.raises(BrokenError, match="stays with g-0, though g-1 waits for it"):
        judge.store(owned(*stays, revision=7), LEADER)


@pytest.mark.parametrize("cells", [0, 1])
@pytest.mark.parametrize(("durable", "lost"), [(None, True), (2, True), (3, False)])
def test_a_cell_on_its_way_stays_with_its_holder_when_a_position_of_it_is_lost(
    cells: int, durable: int | None, lost: bool
) -> None:
    judge = judging(MOVING, MOVING._replace(shard=T1, parents=(T0,)))
    judge.cells = cells
    judge.shards[T1] = replace(judge.shards[T1], begin=3, durable=durable)
    stays = [HELD._replace(revision=7), HELD._replace(shard=T1, parents=(T0,), revision=7)]
    right = bool(cells) and lost
    with nullcontext() if right else pytest.raises(BrokenError, match="stays with g-0, though g-1 waits for it"):
        judge.store(owned(*stays, revision=7), LEADER)


def world_in_which_runs(*names: ConsumerId) -> Any:
    """As much of a world as a judge asks."""
    runs = [SimpleNamespace(alive=True, run=SimpleNamespace(incarnation=RUNS[name])) for name in names]
    copies = SimpleNamespace(copies=SimpleNamespace(offsets={}))
    return SimpleNamespace(
        api=SimpleNamespace(copies=copies), operators=[], pods=SimpleNamespace(everyone=lambda: runs), _stood={}
    )


@pytest.mark.parametrize(
    "said",
    [
        {"draining": True, "held": (HeldShard(T0, 4),)},
        {"draining": True, "held": (), "revision": 4},
        {"draining": False, "held": ()},
    ],
    ids=["names it", "has not applied what it was told of it", "does not drain"],
)
def test_it_sees_a_shard_that_is_taken_in_an_ordered_group_from_who_runs_and_has_not_let_go(said: dict[str, Any]) -> None:
    judge = judging(HELD, ordered=True)
    judge.world = world_in_which_runs(A)
    judge.hears(structs.replace(heartbeat(A, 2), **said), LEADER)
    with pytest.raises(BrokenError, match=r"t/0 was taken from g-0, which runs, 0\.0 s after it was heard"):
        judge.store(owned(HELD._replace(state=ShardState.NOT_ALLOC, holder=None, incarnation=None), revision=7), LEADER)


def test_who_drains_and_has_let_go_of_a_shard_that_it_was_to_keep_may_lose_it_at_once() -> None:
    judge = judging(HELD, ordered=True)
    judge.world = world_in_which_runs(A)
    judge.hears(heartbeat(A, 2, draining=True, held=(HeldShard(T1, 4),)), LEADER)
    judge.store(owned(HELD._replace(state=ShardState.NOT_ALLOC, holder=None, incarnation=None), revision=7), LEADER)


def test_it_sees_a_shard_that_waits_for_nothing_or_does_not_wait() -> None:
    child = FREE._replace(shard=T1, parents=(T0,), started=False)
    over = FREE._replace(state=ShardState.OVER)
    judging(FREE, ordered=True).store(owned(FREE, child._replace(state=ShardState.WAIT), revision=7, group_epoch=4), LEADER)
    with pytest.raises(BrokenError, match="appeared as NOT_ALLOC before its ancestors were read"):
        judging(FREE, ordered=True).store(owned(FREE, child, revision=7, group_epoch=4), LEADER)
    with pytest.raises(BrokenError, match="has no ancestor to wait for"):
        judging(over, ordered=True).store(owned(over, child._replace(state=ShardState.WAIT), revision=7, group_epoch=4), LEADER)
    with pytest.raises(BrokenError, match="was woken before its ancestors"):
        judging(FREE, child._replace(state=ShardState.WAIT), ordered=True).store(owned(FREE, child, revision=7), LEADER)
    judge = judging(HELD, child._replace(state=ShardState.WAIT), ordered=True)
    judge.shards[T0].open, judge.shards[T0].highest = False, 10
    with pytest.raises(BrokenError, match="waits, and every ancestor is read"):
        judge.store(owned(over._replace(last_holder=A), child._replace(state=ShardState.WAIT), revision=7), LEADER)


def test_a_shard_need_not_wait_for_an_ancestor_that_is_gone_from_the_source() -> None:
    waits = FREE._replace(shard=T1, parents=(T0,), state=ShardState.WAIT, started=False)
    woken = owned(FREE, waits._replace(state=ShardState.NOT_ALLOC), revision=7)
    judge = judging(FREE, waits, ordered=True)
    judge.sightings.looked(LEADER, (ShardInfo(T1, 0, 10),), judge.timeline.now)
    judge.store(woken, LEADER)
    another = judging(FREE, waits, ordered=True)
    another.sightings.looked("operator-0", (ShardInfo(T1, 0, 10),), another.timeline.now)
    with pytest.raises(BrokenError, match="was woken before its ancestors"):
        another.store(woken, LEADER)


T2 = ShardId("t/2")
GREW_TWICE = [Grown(1, 2, 990.0, {T0: 20}), Grown(2, 4, 995.0, {T0: 20, T1: 30})]
KEEPS = (Growth("t", 1, 2, (), True), Growth("t", 2, 4, (), True))


def over_growth(grown: list[Grown], **read_to: int) -> Judge:
    """A judge of a topic that grew so, of which t/2 is about to be woken; and how far the others are read."""
    judge = judging(FREE, FREE._replace(shard=T1), FREE._replace(shard=T2, state=ShardState.WAIT, started=False), ordered=True)
    judge.shards.setdefault(T2, Shard(T2, end=10))
    judge.grown = grown
    for name, offset in read_to.items():
        judge.shards[ShardId(f"t/{name[-1]}")].highest = offset
    return judge


@pytest.mark.parametrize(
    ("grown", "read_to"),
    [
        ([Grown(2, 4, 1_010.0)], {"t0": 500}),
        ([Grown(2, 4, 995.0, {T0: 20, T1: 30})], {"t0": 19}),
        ([Grown(1, 2, 990.0, {T0: 20}), Grown(2, 4, 995.0, {T0: 25, T1: 30})], {"t0": 24, "t1": 30}),
    ],
    ids=["not all producers have noticed", "what was written before is not read", "nor that of the growth before it"],
)
def test_it_sees_a_shard_that_overtakes_the_one_whose_keys_it_got(grown: list[Grown], read_to: dict[str, int]) -> None:
    woken = FREE._replace(shard=T2, started=False)
    with pytest.raises(BrokenError, match="t/2 was woken before its ancestors"):
        over_growth(grown, **read_to).store(owned(FREE, FREE._replace(shard=T1), woken, revision=7), LEADER)


def test_a_shard_that_a_topic_got_when_it_grew_is_woken_once_what_was_before_is_read() -> None:
    judge = over_growth(GREW_TWICE, t0=20, t1=0)
    judge.store(owned(FREE, FREE._replace(shard=T1), FREE._replace(shard=T2, started=False), revision=7), LEADER)


def test_a_shard_may_wait_for_as_long_as_the_coordinator_knows_that_its_topic_grew() -> None:
    waits = FREE._replace(shard=T2, state=ShardState.WAIT, started=False)
    over_growth(GREW_TWICE, t0=20).store(owned(FREE, FREE._replace(shard=T1), waits, revision=7, growths=KEEPS), LEADER)
    with pytest.raises(BrokenError, match="waits, and every ancestor is read to its end"):
        over_growth(GREW_TWICE, t0=20).store(owned(FREE, FREE._replace(shard=T1), waits, revision=7), LEADER)


def test_a_shard_may_wait_for_an_ancestor_that_is_there_and_that_nobody_could_look_at_yet() -> None:
    child = FREE._replace(shard=T1, parents=(T0,), state=ShardState.WAIT, started=False)
    waits = owned(child, revision=7, group_epoch=4)
    judge = judging(ordered=True)
    judge.sightings.looked(LEADER, (ShardInfo(T1, 0, 10),), judge.timeline.now, unlooked=(T0,))
    judge.store(waits, LEADER)
    with pytest.raises(BrokenError, match="has no ancestor to wait for"):
        judging(ordered=True).store(waits, LEADER)


def test_a_shard_may_wait_for_an_ancestor_for_as_long_as_no_look_of_who_leads_tells_more_of_it() -> None:
    child = FREE._replace(shard=T1, parents=(T0,), state=ShardState.WAIT, started=False)
    both = (ShardInfo(T0, 0, 0), ShardInfo(T1, 0, 10))
    judge = judging(ordered=True)
    judge.sightings.looked(LEADER, both[1:], judge.timeline.now - judge.loss_limit - 1, unlooked=(T0,))
    judge.sightings.looked("operator-0", both, judge.timeline.now - 1)
    judge.store(owned(child, revision=7, group_epoch=4), LEADER)
    judge.sightings.looked(LEADER, both, judge.timeline.now)
    with pytest.raises(BrokenError, match="waits, and every ancestor is read"):
        judge.store(owned(child, revision=8, group_epoch=4), LEADER)


# Answers.


def test_who_claims_a_child_keeps_it_though_its_parent_is_read_again_and_nobody_else_wakes_it() -> None:
    child = FREE._replace(shard=T1, parents=(T0,), state=ShardState.WAIT)
    claimed = HELD._replace(shard=T1, parents=(T0,), revision=7, held_since_epoch=4)
    freed = child._replace(state=ShardState.NOT_ALLOC)

    def becomes(row: ShardRecord, **group: Any) -> None:
        judge = judging(FREE, child, ordered=True)
        judge.stored = owned(FREE, child, rebuilding=True)
        judge.store(owned(FREE, row, revision=7, **group), LEADER)

    becomes(claimed, rebuilding=True)
    becomes(claimed, rebuilding=False)
    becomes(freed._replace(last_holder=A, owner_epoch=5), rebuilding=True)
    with pytest.raises(BrokenError, match="t/1 was woken before its ancestors"):
        becomes(freed, rebuilding=True)
    judge = judging(FREE, child, ordered=True)
    with pytest.raises(BrokenError, match="t/1 was woken before its ancestors"):
        judge.store(owned(FREE, claimed._replace(owner_epoch=5, held_since_epoch=5), revision=7), LEADER)


def reply(*confirmed: ConfirmedShard, **changes: Any) -> HeartbeatReply:
    values = {
        "revision": 6,
        "fenced": (),
        "paused": False,
        "ordered": False,
        "heartbeat_interval": 3.0,
        "session_timeout": 90.0,
    }
    return HeartbeatReply(confirmed=confirmed, **{**values, **changes})


CONFIRMED = ConfirmedShard(T0, 4, 3, 4)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (reply(), "holds t/0 under epoch 4, and is not told so"),
        (reply(CONFIRMED, revision=5), "is told revision 5, stored is 6"),
        (reply(CONFIRMED, fenced=(HeldShard(T0, 4),)), "are fenced, and"),
        (reply(CONFIRMED, paused=True), "and the spec is"),
    ],
)
def test_it_sees_a_heartbeat_that_is_answered_wrongly(answer: HeartbeatReply, message: str) -> None:
    judge = judging(HELD)
    asked = heartbeat(A, held=(HeldShard(T0, 4),))
    judge.heartbeat_answered(asked, reply(CONFIRMED), LEADER)
    with pytest.raises(BrokenError, match=message):
        judge.heartbeat_answered(asked, answer, LEADER)


@pytest.mark.parametrize("refuses", [True, False])
def test_an_edit_counts_for_what_consumers_are_told_once_the_api_server_stores_it(refuses: bool) -> None:
    judge = judging(HELD)
    network = SimpleNamespace(cut=set(), down={"kube": True} if refuses else {}, armed={}, under_way=lambda *_: False)
    operator = SimpleNamespace(name=LEADER, alive=True, process=None)
    world: Any = world_in_which_runs(A)
    world.operators, world.network = [operator], network
    judge.world = world
    with nullcontext() if refuses else pytest.raises(BrokenError, match="and the spec is"):
        judge.heartbeat_answered(heartbeat(A, held=(HeldShard(T0, 4),)), reply(CONFIRMED, paused=True), LEADER)


@pytest.mark.parametrize(("stood", "seen"), [((0.0, 0.0), True), ((100.0, 400.0), False)])
def test_a_rebalance_of_before_a_standstill_may_be_told_of_after_it(stood: tuple[float, float], seen: bool) -> None:
    history = SimpleNamespace(events={(LEADER, "Rebalanced"): 1}, rebalanced_at={LEADER: 402.0})
    world: Any = SimpleNamespace(time=1000.0, history=history, _stood={LEADER: stood})
    leader: Any = SimpleNamespace(name=LEADER, rebalances=1, process=SimpleNamespace(wall=lambda: 1000.0))
    view: Any = SimpleNamespace(rebalances=1, last_rebalance=SimpleNamespace(time=100.0))
    found = resting._events(world, leader, view)
    assert found == ("the last rebalance was told of 598.0 s ago, and is shown as 900.0 s ago" if seen else "")


def test_it_sees_an_answer_to_a_run_that_is_over_and_a_stale_pair_that_is_not_named() -> None:
    with pytest.raises(BrokenError, match=r"are fenced, and \[\('t/0', 3\)\] are"):
        judging(HELD).heartbeat_answered(heartbeat(A, held=(HeldShard(T0, 3),)), reply(CONFIRMED), LEADER)
    judge = judging(FREE)
    gone = {**CONSUMERS, A: replace(CONSUMERS[A], present=False)}
    judge.store(owned(FREE, consumers=gone, group_epoch=4), LEADER)
    with pytest.raises(BrokenError, match="is answered, and stored is"):
        judge.heartbeat_answered(heartbeat(A), reply(), LEADER)


def test_it_sees_a_checkpoint_that_is_answered_wrongly() -> None:
    request = CheckpointRequest(A, RUNS[A], (ShardCheckpoint(T0, 4, 7),))

    def outcome(result: CheckpointResult, offset: int = 7) -> CheckpointReply:
        return CheckpointReply((CheckpointOutcome(T0, result, offset, 4),))

    judging(HELD).accepted(request, outcome(CheckpointResult.WITHHELD))
    with pytest.raises(BrokenError, match="is told that its grant of t/0 is over"):
        judging(HELD).accepted(request, outcome(CheckpointResult.FENCED))
    with pytest.raises(BrokenError, match="7 is said to be no news"):
        judging(HELD).accepted(request, outcome(CheckpointResult.UNCHANGED))
    with pytest.raises(BrokenError, match="asked for"):
        judging(HELD).accepted(request, outcome(CheckpointResult.WITHHELD, 8))


def test_it_sees_a_refusal_without_a_reason_and_an_error_that_nobody_may_get() -> None:
    with pytest.raises(BrokenError, match="is refused"):
        judging(FREE).refused(heartbeat(A), StaleIncarnationError("it is over"))
    with pytest.raises(BrokenError, match="is answered with IllegalTransitionError"):
        judging(FREE).refused(heartbeat(A), IllegalTransitionError("Granted is not possible in state OVER"))


def test_it_sees_who_is_told_that_it_has_left_and_has_not() -> None:
    with pytest.raises(BrokenError, match="is told that it has left, and stored is"):
        judging(FREE).left(Leave(A, RUNS[A]))
    judge = judging(FREE)
    gone = replace(CONSUMERS[A], present=False, ended=RUNS[A], end_reason=EndReason.LEFT)
    judge.store(owned(FREE, consumers={**CONSUMERS, A: gone}, group_epoch=4), LEADER)
    judge.left(Leave(A, RUNS[A]))


# Time.


def test_it_sees_who_is_expired_too_early() -> None:
    judge = judging(MOVING, release_timeout=60.0, progress_timeout=60.0)
    judge.store(owned(MOVING, revision=7), LEADER)
    judge.expired(A, "SessionTimeout", 90.0)
    with pytest.raises(BrokenError, match=r"after 84\.0 s of silence"):
        judge.expired(A, "SessionTimeout", 84.0)
    judge.expired(A, "ReleaseTimeout", 0.0)
    judge.timeline.now += 2.0
    judge.moving_from[T0] = judge.now - 70.0
    judge.store(owned(MOVING, revision=8), LEADER)
    with pytest.raises(BrokenError, match=r"70\.0 s after it was asked to release"):
        judge.expired(A, "ReleaseTimeout", 0.0)


def test_who_is_heard_when_its_end_is_stored_already_is_not_heard_in_time() -> None:
    judge = judging(HELD)
    assert not judge.is_over(A, RUNS[A])
    for ended in (None, RUNS[A]):
        judge.stored = owned(HELD, consumers={**CONSUMERS, A: replace(CONSUMERS[A], ended=ended, present=False)})
        assert judge.is_over(A, RUNS[A])
        assert not judge.is_over(B, RUNS[B])


def test_a_heartbeat_that_was_overtaken_on_its_way_is_no_sign_of_life() -> None:
    judge = judging(HELD)
    assert [judge.hears(heartbeat(A, seq), LEADER) for seq in (2, 4, 3, 4, 5)] == [True, True, False, False, True]
    assert judge.hears(heartbeat(A, 3), "operator-2"), "of another leader it is the first that is heard"


def test_progress_that_comes_when_an_expiry_is_stored_already_comes_too_late() -> None:
    judge = judging(HELD, progress_timeout=60.0)
    judge.store(owned(HELD, revision=7), LEADER)
    judge.hears(heartbeat(A, 2, progress=7), LEADER)
    judge.timeline.now += 70.0
    judge.stored = owned(HELD, revision=8, consumers={**CONSUMERS, A: replace(CONSUMERS[A], ended=RUNS[A], present=False)})
    for seq in (3, 4):
        judge.timeline.now += 1.0
        judge.hears(heartbeat(A, seq, progress=seq + 5), LEADER)
    judge.timeline.now += 3.0
    judge.expired(A, "ProgressTimeout", 0.0)


def test_progress_with_which_who_was_silent_for_too_long_comes_back_was_made_then() -> None:
    judge = judging(HELD, progress_timeout=60.0)
    judge.stored = owned(HELD, revision=7, consumers={**CONSUMERS, A: replace(CONSUMERS[A], present=False)})
    judge.hears(heartbeat(A, 2, progress=7), LEADER)
    judge.timeline.now += 50.0
    judge.stored = owned(HELD, revision=8)
    judge.hears(heartbeat(A, 3, progress=7), LEADER)
    judge.timeline.now += 15.0
    judge.store(owned(HELD, revision=9), LEADER)
    judge.expired(A, "ProgressTimeout", 0.0)


def test_a_checkpoint_of_a_shard_that_was_made_anew_since_ends_the_doubling_of_deadlines_once() -> None:
    judge = judging(MOVING, release_timeout=60.0, progress_timeout=60.0)
    judge.timeline.now += 70.0
    judge.moving_from[T0] = judge.now - 70.0
    judge.doublings = [judge.now - 10.0]
    judge.store(owned(MOVING, revision=7), LEADER)
    judge.shards[T0] = Shard(T0, end=10, source_id="id-2")
    kafka, noted = Kafka(judge), {T0: text("uid", 1, 4, "id-1")}
    kafka.committed[T0] = 6
    kafka.initialise(LEADER, judge.now)
    kafka.commit(kafka.epoch, {T0: 6}, noted, LEADER)
    with pytest.raises(BrokenError, match=r"70\.0 s after it was asked to release"):
        judge.expired(A, "ReleaseTimeout", 0.0)
    kafka.commit(kafka.epoch, {T0: 7}, noted, LEADER)
    judge.expired(A, "ReleaseTimeout", 0.0)


@pytest.mark.parametrize(("who_heard", "doubled"), [(LEADER, False), ("operator-2", True)])
def test_positions_that_the_leader_heard_of_after_they_were_durable_end_the_doubling_of_deadlines(
    who_heard: str, doubled: bool
) -> None:
    judge = judging(MOVING, release_timeout=60.0, progress_timeout=60.0)
    judge.timeline.now += 70.0
    judge.moving_from[T0] = judge.now - 70.0
    judge.doublings = [judge.now - 10.0]
    judge.store(owned(MOVING, revision=7), LEADER)
    judge.hear_positions(who_heard)
    with pytest.raises(BrokenError, match=r"70\.0 s after it was asked to release") if doubled else nullcontext():
        judge.expired(A, "ReleaseTimeout", 0.0)


def test_positions_that_the_leader_heard_of_while_it_stored_an_expiry_may_end_the_doubling_that_follows_from_it() -> None:
    judge = judging(MOVING, release_timeout=60.0, progress_timeout=60.0)
    judge.store(owned(MOVING, revision=7), LEADER)
    judge.expiry_decided(LEADER, A, RUNS[A])
    judge.timeline.now += 1.0
    judge.hear_positions(LEADER)
    judge.moving_from[T0] = judge.now - 70.0
    judge.longest[A] = 70.0
    judge.expired(A, "ReleaseTimeout", 0.0)
    assert judge.doublings == []
    judge.timeline.now += 1.0
    judge.expiry_decided(LEADER, A, RUNS[A])
    judge.expired(A, "ReleaseTimeout", 0.0)
    assert judge.doublings == [judge.now]


def test_an_expiry_that_is_told_after_another_took_over_is_not_judged_by_what_the_other_heard() -> None:
    judge = judging(MOVING, release_timeout=60.0)
    judge.store(owned(MOVING, leader_epoch=2, revision=7), "operator-2")
    judge.expires(LEADER, A, "ReleaseTimeout", 0.0)
    with pytest.raises(BrokenError):
        judge.expires("operator-2", A, "ReleaseTimeout", 0.0)


def test_an_ownership_that_its_leader_writes_anew_is_what_it_was() -> None:
    judge = judging(MOVING, release_timeout=60.0, progress_timeout=60.0)
    judge.lose()
    judge.store(owned(MOVING, revision=7), LEADER)
    judge.expired(A, "ReleaseTimeout", 0.0)


def expired_and_stored_anew(row: ShardRecord, by: str, *, with_more: bool) -> Judge:
    """A judge who has seen that A, who held this row, was expired, and that this is stored once more before it is told."""
    judge = judging(row, release_timeout=60.0, progress_timeout=60.0)
    judge.moving_from[T0] = judge.now - 70.0
    free = row._replace(state=ShardState.NOT_ALLOC, holder=None, incarnation=None, next_consumer=None)
    judge.store(owned(free, revision=7), LEADER)
    if by == "deleted":
        judge.lose()
    else:
        judge.put_back(owned(FREE))
    judge.store(owned(free, revision=8 if with_more else 7), LEADER)
    return judge


@pytest.mark.parametrize("with_more", [False, True])
@pytest.mark.parametrize("by", ["deleted", "put back"])
def test_who_was_expired_had_to_read_also_if_that_is_stored_once_more_before_it_is_told(by: str, with_more: bool) -> None:
    expired_and_stored_anew(HELD, by, with_more=with_more).expired(A, "ProgressTimeout", 0.0)


@pytest.mark.parametrize("with_more", [False, True])
@pytest.mark.parametrize("by", ["deleted", "put back"])
def test_who_was_expired_was_asked_to_release_also_if_that_is_stored_once_more_before_it_is_told(
    by: str, with_more: bool
) -> None:
    expired_and_stored_anew(MOVING, by, with_more=with_more).expired(A, "ReleaseTimeout", 0.0)


def test_it_sees_who_is_expired_though_it_gets_on_or_has_nothing_to_read() -> None:
    judge = judging(HELD, progress_timeout=60.0)
    judge.store(owned(HELD, revision=7), LEADER)
    judge.hears(heartbeat(A, 2, progress=7), LEADER)
    judge.timeline.now += 50.0
    with pytest.raises(BrokenError, match=r"50\.0 s after it got on"):
        judge.expired(A, "ProgressTimeout", 0.0)
    judge.timeline.now += 20.0
    judge.doublings.clear()
    judge.expired(A, "ProgressTimeout", 0.0)
    judge.doublings.clear()
    judge.shards[T0].highest = 10
    with pytest.raises(BrokenError, match="holds nothing that is left to be read"):
        judge.expired(A, "ProgressTimeout", 0.0)


def test_progress_that_was_heard_of_after_an_expiry_was_decided_came_too_late_however_long_it_takes_to_store_it() -> None:
    judge = judging(HELD, progress_timeout=60.0)
    judge.store(owned(HELD, revision=7), LEADER)
    judge.hears(heartbeat(A, 2, progress=7), LEADER)
    judge.timeline.now += 61.0
    judge.expiry_decided(LEADER, A, RUNS[A])
    judge.timeline.now += 1.0
    judge.hears(heartbeat(A, 3, progress=8), LEADER)
    judge.timeline.now += 1.0
    judge.hears(heartbeat(A, 4, progress=9), LEADER)
    judge.timeline.now += 20.0
    judge.expired(A, "ProgressTimeout", 0.0)


def test_progress_that_was_heard_of_before_an_expiry_was_decided_came_in_time() -> None:
    judge = judging(HELD, progress_timeout=60.0)
    judge.store(owned(HELD, revision=7), LEADER)
    judge.timeline.now += 61.0
    judge.hears(heartbeat(A, 2, progress=7), LEADER)
    judge.timeline.now += 1.0
    judge.expiry_decided(LEADER, A, RUNS[A])
    with pytest.raises(BrokenError, match=r"1\.0 s after it got on"):
        judge.expired(A, "ProgressTimeout", 0.0)


def test_it_sees_an_expiry_of_who_was_never_heard_by_this_leader() -> None:
    judge = judging(MOVING, release_timeout=60.0)
    judge.store(owned(MOVING, revision=7), LEADER)
    judge.heard_of.clear()
    with pytest.raises(BrokenError, match="was never heard by operator-1"):
        judge.expired(A, "ReleaseTimeout", 0.0)


# Failures of ours, and what is told.


def test_it_sees_a_failure_of_ours_whatever_was_made_of_it() -> None:
    timeline = Timeline()
    world: Any = SimpleNamespace(timeline=timeline, time=0.0)
    log = logging.getLogger("shardherd.coordinator.mailbox")
    with listening(world):
        log.warning("group %s: the ownership is not reached", "demo/clicks")
        timeline.run(1.0)
        try:
            raise TypeError("no such argument")
        except TypeError:
            log.exception("group %s failed on a %s; nothing was changed", "demo/clicks", "Heartbeat")
        with pytest.raises(BrokenError, match=r"a failure of ours: group demo/clicks failed on a Heartbeat.*no such argument"):
            timeline.run(2.0)


@pytest.mark.parametrize(
    "tell",
    [
        lambda: notices.event("Xrebalanced", "3 shards granted", warning=False),
        lambda: notices.event("Rebalanced", "", warning=False),
        lambda: notices.event("Rebalanced", "3 shards granted", warning=True),
        lambda: notices.event("SessionTimeout", "g-0 was silent for 45 s", warning=False),
        lambda: metrics().rebalance(spec(2).identity, "Nothing", 1),
        lambda: metrics().rebalance(replace(spec(2).identity, uid="another"), "ConsumerJoined", 1),
        lambda: metrics().source_request("commit", 0.1),
        lambda: metrics().source_error(spec(2).identity, "commit"),
    ],
)
def test_it_sees_what_is_told_wrongly(tell: Callable[[], None]) -> None:
    with pytest.raises(BrokenError):
        tell()


def metrics() -> notices.Metrics:
    return notices.Metrics(lambda: spec(2).identity, lambda *_: None)


def test_what_is_told_rightly_is_no_news() -> None:
    notices.event("Rebalanced", "3 shards granted", warning=False)
    notices.event("SessionTimeout", "g-0 was silent for 45 s", warning=True)
    metrics().rebalance(spec(2).identity, "ConsumerJoined", 1)
    metrics().source_request("commit_offsets", 0.1)


# At rest.


def test_at_rest_an_index_that_differs_from_the_rows_is_seen() -> None:
    state = State(spec(2), GROUP, Clocks())
    state.put_shard(HELD)
    assert resting.indexes(state) == ""
    state.held[B] = {T0: None}
    assert resting.indexes(state).startswith("the index held says")


def test_at_rest_shares_that_the_assignor_would_still_even_out_are_seen() -> None:
    rows = [HELD._replace(shard=ShardId(f"t/{number}")) for number in range(4)]
    names = {row.shard for row in rows}
    assert resting.share("Sticky", owned(*rows), names).startswith("Sticky would still move 2 shards")
    assert resting.share("Sticky", owned(*rows), {ShardId("t/0")}) == "", "of what is away nothing can be evened out"
    rows[2:] = [row._replace(holder=B, incarnation=RUNS[B]) for row in rows[2:]]
    assert (resting.share("Sticky", owned(*rows), names), resting.share("Range", owned(*rows), names)) == ("", "")
    rows[1], rows[2] = rows[2], rows[1]
    swapped = {row.shard: row for row in (rows[0], rows[3])} | {
        ShardId("t/1"): rows[1]._replace(shard=ShardId("t/1")),
        ShardId("t/2"): rows[2]._replace(shard=ShardId("t/2")),
    }
    swapped_rows = owned(*swapped.values())
    assert resting.share("Sticky", swapped_rows, names) == ""
    assert resting.share("Range", swapped_rows, names) != ""


def test_at_rest_a_picture_that_differs_from_what_is_stored_is_seen() -> None:
    group = restore(owned(HELD), {T0: 4}, spec(2), 0.0)
    stored = group.ownership
    view = group.view(0.0)
    assert resting.picture(view, stored) == ""
    assert "the picture has revision" in resting.picture(structs.replace(view, revision=9), stored)
    shard = structs.replace(view.shards[0], holder=B)
    assert "the picture shows shards" in resting.picture(structs.replace(view, shards=(shard,)), stored)
    assert "the picture shows consumers" in resting.picture(structs.replace(view, consumers=view.consumers[:1]), stored)
    assert "the picture shows as over" in resting.picture(structs.replace(view, silent=((A, RUNS[A]),)), stored)


def test_at_rest_what_is_there_and_has_a_position_was_started() -> None:
    row = HELD._replace(started=False)
    shown = restore(owned(HELD), {T0: 4}, spec(2), 0.0).view(0.0).shards[0]
    there = structs.replace(shown, present=True, checkpoint=4)
    assert resting.never_started(there, row) == "t/0 has the position 4, and was never started"
    assert resting.never_started(there, HELD) == ""
    gone = structs.replace(there, present=False, checkpoint=None)
    assert resting.never_started(gone, row) == "", "it went before it had a position"


def test_it_sees_a_user_who_is_told_that_a_position_is_set_and_it_is_not() -> None:
    judge = judging(HELD)
    judge.set_before(T0, 2, 2)
    assert judge.shards[T0].durable == 2
    with pytest.raises(BrokenError, match="a user is told that t/0 is set to 3, durable is 2"):
        judge.set_before(T0, 3, 2)


# A group that is made again.


def test_a_position_that_was_forced_in_a_group_excuses_nothing_in_the_one_that_is_made_again_with_the_same_epochs() -> None:
    judge, kafka = made_anew_under(HELD._replace(source_id="id-1"))
    kafka.forcing.add((T0, 0))
    commits(kafka, 0, "id-1", forced=True)
    judge.begin_group("another", keeps_offsets=True)
    judge.write(T0, 0, 6, 4, RUN_OF[A])
    with pytest.raises(BrokenError, match=r"g-1 .* writes records 0 to 6 under epoch 5, which g-0 .* wrote under epoch 4"):
        judge.write(T0, 0, 6, 5, RUN_OF[B])


def test_what_the_source_forgot_before_a_group_that_was_made_again_was_looked_at_is_read_from_its_beginning() -> None:
    judge = judging(HELD)
    judge.begin_group("another", keeps_offsets=True)
    assert judge.shards[T0].highest == 4
    judge.forget(T0)
    assert (judge.shards[T0].durable, judge.shards[T0].highest) == (None, None)
    judge.land(T0, 0, LEADER)


def test_what_the_source_forgot_of_a_shard_that_a_group_which_was_made_again_has_not_seen_is_read_from_its_beginning() -> None:
    judge = judging(HELD)
    judge.begin_group("another", keeps_offsets=True)
    judge.store(owned(HELD, uid="another"), LEADER)
    judge.forget(T1)
    judge.land(T1, 0, LEADER)


@pytest.mark.parametrize(("late", "begins"), [(3, 3), (0, 0)], ids=["arrives", "does not arrive"])
def test_a_commit_of_the_group_before_that_was_under_way_counts_what_that_has_written(late: int, begins: int) -> None:
    judge = judging(HELD)
    judge.write(T0, 0, 4, 4, RUN_OF[A])
    judge.forget(T0)
    judge.begin_group("another", keeps_offsets=True)
    judge.land(T0, late, LEADER)
    assert (judge.shards[T0].durable, judge.shards[T0].prefix) == (late, begins)


def test_what_the_source_forgot_of_a_group_that_is_looked_at_is_known() -> None:
    judge = judging(HELD)
    judge.forget(T0)
    with pytest.raises(BrokenError, match="the durable position went back from 4 to 0"):
        judge.land(T0, 0, LEADER)


def missing(*rows: ShardRecord, seconds: float, named: bool = False) -> Judge:
    """A judge whose leader has not seen t/0 for so long; the last that arrived of g-0 named it, or did not."""
    judge = judging(*rows)
    judge.forget_after = 200.0
    judge.sightings.looked(LEADER, (ShardInfo(T1, 0, 10),), judge.timeline.now)
    judge.timeline.now += seconds
    held = (HeldShard(T0, 4),) if named else ()
    judge.hears(heartbeat(A, 2, held=held), LEADER)
    return judge


@pytest.mark.parametrize("row", [FREE, HELD])
def test_what_was_gone_for_long_and_is_nobodys_may_be_forgotten(row: ShardRecord) -> None:
    judge = missing(row, seconds=201.0)
    judge.store(owned(revision=7, epoch_floor=4, group_epoch=4), LEADER)
    assert judge.counts["shards forgotten"] == 1
    assert judge.shards[T0].ended_by_force(4, 5), "what was written of it may be written again"


def test_what_its_holder_has_let_go_of_may_be_forgotten_before_the_holder_is_answered() -> None:
    judge = missing(HELD, seconds=201.0, named=True)
    judge.hears(heartbeat(A, seq=3), LEADER)
    judge.store(owned(revision=7, epoch_floor=4, group_epoch=4), LEADER)
    assert judge.counts["shards forgotten"] == 1


@pytest.mark.parametrize(
    ("judge", "group", "message"),
    [
        (missing(FREE, seconds=100.0), {}, "is no longer in the ownership of operator-1, which has not seen it for 100 s"),
        (judging(FREE), {}, "which has not seen it for 0 s"),
        (missing(FREE, seconds=201.0), {"epoch_floor": 3}, "is forgotten after epoch 4, and the floor is 3"),
        (missing(HELD, seconds=201.0, named=True), {}, "is forgotten, and g-0 has not said that it holds it no more"),
    ],
)
def test_it_sees_that_a_shard_is_forgotten_too_soon(judge: Judge, group: dict[str, Any], message: str) -> None:
    with pytest.raises(BrokenError, match=message):
        judge.store(owned(**{"revision": 7, "group_epoch": 4, "epoch_floor": 4, **group}), LEADER)


def test_it_sees_that_a_consumer_is_told_to_read_what_is_gone() -> None:
    judge = missing(HELD, seconds=130.0)
    reply = HeartbeatReply(6, (ConfirmedShard(T0, 4, 3, 4),), heartbeat_interval=Seconds(3.0), session_timeout=Seconds(90.0))
    with pytest.raises(BrokenError, match="tells g-0 to read t/0, which it has not seen for 130 s"):
        judge.heartbeat_answered(heartbeat(A, held=(HeldShard(T0, 4),)), reply, LEADER)


def test_nobody_need_be_told_to_read_what_the_last_look_was_without_however_long_ago_that_was() -> None:
    judge = missing(HELD, seconds=5000.0)
    assert not judge.sightings.missed_within(judge.loss_limit, T0, judge.timeline.now)
    judge.heartbeat_answered(heartbeat(A, held=(HeldShard(T0, 4),)), reply(), LEADER)
    judge.sightings.looked(LEADER, (ShardInfo(T0, 0, 10), ShardInfo(T1, 0, 10)), judge.timeline.now)
    with pytest.raises(BrokenError, match="holds t/0 under epoch 4, and is not told so"):
        judge.heartbeat_answered(heartbeat(A, held=(HeldShard(T0, 4),)), reply(), LEADER)


def test_a_coordinator_that_loads_the_group_anew_has_not_missed_anything_yet() -> None:
    judge = missing(HELD, seconds=130.0)
    judge.sightings.begin(LEADER)
    assert judge.sightings.missed_for(LEADER, T0, judge.timeline.now) == 0.0
    assert judge.sightings.missed_within(140.0, T0, judge.timeline.now)
