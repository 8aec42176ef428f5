"""Since when a pod on one machine is ready, or is not."""

from __future__ import annotations

from typing import Any

from shardherd.adapters.local import statuses
from shardherd.adapters.local.containers import Ended, Named, Running

MADE = statuses.made({"metadata": {"name": "clicks", "namespace": "demo", "uid": "set"}, "spec": {"template": {
    "metadata": {}, "spec": {"containers": [{"name": "driver"}]}}}}, "clicks-0", 100.0)  # fmt: skip


def test_one_that_starts_is_not_ready_since_it_was_made() -> None:
    assert since(up(MADE, 1, began=101.0, now=103.0, ready=False)) == ("False", "1970-01-01T00:01:40Z")


def test_it_is_ready_since_it_turned_and_not_ready_since_it_turned_again() -> None:
    ready = up(MADE, 1, began=101.0, now=110.0, ready=True)
    assert since(ready) == ("True", "1970-01-01T00:01:50Z")
    assert since(up(ready, 1, began=101.0, now=120.0, ready=True)) == ("True", "1970-01-01T00:01:50Z")
    assert since(up(ready, 1, began=101.0, now=130.0, ready=False)) == ("False", "1970-01-01T00:02:10Z")


def test_one_that_was_down_is_not_ready_since_its_end() -> None:
    ready = up(MADE, 1, began=101.0, now=110.0, ready=True)
    down = {**ready, "status": statuses.down(ready, ended(1, at=140.0), 1.0)}
    assert since(down) == ("False", "1970-01-01T00:02:20Z")
    assert since(up(down, 2, began=141.0, now=143.0, ready=False)) == ("False", "1970-01-01T00:02:20Z")


def test_one_that_was_not_seen_while_it_was_down_is_not_ready_since_it_started_again() -> None:
    ready = up(MADE, 1, began=101.0, now=110.0, ready=True)
    assert since(up(ready, 2, began=141.0, now=150.0, ready=False)) == ("False", "1970-01-01T00:02:21Z")


def up(pod: dict[str, Any], number: int, *, began: float, now: float, ready: bool) -> dict[str, Any]:
    return {**pod, "status": statuses.up(pod, running(number, began), None, now, ready=ready)}


def since(pod: dict[str, Any]) -> tuple[str, str]:
    (found,) = [each for each in pod["status"]["conditions"] if each["type"] == "Ready"]
    return found["status"], found["lastTransitionTime"]


def running(number: int, began: float) -> Running:
    return Running(number, began, Named(1, "2"), Named(3, "4"))


def ended(number: int, *, at: float) -> Ended:
    return Ended(number, 101.0, at, 1, 0, "")
