"""How one shard changes hands: what each edge writes into its row, to the last field, and what it tells and asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from shardherd.core.group import grants
from shardherd.core.group.records import InFlight, ShardRecord
from shardherd.core.group.state import GroupEvent, State
from shardherd.core.model.nouns import Condition, Offset, ResetReport, ResetState, ResetTo, ShardId, ShardInfo, ShardState
from tests.builders import copied, incarnation, info, shard, with_settings
from tests.unit.core.tables import CLOSED, FREE, HELD, MOVING, NOW, OPEN, OVER, WAITING, A, B, C, events, given, having

Change = Callable[[State, ShardRecord], object]

CHANGES: list[tuple[str, ShardRecord, Change, ShardRecord]] = [
    ("wake", WAITING, lambda state, row: grants.wake(state, row, NOW), FREE._replace(since=NOW)),
    ("grant", FREE, lambda state, row: grants.grant(state, row, A, NOW), given(FREE, A, 5)),
    ("restore", FREE, lambda state, row: grants.restore(state, row, A, 7, NOW), given(FREE, A, 7)),
    ("reclaim", HELD, lambda state, row: grants.reclaim(state, row, NOW), FREE._replace(last_holder=A, since=NOW)),
    ("reclaim", MOVING, lambda state, row: grants.reclaim(state, row, NOW), FREE._replace(last_holder=A, since=NOW)),
    ("revoke", HELD, lambda state, row: grants.revoke(state, row, B, NOW), MOVING._replace(revision=8, since=NOW)),
    ("redirect", MOVING, lambda state, row: grants.redirect(state, row, C), MOVING._replace(next_consumer=C)),
    ("release", MOVING, lambda state, row: grants.release(state, row, NOW), given(MOVING, B, 5)),
    ("keep", MOVING, lambda state, row: grants.keep(state, row, NOW), HELD._replace(revision=8, since=NOW)),
    (
        "regrant",
        HELD,
        lambda state, row: grants.regrant(state, row, NOW),
        HELD._replace(incarnation=incarnation(A, start=2), owner_epoch=5, revision=8, since=NOW),
    ),
    (
        "fence_holder",
        HELD,
        lambda state, row: grants.fence_holder(state, row),
        HELD._replace(owner_epoch=5, held_since_epoch=5, revision=8),
    ),
]


@pytest.mark.parametrize(
    ("before", "change", "after"),
    [row[1:] for row in CHANGES],
    ids=[f"{name} in {before.state}" for name, before, _, _ in CHANGES],
)
def test_a_change_of_hands_writes_exactly_this(before: ShardRecord, change: Change, after: ShardRecord) -> None:
    state = having(before)
    change(state, before)
    assert state.shards == {shard("0"): after}
    assert (state.record.revision, state.clocks.due) == (8, "")
    assert events(state) == []


@pytest.mark.parametrize(("behind", "entered"), [(False, ShardState.NOT_ALLOC), (True, ShardState.WAIT)])
@pytest.mark.parametrize("said", [FREE, WAITING])
def test_a_new_shard_enters_the_state_that_the_table_says(said: ShardRecord, behind: bool, entered: ShardState) -> None:
    state = having()
    grants.appear(state, said, behind)
    assert state.shards == {shard("0"): said._replace(state=entered)}


FINISHED = FREE._replace(state=ShardState.OVER, last_holder=A, since=NOW)

FINISHING: list[tuple[str, ShardRecord, Change, ShardRecord]] = [
    ("checkpoint", HELD, lambda state, row: grants.finish_if_done(state, row.shard, NOW), FINISHED),
    ("checkpoint", MOVING, lambda state, row: grants.finish_if_done(state, row.shard, NOW), FINISHED),
    (
        "grant",
        FREE,
        lambda state, row: grants.grant(state, row, A, NOW),
        FINISHED._replace(owner_epoch=5, held_since_epoch=5, revision=8),
    ),
    ("keep", MOVING, lambda state, row: grants.keep(state, row, NOW), FINISHED._replace(revision=8)),
    (
        "release",
        MOVING,
        lambda state, row: grants.release(state, row, NOW),
        FINISHED._replace(last_holder=B, owner_epoch=5, held_since_epoch=5, revision=8),
    ),
]


@pytest.mark.parametrize(
    ("before", "change", "after"),
    [row[1:] for row in FINISHING],
    ids=[f"{name} in {before.state}" for name, before, _, _ in FINISHING],
)
@pytest.mark.parametrize("position", [100, 101])
def test_a_closed_shard_that_is_read_to_its_end_is_over_told_of_and_a_reason_to_rebalance(
    before: ShardRecord, change: Change, after: ShardRecord, position: Offset
) -> None:
    state = having(before, infos=(CLOSED,), positions={shard("0"): position})
    change(state, before)
    assert state.shards == {shard("0"): after}
    assert state.clocks.due == "ShardOver"
    assert events(state) == [
        GroupEvent("ShardOver", "shard t/0 is closed and consumed up to its end 100", shards=(shard("0"),))
    ]


NOT_DONE = {
    "it is open": having(HELD, positions={shard("0"): 100}),
    "a record is left": having(HELD, infos=(CLOSED,), positions={shard("0"): 99}),
    "nothing is known of its end": having(HELD, infos=(), positions={shard("0"): 100}),
    "its position is not known": having(HELD, infos=(CLOSED,), positions={}),
    "nobody holds it": having(FREE, infos=(CLOSED,), positions={shard("0"): 100}),
    "it waits": having(WAITING, infos=(CLOSED,), positions={shard("0"): 100}),
    "it is over already": having(OVER, infos=(CLOSED,), positions={shard("0"): 100}),
}


@pytest.mark.parametrize("why", list(NOT_DONE))
def test_a_shard_is_not_over_while(why: str) -> None:
    state = copied(NOT_DONE[why])
    state.begin()
    assert grants.finish_if_done(state, shard("0"), NOW) is False
    assert state.journal == []


def test_a_shard_is_neither_over_nor_read_again_while_a_position_of_it_is_being_written() -> None:
    for row, position in ((HELD, 100), (OVER, 40)):
        state = having(row, infos=(CLOSED,), positions={shard("0"): position})
        state.put_in_flight(shard("0"), InFlight(position))
        state.begin()
        assert (grants.finish_if_done(state, shard("0"), NOW), grants.rewind_if_before_end(state, shard("0"), NOW)) == (
            False,
            False,
        )
        assert state.journal == []


def test_a_finished_shard_whose_position_lies_before_its_end_is_free_again() -> None:
    state = having(OVER, infos=(CLOSED,), positions={shard("0"): 99})
    assert grants.rewind_if_before_end(state, shard("0"), NOW) is True
    assert state.shards == {shard("0"): FREE._replace(since=NOW)}
    assert state.clocks.due == ""


@pytest.mark.parametrize(
    ("row", "infos", "positions"),
    [
        (OVER, (CLOSED,), {shard("0"): 100}),
        (OVER, (), {shard("0"): 40}),
        (OVER, (CLOSED,), {}),
        (HELD, (CLOSED,), {shard("0"): 40}),
    ],
    ids=["at its end", "the source has it no more", "its position is not known", "it is being read"],
)
def test_a_shard_is_not_rewound_when(
    row: ShardRecord, infos: tuple[ShardInfo, ...], positions: Mapping[ShardId, Offset]
) -> None:
    state = having(row, infos=infos, positions=positions)
    assert grants.rewind_if_before_end(state, shard("0"), NOW) is False
    assert state.journal == []


def test_a_shard_that_is_over_wakes_every_descendant_that_nothing_else_keeps_waiting() -> None:
    """2 waits for 0 and for one that there is not, 3 for 5 that was read before, 4 for 9 too, and 6 is being read."""

    def waiting(name: str, *parents: str) -> ShardRecord:
        return ShardRecord(shard(name), ShardState.WAIT, 0, parents=tuple(shard(parent) for parent in parents))

    rows = [HELD, waiting("10", "0"), waiting("2", "0", "99"), waiting("3", "5"), waiting("4", "0", "9"), waiting("9")]
    read_before = OVER._replace(shard=shard("5"), parents=(shard("0"),))
    being_read = waiting("6", "0")._replace(state=ShardState.ALREADY_ALLOC, holder=C, incarnation=incarnation(C, start=2))
    infos = tuple(info(row.shard, open=row is not HELD) for row in (*rows, read_before, being_read))
    state = having(*rows, read_before, being_read, infos=infos, positions={shard("0"): 100})
    assert grants.finish_if_done(state, shard("0"), NOW) is True
    woken = [
        event.key for event in state.journal if not isinstance(event, GroupEvent) and event.after == state.shards.get(event.key)
    ]
    assert woken == [shard("0"), shard("2"), shard("3"), shard("10")]
    assert {name: (row.state, row.since) for name, row in state.shards.items()} == {
        shard("0"): (ShardState.OVER, NOW),
        shard("2"): (ShardState.NOT_ALLOC, NOW),
        shard("3"): (ShardState.NOT_ALLOC, NOW),
        shard("10"): (ShardState.NOT_ALLOC, NOW),
        shard("4"): (ShardState.WAIT, 0.0),
        shard("9"): (ShardState.WAIT, 0.0),
        shard("5"): (ShardState.OVER, 5.0),
        shard("6"): (ShardState.ALREADY_ALLOC, 0.0),
    }


LOST = [
    ("none, though there was one", FREE, None, OPEN, {}, True),
    ("none, and there was none", FREE._replace(started=False), None, OPEN, {}, False),
    ("before the first record", FREE, 4, info("0", begin=5), {}, True),
    ("at the first record", FREE, 5, info("0", begin=5), {}, False),
    ("below its copy", FREE, 39, OPEN, {shard("0"): 40}, True),
    ("at its copy", FREE, 40, OPEN, {shard("0"): 40}, False),
    ("at zero, which has no copy", FREE, 0, OPEN, {shard("1"): 40}, False),
    ("somewhere in a shard that the source has no more", FREE, 4, None, {}, False),
]


@pytest.mark.parametrize(("row", "position", "seen", "copies", "lost"), [row[1:] for row in LOST], ids=[row[0] for row in LOST])
def test_a_checkpoint_is_lost_or_not_when_it_is(
    row: ShardRecord, position: Offset | None, seen: ShardInfo | None, copies: Mapping[ShardId, Offset], lost: bool
) -> None:
    state = having(row, infos=() if seen is None else (seen,), positions={} if position is None else {shard("0"): position})
    state.put_clocks(copies=copies)
    assert grants.checkpoint_lost(state, row) is lost
    assert grants.lost_checkpoints(state) == ([shard("0")] if lost else [])
    assert grants.grantable(state, row) is (position is not None and seen is not None and not lost)


def test_all_lost_checkpoints_are_named_in_order_whatever_lies_between_them() -> None:
    names = ("10", "0", "2", "1", "3")
    rows = [FREE._replace(shard=shard(name)) for name in names]
    infos = tuple(info(name, begin=5 if name == "2" else 0) for name in names)
    state = having(*rows, infos=infos, positions={shard("1"): 0, shard("2"): 0, shard("3"): 7})
    assert grants.lost_checkpoints(state) == [shard("0"), shard("2"), shard("10")]


def test_a_shard_with_a_commit_under_way_is_not_granted() -> None:
    state = having(FREE)
    assert (grants.movable(state, shard("0")), grants.grantable(state, FREE)) == (True, True)
    state.put_in_flight(shard("0"), InFlight(50))
    assert (grants.movable(state, shard("0")), grants.grantable(state, FREE)) == (False, False)


@pytest.mark.parametrize(
    ("due", "asked", "after"),
    [
        ("", "ConsumerJoined", "ConsumerJoined"),
        ("", "ShardOver", "ShardOver"),
        ("ConsumerJoined", "ShardOver", "ShardOver"),
        ("ShardOver", "ConsumerJoined", "ShardOver"),
        ("ShardOver", "SessionTimeout", "ShardOver"),
    ],
)
def test_the_first_reason_for_a_rebalance_counts_unless_it_is_a_join(due: str, asked: str, after: str) -> None:
    state = having()
    state.put_clocks(due=due)
    grants.want_rebalance(state, asked)
    assert state.clocks.due == after


WITHHOLDING: dict[str, Callable[[State], object]] = {
    "the runtime says so": lambda state: state.put_clocks(withheld=(Condition("GroupIdInUse", ""),)),
    "the topic was made anew": lambda state: state.put_clocks(recreated=(shard("0"),)),
    "the ownership is being rebuilt": lambda state: state.put_record(rebuilding=True),
    "the group is paused": lambda state: state.put_spec(with_settings(state.spec, paused=True)),
    "nobody knows its assignor": lambda state: state.put_spec(with_settings(state.spec, assignor="example.Magic")),
}


@pytest.mark.parametrize("why", list(WITHHOLDING))
def test_grants_are_withheld_while(why: str) -> None:
    state = having()
    assert not grants.blocked(state)
    WITHHOLDING[why](state)
    assert grants.blocked(state)


def test_a_reset_withholds_grants_only_while_it_is_being_made() -> None:
    blocked = {}
    for made in ResetState:
        state = having()
        state.put_record(reset=ResetReport("1", ResetTo.EARLIEST, made, ""))
        blocked[made] = grants.blocked(state)
    assert blocked == {made: made is ResetState.APPLYING for made in ResetState}
