"""Shards of which nobody can say for a while how far they reach: who has not seen them before cannot look at them.

Begun by the world in some of its schedules, with a generator of its own: what the others draw is not changed by it. Nobody is
kept from reading or writing here: that looks say less than there is must do no harm.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import TYPE_CHECKING

from shardherd.core.model.nouns import ShardId, ShardInfo
from shardherd.ports import Discovered

if TYPE_CHECKING:
    from tests.simulation.world import World

SHARE = 0.15
"""The part of all schedules in which it happens."""


def begin(world: World) -> None:
    """Let some shards lose their leaders now and then."""
    rng, time_scale = random.Random(f"{world.plan.seed} leaders"), world.plan.time_scale
    if rng.random() >= SHARE or world.plan.kinesis:
        return
    lost = world.kafka.leaderless

    def lose() -> None:
        there = sorted(world.source.names())
        if world.healed or len(there) < 2:
            return
        chosen = rng.sample(there, rng.randint(1, len(there) // 2))
        lost.update(chosen)
        world.say(f"{chosen} have no leader")
        world.history.counts["shards that lost their leader"] += len(chosen)
        world.timeline.after(time_scale * rng.uniform(20.0, 150.0), lost.difference_update, chosen)

    for _ in range(rng.randint(2, 4)):
        world.timeline.at(time_scale * rng.uniform(20.0, 450.0), None, lose)


class PartialView:
    """What one look after another shows to one who looks."""

    def __init__(self) -> None:
        self._last: dict[ShardId, ShardInfo] = {}

    def look(self, infos: Iterable[ShardInfo], leaderless: set[ShardId]) -> Discovered:
        """Of what has no leader, what was seen of it last."""
        shown: list[ShardInfo] = []
        unlooked: list[ShardId] = []
        for info in infos:
            last = self._last.get(info.shard)
            if info.shard not in leaderless:
                shown.append(info)
            elif last is not None and last.source_id == info.source_id:
                shown.append(last)
            else:
                unlooked.append(info.shard)
        self._last = {info.shard: info for info in shown}
        return Discovered(tuple(shown), tuple(unlooked))
