"""How often in a row something of a shard has failed, what is said of it, and how long the pause is before the next try.

Asked by `holding`, which waits. Decides nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from shardherd.consumer.contained import named
from shardherd.worker.counts import Counts
from shardherd.worker.options import FIRST_RETRY, LAST_RETRY

log = logging.getLogger(__name__)


class Trying:
    """Of one shard. `fields` are what every line of the log names."""

    def __init__(self, counts: Counts, fields: Callable[[], dict[str, Any]]) -> None:
        self._counts = counts
        self._fields = fields
        self._attempts = 0

    def succeeded(self) -> None:
        if self._attempts:
            log.info("gets on again", extra=self._fields())
        self._attempts = 0

    def failed(self, what: str, of: str, error: Exception | None) -> tuple[str, float]:
        """What there is to say of it, and the seconds until the next try. Without an error it went back to where it began."""
        self._attempts += 1
        self._counts.failures[what] += 1
        pause = min(LAST_RETRY, FIRST_RETRY * 2 ** min(self._attempts - 1, 30))
        why = "it went back to where it began" if error is None else named(error)
        trouble = f"{what} of {of} failed, attempt {self._attempts}: {why}"
        # Its place in the program is told once.
        log.warning(
            "%s; trying again in %g s", trouble, pause, extra=self._fields(), exc_info=error if self._attempts == 1 else None
        )
        return trouble, pause
