"""A group's tables: the indexes follow every change, and a journal takes all of it back and makes it again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from shardherd.core.assignors import ASSIGNORS
from shardherd.core.group.rates import Rates
from shardherd.core.group.records import Clocks, ConsumerRecord, GroupRecord, InFlight, Ownership, Session, ShardRecord
from shardherd.core.group.state import GroupEvent, Put, State, Table
from shardherd.core.model.gauges import Stage
from shardherd.core.model.nouns import ConsumerId, Incarnation, ShardId, ShardState, Weights
from tests.builders import IDENTITY, copied, incarnation, info, shard, shards, spec

G0, G1 = ConsumerId("g-0"), ConsumerId("g-1")
RUN0, RUN1, RUN2 = incarnation("g-0"), incarnation("g-1"), incarnation("g-0", start=2)
CLOCKS = Clocks(resumed_at=3.0)
RECORD = GroupRecord(IDENTITY.uid, revision=7)
EVENT = GroupEvent("ShardsAppeared", "2 shards appeared")

NOT_ALLOC, ALREADY_ALLOC, TRANSFER, OVER = (
    ShardState.NOT_ALLOC,
    ShardState.ALREADY_ALLOC,
    ShardState.TRANSFER,
    ShardState.OVER,
)


def empty() -> State:
    return State(spec(2), RECORD, CLOCKS)


def free(name: str, **fields: Any) -> ShardRecord:
    return ShardRecord(shard(name), NOT_ALLOC, 0, **fields)


def held(name: str, by: ConsumerId = G0, run: Incarnation = RUN0, **fields: Any) -> ShardRecord:
    return ShardRecord(shard(name), ALREADY_ALLOC, 0, holder=by, incarnation=run, last_holder=by, **fields)


def moving(name: str, **fields: Any) -> ShardRecord:
    return held(name, **fields)._replace(state=TRANSFER, next_consumer=G1)


def filled() -> State:
    """Two shards that g-0 holds, one of them about to go to g-1, one that g-1 holds, and a free one; each by its own run."""
    state = empty()
    for row in (held("0"), moving("1", parents=shards("3")), held("2", G1, RUN1, parents=shards("3")), free("3")):
        state.put_shard(row)
    state.begin()
    return state


def rows(state: State) -> dict[str, Any]:
    """Every table."""
    return {table.value: dict(getattr(state, table.value)) for table in Table}


def indexes(state: State) -> dict[str, Any]:
    """Every index, without entries that are empty, but for the one that promises to have none."""
    found = {name: getattr(state, name) for name in ("by_state", "held", "moving", "incoming", "children")}
    rows = {
        name: {key: dict.fromkeys(of, None) if name == "children" else dict(of) for key, of in index.items() if of}
        for name, index in found.items()
    }
    under = {key: dict(of) for key, of in state.under.items()}
    order = {"order": list(state.order), "interned": list(state.interned.names)}
    return {**rows, "under": under, **order, "below_low": set(state.below_low)}


def indexed(state: State) -> dict[str, Any]:
    """The same, from the rows themselves."""
    made: dict[str, Any] = {name: {} for name in ("by_state", "held", "moving", "incoming", "children", "under")}

    def note(index: str, key: object, of: ShardId) -> None:
        made[index].setdefault(key, {})[of] = None

    for name, row in state.shards.items():
        note("by_state", row.state, name)
        if row.holder is not None:
            note("held", row.holder, name)
            note("under", (row.holder, row.incarnation), name)
            if row.state is TRANSFER:
                note("moving", row.holder, name)
        if row.next_consumer is not None:
            note("incoming", row.next_consumer, name)
        for parent in row.parents:
            note("children", parent, name)
    order = sorted(state.shards, key=lambda of: int(of.rpartition("/")[2]))
    open_to_more = {
        name
        for name, session in state.sessions.items()
        if session.heard and session.ready and not session.draining and session.stage is Stage.BELOW
    }
    return {**made, "order": order, "interned": order, "below_low": open_to_more}


def test_a_new_state_has_no_rows_and_nothing_happened_in_it() -> None:
    state = empty()
    assert rows(state) == {
        **{table.value: {} for table in Table},
        "group": {
            "spec": spec(2),
            "record": RECORD,
            "clocks": CLOCKS,
            "infos": {},
            "touched_all": 0,
        },
    }
    assert indexes(state) == indexed(state)
    assert (state.journal, state.moved, state.restored_at, state.unsettled, state.order) == ([], 0, 0.0, True, [])
    assert (state.assignors, state.rates, state.touched_all) == (ASSIGNORS, None, 0)


LIFE = (
    free("4", parents=shards("0")),
    held("4", parents=shards("0"), owner_epoch=1),
    moving("4", parents=shards("0"), owner_epoch=1),
    held("4", G1, RUN1, parents=shards("0", "2"), owner_epoch=2),
    held("4", G0, RUN2, parents=shards("0", "2"), owner_epoch=3),
    held("4", G0, RUN0, parents=(), owner_epoch=4),
    free("4", owner_epoch=4)._replace(state=OVER),
)
"""What a shard goes through, one change after the other."""


def test_the_indexes_follow_a_shard_through_its_life_there_and_back() -> None:
    state = filled()
    before = [rows(state)]
    assert indexes(state) == indexed(state)
    for row in LIFE:
        state.put_shard(row)
        before.append(rows(state))
        assert indexes(state) == indexed(state), row
    for event in reversed(tuple(state.journal)):
        state.undo((event,))
        assert indexes(state) == indexed(state), event
    assert rows(state) == before[0]
    state.begin()
    for row in LIFE:
        state.put_shard(row)
    assert (rows(state), indexes(state)) == (before[-1], indexed(state))


WARM = Session(1.0, ready=True)
SESSIONS = (
    WARM,
    replace(WARM, last_heard=2.0),
    replace(WARM, stage=Stage.LOW),
    replace(WARM, stage=Stage.HIGH),
    replace(WARM, stage=Stage.FLOOD),
    WARM,
    replace(WARM, draining=True),
    WARM,
    replace(WARM, ready=False),
    WARM,
    replace(WARM, heard=False),
    WARM,
    None,
    None,
)
"""What a consumer's session goes through, one change after the other."""


