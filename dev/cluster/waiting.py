"""Decides how a condition is awaited and what a timeout says. Called by `cluster`. Knows no particular condition."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from dev.cluster.errors import ClusterError, tail


def wait_for(what: str, condition: Callable[[], str | None], log: Path, timeout: float = 240.0) -> None:
    """Return once `condition` returns None; it returns the reason why not otherwise.

    `timeout` is in seconds. ClusterError then names the last reason and shows the end of `log`.
    """
    deadline = time.monotonic() + timeout
    while True:
        reason = condition()
        if reason is None:
            return
        if time.monotonic() > deadline:
            raise ClusterError(f"{what} was not reached within {timeout:.0f} s: {reason}\n{tail(log)}")
        time.sleep(0.05)
