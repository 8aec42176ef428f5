"""The steps of a rebalance: when it waits, what it does to each shard, and what it reports."""

from __future__ import annotations

from typing import Any

import pytest

from shardherd.core.group import rebalance
from shardherd.core.group.records import ConsumerRecord, Session, ShardRecord
from shardherd.core.group.state import GroupEvent, Put, State, Table
from shardherd.core.model.nouns import ConsumerId, ShardId, ShardState
from tests.builders import incarnation, info, shard, shards, spec, with_settings
from tests.unit.core.tables import FREE, HELD, MOVING, A, B, C, events, having

NOW = 100.0
FRESH = FREE._replace(last_holder=None)


def ready(
    *rows: ShardRecord, consumers: tuple[ConsumerId, ...] = (A, B), due: str = "ShardsAppeared", **settings: Any
) -> State:
    """A rebalance is due; these consumers are warm, and all positions are known."""
    state = having(*rows, infos=tuple(info(row.shard) for row in rows), positions={row.shard: 0 for row in rows})
    state.put_spec(with_settings(spec(len(consumers)), **settings))
    for name in consumers:
        state.put_session(name, Session(NOW, seq=1, revision=7, ready=True))
    state.put_clocks(due=due, gather_until=50.0, settle_until=50.0, replan=True)
    state.begin()
    return state


def free(*names: str) -> list[ShardRecord]:
    return [FRESH._replace(shard=shard(name)) for name in names]


def held(consumer: ConsumerId, *names: str) -> list[ShardRecord]:
    run = incarnation(consumer, 2)
    return [HELD._replace(shard=shard(name), holder=consumer, incarnation=run, last_holder=consumer) for name in names]


def written(state: State) -> list[ShardId]:
    """The shards whose rows changed, in order."""
    return [event.key for event in state.journal if isinstance(event, Put) and event.table is Table.SHARDS]


def test_free_shards_are_given_out_in_order_and_that_is_reported_once() -> None:
    state = ready(*free("10", "2", "1", "0"))
    rebalance.rebalance(state, NOW)
    assert written(state) == list(shards("0", "1", "2", "10"))
    assert {row.shard: row.holder for row in state.shards.values()} == dict(
        zip(shards("0", "1", "2", "10"), (A, B, A, B), strict=True)
    )
    assert events(state) == [
        GroupEvent("Rebalanced", "4 shards granted and 0 revoked, because of ShardsAppeared", cause="ShardsAppeared", moved=0)
    ]
    clocks = state.clocks
    assert (clocks.due, clocks.replan, clocks.assign_at, clocks.gather_until) == ("", False, None, 50.0)
    assert (clocks.rebalances, clocks.rebalanced_at, clocks.rebalance_reason, clocks.rebalance_moved) == (
        1,
        NOW,
        "ShardsAppeared",
        0,
    )


def test_only_what_changes_hands_counts_as_moved() -> None:
    """Shard 0 comes back to its last holder, shard 1 to another one, shard 2 is new, and two of B's are asked for."""
    free_ones = [FRESH, FREE._replace(shard=shard("1"), last_holder=C), *free("2")]
    state = ready(free_ones[0]._replace(last_holder=A), *free_ones[1:], *held(B, "3", "4", "5", "6", "7", "8", "9"))
    rebalance.rebalance(state, NOW)
    assert [state.shards[name].holder for name in shards("0", "1", "2")] == [A, A, A]
    revoked = [row.shard for row in state.shards.values() if row.state is ShardState.TRANSFER]
    assert len(revoked) == 2
    assert state.shards[revoked[0]] == held(B, revoked[0])[0]._replace(
        state=ShardState.TRANSFER, next_consumer=A, revision=8, since=NOW
    )
    assert events(state) == [
        GroupEvent("Rebalanced", "3 shards granted and 2 revoked, because of ShardsAppeared", cause="ShardsAppeared", moved=3)
    ]
    assert (state.clocks.rebalance_moved, state.clocks.rebalances) == (3, 1)


def test_a_rebalance_that_changes_nothing_is_not_reported() -> None:
    state = ready(*held(A, "0"), *held(B, "1"))
    rebalance.rebalance(state, NOW)
    assert (written(state), events(state), state.clocks.rebalances) == ([], [], 0)
    assert (state.clocks.due, state.clocks.replan) == ("", False)


def test_without_anybody_to_give_to_nothing_is_done() -> None:
    state = ready(*held(A, "0"), consumers=())
    rebalance.rebalance(state, NOW)
    assert (written(state), state.clocks.due) == ([], "")


