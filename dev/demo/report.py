"""What the demo says while it runs, and how it waits. Used by every step; decides nothing about the group.

Waiting is always for a condition, with a deadline, and a wait that fails explains what it last saw.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class DemoError(Exception):
    """A step of the demo could not be done. The message says what was expected, what was seen and where to look."""


class Reporter:
    """Prints what happens, each line with the seconds since the start."""

    def __init__(self, write: Callable[[str], None] | None = None) -> None:
        self._write = write if write is not None else self._to_terminal
        self._started = time.monotonic()

    @staticmethod
    def _to_terminal(line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    def step(self, title: str) -> None:
        """Begin a step that a user would recognise."""
        self._write("")
        self._write(f"[{self.seconds:5.0f}s] == {title}")

    def say(self, text: str) -> None:
        """One line, or several, of what is being done or to be seen."""
        for line in text.rstrip().splitlines():
            self._write(f"[{self.seconds:5.0f}s]    {line}")

    def show(self, text: str) -> None:
        """Output of a tool, as it is."""
        for line in text.rstrip().splitlines():
            self._write(f"          {line}")

    @property
    def seconds(self) -> float:
        """Seconds since this reporter was made."""
        return time.monotonic() - self._started


def await_that(
    what: str,
    probe: Callable[[], T | None],
    *,
    within: float,
    every: float = 0.25,
    explain: Callable[[], str] = lambda: "",
) -> T:
    """Call `probe` until it returns something other than None or False; that is the result.

    `within` and `every` are in seconds. Raises DemoError with `what` and what `explain` returns when the time is up.
    """
    deadline = time.monotonic() + within
    while True:
        found = probe()
        if found is not None and found is not False:
            return found
        if time.monotonic() >= deadline:
            raise DemoError(f"waited {within:.0f} s in vain until {what}\n{explain()}".rstrip())
        time.sleep(every)
