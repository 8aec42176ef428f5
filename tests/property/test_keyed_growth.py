"""Keys stay in order while a topic grows by multiples, whatever fails meanwhile; and bugs that would break that are found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

from shardherd.core.group import cutovers, grants, growth, ownership, positions
from shardherd.core.model import growths
from shardherd.core.model.nouns import ShardState
from tests.harness.long import LONG
from tests.property.keyed_growth import DisorderError, Schedule
from tests.simulation.seeds import of_commit

SCHEDULES = 2000 if LONG else 25
SEARCHED = 100
"""Each planted bug shows within a tenth of these."""


def test_each_key_is_read_in_order_and_to_its_end() -> None:
    hit: Counter[str] = Counter()
    first, _ = of_commit()
    for seed in range(first, first + SCHEDULES):
        try:
            hit += Schedule(seed).run().hit
        except DisorderError as error:
            raise AssertionError(f"Schedule({seed}): {error}") from error
    assert {"growths", "leaders changed", "ownerships lost", "consumers died", "cutovers taken"} <= hit.keys()


Patch = Callable[[pytest.MonkeyPatch], None]


def _cutover_too_early(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cutovers, "_settled_at", lambda *_: float("-inf"))


def _settle_time_lost_with_the_leader(patch: pytest.MonkeyPatch) -> None:
    def settled_at(state: Any, each: Any) -> float:
        since = state.clocks.grown_at.get((each.topic, each.after), float("-inf"))
        return float(since + state.spec.settings.growth_settle)

    patch.setattr(cutovers, "_settled_at", settled_at)


def _cutover_lost_with_the_leader(patch: pytest.MonkeyPatch) -> None:
    real = ownership._decode_keeping

    def decode(data: Any) -> Any:
        found = real(data)
        return structs.replace(found, ends=tuple((shard, 0) for shard, _ in found.ends))

    patch.setattr(ownership, "_decode_keeping", decode)


def _grandparent_forgotten(patch: pytest.MonkeyPatch) -> None:
    real = growths.parents
    patch.setattr(growths, "parents", lambda known, shard: real(known, shard)[:1])


def _child_granted_before_the_cutover_is_durable(patch: pytest.MonkeyPatch) -> None:
    """Who waits is set free by the look-up itself, whatever was found and stored."""
    real = cutovers.taken

    def taken(state: Any, request: Any, now: float) -> None:
        for shard in tuple(state.by_state[ShardState.WAIT]):
            grants.wake(state, state.shards[shard], now)
        real(state, request, now)

    patch.setattr(cutovers, "taken", taken)


def _shards_that_waited_are_free_after_a_rebuild(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(positions, "_grown", lambda *_: 0)


def _growth_not_seen_while_new_partitions_cannot_be_read(patch: pytest.MonkeyPatch) -> None:
    real = growth._grown

    def grown(state: Any, fresh: Any, others: Any, *more: Any, **first: Any) -> Any:
        return real(state, fresh, others if fresh else frozenset(), *more, **first)

    patch.setattr(growth, "_grown", grown)


def _numbers_between_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(growths, "steps", lambda before, _: [before])


BUGS = (
    _cutover_too_early,
    _settle_time_lost_with_the_leader,
    _cutover_lost_with_the_leader,
    _grandparent_forgotten,
    _child_granted_before_the_cutover_is_durable,
    _shards_that_waited_are_free_after_a_rebuild,
    _growth_not_seen_while_new_partitions_cannot_be_read,
    _numbers_between_forgotten,
)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__.strip("_").replace("_", " "))
def test_a_planted_bug_is_found(bug: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    bug(monkeypatch)
    assert any(_shows(seed) for seed in range(SEARCHED))


def _shows(seed: int) -> bool:
    try:
        Schedule(seed).run()
    except DisorderError:
        return True
    return False
