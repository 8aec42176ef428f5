"""When a consumer makes durable what it has finished: at once, or gathered for a while unless somebody waits for it.

The session asks before every checkpoint, and says what came of it. Which positions are sent under which epochs is the ledger's
rule. It reads no clock: time is an argument.
"""

from __future__ import annotations


class Saving:
    """Gathers for `interval` seconds; 0: never waits."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._since: float | None = None
        self._urgent = False

    @property
    def gathers(self) -> bool:
        """Whether it is known when to send what is pending: more of it changes nothing."""
        return self._since is not None

    def hurry(self) -> None:
        """What is not durable now must not wait."""
        self._urgent = True

    def due_in(self, now: float, *, pending: bool) -> float | None:
        """In how many seconds to send what is `pending`, 0 at once; None if nothing is."""
        if not pending:
            self._since = None
            return None
        if self._since is None:
            self._since = now
        return 0.0 if self._urgent else max(0.0, self._since + self._interval - now)

    def sent(self, *, draining: bool) -> None:
        """All that was pending is on its way; what comes now may be gathered again, unless the consumer is about to leave."""
        self._urgent = draining

    def answered(self, now: float, *, moved: bool) -> None:
        """The answer is there, or none will come. Where nothing `moved` by it, the same is to be sent again."""
        if moved:
            self._since = now
        else:
            self._urgent = True