def test_a_join_opens_the_second_in_which_others_are_gathered() -> None:
    state = ready(*held(A, "0", "1"), due="ConsumerJoined")
    rebalance.rebalance(state, NOW)
    assert (len(written(state)), state.clocks.gather_until) == (1, NOW + 1.0)


@pytest.mark.parametrize(
    ("due", "gather_until", "waits"),
    [
        ("ConsumerJoined", NOW + 0.1, True),
        ("ConsumerJoined", NOW, False),
        ("ShardOver", NOW + 0.1, False),
    ],
)
def test_only_joins_wait_for_further_joins(due: str, gather_until: float, waits: bool) -> None:
    state = ready(*held(A, "0", "1"), due=due)
    state.put_clocks(gather_until=gather_until)
    rebalance.rebalance(state, NOW)
    assert (state.clocks.due == due) is waits


@pytest.mark.parametrize(
    ("heard", "settle_until", "waits"), [(False, NOW + 0.1, True), (False, NOW, False), (True, NOW + 0.1, False)]
)
def test_after_a_restart_all_are_waited_for_but_not_for_ever(heard: bool, settle_until: float, waits: bool) -> None:
    state = ready(*held(A, "0", "1"))
    state.put_session(C, Session(NOW, heard=heard))
    state.put_clocks(settle_until=settle_until)
    rebalance.rebalance(state, NOW)
    assert (state.clocks.due != "") is waits


def test_nothing_is_planned_before_the_source_was_seen_or_without_a_reason() -> None:
    state = ready(*held(A, "0", "1"))
    state.put_infos({})
    state.begin()
    rebalance.rebalance(state, NOW)
    assert (state.journal, state.clocks.due) == ([], "ShardsAppeared")
    state = ready(*held(A, "0", "1"), due="")
    rebalance.rebalance(state, NOW)
    assert state.journal == []


# The first assignment.


def assigning(wanted: int, *, warm: bool = True, cordoned: tuple[str, ...] = ()) -> State:
    """A free shard, and A alone, warm or not; so many consumers are wanted."""
    state = ready(*free("0"), consumers=(A,))
    state.put_spec(spec(wanted, cordoned=cordoned, initial_assignment_delay=7.0))
    state.put_session(A, Session(NOW, seq=1, ready=warm))
    state.begin()
    return state


def assigned(state: State, at: float) -> tuple[ConsumerId | None, float | None]:
    rebalance.rebalance(state, at)
    return state.shards[shard("0")].holder, state.clocks.assign_at


def test_the_first_assignment_waits_no_longer_than_its_delay_after_the_first_is_ready() -> None:
    state = assigning(2)
    assert assigned(state, NOW) == (None, NOW + 7.0)
    assert assigned(state, NOW + 6.9) == (None, NOW + 7.0)
    assert assigned(state, NOW + 7.0) == (A, None)


def test_the_first_assignment_waits_for_nobody_once_all_that_are_wanted_are_ready() -> None:
    assert assigned(assigning(1), NOW) == (A, None)
    assert assigned(assigning(0), NOW) == (A, None)
    assert assigned(assigning(2, cordoned=("g-1",)), NOW) == (A, None)
    assert assigned(assigning(2, cordoned=("g-0", "g-1")), NOW) == (None, None)


def test_a_cold_consumer_does_not_count_as_one_that_is_ready() -> None:
    state = assigning(2)
    state.put_session(B, Session(NOW, seq=1))
    assert assigned(state, NOW) == (None, NOW + 7.0)
    state.put_session(B, Session(NOW, seq=1, ready=True))
    assert assigned(state, NOW) == (A, None)


def test_without_a_ready_consumer_the_delay_does_not_run() -> None:
    state = assigning(2, warm=False)
    state.begin()
    assert assigned(state, NOW) == (None, None)
    assert state.journal == []
    state.put_clocks(assign_at=NOW + 1.0)
    assert assigned(state, NOW) == (None, None)


def test_what_somebody_holds_is_no_first_assignment() -> None:
    state = ready(*held(A, "0"), *free("1"), consumers=(A,))
    state.put_spec(spec(5))
    rebalance.rebalance(state, NOW)
    assert state.shards[shard("1")].holder == A


# Transfers.


def moving(consumer: ConsumerId, to: ConsumerId, *names: str) -> list[ShardRecord]:
    return [row._replace(state=ShardState.TRANSFER, next_consumer=to) for row in held(consumer, *names)]


def naming(state: State, consumer: ConsumerId, *names: str) -> None:
    state.put_session(consumer, Session(NOW, seq=1, revision=7, named=frozenset(shards(*names)), ready=True))
    state.begin()


