"""The plan of a long run: the same for the same seed, over by its end, and never about a victim that is not there."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from dev.soak.plan import (
    CONSUMERS,
    ENDS_CONSUMER,
    ENDS_LEADER,
    GAP_S,
    GROUPS,
    MOST_SHARDS,
    SHARDS,
    SPARED,
    STATELESS,
    Fault,
    Kind,
    UnknownKindError,
    draw,
    kinds_of,
)

HOUR = 3600.0
SEEDS = range(40)
ALL = tuple(Kind)


def test_a_seed_gives_the_same_plan_again_and_another_seed_another_one() -> None:
    assert draw(7, HOUR, ALL) == draw(7, HOUR, ALL)
    assert draw(7, HOUR, ALL) != draw(8, HOUR, ALL)


def test_the_plan_of_a_seed_is_what_it_was() -> None:
    """Whoever quotes a seed means these faults."""
    assert draw(7, 120, ALL) == (
        Fault(at=16.5, kind=Kind.BLINK, group="stateless", consumer=0, seconds=4.5),
        Fault(at=42.0, kind=Kind.PAUSE, group="plain", seconds=5.6),
        Fault(at=60.1, kind=Kind.ASSIGNOR, group="plain", value="Weighted"),
        Fault(at=89.0, kind=Kind.BROKER, seconds=5.8),
        Fault(at=112.8, kind=Kind.ROLLOUT, group="ordered", value="1"),
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_every_fault_is_over_by_the_end_and_the_next_begins_a_while_later(seed: int) -> None:
    faults = draw(seed, HOUR, ALL)
    ends = [0.0, *(fault.at + fault.seconds for fault in faults)]
    gaps = [fault.at - end for fault, end in zip(faults, ends, strict=False)]
    assert all(GAP_S[0] - 0.2 <= gap <= GAP_S[1] + 0.2 for gap in gaps)
    assert ends[-1] <= HOUR


@pytest.mark.parametrize("seed", SEEDS)
def test_every_kind_comes_once_before_any_comes_again(seed: int) -> None:
    kinds = [fault.kind for fault in draw(seed, HOUR, ALL)]
    assert set(kinds[: len(ALL)]) == set(ALL)
    assert min(Counter(kinds).values()) >= 2


@pytest.mark.parametrize("seed", SEEDS)
def test_a_victim_is_declared_at_that_moment_and_one_consumer_is_never_ended(seed: int) -> None:
    consumers = dict.fromkeys(GROUPS, CONSUMERS)
    for fault in draw(seed, HOUR, ALL):
        if fault.kind == Kind.SCALE:
            consumers[fault.group] = int(fault.value)
        if fault.kind in ENDS_CONSUMER or fault.kind == Kind.BLINK:
            assert fault.consumer < consumers[fault.group]
        if fault.kind in ENDS_CONSUMER:
            assert (fault.group, fault.consumer) != SPARED
        if fault.kind == Kind.ROLLOUT:
            assert fault.group != STATELESS


@pytest.mark.parametrize("seed", SEEDS)
def test_topics_only_grow_and_not_beyond_what_two_cores_bear(seed: int) -> None:
    sizes = dict.fromkeys(GROUPS, SHARDS)
    for fault in draw(seed, 4 * HOUR, ALL):
        if fault.kind == Kind.GROW:
            assert sizes[fault.group] < int(fault.value) <= MOST_SHARDS
            sizes[fault.group] = int(fault.value)
    assert sizes == dict.fromkeys(GROUPS, MOST_SHARDS)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_declared_is_never_what_was_declared_before(seed: int) -> None:
    assignors = dict.fromkeys(GROUPS, "Sticky")
    for fault in draw(seed, HOUR, ALL):
        if fault.kind == Kind.ASSIGNOR:
            assert fault.value != assignors[fault.group]
            assignors[fault.group] = fault.value


@pytest.mark.parametrize("seed", SEEDS)
def test_no_leader_is_ended_in_the_second_half(seed: int) -> None:
    ended = [fault.at for fault in draw(seed, HOUR, ALL) if fault.kind in ENDS_LEADER]
    assert ended
    assert max(ended) <= HOUR / 2


def test_a_plan_whose_kinds_are_used_up_ends() -> None:
    grown = draw(1, 100 * HOUR, (Kind.GROW,))
    assert sorted(fault.value for fault in grown if int(fault.value) == MOST_SHARDS) == [str(MOST_SHARDS)] * len(GROUPS)
    assert {fault.kind for fault in draw(1, HOUR, tuple(ENDS_LEADER))} == ENDS_LEADER
    assert draw(1, HOUR, ()) == ()


def test_faults_are_named_by_random_by_none_or_one_by_one() -> None:
    assert kinds_of("random") == ALL
    assert kinds_of("none") == ()
    assert kinds_of("grow, kill") == (Kind.KILL, Kind.GROW)


def test_a_fault_that_there_is_not_is_refused_by_name() -> None:
    with pytest.raises(
        UnknownKindError, match=re.escape("FAULTS names 'earthquake'; give random, none, or some of kill, delete")
    ):
        kinds_of("kill,earthquake")


@pytest.mark.parametrize(
    ("fault", "shown"),
    [
        (Fault(7.4, Kind.KILL, "ordered", 1), "     7s  kill ordered-1"),
        (Fault(61, Kind.FREEZE, "plain", 0, 22.4), "    61s  freeze plain-0 for 22 s"),
        (Fault(3600, Kind.GROW, "plain", value="6"), "  3600s  grow plain 6"),
        (Fault(1, Kind.LEADER_BLINK, seconds=3), "     1s  leader-blink for 3 s"),
    ],
)
def test_a_fault_is_shown_with_its_victim(fault: Fault, shown: str) -> None:
    assert str(fault) == shown
