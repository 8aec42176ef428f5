"""What is written of events that come again. The API server is played."""

from __future__ import annotations

from typing import Any, cast

from shardherd.adapters.kubernetes.api import ApiError, KubernetesApi
from shardherd.adapters.kubernetes.events import KubernetesEvents
from shardherd.core.model.nouns import GroupIdentity
from tests.harness.simulated_clock import SimulatedClock

GROUP = GroupIdentity("shop", "clicks", "uid-1")


class Events:
    """An API server. After `kept` requests about an event it has it no more: its time is over, or somebody deleted it."""

    def __init__(self, kept: int) -> None:
        self.counts: list[int] = []
        self._kept = kept
        self._left: dict[str, int] = {}

    def call(self, method: str, path: str, body: dict[str, Any], **_: Any) -> None:
        name = body["metadata"]["name"] if method == "POST" else path.rpartition("/")[2]
        if method == "POST":
            self._left[name] = self._kept
        elif not self._left[name]:
            raise ApiError(f'events "{name}" not found', 404, "NotFound")
        self._left[name] -= 1
        self.counts.append(body["count"])


def told(api: Events, times: int) -> list[int]:
    """The counts that are written of an event that is recorded so many times."""
    recorder = KubernetesEvents(cast(KubernetesApi, api), SimulatedClock(), "operator-0")
    for _ in range(times):
        recorder.record(GROUP, "Rebalanced", "2 shards moved")
    recorder.close()
    return api.counts


def test_the_same_event_again_raises_the_count_of_the_first() -> None:
    assert told(Events(kept=10), times=3) == [1, 2, 3]


def test_an_event_that_comes_again_when_the_first_is_gone_is_written_anew() -> None:
    assert told(Events(kept=2), times=5) == [1, 2, 1, 2, 1]
