"""Runs seeds FIRST to LAST of a damage by itself, for `python -m tests.property.record_damage` and `value_damage`."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable


def run(one: Callable[[int], Counter[str]]) -> None:
    """Print how often each outcome came of the seeds that the command line names; and the seed of which one fails."""
    seen: Counter[str] = Counter()
    for seed in range(int(sys.argv[1]), int(sys.argv[2])):
        try:
            seen += one(seed)
        except BaseException:
            print(f"seed {seed}", file=sys.stderr)
            raise
    for name, count in seen.most_common():
        print(count, name)
