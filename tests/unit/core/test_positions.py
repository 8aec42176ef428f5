"""Positions to the last field: every outcome of a checkpoint, what is written when one is durable, and forced ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from shardherd.core.group import checkpoints, grants
from shardherd.core.group.records import InFlight, Session, ShardRecord
from shardherd.core.group.state import GroupEvent, Put, State, Table
from shardherd.core.model.errors import CoordinatorUnavailableError, InvalidRequestError, ShardherdError, UnknownShardError
from shardherd.core.model.nouns import (
    CheckpointOutcome,
    CheckpointReply,
    CheckpointRequest,
    CheckpointResult,
    ConsumerId,
    Offset,
    ResetReport,
    ResetState,
    ResetTo,
    ShardCheckpoint,
    ShardId,
    ShardState,
)
from shardherd.core.model.requests import (
    CheckpointsCommitted,
    CheckpointsFailed,
    CheckpointsLost,
    ForceCheckpoint,
    ForceCheckpointReply,
)
from tests.builders import Play, incarnation, info, shard, shards, started
from tests.unit.core.tables import CLOSED, FREE, HELD, MOVING, NOW, OVER, A, B, events, having

OK, UNCHANGED, FENCED, WITHHELD = (
    CheckpointResult.OK,
    CheckpointResult.UNCHANGED,
    CheckpointResult.FENCED,
    CheckpointResult.WITHHELD,
)
RUN = incarnation(A, 2)
GRANT = HELD._replace(incarnation=RUN)
"""Shard 0, held by A's current run under epoch 4; its position is 40."""


def discovered(state: State) -> State:
    """Nothing of it was lost: whoever is refused has lost the shard for good."""
    state.put_record(discovered=True)
    state.begin()
    return state


def asked(state: State, *wanted: tuple[str, int, Offset]) -> list[CheckpointOutcome]:
    """What becomes of these positions of A: shard, epoch, offset."""
    rows = tuple(ShardCheckpoint(shard(name), epoch, offset) for name, epoch, offset in wanted)
    reply = checkpoints.validate(state, CheckpointRequest(A, incarnation(A, 2), rows), NOW)
    assert isinstance(reply, CheckpointReply)
    return list(reply.outcomes)


# What may be committed.


def test_a_position_above_the_durable_one_is_begun_and_any_other_is_not() -> None:
    state = discovered(having(GRANT))
    assert asked(state, ("0", 4, 39), ("0", 4, 40), ("0", 4, 41)) == [
        CheckpointOutcome(shard("0"), UNCHANGED, 39, 4, 4, A),
        CheckpointOutcome(shard("0"), UNCHANGED, 40, 4, 4, A),
        CheckpointOutcome(shard("0"), OK, 41, 4, 4, A),
    ]
    assert state.in_flight == {shard("0"): InFlight(41)}


def test_of_several_positions_of_one_request_the_highest_is_begun_in_whatever_order_they_come() -> None:
    for offsets in ((41, 60, 50), (60, 41, 50), (50, 41, 60)):
        state = discovered(having(GRANT))
        assert [each.result for each in asked(state, *(("0", 4, offset) for offset in offsets))] == [OK, OK, OK]
        assert state.in_flight == {shard("0"): InFlight(60)}


def test_in_transfer_the_holder_may_still_checkpoint() -> None:
    state = discovered(having(MOVING._replace(incarnation=RUN)))
    assert asked(state, ("0", 4, 60)) == [CheckpointOutcome(shard("0"), OK, 60, 4, 4, A)]


def test_a_shard_whose_position_is_not_known_takes_any() -> None:
    state = discovered(having(GRANT, positions={}))
    assert asked(state, ("0", 4, 0)) == [CheckpointOutcome(shard("0"), OK, 0, 4, 4, A)]


OTHERS: dict[str, tuple[ShardRecord, int, CheckpointOutcome]] = {
    "another epoch": (GRANT, 5, CheckpointOutcome(shard("0"), FENCED, 60, 5, 4, A)),
    "another run": (HELD, 4, CheckpointOutcome(shard("0"), FENCED, 60, 4, 4, A)),
    "another consumer": (
        GRANT._replace(holder=B),
        4,
        CheckpointOutcome(shard("0"), FENCED, 60, 4, 4, B),
    ),
    "nobody": (FREE, 4, CheckpointOutcome(shard("0"), FENCED, 60, 4, 0, None)),
    "another shard": (GRANT._replace(shard=shard("1")), 4, CheckpointOutcome(shard("0"), FENCED, 60, 4, 0, None)),
    "over, it seems, and held": (
        GRANT._replace(state=ShardState.OVER),
        4,
        CheckpointOutcome(shard("0"), FENCED, 60, 4, 4, A),
    ),
}