def test_the_consumers_below_low_follow_a_session_through_its_life_there_and_back() -> None:
    state = filled()
    state.put_session(G1, WARM)
    state.begin()
    for session in SESSIONS:
        state.put_session(G0, session)
        assert indexes(state) == indexed(state), session
    assert set(state.below_low) == {G1}
    for event in reversed(tuple(state.journal)):
        state.undo((event,))
        assert indexes(state) == indexed(state), event
    assert state.sessions == {G1: WARM}


@pytest.mark.parametrize("row", [held("10"), free("4"), moving("1", parents=shards("0")), free("1")])
def test_a_row_that_is_set_without_a_journal_is_indexed_too(row: ShardRecord) -> None:
    state = filled()
    state.set(Table.SHARDS, row.shard, state.shards.get(row.shard), row)
    assert (indexes(state), state.journal) == (indexed(state), [])


def test_the_first_child_that_goes_leaves_the_others_in_their_order() -> None:
    state = filled()
    state.put_shard(free("4", parents=shards("3")))
    state.put_shard(held("2", G1, RUN1))
    assert state.children == {shard("3"): shards("1", "4")}


def test_a_journal_is_undone_from_its_end() -> None:
    state = filled()
    before = rows(state), indexes(state)
    for row in (held("3"), moving("3"), free("3", owner_epoch=1)):
        state.put_shard(row)
    state.emit(EVENT)
    state.put_position(shard("3"), 10)
    state.put_position(shard("3"), 20)
    assert EVENT in state.journal
    state.undo(tuple(state.journal))
    assert (rows(state), indexes(state)) == before


def test_what_changes_a_grant_is_journaled_with_one_revision_and_with_who_must_be_told() -> None:
    state = filled()
    state.put_shard(held("1", G1, RUN1, parents=shards("3")))
    state.put_shard(held("3", G1, RUN1))
    after = GroupRecord(IDENTITY.uid, revision=9)
    assert state.journal == [
        Put(Table.GROUP, "record", GroupRecord(IDENTITY.uid, revision=8), after),
        Put(Table.SHARDS, shard("1"), moving("1", parents=shards("3")), held("1", G1, RUN1, parents=shards("3"))),
        Put(Table.TOUCHED, G0, None, 9),
        Put(Table.TOUCHED, G1, None, 9),
        Put(Table.SHARDS, shard("3"), free("3"), held("3", G1, RUN1)),
    ]
    assert (state.moved, state.record, state.touched) == (1, after, {G0: 9, G1: 9})
    state.begin()
    assert (state.journal, state.moved) == ([], 0)
    state.put_shard(held("1", G0, RUN0, parents=shards("3")))
    state.put_shard(held("3", G0, RUN0))
    assert (state.record.revision, state.touched, state.moved) == (10, {G0: 10, G1: 10}, 2)


