"""The picture that others get of a group: every field of it, and every sentence on what withholds grants."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from shardherd.core.group.records import Clocks, ConsumerRecord, EndReason, GroupRecord, Session, ShardRecord
from shardherd.core.group.state import State, Table
from shardherd.core.group.views import group_view
from shardherd.core.model.messages import Seconds
from shardherd.core.model.nouns import (
    Condition,
    ConsumerId,
    ConsumerView,
    GroupView,
    Growth,
    Incarnation,
    LastRebalance,
    ResetReport,
    ResetRow,
    ResetState,
    ResetTo,
    ShardId,
    ShardState,
    ShardView,
)
from tests.builders import IDENTITY, incarnation, info, shard, shards, spec, with_settings

NOW, WALL = 1000.0, 1_700_000_000.0

G0, G1, G2, G10 = (ConsumerId(f"g-{number}") for number in (0, 1, 2, 10))


def of(*rows: ShardRecord, record: GroupRecord | None = None, clocks: Clocks | None = None, **settings: Any) -> State:
    """A group with these shards and no consumers."""
    made = State(spec(2, **settings), record or GroupRecord(IDENTITY.uid), clocks or Clocks(seen=True))
    for row in rows:
        made.set(Table.SHARDS, row.shard, None, row)
    return made


def seen(state: State) -> GroupView:
    return group_view(state, NOW, WALL)


def withheld(state: State) -> tuple[Condition, ...]:
    return seen(state).withheld


class TestShards:
    def test_each_is_shown_with_its_position_and_what_the_source_says(self) -> None:
        taken: dict[str, Any] = {"holder": G0, "incarnation": incarnation("g-0"), "last_holder": G0}
        state = of(
            ShardRecord(shard("10"), ShardState.WAIT, 0, parents=shards("2"), since=990.0),
            ShardRecord(shard("0"), ShardState.ALREADY_ALLOC, 7, started=True, owner_epoch=3, since=990.0, **taken),
            ShardRecord(shard("1"), ShardState.TRANSFER, 5, next_consumer=G1, owner_epoch=4, since=999.5, **taken),
            ShardRecord(shard("2"), ShardState.NOT_ALLOC, 0, started=True, owner_epoch=2, since=1003.0),
            ShardRecord(shard("3"), ShardState.OVER, 0, started=True, owner_epoch=1, since=1000.0),
        )
        infos = [info("0", 10, 100)._replace(zone="a"), info("1", 0, 6), info("2", 0, 50, open=False), info("10", 3, 9)]
        state.group["infos"] = {each.shard: each for each in infos}
        state.positions.update({shard("0"): 40, shard("3"): 120, shard("10"): 12})
        assert seen(state).shards == (
            ShardView(
                shard("0"),
                ShardState.ALREADY_ALLOC,
                holder=G0,
                owner_epoch=3,
                checkpoint=40,
                begin=10,
                end=100,
                lag_records=60,
                state_age=Seconds(10.0),
                zone="a",
            ),
            ShardView(
                shard("1"),
                ShardState.TRANSFER,
                G0,
                G1,
                4,
                begin=0,
                end=6,
                lag_records=1,
                open=True,
                present=True,
                state_age=Seconds(0.5),
            ),
            ShardView(shard("2"), ShardState.NOT_ALLOC, owner_epoch=2, begin=0, end=50, open=False),
            ShardView(shard("3"), ShardState.OVER, owner_epoch=1, checkpoint=120, present=False),
            ShardView(shard("10"), ShardState.WAIT, checkpoint=12, begin=3, end=9, lag_records=0, state_age=Seconds(10.0)),
        )

    def test_before_the_source_was_read_none_is_taken_for_gone(self) -> None:
        state = of(ShardRecord(shard("0"), ShardState.NOT_ALLOC, 0, since=NOW), clocks=Clocks())
        assert (seen(state).shards, seen(state).discovered) == ((ShardView(shard("0"), ShardState.NOT_ALLOC),), False)


class TestConsumers:
    def test_each_is_shown_in_the_order_of_its_number(self) -> None:
        state = of(
            *(
                ShardRecord(shard(name), ShardState.ALREADY_ALLOC, 0, holder=G2, incarnation=incarnation("g-2"), since=NOW)
                for name in "01"
            )
        )
        state.group["spec"] = spec(3, leaving=["g-10"], cordoned=["g-1"])
        for name, session in (
            (G10, Session(999.5, ready=True)),
            (G2, Session(990.0, ready=True, draining=True)),
            (G1, Session(1003.0)),
        ):
            state.put_session(name, session)
            state.put_consumer(ConsumerRecord(name, incarnation(name)))
        state.put_consumer(ConsumerRecord(G1, incarnation("g-1", start=2), zone="b", capacity=4))
        state.put_consumer(ConsumerRecord(G0, incarnation("g-0"), present=False))
        assert seen(state).consumers == (
            ConsumerView(G1, incarnation("g-1", start=2), False, False, 0, Seconds(0.0), cordoned=True, zone="b", capacity=4),
            ConsumerView(G2, incarnation("g-2"), True, True, 2, Seconds(10.0)),
            ConsumerView(G10, incarnation("g-10"), True, True, 0, Seconds(0.5)),
        )

    def test_those_that_were_expired_are_told_until_they_are_replaced(self) -> None:
        state = of()
        for name, ended, reason in (
            ("g-10", incarnation("g-10"), EndReason.RELEASE_TIMEOUT),
            ("g-2", incarnation("g-2"), EndReason.PROGRESS_TIMEOUT),
            ("g-3", incarnation("g-3"), EndReason.LEFT),
            ("g-4", incarnation("g-4", pod=2), EndReason.PROGRESS_TIMEOUT),
            ("g-5", None, ""),
        ):
            state.put_consumer(ConsumerRecord(ConsumerId(name), incarnation(name), ended=ended, end_reason=reason))
        assert seen(state).expired == ((G2, incarnation("g-2")), (G10, incarnation("g-10")))

    def test_those_that_were_silent_for_too_long_and_may_come_back_are_told(self) -> None:
        state = of()
        for name, present, ended in (
            ("g-10", False, None),
            ("g-2", False, incarnation("g-2", pod=2)),
            ("g-3", False, incarnation("g-3")),
            ("g-4", True, None),
        ):
            state.put_consumer(ConsumerRecord(ConsumerId(name), incarnation(name), present=present, ended=ended))
        assert seen(state).silent == ((G2, incarnation("g-2")), (G10, incarnation("g-10")))

    def test_of_the_pods_that_are_refused_for_ever_the_newest_of_each_name_are_told(self) -> None:
        state = of()
        for name in (G10, G2):
            uids = tuple(f"{name}-{number}" for number in range(6))
            state.put_consumer(ConsumerRecord(name, Incarnation(uids[-1], 1), superseded=uids[:-1]))
        assert seen(state).superseded == tuple((name, f"{name}-{number}") for name in (G2, G10) for number in (1, 2, 3, 4))


def test_the_group_itself_is_shown_as_it_was_last_seen_and_rebalanced() -> None:
    made = ResetReport("r1", ResetTo.LATEST, ResetState.DONE, "done")
    rows = tuple(ResetRow(shard(str(number)), None, 0) for number in range(30))
    growth = Growth("t", 1, 2, ((shard("0"), 40), (shard("1"), 10)))
    record = GroupRecord(
        IDENTITY.uid,
        group_epoch=4,
        revision=9,
        growths=(growth,),
        reset=ResetReport("r2", ResetTo.EARLIEST, ResetState.APPLYING, "begun", shards=30, rows=rows),
        last_reset=made,
    )
    clocks = Clocks(
        source_reachable=False,
        source_error="no broker answers",
        seen=True,
        rebalanced_at=980.0,
        rebalance_reason="ConsumerJoined",
        rebalance_moved=3,
        rebalances=5,
        moves=11,
    )
    state = of(record=record, clocks=clocks)
    state.positions.update({shard("0"): 20, shard("1"): 10})
    assert seen(state) == GroupView(
        group_epoch=4,
        revision=9,
        shards=(),
        consumers=(),
        source_reachable=False,
        source_error="no broker answers",
        withheld=(Condition("Resetting", "reset r2 is being made; nothing is granted or moved until it is done"),),
        last_rebalance=LastRebalance(Seconds(WALL - 20.0), "ConsumerJoined", 3),
        moves=11,
        rebalances=5,
        discovered=True,
        growths=(replace(growth, ends=((shard("0"), 40),)),),
        source="kafka",
        reset=replace(record.reset, rows=rows[:20]) if record.reset is not None else None,
        last_reset=made,
    )


class TestWhatWithholdsGrants:
    def test_nothing_does_by_default(self) -> None:
        assert withheld(of()) == ()
        assert seen(of()).last_rebalance is None

    def test_what_the_runtime_found_comes_first_and_then_a_pause(self) -> None:
        found = Condition("GroupHasLiveMembers", "console-consumer")
        paused = Condition("Paused", "spec.paused is true; nothing is granted or moved")
        assert withheld(of(clocks=Clocks(withheld=(found,)), paused=True)) == (found, paused)

    def test_a_lost_ownership_that_is_found_out_anew(self) -> None:
        message = (
            "who holds which shard was lost and is being found out from the consumers; nothing is granted or committed for one "
            "sessionTimeout"
        )
        assert withheld(of(record=GroupRecord(IDENTITY.uid, rebuilding=True))) == (Condition("OwnershipRebuilding", message),)

    def test_an_assignor_that_there_is_not(self) -> None:
        message = (
            'spec.assignor is "Best", which this operator does not have: set one of CooperativeSticky, Range, RoundRobin, '
            "Sticky, Weighted, or install the plug-in of that name in the operator's image; nothing is granted or moved"
        )
        state = of(assignor="Best", clocks=Clocks(assignor_error="not told"))
        assert withheld(state) == (Condition("UnknownAssignor", message),)
        state.put_spec(with_settings(state.spec, assignor="Sticky"))
        assert [condition.reason for condition in withheld(state)] == ["AssignorFailed"]

    def test_an_assignor_that_failed(self) -> None:
        message = (
            "Best failed: KeyError; what is held stays, free shards go to who has least. "
            "Mend the plug-in, or set another spec.assignor"
        )
        assert withheld(of(clocks=Clocks(assignor_error="Best failed: KeyError"))) == (Condition("AssignorFailed", message),)

    def test_a_topic_that_was_made_again(self) -> None:
        message = (
            "t/0, t/1: the topic was deleted and made again, and the checkpoints are those of the old one; nothing is granted. "
            "Say where to read on by spec.reset, for example {id: ..., to: Earliest}"
        )
        assert withheld(of(clocks=Clocks(recreated=shards("0", "1")))) == (Condition("SourceRecreated", message),)

    @pytest.mark.parametrize(
        ("count", "named"),
        [
            (1, "t/0"),
            (5, "t/0, t/1, t/2, t/3, t/4"),
            (6, "t/0, t/1, t/2, t/3, t/4 and 1 more"),
            (9, "t/0, t/1, t/2, t/3, t/4 and 4 more"),
        ],
    )
    def test_checkpoints_that_were_lost(self, count: int, named: str) -> None:
        rows = (ShardRecord(ShardId(f"t/{number}"), ShardState.NOT_ALLOC, 0, started=True) for number in range(count))
        message = f"{named}: the checkpoint is gone or lies before the first record; say by spec.reset where to read on"
        assert withheld(of(*rows)) == (Condition("CheckpointLost", message),)
