"""One credential that expires, kept fresh by a thread of its own: a token, or keys for a while.

Called by `oauthbearer` for the connections of one cluster. It decides when to fetch: at first when somebody wants to connect,
then well before the credential expires, at other moments in every process; after a failure again and again, more and more
seldom. It never makes whoever wants the credential wait, and knows nothing of what it is.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from shardherd.clock import boot_time
from shardherd.source.security.credential_errors import CredentialsError

log = logging.getLogger(__name__)

T = TypeVar("T")

RENEW_AT = (0.7, 0.8)
"""When a credential is renewed, as parts of its life, drawn anew each time. kafka-python authenticates an open connection again
at 0.85 of it or later: by then the new one is there."""

PAUSE = (1.0, 15.0)
"""Seconds from a failure to the next try: after the first one, and at most. Doubled each time, give or take a fifth."""

LEAST_AGE = 5.0
"""Seconds that a credential has lived before another one is fetched since the brokers refused it."""

LONGEST_SLEEP = 30.0
"""Seconds after which the clock is looked at: it goes on while the machine is suspended, and a sleep does not."""


@dataclass(frozen=True, slots=True)
class Fresh(Generic[T]):
    """A credential that was just fetched, and for how many seconds it is good."""

    value: T = field(repr=False)
    seconds: float


def _in_a_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="kafka-credentials", daemon=True).start()


class Keeper(Generic[T]):
    """Keeps what `fetch` gives. `fetch` may block, for a bounded time, and raises CredentialsError."""

    def __init__(
        self,
        fetch: Callable[[], Fresh[T]],
        *,
        monotonic: Callable[[], float] = boot_time,
        start: Callable[[Callable[[], None]], None] = _in_a_thread,
    ) -> None:
        self._fetch = fetch
        self._monotonic = monotonic
        self._start = start
        self._changed = threading.Condition()
        self._fresh: Fresh[T] | None = None
        self._fetched_at = self._good_until = float("-inf")
        self._due = float("-inf")
        self._error: CredentialsError | None = None
        self._failures = 0
        self._waiting: list[Callable[[], None]] = []
        self._running = False
        self._closed = False

    def current(self) -> T:
        """The credential. Raises CredentialsError if there is none now: why there is none."""
        with self._changed:
            if self._fresh is not None and self._monotonic() < self._good_until:
                return self._fresh.value
            if self._error is not None:
                # A new one each time: an exception that is raised carries who raised it.
                raise CredentialsError(str(self._error)) from self._error
            raise CredentialsError("the credentials were not fetched yet")

    def ready(self, tell: Callable[[], None], enough: Callable[[T], bool] = lambda _: True) -> bool:
        """Whether it is known what `current` does. If not, `tell` is called once it is, from another thread.

        A credential that is not `enough` is fetched anew, at once.
        """
        with self._changed:
            now = self._monotonic()
            if self._closed or (self._error is not None and now < self._due):
                return True
            if self._fresh is not None and now < self._good_until and enough(self._fresh.value):
                return True
            # The thread may be asleep, for longer than anybody should wait.
            self._due = min(self._due, now)
            self._changed.notify_all()
            self._waiting.append(tell)
            if not self._running:
                self._running = True
                self._start(self._run)
            return False

    def refused(self) -> None:
        """The brokers did not accept the credential: fetch another one soon, unless this one is new."""
        with self._changed:
            now = self._monotonic()
            if self._error is None and now - self._fetched_at >= LEAST_AGE:
                self._due = now
                self._changed.notify_all()

    def close(self) -> None:
        """End the thread, at the latest when what it fetches now has come."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._tell()

    def step(self) -> None:
        """Fetch the credential if that is due."""
        with self._changed:
            if self._due > self._monotonic():
                return
        try:
            fresh = self._fetch()
            if fresh.seconds <= 0:
                raise CredentialsError("the credentials that came have expired already: compare the clocks of both machines")
        except CredentialsError as error:
            self._failed(error)
        else:
            self._came(fresh)
        self._tell()

    def _run(self) -> None:
        try:
            while True:
                self.step()
                with self._changed:
                    if not self._closed and (left := self._due - self._monotonic()) > 0:
                        self._changed.wait(min(left, LONGEST_SLEEP))
                    if self._closed:
                        return
        finally:
            with self._changed:
                self._running = False
            self._tell()

    def _came(self, fresh: Fresh[T]) -> None:
        with self._changed:
            now = self._monotonic()
            self._fresh, self._fetched_at, self._good_until = fresh, now, now + fresh.seconds
            self._due = now + fresh.seconds * random.uniform(*RENEW_AT)
            if self._failures:
                log.info("the Kafka credentials were fetched again, after %d failures", self._failures)
            self._error, self._failures = None, 0

    def _failed(self, error: CredentialsError) -> None:
        with self._changed:
            now = self._monotonic()
            first, most = PAUSE
            self._due = now + min(most, first * 2**self._failures) * random.uniform(0.8, 1.2)
            self._failures = min(self._failures + 1, 10)
            if self._error is None:
                good = max(0.0, self._good_until - now)
                log.warning("no new Kafka credentials, those that are there are good for %.0f s: %s", good, error)
            self._error = error

    def _tell(self) -> None:
        with self._changed:
            waiting, self._waiting = self._waiting, []
        for tell in waiting:
            tell()