@pytest.mark.parametrize("held", list(OTHERS))
def test_a_position_of_what_is_held_otherwise_is_fenced_by_who_holds_it(held: str) -> None:
    row, epoch, outcome = OTHERS[held]
    state = discovered(having(row))
    assert asked(state, ("0", epoch, 60)) == [outcome]
    assert state.journal == []


def test_who_may_still_claim_a_shard_is_asked_to_wait() -> None:
    state = having(FREE)
    assert asked(state, ("0", 3, 60), ("0", 4, 60), ("9", 1, 60)) == [
        CheckpointOutcome(shard("0"), FENCED, 60, 3, 0, None),
        CheckpointOutcome(shard("0"), WITHHELD, 60, 4, 0, None),
        CheckpointOutcome(shard("9"), WITHHELD, 60, 1, 0, None),
    ]


def gone(state: State) -> None:
    state.put_infos({shard("1"): info("1")})


WITHHOLDING: dict[str, Callable[[State], object]] = {
    "a commit of it is under way": lambda state: state.put_in_flight(shard("0"), InFlight(50)),
    "nothing may be committed": lambda state: state.put_clocks(commits=False),
    "the ownership is being rebuilt": lambda state: state.put_record(rebuilding=True),
    "it is another shard than before": lambda state: state.put_clocks(recreated=(shard("0"),)),
    "the source has it no more": gone,
}


@pytest.mark.parametrize("why", list(WITHHOLDING))
def test_a_position_is_withheld_while(why: str) -> None:
    state = discovered(having(GRANT))
    WITHHOLDING[why](state)
    state.begin()
    assert asked(state, ("0", 4, 60), ("0", 4, 40)) == [
        CheckpointOutcome(shard("0"), WITHHELD, 60, 4, 4, A),
        CheckpointOutcome(shard("0"), UNCHANGED, 40, 4, 4, A),
    ]
    assert state.journal == []


def test_before_the_first_look_at_the_source_a_position_is_taken() -> None:
    state = discovered(having(GRANT, infos=()))
    assert [each.result for each in asked(state, ("0", 4, 60))] == [OK]


def test_a_consumer_that_is_not_known_is_told_who_holds_what_it_names() -> None:
    stranger = ConsumerId("g-9")
    request = CheckpointRequest(stranger, incarnation("g-9"), (ShardCheckpoint(shard("0"), 4, 60),))
    assert checkpoints.validate(discovered(having(GRANT)), request, NOW) == CheckpointReply(
        (CheckpointOutcome(shard("0"), FENCED, 60, 4, 4, A),)
    )


# What is durable.


def commit(state: State, **offsets: Offset) -> None:
    """These positions are durable: `s0` stands for shard 0."""
    checkpoints.committed(state, CheckpointsCommitted({shard(name[1:]): offset for name, offset in offsets.items()}), NOW)


def reading(*rows: ShardRecord, **kwargs: Any) -> State:
    """Rows whose holders were heard at 1.0, and four expiries before now."""
    state = having(*rows, **kwargs)
    for name in (A, B):
        state.put_session(name, Session(1.0, seq=1, ready=True, progress_at=1.0))
    state.put_clocks(doublings=4)
    state.begin()
    return state


def test_a_durable_position_is_progress_of_its_holder_and_makes_deadlines_plain() -> None:
    state = reading(GRANT)
    state.put_in_flight(shard("0"), InFlight(60))
    commit(state, s0=60)
    assert (state.positions, state.in_flight) == ({shard("0"): 60}, {})
    assert state.sessions[A] == Session(1.0, seq=1, ready=True, progress_at=NOW)
    assert state.sessions[B] == Session(1.0, seq=1, ready=True, progress_at=1.0)
    assert (state.clocks.doublings, state.clocks.due, events(state)) == (0, "", [])
    assert state.shards == {shard("0"): GRANT}


