"""With which seeds the simulation runs: fresh ones, drawn or derived from the commit, and besides them those that once failed.

Called by `python -m tests.simulation` and by the tests. Seeds that are always the same find no more after a while than that
nothing got worse. What is known of a planted bug is where a search for it ended before: where the next one may begin.
"""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FAILED = Path(__file__).with_name("failed_seeds.txt")
BUGS = Path(__file__).with_name("bug_seeds.txt")
MOST = 10**9
FALLBACK = 20_000_000
"""Where a run begins that cannot know its commit."""


def drawn() -> int:
    """A start that nobody has chosen."""
    return random.SystemRandom().randrange(MOST)


def of_commit(root: Path = ROOT) -> tuple[int, str]:
    """The start of this very commit, and a sentence on where it is from."""
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return FALLBACK, f"{FALLBACK}, which is fixed, since this is no checkout of git"
    commit = done.stdout.strip()
    start = int(commit, 16) % MOST
    return start, f"{start}, from commit {commit[:12]}"


def failed(path: Path = FAILED) -> dict[int, str]:
    """The seeds that once failed, and what each was. Raises ValueError for a line that is none."""
    return dict(_lines(path))


def of_bugs(path: Path = BUGS) -> dict[str, int]:
    """The seed that showed each planted bug when it was last searched for. Raises ValueError for a line that is none."""
    return {bug: seed for seed, bug in _lines(path)}


def renew_bugs(found: Mapping[str, int], path: Path = BUGS) -> None:
    """Write what `of_bugs` reads, below the head that the file has."""
    head = [line for line in path.read_text().splitlines() if line.startswith("#")]
    path.write_text("\n".join([*head, *(f"{seed} {bug}" for bug, seed in found.items()), ""]))


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        seed, _, what = line.partition(" ")
        if not seed.isdecimal() or not what.strip():
            raise ValueError(f"{path.name}, line {number}: {line!r} is not a seed and what it was")
        yield int(seed), what.strip()