def test_what_a_holder_is_not_told_of_wakes_nobody() -> None:
    state = filled()
    state.put_shard(held("0", started=True, revision=3))
    assert (state.record.revision, state.touched, state.moved) == (9, {}, 0)


def test_who_was_told_before_is_told_again_of_the_next_revision_and_that_can_be_undone() -> None:
    state = filled()
    state.put_shard(free("0"))
    state.begin()
    state.put_shard(held("3"))
    state.put_shard(free("3"))
    assert [event for event in state.journal if isinstance(event, Put) and event.table is Table.TOUCHED] == [
        Put(Table.TOUCHED, G0, 9, 10)
    ]
    state.undo(tuple(state.journal))
    assert state.touched == {G0: 9}


def test_a_shard_that_goes_back_to_who_had_it_last_has_not_moved() -> None:
    state = filled()
    state.put_shard(free("0", last_holder=G0))
    state.put_shard(held("0", owner_epoch=1))
    assert (state.moved, state.touched) == (0, {G0: 9})


def test_a_shard_whose_last_holder_is_forgotten_has_moved() -> None:
    state = filled()
    state.put_shard(free("0"))
    assert state.moved == 1


SESSION, CONSUMER = Session(5.0), ConsumerRecord(G0, RUN0)
INFOS, RATES = {shard("0"): info("0")}, Rates(5.0, {}, unit=Weights.BYTES)

WRITES: list[tuple[Callable[[State], None], Table, object, object, object]] = [
    (lambda state: state.put_consumer(CONSUMER), Table.CONSUMERS, G0, None, CONSUMER),
    (lambda state: state.put_session(G0, SESSION), Table.SESSIONS, G0, None, SESSION),
    (lambda state: state.put_heard(G0, RUN0, 5.0), Table.HEARD, (G0, RUN0), None, 5.0),
    (lambda state: state.put_superseded(G0, "uid", 5.0), Table.SUPERSEDED, (G0, "uid"), None, 5.0),
    (lambda state: state.put_lagging(G0, 5.0), Table.LAGGING, G0, None, 5.0),
    (lambda state: state.put_position(shard("0"), 40), Table.POSITIONS, shard("0"), None, 40),
    (lambda state: state.put_in_flight(shard("0"), InFlight(40)), Table.IN_FLIGHT, shard("0"), None, InFlight(40)),
    (lambda state: state.put_spec(spec(3)), Table.GROUP, "spec", spec(2), spec(3)),
    (lambda state: state.put_clocks(due="Joined"), Table.GROUP, "clocks", CLOCKS, replace(CLOCKS, due="Joined")),
    (lambda state: state.put_infos(INFOS), Table.GROUP, "infos", {}, INFOS),
    (lambda state: state.put_rates(RATES), Table.GROUP, "rates", None, RATES),
]


@pytest.mark.parametrize(("write", "table", "key", "before", "after"), WRITES)
def test_each_write_changes_one_row_and_is_journaled_and_undone(
    write: Callable[[State], None], table: Table, key: object, before: object, after: object
) -> None:
    state = filled()
    unchanged = rows(state)
    write(state)
    assert state.journal == [Put(table, key, before, after)]
    assert rows(state) == {**unchanged, table.value: {**unchanged[table.value], key: after}}
    state.undo(tuple(state.journal))
    assert rows(state) == unchanged