@pytest.mark.parametrize(("offset", "doublings"), [(39, 4), (40, 4), (41, 0)])
def test_only_a_position_that_goes_on_makes_deadlines_plain(offset: Offset, doublings: int) -> None:
    state = reading(GRANT)
    commit(state, s0=offset)
    assert (state.clocks.doublings, state.positions) == (doublings, {shard("0"): max(offset, 40)})


def test_a_first_position_starts_its_shard_and_is_a_reason_to_give_it_out() -> None:
    state = reading(FREE._replace(started=False), positions={})
    commit(state, s0=0)
    assert state.shards == {shard("0"): FREE}
    assert (state.clocks.due, state.clocks.doublings) == ("ShardsAppeared", 0)


def test_a_position_that_was_lost_and_is_found_is_a_reason_to_rebalance_and_one_that_stays_lost_is_none() -> None:
    for offset, due in ((4, ""), (5, "CheckpointFound")):
        state = reading(GRANT, infos=(info("0", begin=5),), positions={shard("0"): 3})
        commit(state, s0=offset)
        assert state.clocks.due == due


def test_positions_of_shards_that_went_do_not_keep_the_others() -> None:
    state = reading(GRANT._replace(shard=shard("2")), positions={shard("2"): 1})
    commit(state, s9=5, s2=7)
    assert state.positions == {shard("2"): 7}


def test_a_closed_shard_is_over_at_its_end_which_is_no_progress_of_who_held_it() -> None:
    state = reading(GRANT, infos=(CLOSED,))
    commit(state, s0=100)
    assert state.shards == {shard("0"): FREE._replace(state=ShardState.OVER, last_holder=A, since=NOW)}
    assert state.sessions[A].progress_at == 1.0
    state = reading(GRANT, infos=(CLOSED,))
    commit(state, s0=99)
    assert state.sessions[A].progress_at == NOW


def test_a_position_of_who_is_not_heard_any_more_is_nobodys_progress() -> None:
    state = reading(GRANT, GRANT._replace(shard=shard("1"), holder=B, incarnation=incarnation(B, 2)))
    state.put_session(A, None)
    state.begin()
    commit(state, s0=60, s1=60)
    assert (set(state.sessions), state.sessions[B].progress_at) == ({B}, NOW)


def test_progress_that_is_known_already_is_not_noted_again() -> None:
    state = reading(GRANT)
    state.put_session(A, Session(1.0, seq=1, ready=True, progress_at=NOW))
    state.begin()
    commit(state, s0=60)
    assert [event for event in state.journal if isinstance(event, Put) and event.table is Table.SESSIONS] == []


def test_what_was_not_written_frees_its_shards_and_changes_nothing_else() -> None:
    state = having(GRANT, FREE._replace(shard=shard("1")), FREE._replace(shard=shard("2")))
    for name in ("0", "1", "2"):
        state.put_in_flight(shard(name), InFlight(60))
    checkpoints.failed(state, CheckpointsFailed(frozenset(shards("0", "1"))))
    assert (state.in_flight, state.positions) == ({shard("2"): InFlight(60)}, {shard("0"): 40})


def test_what_is_absent_after_an_unknown_outcome_is_lost_and_a_start_is_written_anew() -> None:
    new = FREE._replace(shard=shard("2"), started=False)
    state = having(GRANT, FREE._replace(shard=shard("1")), new, positions={shard("0"): 40, shard("1"): 50})
    for name in ("0", "1", "2"):
        state.put_in_flight(shard(name), InFlight(60))
    checkpoints.lost(state, CheckpointsLost(frozenset(shards("0", "2", "9"))))
    assert (state.in_flight, state.positions) == ({shard("1"): InFlight(60)}, {shard("1"): 50})
    assert [grants.checkpoint_lost(state, row) for row in state.shards.values()] == [True, False, False]
    assert asked(discovered(state), ("0", 4, 60)) == [CheckpointOutcome(shard("0"), OK, 60, 4, 4, A)]


def test_what_was_committed_once_more_as_it_is_is_not_lost_when_it_is_absent() -> None:
    state = having(GRANT, FREE._replace(shard=shard("1")), positions={shard("0"): 40, shard("1"): 50})
    state.put_in_flight(shard("0"), InFlight(40))
    checkpoints.lost(state, CheckpointsLost(frozenset(shards("0", "1"))))
    assert (state.in_flight, state.positions) == ({}, {shard("0"): 40, shard("1"): 50})


