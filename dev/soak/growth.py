"""Decides whether something grew over a run beyond what it may. Pure; called by `run` with what `gauge` saw.

A process is compared with itself, in one role, after a warm-up: one that took over the lead knows more than while it stood by.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from dev.demo.account import Line

WARM_SHARE, LEAST_WARM_S = 0.15, 60.0
"""A process is warm after this share of a run, and after so many seconds at least."""

AROUND = 3
"""Samples whose median is taken for the first figure, and for the last one: a collection of garbage is no growth."""


@dataclass(frozen=True)
class Bound:
    """How much more the last figure may be than the first: a share of it, and so much besides."""

    share: float = 0.0
    more: float = 0.0

    def most(self, first: float) -> float:
        """The largest last figure."""
        return first * (1 + self.share) + self.more


@dataclass(frozen=True)
class Growth:
    """One figure, at first and in the end."""

    name: str
    first: float
    last: float
    bound: Bound
    unit: str = ""

    @property
    def holds(self) -> bool:
        return self.last <= self.bound.most(self.first)

    @property
    def line(self) -> Line:
        """A line of the table."""
        shown = f"{_number(self.first)} -> {_number(self.last)}{self.unit and f' {self.unit}'}"
        return Line(self.name, shown, f"at most {_number(self.bound.most(self.first))}", self.holds)


def _number(value: float) -> str:
    return f"{value:,.0f}"


@dataclass(frozen=True)
class Use:
    """What a process and its children use: proportional memory (MiB), threads, open files and sockets."""

    memory: float
    threads: int
    files: int
    sockets: int
    connections: Mapping[str, int] = field(default_factory=dict)
    """The TCP connections among the sockets, by the port that tells what they are for: theirs, or ours if they came to us."""


@dataclass(frozen=True)
class Look:
    """One look at one run of a container, in the role that it had. `at` is in seconds since 1970."""

    at: float
    run: str
    role: str
    name: str
    use: Use


@dataclass(frozen=True)
class Bounds:
    """How much each figure of a process may grow."""

    memory: Bound
    threads: Bound
    files: Bound
    sockets: Bound


def warm_after(seconds: float) -> float:
    """Seconds of a process's life in its role that do not count, in a run of so many seconds."""
    return max(seconds * WARM_SHARE, LEAST_WARM_S)


def longest(looks: Iterable[Look], role: str, warm: float) -> Sequence[Look]:
    """The looks at the run that was longest in this role, without those before it was warm. Empty if none was ever warm."""
    runs: dict[str, list[Look]] = {}
    for look in sorted(looks, key=lambda look: look.at):
        if look.role == role:
            runs.setdefault(look.run, []).append(look)
    lives = [run for run in runs.values() if run[-1].at - run[0].at > warm]
    if not lives:
        return ()
    life = max(lives, key=lambda run: run[-1].at - run[0].at)
    return [look for look in life if look.at >= life[0].at + warm]


def growths(looks: Sequence[Look], role: str, bounds: Bounds) -> list[Growth]:
    """What became of one process, from the first of these looks to the last."""
    if len(looks) < 2 * AROUND:
        return []
    name = f"{role} {looks[0].name}, {(looks[-1].at - looks[0].at) / 60:.0f} min"

    def grown(what: str, of: Sequence[float], bound: Bound, unit: str = "") -> Growth:
        return Growth(f"{name}: {what}", median(of[:AROUND]), median(of[-AROUND:]), bound, unit)

    uses = [look.use for look in looks]
    return [
        grown("memory", [use.memory for use in uses], bounds.memory, "MiB"),
        grown("threads", [use.threads for use in uses], bounds.threads),
        grown("open files", [use.files for use in uses], bounds.files),
        grown("sockets", [use.sockets for use in uses], bounds.sockets),
    ]


def connections(looks: Sequence[Look]) -> str:
    """How many TCP connections a process had at the first and at the last of these looks, by what they are for."""
    first, last = looks[0].use.connections, looks[-1].use.connections
    return ", ".join(f"{name}: {first.get(name, 0)} -> {last.get(name, 0)}" for name in sorted({*first, *last}))


def verdict(tables: Iterable[tuple[str, Sequence[Line]]]) -> str:
    """What to say of all that does not hold, each with its table's title; empty if everything does."""
    return "; ".join(
        f"{title}: {line.name} is {line.value}, promised is {line.promise}"
        for title, lines in tables
        for line in lines
        if line.holds is False
    )