def test_a_better_target_redirects_a_transfer_which_is_told_as_a_revocation_and_is_no_further_move() -> None:
    state = ready(*moving(A, C, "0", "1"))
    state.put_spec(spec(2, cordoned=["g-0"]))
    naming(state, A, "0", "1")
    rebalance.rebalance(state, NOW)
    assert list(state.shards.values()) == moving(A, B, "0", "1")
    assert events(state) == [
        GroupEvent("Rebalanced", "0 shards granted and 2 revoked, because of ShardsAppeared", cause="ShardsAppeared", moved=0)
    ]


def test_a_transfer_that_the_target_would_call_off_goes_on_and_is_looked_at_again_when_it_ends() -> None:
    state = ready(*moving(A, B, "0"), assignor="Range")
    naming(state, A, "0")
    rebalance.rebalance(state, NOW)
    assert (written(state), events(state), state.clocks.replan) == ([], [], True)
    rebalance.transfer_ended(state)
    assert state.clocks.due == "TransferEnded"
    state.put_clocks(due="", replan=False)
    rebalance.transfer_ended(state)
    assert state.clocks.due == ""


def test_what_is_released_already_goes_on_with_the_rebalance() -> None:
    state = ready(*moving(A, B, "0"), *held(A, "1"))
    naming(state, A, "1")
    rebalance.rebalance(state, NOW)
    assert [(row.holder, row.state, row.since) for row in state.shards.values()] == [
        (B, ShardState.ALREADY_ALLOC, NOW),
        (A, ShardState.ALREADY_ALLOC, 5.0),
    ]


def test_a_transfer_for_which_the_rebalance_finds_nobody_goes_back() -> None:
    state = ready(*moving(A, C, "0"), consumers=(A,))
    naming(state, A, "0")
    rebalance.rebalance(state, NOW)
    assert list(state.shards.values()) == [held(A, "0")[0]._replace(revision=8, since=NOW)]


def test_a_transfer_that_was_redirected_goes_back_with_its_new_next_consumer_though_the_one_before_is_still_warm() -> None:
    state = ready(*held(A, "0"), *held(B, "1"), *moving(A, B, "2"), consumers=(A, B, C), assignor="RoundRobin")
    naming(state, A, "0", "2")
    rebalance.rebalance(state, NOW)
    assert list(state.shards.values()) == [*held(A, "0"), *held(B, "1"), *moving(A, C, "2")]
    state.put_session(C, None)
    state.put_clocks(due="ConsumerLeft")
    rebalance.rebalance(state, NOW)
    assert list(state.shards.values()) == [*held(A, "0"), *held(B, "1"), held(A, "2")[0]._replace(revision=8, since=NOW)]


@pytest.mark.parametrize("paused", [False, True])
def test_transfers_that_find_no_next_consumer_go_back_in_order_and_no_other_does(paused: bool) -> None:
    """B takes its own; C is gone, so A keeps what was to go there, in the order of the shards; D left what it held."""
    gone = ConsumerId("g-3")
    rows = [*moving(A, B, "4"), *moving(A, C, "10", "2"), *moving(gone, C, "3"), *held(A, "0", "1")]
    state = ready(*rows, paused=paused)
    state.put_consumer(ConsumerRecord(gone, incarnation(gone, 2), present=False))
    state.put_spec(with_settings(spec(2, cordoned=["g-1"] if not paused else []), paused=paused))
    state.put_session(B, Session(NOW, seq=1, heard=paused, ready=paused))
    naming(state, A, "0", "1", "2", "4", "10")
    rebalance._keep_orphaned_transfers(state, NOW)
    kept = shards("2", "10") if paused else shards("4", "2", "10")
    assert written(state) == list(kept)
    assert state.shards[shard("2")] == held(A, "2")[0]._replace(revision=8, since=NOW)
    assert state.shards[shard("3")] == rows[3]
    if paused:
        state.begin()
        rebalance.rebalance(state, NOW)
        assert (state.journal, state.clocks.due) == ([], "ShardsAppeared")


def test_while_grants_are_withheld_only_what_has_no_next_consumer_goes_back() -> None:
    state = ready(MOVING._replace(incarnation=incarnation(A, 2), next_consumer=C), *free("1"), paused=True)
    rebalance.rebalance(state, NOW)
    assert written(state) == [shard("0")]
    assert state.shards[shard("0")] == held(A, "0")[0]._replace(revision=8, since=NOW)
    assert (state.clocks.due, events(state)) == ("ShardsAppeared", [])