def test_what_the_store_shows_below_a_position_that_was_durable_does_not_take_it_back() -> None:
    state = reading(GRANT)
    commit(state, s0=39)
    assert (state.in_flight, state.positions) == ({}, {shard("0"): 40})


# Forced ones.


def forced(state: State, offset: Offset, found: Offset | None = None) -> str:
    """The warning of a forced checkpoint of shard 0 that was written, or after which another position was found."""
    reply = checkpoints.force(discovered(state), ForceCheckpoint(shard("0"), offset))
    source_id = state.infos[shard("0")].source_id if state.infos else ""
    assert state.in_flight[shard("0")] == InFlight(offset, forced=True, source_id=source_id)
    state.begin()
    commit(state, s0=offset if found is None else found)
    assert isinstance(reply, ForceCheckpointReply)
    return reply.warning


FORCED = GroupEvent("CheckpointForced", "checkpoint of shard t/0 was set to 10", shards=shards("0"), warning=True)


def test_a_forced_position_is_told_and_fences_the_holder() -> None:
    for row in (GRANT, MOVING):
        state = reading(row)
        assert forced(state, 10) == ""
        assert state.shards == {shard("0"): row._replace(owner_epoch=5, held_since_epoch=5, revision=8)}
        assert (events(state), state.clocks.due) == ([FORCED], "")


def test_a_forced_position_of_what_is_free_is_a_reason_to_rebalance() -> None:
    state = reading(FREE)
    assert forced(state, 10) == ""
    assert (state.shards, events(state), state.clocks.due) == ({shard("0"): FREE}, [FORCED], "CheckpointForced")


def test_a_forced_position_that_was_not_written_changes_nothing() -> None:
    state = reading(GRANT)
    assert forced(state, 10, found=40) == ""
    assert (state.shards, events(state)) == ({shard("0"): GRANT}, [])


def test_a_finished_shard_is_read_again_which_is_told_beside_the_forced_position() -> None:
    state = reading(OVER, infos=(CLOSED,), positions={shard("0"): 100})
    assert forced(state, 10) == ""
    assert state.shards == {shard("0"): FREE._replace(since=NOW)}
    assert events(state) == [
        FORCED,
        GroupEvent("ShardRevived", "finished shard t/0 is read again from 10", shards=shards("0")),
    ]
    assert state.clocks.due == "CheckpointForced"


def with_children(count: int, **fields: Any) -> State:
    """A finished shard 0 with so many children, in this state."""
    child = ShardRecord(shard("1"), ShardState.NOT_ALLOC, 0, started=True, parents=shards("0"))._replace(**fields)
    rows = [child._replace(shard=shard(str(number))) for number in range(count, 0, -1)]
    return reading(OVER, *rows, infos=(CLOSED,), positions={shard("0"): 100})


WARNING = "descendants of t/0 were read before it, so the order of its keys can break: "
TEN = "t/1, t/2, t/3, t/4, t/5, t/6, t/7, t/8, t/9, t/10"


@pytest.mark.parametrize(
    ("count", "fields", "warning"),
    [
        (2, {}, ""),
        (2, {"last_holder": B}, f"{WARNING}t/1, t/2"),
        (2, {"state": ShardState.OVER}, f"{WARNING}t/1, t/2"),
        (10, {"last_holder": B}, f"{WARNING}{TEN}"),
        (11, {"last_holder": B}, f"{WARNING}{TEN} and 1 more"),
        (12, {"last_holder": B}, f"{WARNING}{TEN} and 2 more"),
    ],
)
def test_the_warning_names_the_descendants_that_were_read_the_first_ten_of_them(
    count: int, fields: Mapping[str, Any], warning: str
) -> None:
    state = with_children(count, **fields)
    assert forced(state, 99) == warning
    (revived,) = [each for each in events(state) if each.reason == "ShardRevived"]
    said = "finished shard t/0 is read again from 99"
    assert revived == GroupEvent(
        "ShardRevived", f"{said}; {warning}" if warning else said, shards=shards("0"), warning=bool(warning)
    )


def test_no_warning_comes_with_a_position_at_the_end_or_of_a_shard_that_is_not_finished() -> None:
    state = with_children(2, last_holder=B)
    assert forced(state, 100) == ""
    assert [each.reason for each in events(state)] == ["CheckpointForced"]
    state = with_children(2, last_holder=B)
    state.put_shard(FREE)
    assert forced(state, 10) == ""


