"""Decides in which order a cold machine gets all programs and images, and how long that takes. Called by `lab` and `check`.

Two lanes go on side by side: what Go compiles, and what is fetched, which waits for the network more than for a processor. What
the first tests need comes first in each. A lane that fails does not stop the other; what failed is told at the end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dev.cluster import builder
from dev.cluster.durations import Durations, about
from dev.cluster.errors import ClusterError
from dev.cluster.progress import say
from dev.cluster.tools import Tools


@dataclass(frozen=True)
class Step:
    """One thing to be there: how it is got, and whether it is there."""

    name: str
    get: Callable[[], object]
    there: Callable[[], bool]


class Lanes:
    """Steps that go on side by side, lane by lane, with word of how long is left."""

    def __init__(self, lanes: Sequence[Sequence[Step]], durations: Durations) -> None:
        self._left = [[step for step in lane if not step.there()] for lane in lanes]
        self._durations = durations
        self._lock = threading.Lock()
        self._failed: list[Exception] = []

    def run(self) -> None:
        """Do all that is missing. Raises the first ClusterError."""
        names = [step.name for lane in self._left for step in lane]
        if not names:
            return
        say(f"to be fetched and built, once: {', '.join(names)}; {self._about()}")
        threads = [threading.Thread(target=self._lane, args=(lane,)) for lane in self._left]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failed:
            raise self._failed[0]

    def left(self) -> str:
        """How long it will take, for people; empty if nothing is missing."""
        return self._about() if any(self._left) else ""

    def _lane(self, lane: list[Step]) -> None:
        try:
            while lane:
                lane[0].get()
                with self._lock:
                    done = lane.pop(0)
                    if any(self._left):
                        say(f"{done.name} is there; {self._about()} left")
        except (ClusterError, OSError) as error:
            self._failed.append(error)

    def _about(self) -> str:
        return about(self._durations.left([[step.name for step in lane] for lane in self._left]))


def build_everything(*, images: bool = True, tests: bool = False) -> Tools:
    """Every program, both images if wanted, and what only tests need if wanted, side by side."""
    tools = Tools()
    Lanes(_lanes(tools, images, tests), Durations()).run()
    return tools


def time_left() -> str:
    """How long it would take to build what tests need, for people: empty if nothing is missing."""
    return Lanes(_lanes(Tools(), True, True), Durations()).left()


def _lanes(tools: Tools, images: bool, tests: bool) -> tuple[list[Step], list[Step]]:
    def need(name: str) -> Step:
        return Step(name, lambda: getattr(tools, name), lambda: tools.there(name))

    compiled = [need(name) for name in ("etcd", "kubernetes", "helm", "coredns")]
    fetched = [need(name) for name in ("packages", "kafka", "pause", "base")]
    if images:
        fetched.append(Step("images", builder.build, builder.built))
    if tests:
        fetched.append(need("kinesalite"))
    return compiled, fetched
