"""What an assignor is asked, whole, and when a group looks at rates, sizes and zones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shardherd.core import assignors
from shardherd.core.assignors import NOBODY, Problem
from shardherd.core.group import balance
from shardherd.core.group.rates import Rates
from shardherd.core.group.records import ConsumerRecord, InFlight, Session, ShardRecord
from shardherd.core.group.state import GroupEvent, State
from shardherd.core.model.nouns import ConsumerId, ShardState, Weights, Zones
from tests.builders import incarnation, info, shard, shards, spec, with_settings
from tests.unit.core.tables import FREE, HELD, MOVING, OVER, WAITING, A, B, C, events, having


def shown(problem: Problem) -> dict[str, Any]:
    """A problem as plain values; what does not matter is left out."""
    found: dict[str, Any] = {}
    for name in Problem.__slots__:
        value = getattr(problem, name)
        if value is not None:
            found[name] = value.tolist()
    return found


def held(consumer: ConsumerId, name: str) -> ShardRecord:
    return HELD._replace(shard=shard(name), holder=consumer, incarnation=incarnation(consumer, 2), last_holder=consumer)


def moving(consumer: ConsumerId, to: ConsumerId, name: str) -> ShardRecord:
    return held(consumer, name)._replace(state=ShardState.TRANSFER, next_consumer=to)


def state_of(*rows: ShardRecord, places: Mapping[str, str] | None = None, **settings: Any) -> State:
    """A and B are warm, C is cold; all shards are there, and their positions are 40."""
    places = places or {}
    infos = tuple(info(row.shard)._replace(zone=places.get(row.shard, "")) for row in rows)
    state = having(*rows, infos=infos, positions={row.shard: 40 for row in rows})
    for name in (A, B, C):
        state.put_session(name, Session(1.0, seq=1, ready=name != C))
        state.put_consumer(replace(state.consumers[name], zone=places.get(name, "")))
    state.put_spec(with_settings(spec(3), **settings))
    state.begin()
    return state


EVERYTHING = [
    FREE._replace(shard=shard("10")),
    FREE._replace(shard=shard("0")),
    held(A, "1"),
    held(C, "2"),
    moving(A, B, "3"),
    moving(A, C, "4"),
    WAITING._replace(shard=shard("5")),
    OVER._replace(shard=shard("6")),
    FREE._replace(shard=shard("7")),
    held(ConsumerId("g-9"), "8"),
    FREE._replace(shard=shard("u/0")),
]


def test_an_assignor_is_asked_about_all_that_can_be_placed_now_and_about_nothing_else() -> None:
    """7 is being committed, 8 is held by one that is gone; 3 is on its way to B, and what was to go to C stays with A."""
    state = state_of(*EVERYTHING[:9])
    state.put_in_flight(shard("7"), InFlight(50))
    state.put_consumer(ConsumerRecord(ConsumerId("g-9"), incarnation("g-9"), present=False))
    state.put_shard(EVERYTHING[9])
    state.put_shard(EVERYTHING[10])
    state.put_infos(dict(state.infos) | {shard(name): info(name) for name in ("8", "u/0")})
    for name in ("8", "u/0"):
        state.put_position(shard(name), 40)
    assert shown(balance.problem(state, [A, B, C])) == {
        "shards": [*shards("0", "1", "2", "3", "4", "10"), "u/0"],
        "consumers": ["g-0", "g-1", "g-2"],
        "topics": [0, 0, 0, 0, 0, 0, 1],
        "current": [NOBODY, 0, 2, 1, 0, NOBODY, NOBODY],
        "pending": [False, False, False, True, False, False, False],
        "receives": [True, True, False],
    }
    assert shown(balance.problem(state, [B])) == {
        "shards": [*shards("0", "1", "2", "3", "4", "10"), "u/0"],
        "consumers": ["g-1"],
        "topics": [0, 0, 0, 0, 0, 0, 1],
        "current": [NOBODY, NOBODY, NOBODY, 0, NOBODY, NOBODY, NOBODY],
        "pending": [False, False, False, True, False, False, False],
        "receives": [True],
    }
    assert shown(balance.problem(state, [A]))["pending"] == [False] * 7, "B is no consumer of this question"


def test_what_has_no_position_or_a_lost_one_or_is_not_at_the_source_cannot_be_placed() -> None:
    rows = [FREE._replace(shard=shard(str(number))) for number in range(4)] + [held(A, str(number)) for number in range(4, 8)]
    state = state_of(*rows)
    del state.positions[shard("0")], state.positions[shard("4")]
    state.put_position(shard("1"), 0)
    state.put_position(shard("5"), 0)
    infos = {shard(str(number)): info(str(number), begin=1) for number in range(8) if number not in (2, 6)}
    state.put_infos(infos)
    problem = balance.problem(state, [A, B])
    assert (problem.shards.tolist(), problem.current.tolist()) == (list(shards("3", "7")), [NOBODY, 0])


def test_capacities_are_asked_about_only_where_they_differ() -> None:
    state = state_of(held(A, "0"))
    state.put_consumer(replace(state.consumers[B], capacity=3))
    assert shown(balance.problem(state, [A, B]))["capacities"] == [1.0, 3.0]
    assert "capacities" not in shown(balance.problem(state, [B]))


def test_weights_are_asked_about_where_the_assignor_looks_at_them_and_they_were_seen() -> None:
    rates = Rates(1.0, {}, known=True, per_second={shard("1"): 7.0})
    state = state_of(FREE, FREE._replace(shard=shard("1")), assignor="Weighted")
    assert "weights" not in shown(balance.problem(state, [A]))
    state.put_rates(rates)
    weights = balance.problem(state, [A]).weights
    assert weights is not None
    assert (str(weights.dtype), bool(np.isnan(weights[0])), weights[1]) == ("float64", True, 7.0)
    sticky = state_of(FREE)
    sticky.put_rates(rates)
    assert "weights" not in shown(balance.problem(sticky, [A]))


def test_the_arrays_have_the_types_that_plug_ins_are_promised() -> None:
    state = state_of(held(A, "0"), places={"t/0": "a", "g-0": "a"})
    state.put_consumer(replace(state.consumers[B], capacity=3))
    problem = balance.problem(state, [A, B])
    types = {name: str(value.dtype) for name in Problem.__slots__ if (value := getattr(problem, name)) is not None}
    assert types == {
        "shards": "object",
        "consumers": "object",
        "topics": "int64",
        "current": "int64",
        "pending": "bool",
        "receives": "bool",
        "capacities": "float64",
        "shard_zones": "int64",
        "consumer_zones": "int64",
    }


def test_an_empty_question_has_the_same_types_and_so_have_weights_that_are_whole_numbers() -> None:
    empty = balance.problem(state_of(), [])
    assert [str(each.dtype) for each in (empty.topics, empty.current, empty.pending, empty.receives)] == [
        "int64",
        "int64",
        "bool",
        "bool",
    ]
    state = state_of(FREE, assignor="Weighted")
    state.put_rates(Rates(1.0, {}, known=True, per_second={shard("0"): 7}))
    weights = balance.problem(state, [A]).weights
    assert weights is not None
    assert str(weights.dtype) == "float64"


ZONES = {"t/0": "b", "t/1": "", "t/2": "c", "g-0": "b", "g-1": "", "g-2": "a"}


def test_zones_are_numbered_in_their_order_and_an_unknown_one_is_nobodys() -> None:
    rows = [FREE._replace(shard=shard(str(number))) for number in range(3)]
    found = shown(balance.problem(state_of(*rows, places=ZONES), [A, B, C]))
    assert (found["shard_zones"], found["consumer_zones"]) == ([1, NOBODY, 2], [1, NOBODY, 0])


@pytest.mark.parametrize(
    ("places", "settings"),
    [
        (ZONES, {"zones": Zones.IGNORE}),
        ({name: zone for name, zone in ZONES.items() if name.startswith("g")}, {}),
        ({name: zone for name, zone in ZONES.items() if name.startswith("t")}, {}),
    ],
)
def test_zones_are_not_asked_about_where_they_cannot_matter(places: Mapping[str, str], settings: Mapping[str, Any]) -> None:
    rows = [FREE._replace(shard=shard(str(number))) for number in range(3)]
    found = shown(balance.problem(state_of(*rows, places=places, **settings), [A, B, C]))
    assert ("shard_zones" in found, "consumer_zones" in found) == (False, False)


# What is answered.


def uneven(**settings: Any) -> State:
    """A holds four shards, B none; shard 4 is free."""
    return state_of(*(held(A, str(number)) for number in range(4)), FREE._replace(shard=shard("4")), **settings)


def answer(state: State) -> list[int]:
    found: list[int] = balance.target(state, balance.problem(state, [A, B]), 0.0).tolist()
    return found


KEPT = [0, 0, 0, 0, 1]


def test_what_is_held_stays_while_a_rebalance_is_paused_or_weights_are_waited_for() -> None:
    assert sorted(answer(uneven())) == [0, 0, 0, 1, 1]
    paused = uneven()
    paused.put_spec(replace(paused.spec, rebalance_paused=True))
    assert answer(paused) == KEPT
    assert answer(uneven(assignor="Weighted")) == KEPT
    unknown = uneven(assignor="Weighted")
    unknown.put_rates(Rates(1.0, {}))
    assert answer(unknown) == KEPT
    known = uneven(assignor="Weighted")
    known.put_rates(Rates(1.0, {}, known=True))
    assert sorted(answer(known)) == [0, 0, 0, 1, 1]
    nothing_held = state_of(*(FREE._replace(shard=shard(str(number))) for number in range(4)), assignor="Weighted")
    assert answer(nothing_held) == [0, 1, 0, 1]


def test_a_plug_in_that_fails_is_told_of_once_and_leaves_what_is_held() -> None:
    def broken(problem: Problem) -> assignors.Assignment:
        raise ZeroDivisionError("no")

    state = uneven(assignor="Mine")
    state.assignors = {"Mine": broken}
    state.begin()
    assert answer(state) == KEPT
    (event,) = events(state)
    assert event == GroupEvent("AssignorFailed", state.clocks.assignor_error, warning=True)
    assert "ZeroDivisionError" in event.message
    assert answer(state) == KEPT
    assert len(events(state)) == 1
    state.assignors = {"Mine": assignors.ASSIGNORS["RoundRobin"]}
    assert answer(state) == [0, 1, 0, 1, 0]
    assert (state.clocks.assignor_error, len(events(state))) == ("", 1)


# Rates and sizes.


def looked(state: State, now: float) -> tuple[str, list[GroupEvent]]:
    """Why a rebalance is wanted after this look, and the events."""
    state.put_clocks(due="")
    state.begin()
    balance.note_rates(state, now)
    return state.clocks.due, events(state)


def grow(state: State, **ends: int) -> None:
    """The ends of shards: `s0` stands for shard 0."""
    state.put_infos({shard(name[1:]): info(name[1:], end=end) for name, end in ends.items()})


def test_rates_are_seen_from_the_second_look_on_and_that_is_a_reason_to_rebalance() -> None:
    state = state_of(held(A, "0"), held(B, "1"), assignor="Weighted")
    assert looked(state, 0.0) == ("", [])
    assert state.rates == Rates(0.0, {shard("0"): 100, shard("1"): 100})
    grow(state, s0=150, s1=150)
    assert looked(state, 4.9) == ("", [])
    assert state.rates == Rates(0.0, {shard("0"): 100, shard("1"): 100})
    assert looked(state, 5.0) == ("WeightsChanged", [])
    rates = {shard("0"): 10.0, shard("1"): 10.0}
    assert state.rates == Rates(5.0, {shard("0"): 150, shard("1"): 150}, True, rates)
    grow(state, s0=450, s1=450)
    assert looked(state, 35.0) == ("", []), "they are even"


def test_a_group_whose_assignor_does_not_weigh_remembers_no_rates() -> None:
    state = state_of(held(A, "0"))
    assert looked(state, 0.0) == ("", [])
    assert state.journal == []
    state.put_rates(Rates(1.0, {}))
    assert looked(state, 1.0) == ("", [])
    assert state.rates is None


@pytest.mark.parametrize(
    ("first", "second", "capacity", "drifted"),
    [
        (100.0, 100.0, 1, False),
        (110.0, 90.0, 1, False),
        (110.1, 89.9, 1, True),
        (89.9, 110.1, 1, True),
        (300.0, 100.0, 3, False),
        (100.0, 300.0, 3, True),
        (345.0, 95.0, 3, False),
        (0.0, 0.0, 1, False),
    ],
)
def test_loads_have_drifted_when_they_differ_by_a_fifth_of_their_mean(
    first: float, second: float, capacity: int, drifted: bool
) -> None:
    state = state_of(held(A, "0"), held(B, "1"), held(B, "2"), assignor="Weighted")
    state.put_consumer(replace(state.consumers[A], capacity=capacity))
    seen = Rates(0.0, {}, known=True, per_second={shard("0"): first, shard("1"): second})
    assert balance._drifted(state, seen) is drifted


def test_without_anybody_who_receives_nothing_drifts() -> None:
    state = state_of(held(A, "0"), assignor="Weighted")
    for name in (A, B):
        state.put_session(name, Session(1.0))
    assert balance._drifted(state, Rates(0.0, {}, per_second={shard("0"): 7.0})) is False


def test_one_that_holds_nothing_has_drifted_from_one_that_does() -> None:
    state = state_of(held(A, "0"), assignor="Weighted")
    assert balance._drifted(state, Rates(0.0, {}, per_second={shard("0"): 7.0})) is True


def test_another_unit_keeps_the_rates_and_is_a_reason_to_rebalance() -> None:
    state = state_of(held(A, "0"), assignor="Weighted", weights=Weights.BYTES)
    before = Rates(0.0, {shard("0"): 100}, True, {shard("0"): 10.0})
    state.put_rates(before)
    state.put_infos({shard("0"): info("0")._replace(size=500)})
    assert looked(state, 1.0) == ("WeightsChanged", [])
    assert state.rates == replace(before, unit=Weights.BYTES, record_sizes={shard("0"): 5.0})


UNKNOWN = GroupEvent(
    "ShardSizesUnknown",
    "the source does not show how many bytes its shards have, so they weigh their records per second; Kafka needs the right "
    "Describe on the Cluster for it",
    warning=True,
)


def test_sizes_that_are_wanted_and_not_shown_are_told_of_once_until_they_are() -> None:
    state = state_of(held(A, "0"), assignor="Weighted", weights=Weights.BYTES)
    state.put_infos({shard("0"): info("0", begin=100)})
    assert looked(state, 0.0) == ("", []), "an empty shard has no size to show"
    grow(state, s0=101)
    assert looked(state, 1.0) == ("", [UNKNOWN])
    assert state.clocks.sizes_unknown
    assert looked(state, 2.0) == ("", [])
    seen = state.rates
    assert seen is not None
    state.put_rates(replace(seen, record_sizes={shard("0"): 5.0}))
    assert looked(state, 3.0) == ("", [])
    assert not state.clocks.sizes_unknown


def test_records_need_no_sizes() -> None:
    state = state_of(held(A, "0"), assignor="Weighted")
    assert looked(state, 0.0) == ("", [])
    assert not state.clocks.sizes_unknown


@pytest.mark.parametrize(
    ("assignor", "weights", "rates", "wanted"),
    [
        ("Weighted", Weights.BYTES, None, True),
        ("Weighted", Weights.BYTES, Rates(0.0, {}, unit=Weights.BYTES), False),
        ("Weighted", Weights.BYTES, Rates(-1.0, {}, unit=Weights.BYTES), True),
        ("Weighted", Weights.BYTES, Rates(0.0, {}), True),
        ("Weighted", Weights.RECORDS, None, False),
        ("Sticky", Weights.BYTES, None, False),
    ],
)
def test_sizes_are_wanted_where_they_weigh_and_whenever_rates_are_compared(
    assignor: str, weights: Weights, rates: Rates | None, wanted: bool
) -> None:
    state = state_of(held(A, "0"), assignor=assignor, weights=weights)
    state.put_rates(rates)
    assert balance.wants_sizes(state, 4.0) is wanted


def test_a_transfer_to_one_that_may_not_take_it_is_no_move_under_way() -> None:
    state = state_of(MOVING._replace(incarnation=incarnation(A, 2), next_consumer=B))
    assert balance.problem(state, [A, B]).pending.tolist() == [True]
    state.put_session(B, Session(1.0))
    problem = balance.problem(state, [A, B])
    assert (problem.pending.tolist(), problem.current.tolist()) == ([False], [0])