def test_a_finished_shard_that_the_source_has_no_more_warns_too() -> None:
    state = with_children(1, last_holder=B)
    state.put_infos({})
    assert forced(state, 10) == f"{WARNING}t/1"


def test_a_forced_position_is_where_to_read_on_whatever_was_there_before() -> None:
    state = reading(GRANT, infos=(info("0", source_id="b"),))
    copies = {shard("0"): 90, shard("1"): 80}
    state.put_clocks(copies=copies, recreated=shards("1", "0", "2"))
    forced(state, 10)
    assert (state.clocks.copies, state.clocks.recreated) == ({shard("1"): 80}, shards("1", "2"))
    assert state.shards[shard("0")].source_id == "b"


def test_a_forced_position_of_another_shard_leaves_what_is_recreated() -> None:
    state = reading(GRANT, infos=())
    state.put_clocks(copies={shard("1"): 80}, recreated=shards("0"))
    forced(state, 10)
    assert (state.clocks.copies, state.clocks.recreated) == ({shard("1"): 80}, shards("0"))
    assert state.shards[shard("0")].source_id == "a"


def test_a_position_of_a_reset_is_not_told_by_itself() -> None:
    state = reading(FREE)
    state.put_clocks(unset=frozenset(shards("0", "1")))
    state.put_in_flight(shard("0"), InFlight(10, forced=True))
    state.begin()
    commit(state, s0=10)
    assert (events(state), state.positions, state.clocks.due) == ([], {shard("0"): 10}, "CheckpointForced")


# Refusals.


def refused(request: Callable[[Play], object]) -> tuple[type[ShardherdError], str, str | None, ShardId | None, str | None]:
    play = started(2, 1)
    play.discover([info("0", begin=5, open=False), info("1")])
    play.hold_commits = True
    play.checkpoint("g-0", "1", 40)
    with pytest.raises(ShardherdError) as error:
        request(play)
    value = error.value
    return type(value), value.message, value.group, value.shard, value.consumer


@pytest.mark.parametrize(
    ("offset", "message"),
    [
        (-1, "offset -1 for shard t/0 is negative"),
        (4, "offset 4 for shard t/0 does not exist: it has 5 to 100"),
        (101, "offset 101 for shard t/0 does not exist: it has 5 to 100"),
    ],
)
def test_a_forced_position_that_cannot_be_is_refused_by_name(offset: Offset, message: str) -> None:
    said = refused(lambda play: play.ask(ForceCheckpoint(shard("0"), offset)))
    assert said == (InvalidRequestError, message, "demo/clicks", shard("0"), None)


@pytest.mark.parametrize("offset", [5, 100])
def test_the_first_and_the_last_position_of_a_closed_shard_can_be_forced(offset: Offset) -> None:
    play = started(1, 1)
    play.discover([info("0", begin=5, open=False)])
    play.ask(ForceCheckpoint(shard("0"), offset))
    assert play.log[shard("0")] == offset


def test_a_position_of_a_shard_that_there_is_not_is_refused_with_what_a_name_looks_like() -> None:
    assert refused(lambda play: play.ask(ForceCheckpoint(shard("7"), 1))) == (
        UnknownShardError,
        "group demo/clicks has no shard t/7; its shards are named topic/partition",
        "demo/clicks",
        shard("7"),
        None,
    )


def test_a_position_of_a_shard_whose_checkpoint_is_being_written_may_be_forced_later() -> None:
    said = (
        CoordinatorUnavailableError,
        "a checkpoint of shard t/1 is being written; ask again",
        "demo/clicks",
        shard("1"),
        None,
    )
    assert refused(lambda play: play.ask(ForceCheckpoint(shard("1"), 1))) == said

    def after_a_reset(play: Play) -> None:
        play.commit()
        play.group._state.put_record(reset=ResetReport("r1", ResetTo.EARLIEST, ResetState.APPLYING, ""))
        play.group._state.put_clocks(unset=frozenset(shards("1")))
        play.ask(ForceCheckpoint(shard("1"), 1))

    assert refused(after_a_reset) == said


def test_a_negative_checkpoint_is_refused_with_who_sent_it() -> None:
    assert refused(lambda play: play.checkpoint("g-0", "0", -1)) == (
        InvalidRequestError,
        "checkpoint of shard t/0 has offset -1; an offset is the next record to read, 0 or more",
        "demo/clicks",
        shard("0"),
        "g-0",
    )
