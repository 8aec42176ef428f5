"""Decides how long what is still to be done will take. Called by `progress`, `everything` and the demo.

What a step took is remembered in the cache; before its first time it is taken to last as long as on a machine with two cores.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from dev.cluster.paths import cache

ON_TWO_CORES: Mapping[str, float] = {
    "packages": 60,
    "go": 30,
    "etcd": 75,
    "kubernetes": 660,
    "coredns": 90,
    "helm": 210,
    "kafka": 30,
    "base": 45,
    "kinesalite": 10,
    "images": 240,
    "image operator": 60,
    "image spark": 180,
    "image worker": 60,
    "machine build": 4,
    "machine prepare": 5,
    "machine apply": 25,
    "machine grow": 30,
    "machine kill": 30,
    "machine scale_in": 5,
    "machine finish": 3,
    "cluster build": 60,
    "cluster prepare": 35,
    "cluster apply": 35,
    "cluster grow": 35,
    "cluster kill": 40,
    "cluster scale_in": 15,
    "cluster finish": 10,
}
"""Seconds of each step that takes long, with nothing else on the machine: of what is built, and of the demo."""


class Durations:
    """What steps took here the last time, in a file of the cache."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file or cache() / "durations.json"

    def of(self, step: str) -> float:
        """Seconds that this step is likely to take; 0 if nobody knows."""
        return self._known().get(step, ON_TWO_CORES.get(step, 0.0))

    def note(self, step: str, seconds: float) -> None:
        """Remember what it took."""
        known = {**self._known(), step: round(seconds, 1)}
        self._file.parent.mkdir(parents=True, exist_ok=True)
        scratch = self._file.with_suffix(".new")
        scratch.write_text(json.dumps(known, indent=2) + "\n")
        scratch.replace(self._file)

    def left(self, lanes: Sequence[Sequence[str]]) -> float:
        """Seconds until the steps of all lanes are done; lanes go on side by side, the steps of one after each other."""
        return max((sum(map(self.of, lane)) for lane in lanes), default=0.0)

    def _known(self) -> dict[str, float]:
        try:
            found: dict[str, float] = json.loads(self._file.read_text())
        except (FileNotFoundError, ValueError):
            return {}
        return found


def about(seconds: float) -> str:
    """A time for people, no more exact than it is known."""
    if seconds < 50:
        return "less than a minute"
    minutes = round(seconds / 60)
    return "about a minute" if minutes <= 1 else f"about {minutes} minutes"
