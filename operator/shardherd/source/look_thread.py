"""The thread in which a consumer looks where its shards end; the watchers of Kafka's and of Kinesis' ends have one each.

It decides when the next look is, and nothing of what is looked for. An exception of a look is logged and the thread goes on:
without it no new record would ever be seen again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)

RETRY_DELAY = 1.0
"""Seconds until the next look after one that failed, even if it is woken."""


class LookThread:
    """Calls `look`, which answers after how many seconds the next look is; None: when it is woken."""

    def __init__(self, look: Callable[[], float | None]) -> None:
        self._look = look
        self._wake = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shardherd-ends", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Look at once."""
        self._wake.set()

    def rest(self) -> None:
        """For `look`: do nothing for RETRY_DELAY, or until it is closed."""
        self._closed.wait(RETRY_DELAY)

    def close(self, within: float | None = None) -> None:
        """No look begins any more. Waits for the one that runs, so many seconds at most."""
        self._closed.set()
        self._wake.set()
        self._thread.join(within)

    def _run(self) -> None:
        while not self._closed.is_set():
            self._wake.clear()
            try:
                after = self._look()
            except Exception:
                log.exception("a failure of ours while learning where the shards end, trying on")
                self.rest()
                continue
            if not self._closed.is_set():
                self._wake.wait(after)
