"""Keys stay in order while a topic grows by multiples, whatever fails meanwhile; and bugs that would break that are found."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from shardherd.core.group import growth, positions
from shardherd.core.model import growths
from tests.harness.long import LONG
from tests.property.keyed_growth import DisorderError, Schedule
from tests.simulation import bugs_of_growth
from tests.simulation.bugs_of_growth import Patch
from tests.simulation.seeds import of_commit

SCHEDULES = 2000 if LONG else 25
FAILED = (45612531, 770000795)
"""Seeds of schedules that once read a key out of order."""

SEARCHED = 500
"""Each planted bug shows within a third of these."""


def test_each_key_is_read_in_order_and_to_its_end() -> None:
    hit: Counter[str] = Counter()
    first, _ = of_commit()
    for seed in (*FAILED, *range(first, first + SCHEDULES)):
        try:
            hit += Schedule(seed).run().hit
        except DisorderError as error:
            raise AssertionError(f"Schedule({seed}): {error}") from error
    assert {"growths", "leaders changed", "ownerships lost", "consumers died", "cutovers taken"} <= hit.keys()


def _shards_that_waited_are_free_after_a_rebuild() -> list[Patch]:
    return [(positions, "_grown", lambda *_: 0)]


def _growth_not_seen_while_new_partitions_cannot_be_read() -> list[Patch]:
    real = growth._grown

    def grown(state: Any, fresh: Any, others: Any, *more: Any, **first: Any) -> Any:
        return real(state, fresh, others if fresh else frozenset(), *more, **first)

    return [(growth, "_grown", grown)]


def _numbers_between_forgotten() -> list[Patch]:
    return [(growths, "steps", lambda before, _: [before])]


BUGS = {
    **bugs_of_growth.BUGS,
    "shards that waited are free after a rebuild": _shards_that_waited_are_free_after_a_rebuild,
    "growth not seen while new partitions cannot be read": _growth_not_seen_while_new_partitions_cannot_be_read,
    "numbers between forgotten": _numbers_between_forgotten,
}
"""Those of the simulation, and what only keyed records show."""


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for target, attribute, value in BUGS[bug]():
        monkeypatch.setattr(target, attribute, value)
    assert any(_shows(seed) for seed in range(SEARCHED))


def _shows(seed: int) -> bool:
    try:
        Schedule(seed).run()
    except DisorderError:
        return True
    return False
