"""Who may be given shards, who only keeps what it has, and whom a transfer still goes to: every case in one table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest

from shardherd.core.group import eligible
from shardherd.core.group.records import Clocks, ConsumerRecord, GroupRecord, InFlight, Session
from shardherd.core.group.state import State
from shardherd.core.model.nouns import ConsumerId
from tests.builders import IDENTITY, incarnation, info, shard, spec
from tests.unit.core.tables import FREE, HELD, MOVING, A, B, having


class Case(NamedTuple):
    session: Mapping[str, Any] | None
    group: Mapping[str, Any]
    receives: bool
    may_be_next: bool
    gives_up: bool
    is_draining: bool


WARM: Mapping[str, Any] = {"ready": True}
CASES = {
    "warm": Case(WARM, {}, True, True, False, False),
    "cold": Case({}, {}, False, False, False, False),
    "not heard yet": Case({"heard": False}, {}, False, True, False, False),
    "warm, it seems, but not heard": Case({"heard": False, "ready": True}, {}, False, True, False, False),
    "gone": Case(None, {}, False, False, False, False),
    "draining": Case({"ready": True, "draining": True}, {}, False, False, True, True),
    "draining, and waited for": Case({"ready": True, "draining": True}, {"rejoin_grace": 0.5}, False, False, False, True),
    "to be removed": Case(WARM, {"leaving": [A]}, False, False, True, True),
    "to be removed, whatever the grace": Case(WARM, {"leaving": [A], "rejoin_grace": 20.0}, False, False, True, True),
    "cordoned": Case(WARM, {"cordoned": [A]}, False, False, True, False),
    "cordoned, whatever the grace": Case(WARM, {"cordoned": [A], "rejoin_grace": 20.0}, False, False, True, False),
    "gone, and to be removed": Case(None, {"leaving": [A]}, False, False, True, True),
}


@pytest.mark.parametrize("case", list(CASES.values()), ids=list(CASES))
def test_who_may_be_given_shards_and_who_gives_them_up(case: Case) -> None:
    state = State(spec(3, **case.group), GroupRecord(IDENTITY.uid), Clocks())
    if case.session is not None:
        state.put_session(A, Session(1.0, **case.session))
    assert case[2:] == (
        eligible.receives(state, A),
        eligible.may_be_next(state, A),
        eligible.gives_up(state, A),
        eligible.is_draining(state, A),
    )
    assert eligible.receivers(state) == ([A] if case.receives else [])


def many(**group: Any) -> State:
    """g-10, g-9 and so on to g-7: warm, cold with a shard, cold without one, draining with a shard."""
    names = [ConsumerId(f"g-{number}") for number in (10, 9, 8, 7, 6)]
    state = State(spec(5, **group), GroupRecord(IDENTITY.uid), Clocks())
    for name, session in zip(
        names,
        [Session(1.0, ready=True), Session(1.0), Session(1.0), Session(1.0, draining=True), Session(1.0, ready=True)],
        strict=True,
    ):
        state.put_consumer(ConsumerRecord(name, incarnation(name)))
        state.put_session(name, session)
    for number, name in ((0, names[1]), (1, names[3])):
        state.put_shard(HELD._replace(shard=shard(str(number)), holder=name, incarnation=incarnation(name)))
    return state


def test_receivers_and_those_that_the_balance_counts_are_in_natural_order() -> None:
    assert eligible.receivers(many()) == ["g-6", "g-10"]
    assert eligible.balanced(many()) == ["g-6", "g-9", "g-10"]
    assert eligible.balanced(many(rejoin_grace=20.0)) == ["g-6", "g-7", "g-9", "g-10"]
    assert eligible.balanced(many(cordoned=["g-9"])) == ["g-6", "g-10"]


def test_all_are_heard_only_when_the_last_one_is() -> None:
    state = many()
    assert eligible.all_heard(state)
    state.put_session(ConsumerId("g-8"), Session(1.0, heard=False))
    assert not eligible.all_heard(state)


def test_only_a_consumer_of_the_group_is_present() -> None:
    state = having()
    assert eligible.present(state, A)
    state.put_consumer(ConsumerRecord(B, incarnation(B), present=False))
    assert (eligible.present(state, B), eligible.present(state, ConsumerId("g-9"))) == (False, False)


def releasing(**clocks: Any) -> State:
    state = having(MOVING)
    state.put_session(B, Session(1.0, ready=True))
    state.put_clocks(**clocks)
    return state


def test_a_released_shard_goes_on_unless_one_thing_keeps_it() -> None:
    assert eligible.releasable(releasing(), MOVING)
    assert not eligible.releasable(releasing(), FREE)

    blocked = releasing(recreated=(shard("9"),))
    committing = releasing()
    committing.put_in_flight(shard("0"), InFlight(50))
    unknown = having(MOVING._replace(started=False), positions={})
    unknown.put_session(B, Session(1.0, ready=True))
    lost = releasing()
    lost.put_infos({shard("0"): info("0", begin=41)})
    cold = releasing()
    cold.put_session(B, Session(1.0))
    kept = [blocked, committing, unknown, lost, cold]
    assert [eligible.releasable(state, state.shards[shard("0")]) for state in kept] == [False] * 5