def test_each_write_names_the_row_that_was_there() -> None:
    state = filled()
    for write, *_ in WRITES:
        write(state)
    state.begin()
    session, consumer = Session(6.0), ConsumerRecord(G0, RUN2)
    state.put_consumer(consumer)
    state.put_session(G0, session)
    state.put_heard(G0, RUN0, None)
    state.put_superseded(G0, "uid", None)
    state.put_lagging(G0, None)
    state.put_position(shard("0"), 50)
    state.put_in_flight(shard("0"), InFlight(50))
    state.put_in_flight(shard("0"), None)
    state.put_infos({})
    state.put_rates(None)
    assert state.journal == [
        Put(Table.CONSUMERS, G0, CONSUMER, consumer),
        Put(Table.SESSIONS, G0, SESSION, session),
        Put(Table.HEARD, (G0, RUN0), 5.0, None),
        Put(Table.SUPERSEDED, (G0, "uid"), 5.0, None),
        Put(Table.LAGGING, G0, 5.0, None),
        Put(Table.POSITIONS, shard("0"), 40, 50),
        Put(Table.IN_FLIGHT, shard("0"), InFlight(40), InFlight(50)),
        Put(Table.IN_FLIGHT, shard("0"), InFlight(50), None),
        Put(Table.GROUP, "infos", INFOS, {}),
        Put(Table.GROUP, "rates", RATES, None),
    ]
    assert (state.heard, state.superseded, state.lagging, state.in_flight) == ({}, {}, {}, {})


def test_what_is_written_as_it_was_is_no_change() -> None:
    state = filled()
    for write, *_ in WRITES:
        write(state)
    state.begin()
    state.put_shard(held("0"))
    state.put_consumer(CONSUMER)
    state.put_lagging(G0, 5.0)
    state.put_position(shard("0"), 40)
    state.put_in_flight(shard("0"), InFlight(40))
    state.put_spec(spec(3))
    state.put_clocks(due="Joined")
    state.put_record(revision=8)
    assert (state.journal, state.record.revision) == ([], 8)


def test_what_was_never_known_can_be_forgotten() -> None:
    state = filled()
    state.put_heard(G0, RUN0, None)
    state.put_superseded(G0, "uid", None)
    state.put_session(G0, None)
    assert (state.heard, state.superseded, state.sessions) == ({}, {}, {})


def test_what_all_must_be_told_counts_as_one_change_of_the_revision() -> None:
    state = filled()
    state.touch_all()
    state.put_shard(held("3"))
    assert (state.touched_all, state.record.revision, state.touched) == (9, 9, {G0: 9})


def test_a_change_of_who_holds_what_or_of_who_is_there_may_unsettle_the_group_and_nothing_else() -> None:
    for row, unsettles in ((free("0"), True), (held("3"), True), (free("3", owner_epoch=1), False), (free("5"), False)):
        state = filled()
        state.unsettled = False
        state.put_shard(row)
        assert state.unsettled is unsettles, row
    state = filled()
    state.unsettled = False
    state.put_session(G0, SESSION)
    assert state.unsettled is False
    state.put_consumer(CONSUMER)
    assert state.unsettled is True


def test_a_copy_has_the_same_rows_and_is_independent() -> None:
    state = filled()
    for write, *_ in WRITES:
        write(state)
    state.assignors = {"Sticky": ASSIGNORS["Sticky"]}
    state.restored_at = 5.0
    order, interned = state.order, state.interned
    twin, before = copied(state), (rows(state), indexes(state))
    assert (rows(twin), indexes(twin)) == before
    assert (twin.assignors, twin.restored_at, twin.journal) == (state.assignors, 5.0, [])
    assert twin.order is order, "what takes long to make is shared"
    assert twin.interned is interned, "what takes long to make is shared"
    for row in LIFE:
        twin.put_shard(row)
    twin.put_shard(free("0"))
    for write, *_ in reversed(WRITES):
        write(twin)
    twin.undo(tuple(twin.journal))
    assert (rows(twin), indexes(twin)) == before
    assert (rows(state), indexes(state)) == before
    for row in LIFE:
        state.put_shard(row)
    assert indexes(state) == indexed(state)
    assert (rows(twin), indexes(twin)) == before


def test_the_ownership_is_what_is_stored_and_does_not_change_any_more() -> None:
    state = filled()
    state.put_consumer(CONSUMER)
    ownership = state.ownership()
    stored = Ownership(state.record, dict(state.shards), {G0: CONSUMER})
    assert ownership == stored
    state.put_shard(held("3"))
    state.put_consumer(ConsumerRecord(G1, RUN1))
    assert ownership == stored
