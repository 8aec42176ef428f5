"""Consumers whose disks fill up and become empty again, and what a coordinator that heard of that may do.

`Disks` is what they report, drawn from a random stream of its own for each consumer. `Reported` is what has arrived of it at
each coordinator; the judge asks it. It goes by the percentages alone, and by none of the stages that the code makes of them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from shardherd.core.model.gauges import Gauge, GaugeKind, Marks, Watermarks
from shardherd.core.model.nouns import ConsumerId, Heartbeat, Incarnation

LOW, HIGH, FLOOD = 85, 90, 95
WATERMARKS = Watermarks(disk=Marks(LOW, HIGH, FLOOD))

LEVELS = (50, 50, 70, 84, 86, 88, 91, 92, 94, 96, 98)
"""How full a disk may be, in percent."""

RECOVERY = 30.0
"""Seconds below low after which a consumer is given shards again."""

Key = tuple[str, ConsumerId, Incarnation]
"""A coordinator, and a run of a consumer."""


class Disks:
    """How full the disk of each consumer is. `time_scale` as in the plan."""

    def __init__(self, seed: int, time_scale: float) -> None:
        self._seed, self._time_scale = seed, time_scale
        self._drawn: dict[ConsumerId, tuple[random.Random, list[tuple[float, int]]]] = {}

    def gauge(self, consumer: ConsumerId, now: float, *, healed: bool) -> Gauge:
        """What a consumer reports now. Once the world has healed all have room."""
        percent = LEVELS[0] if healed else self._percent(consumer, now)
        return Gauge(GaugeKind.DISK, "/data", percent, 100)

    def _percent(self, consumer: ConsumerId, now: float) -> int:
        if consumer not in self._drawn:
            self._drawn[consumer] = random.Random(f"{self._seed} fills {consumer}"), [(0.0, LEVELS[0])]
        rng, steps = self._drawn[consumer]
        while steps[-1][0] <= now:
            steps.append((steps[-1][0] + rng.uniform(40.0, 160.0) * self._time_scale, rng.choice(LEVELS)))
        return next(percent for since, percent in reversed(steps) if since <= now)


@dataclass
class Reported:
    """What coordinators have heard: of each run when it reported something else than before, and what."""

    changes: dict[Key, list[tuple[float, int]]] = field(default_factory=dict)

    def hears(self, key: Key, heartbeat: Heartbeat, now: float) -> None:
        """A heartbeat arrives that is news."""
        for gauge in heartbeat.gauges:
            known = self.changes.setdefault(key, [])
            if not known or known[-1][1] != gauge.used:
                known.append((now, gauge.used))

    def last(self, key: Key) -> int | None:
        """How full it said that it is, None if it never did."""
        known = self.changes.get(key)
        return known[-1][1] if known else None

    def was_above(self, key: Key, limit: int, since: float) -> bool:
        """Whether all that it has said since then, and what it had said last before, is above this limit."""
        known = self.changes.get(key, [])
        before = [percent for when, percent in known if when <= since]
        return bool(before) and before[-1] > limit and all(percent > limit for when, percent in known if when > since)

    def was_never_above(self, key: Key, limit: int, since: float) -> bool:
        """Whether nothing that counted since then is above this limit."""
        known = self.changes.get(key, [])
        counted = [percent for when, percent in known if when > since] + [percent for when, percent in known if when <= since][
            -1:
        ]
        return bool(counted) and all(percent <= limit for percent in counted)

    def filled_up(self, key: Key, limit: int, since: float) -> bool:
        """Whether it said since then that it is above this limit, and had not before."""
        known = [percent > limit for _, percent in self.changes.get(key, [])]
        new = [at for at, (when, _) in enumerate(self.changes.get(key, [])) if when > since]
        return any(known[at] and (not at or not known[at - 1]) for at in new)
