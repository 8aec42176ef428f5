"""The clock of every deadline: it goes on while the machine is suspended, and nothing else is asked for one."""

from __future__ import annotations

import ast
import sys
import time
from pathlib import Path

import pytest

import shardherd
from shardherd.clock import SystemClock, boot_time

ROOT = Path(shardherd.__file__).parent

OTHERS = {
    "clock.py": "the one place",
    "source/kafka_python/private.py": "what is left of a time that kafka-python has counted by this clock",
}
"""Who may ask for `time.monotonic`, and why."""


class Suspended:
    """The machine was suspended for so many seconds: only the clock that counts from its boot went on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 0.0
        monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
        monkeypatch.setattr(time, "clock_gettime", self._gettime)

    def _gettime(self, clock: int) -> float:
        return 1000.0 + (self.seconds if clock == time.CLOCK_BOOTTIME else 0.0)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a clock that surely goes on")
def test_time_goes_on_while_the_machine_is_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    suspended = Suspended(monkeypatch)
    clock, before = SystemClock(), (boot_time(), SystemClock().now())

    suspended.seconds = 3600.0

    assert (boot_time() - before[0], clock.now() - before[1]) == (3600.0, 3600.0)


def test_no_module_asks_for_a_clock_that_stands_still_meanwhile() -> None:
    asking = {}
    for file in sorted(ROOT.rglob("*.py")):
        tree = ast.parse(file.read_text())
        named = [node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
        imported = [name.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for name in node.names]
        if {"monotonic", "monotonic_ns", "CLOCK_MONOTONIC"} & {*named, *imported}:
            asking[str(file.relative_to(ROOT))] = OTHERS.get(str(file.relative_to(ROOT)), "it has no reason: use boot_time")

    assert asking == OTHERS
