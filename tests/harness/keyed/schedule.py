"""What happens to a group with cells, and in which order; drawn from a seed, or written down by a test. Does nothing to it."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """Something that happens to the group. `settled`: only when nothing moves and all consumers hold cells."""

    what: str
    settled: bool
    victim: int = 0

    def __str__(self) -> str:
        what = f"kill {self.victim}" if self.what == "kill" else self.what
        return what if self.settled else f"{what} at once"


def schedule(seed: int, most: int = 3) -> tuple[int, tuple[Step, ...]]:
    """With how many consumers it begins, and what happens.

    Drawn are: in which order the group grows, shrinks, loses a driver and its operator, and a topic doubles; which driver it
    is, and which of it waits for the one before.
    """
    rng = random.Random(seed)
    whats = ["grow", "shrink", "kill", "operator", "double"]
    if most > 2:
        whats += rng.choices(whats[:4], k=2)
    rng.shuffle(whats)
    begin = consumers = 1 if whats.index("grow") < whats.index("shrink") else 2
    steps = []
    for what in whats:
        if (what, consumers) in {("grow", most), ("shrink", 1)}:
            continue
        consumers += {"grow": 1, "shrink": -1}.get(what, 0)
        steps.append(Step(what, what == "grow" or rng.random() < 0.5, rng.randrange(consumers)))
    return begin, tuple(steps)
