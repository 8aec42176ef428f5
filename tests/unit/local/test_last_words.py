"""What a driver wrote before its last crash, until it is ready again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shardherd.adapters.local.database import Database
from shardherd.adapters.local.machine import Machine
from shardherd.adapters.local.node import Node
from shardherd.adapters.local.objects import Objects

CRASHED = {"terminated": {"exitCode": 1}}
RUNNING: dict[str, Any] = {"running": {"startedAt": "2026-01-01T12:00:00Z"}}


def pod(state: dict[str, Any], last: dict[str, Any], *, restarts: int, ready: bool = False) -> dict[str, Any]:
    container = {"name": "driver", "state": state, "lastState": last, "restartCount": restarts, "ready": ready}
    return {
        "metadata": {"namespace": "demo", "name": "clicks-0", "uid": "0123456789"},
        "status": {"containerStatuses": [container]},
    }


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A machine on which the driver was started twice."""
    machine = Machine(tmp_path, "python3", {})
    for start in (1, 2):
        log = machine.log_of(pod(RUNNING, {}, restarts=0), start)
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(f"start {start}\n")
    return Node(Objects(Database(tmp_path / "state.db")), machine, lambda _pod: "")


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        pytest.param(pod({"waiting": {}}, CRASHED, restarts=0), {"0123456789": "start 1\n"}, id="it waits for its restart"),
        pytest.param(pod(RUNNING, CRASHED, restarts=1), {"0123456789": "start 1\n"}, id="it starts again"),
        pytest.param(pod({"waiting": {}}, CRASHED, restarts=1), {"0123456789": "start 2\n"}, id="it has crashed again"),
        pytest.param(pod(RUNNING, CRASHED, restarts=1, ready=True), {}, id="it is ready again"),
        pytest.param(pod(RUNNING, {}, restarts=0), {}, id="it never crashed"),
    ],
)
def test_the_words_before_the_last_crash_are_told_until_it_is_ready_again(
    node: Node, seen: dict[str, Any], words: dict[str, str]
) -> None:
    assert node.logs([seen]) == words
