"""Decides how long steps are reported on the terminal. Called by every module that does something slow. Runs nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from dev.cluster.durations import Durations, about


def say(message: str) -> None:
    """Print one line to standard error (standard output belongs to `env` and `status`)."""
    print(message, file=sys.stderr, flush=True)


@contextmanager
def step(what: str, name: str = "") -> Iterator[None]:
    """Print what is being done, and how many seconds it took. A failure is printed as such and goes on.

    A step with a name takes long: it is said how long it is likely to take, and remembered how long it took.
    """
    usual = Durations().of(name) if name else 0.0
    say(f"  {what} ...{f' ({about(usual)})' if usual else ''}")
    begun = time.monotonic()
    try:
        yield
    except BaseException:
        say(f"  {what}: failed after {time.monotonic() - begun:.1f} s")
        raise
    taken = time.monotonic() - begun
    say(f"  {what}: {taken:.1f} s")
    if name:
        Durations().note(name, taken)
