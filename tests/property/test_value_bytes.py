"""The compiled readers of JSON and Avro: what the slow ones say, and nothing that they look at lies outside of a value."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.harness.bounds import run_checked
from tests.harness.long import LONG
from tests.property import value_damage

SEEDS = 50_000 if LONG else 150
CHECKED_SEEDS = 20_000 if LONG else 150
TIMEOUT = 3600 if LONG else 600

WAYS = {f"{kind} {way}" for kind in ("JSON", "Avro") for way in ("fast", "slow", "bad")}


@pytest.mark.timeout(TIMEOUT)
def test_the_compiled_readers_and_the_slow_ones_agree() -> None:
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        seen += value_damage.one(seed)

    assert set(seen) == WAYS


@pytest.mark.timeout(TIMEOUT)
def test_damage_leads_to_no_access_outside_of_a_value_or_an_array() -> None:
    """In use the readers check no bounds; here they do, in a process of their own."""
    done = run_checked("tests.property.value_damage", 0, CHECKED_SEEDS)

    assert (done.returncode, done.stderr[-2000:]) == (0, "")
    assert {line.partition(" ")[2] for line in done.stdout.splitlines()} == WAYS


@pytest.mark.timeout(TIMEOUT)
def test_an_access_outside_is_stopped_where_bounds_are_checked() -> None:
    done = run_checked("tests.property.outside")

    assert (done.returncode, done.stdout, done.stderr[-2000:]) == (0, "", "")
