"""Decides how long steps are reported on the terminal. Called by every module that does something slow. Runs nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


def say(message: str) -> None:
    """Print one line to standard error (standard output belongs to `env` and `status`)."""
    print(message, file=sys.stderr, flush=True)


@contextmanager
def step(what: str) -> Iterator[None]:
    """Print what is being done, and how many seconds it took. A failure is printed as such and goes on."""
    say(f"  {what} ...")
    begun = time.monotonic()
    try:
        yield
    except BaseException:
        say(f"  {what}: failed after {time.monotonic() - begun:.1f} s")
        raise
    say(f"  {what}: {time.monotonic() - begun:.1f} s")
