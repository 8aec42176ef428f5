"""The table and the score that every benchmark ends with. Measures nothing.

A row compares one figure of ours with one of the peer. Its ratio says how many times better ours is, its goal how many times
better it should be; the score is the smallest of ratio / goal, so 1.0 means that every goal is met.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison. `ours` and `peer` are in `unit`; `more_is_better` for rates, not for times. A goal of 0 is none.

    Where less is better and the peer's figure is 0, only 0 is as good.
    """

    name: str
    ours: float
    peer: float
    goal: float
    unit: str = "ms"
    more_is_better: bool = False
    note: str = ""

    @property
    def ratio(self) -> float:
        """How many times better ours is."""
        if not self.more_is_better and self.ours == 0:
            return 1.0
        return self.ours / self.peer if self.more_is_better else self.peer / self.ours


def score(rows: Iterable[Row]) -> float:
    """The smallest of ratio / goal among the rows that have a goal."""
    return min(row.ratio / row.goal for row in rows if row.goal > 0)


def middle(samples: Sequence[float]) -> float:
    """The median: what a slow moment of the machine does not change."""
    return statistics.median(samples)


def _figure(value: float) -> str:
    """With two digits after the point where one would hide whether a goal is met."""
    return f"{value:,.{2 if value < 10 else 1}f}"


def render(rows: Sequence[Row]) -> str:
    """The table as text; the last line is the score."""
    heads = ("", "ours", "peer", "ratio", "goal", "", "")
    cells = [
        (
            row.name,
            f"{_figure(row.ours)} {row.unit}",
            f"{_figure(row.peer)} {row.unit}",
            f"{_figure(row.ratio)}x",
            f"{row.goal:g}x" if row.goal > 0 else "",
            "" if row.goal <= 0 else "met" if row.ratio >= row.goal else "missed",
            row.note,
        )
        for row in rows
    ]
    widths = [max(len(cell) for cell in column) for column in zip(heads, *cells, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if 1 <= at <= 4 else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in (heads, *cells)
    ]
    return "\n".join([*lines, f"score: {score(rows):.2f}"])
