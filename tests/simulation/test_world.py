"""Nothing is lost, nothing stale is accepted, everything is owned again: under every fault that we can think of."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.simulation.world import World

CHAOS = 60.0


def survive(seed: int, *, ordered: bool, grace: float = 0.0) -> World:
    world = World(seed, ordered=ordered, grace=grace)
    world.run(CHAOS)
    world.calm()
    world.run(60.0)
    world.finish()
    return world


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("ordered", [False, True], ids=["unordered", "ordered"])
def test_a_group_survives_every_fault(seed: int, ordered: bool) -> None:
    survive(seed, ordered=ordered)


@pytest.mark.parametrize("seed", range(3))
def test_a_group_that_waits_for_returning_consumers_survives_every_fault(seed: int) -> None:
    survive(seed, ordered=False, grace=9.0)


@given(seed=st.integers(min_value=100, max_value=10**9), ordered=st.booleans())
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_group_survives_any_seed(seed: int, ordered: bool) -> None:
    survive(seed, ordered=ordered)


def test_one_seed_is_one_run() -> None:
    one, two = survive(7, ordered=False), survive(7, ordered=False)
    assert one.stored == two.stored


def test_without_faults_nothing_is_read_twice() -> None:
    world = World(1, ordered=False)
    world.faults = False
    for shard in world.stored.ends:
        world.stored.ends[shard] = 500
    world.run(30.0)
    world.finish()
    assert world.stored.duplicates == 0
