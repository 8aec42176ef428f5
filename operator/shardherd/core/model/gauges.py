"""What a consumer reports of how full it is, the watermarks that a group declares for that, and which of them are exceeded.

Part of the nouns of the protocol, in a place of their own: `nouns` uses them for heartbeats, settings and pictures. What
follows from a stage is decided by `core.group.watermarks`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from shardherd.core.model.messages import Message, Name, Natural


class GaugeKind(StrEnum):
    """What a gauge measures: a disk, memory, or what the application's own callable says."""

    DISK = "disk"
    MEMORY = "memory"
    OWN = "own"


MOST_GAUGES = 16
"""So many gauges may be in one heartbeat."""


class Gauge(Message, frozen=True, forbid_unknown_fields=True):
    """How full something of a consumer is: `used` of `total`, in bytes; of its own gauge in any unit. `name` says which."""

    kind: GaugeKind
    name: Name
    used: Natural
    total: Natural


class Stage(StrEnum):
    """How full a consumer is: below its low watermark, or above the low, the high or the flood watermark."""

    BELOW = "below"
    LOW = "low"
    HIGH = "high"
    FLOOD = "flood"

    @property
    def rank(self) -> int:
        """A number that grows with how full that is: as text they do not compare."""
        return _RANKS[self]


_RANKS = {stage: rank for rank, stage in enumerate(Stage)}


QUANTITIES: Mapping[str, int] = {
    "": 1,
    **{unit: 1000**power for power, unit in enumerate("kMGT", 1)},
    **{f"{unit}i": 1024**power for power, unit in enumerate("KMGT", 1)},
}
"""Bytes of the units in which the resource may have a watermark, as Kubernetes writes them."""


@dataclass(frozen=True, slots=True)
class Marks:
    """The watermarks of one kind of gauge: percent that are used, or with `free` bytes that are free."""

    low: int
    high: int
    flood: int
    free: bool = False


@dataclass(frozen=True, slots=True)
class Watermarks:
    """The watermarks that a group declares; None where it declares none: that kind of gauge is not looked at."""

    disk: Marks | None = None
    memory: Marks | None = None
    own: Marks | None = None

    def of(self, kind: GaugeKind) -> Marks | None:
        """Those of this kind of gauge."""
        return {GaugeKind.DISK: self.disk, GaugeKind.MEMORY: self.memory, GaugeKind.OWN: self.own}[kind]

    def __bool__(self) -> bool:
        return (self.disk, self.memory, self.own) != (None, None, None)


NO_WATERMARKS = Watermarks()


def stage_of(marks: Marks | None, gauge: Gauge) -> Stage:
    """The stage that one gauge has reached by itself."""
    if marks is None:
        return Stage.BELOW
    free = max(0, gauge.total - gauge.used)
    for limit, stage in ((marks.flood, Stage.FLOOD), (marks.high, Stage.HIGH), (marks.low, Stage.LOW)):
        if (free < limit) if marks.free else (gauge.used * 100 > limit * gauge.total):
            return stage
    return Stage.BELOW


def reached(marks: Watermarks, gauges: Iterable[Gauge]) -> tuple[Stage, Gauge | None]:
    """The highest stage that any of these gauges has reached, and which gauge that is; of several disks the fullest counts."""
    found: tuple[Stage, Gauge | None] = (Stage.BELOW, None)
    for gauge in gauges:
        stage = stage_of(marks.of(gauge.kind), gauge)
        if stage.rank > found[0].rank:
            found = stage, gauge
    return found


def described(marks: Watermarks, gauge: Gauge) -> str:
    """A gauge for users: what it is, how full it is, and which watermark it is above."""
    of, free = marks.of(gauge.kind), max(0, gauge.total - gauge.used)
    by_bytes = of is not None and of.free
    reading = f"{_size(free)} free" if by_bytes else f"{100 * gauge.used / gauge.total:.1f}% full"
    return f"{_named(gauge)} {reading}{_beyond(of, gauge)}"


def beyond(marks: Watermarks, gauge: Gauge) -> str:
    """The same without how full it is: that must not change with every heartbeat where it is kept."""
    return f"{_named(gauge)}{_beyond(marks.of(gauge.kind), gauge)}"


def _named(gauge: Gauge) -> str:
    return gauge.name if gauge.kind in (GaugeKind.OWN, gauge.name) else f"{gauge.kind} {gauge.name}"


def _beyond(marks: Marks | None, gauge: Gauge) -> str:
    stage = stage_of(marks, gauge)
    if marks is None or stage is Stage.BELOW:
        return ""
    limit = {Stage.LOW: marks.low, Stage.HIGH: marks.high, Stage.FLOOD: marks.flood}[stage]
    return f", less than {_size(limit)}" if marks.free else f", more than {limit}%"


def _size(octets: int) -> str:
    """So many bytes in the largest unit of which they are one or more, as Kubernetes writes them."""
    size, units = float(octets), ["Ki", "Mi", "Gi", "Ti"]
    if size < 1024:
        return f"{octets} bytes"
    while size >= 1024 and units:
        size, unit = size / 1024, units.pop(0)
    return f"{size:.4g}{unit}"
