"""What one caller may take: calls, by a token bucket each; memory, as large bodies are read in turn; time for a body to arrive;
lines of the log, for what is no HTTP.

Called by the API for every call, once its caller is known, and before that for every token that has to be reviewed, by the
address that it comes from. A consumer in a loop is slowed down before it keeps the others waiting. Decides nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from shardherd.ports import Clock

BURST_SECONDS = 5.0
"""Calls of so many seconds may come at once: a consumer that starts, or drains, sends several in a row."""

LARGE = 64 * 1024
"""Bytes of a body above which it is read in turn; a heartbeat that names a thousand shards is smaller."""

LARGE_AT_ONCE = 8
"""Large bodies that are read at a time, of all callers together."""

BODY_WITHIN = 10.0
"""Seconds in which a body has to arrive; a large one once it is its turn."""

MAX_CALLERS = 10_000
"""Callers that are remembered. One that was forgotten has a full bucket again."""


LINE_EVERY = 10.0
"""Seconds from one line of the log about requests that are no HTTP to the next."""


@dataclass(slots=True)
class _Bucket:
    calls: float
    at: float


class RateLimit:
    """Lets each caller make `per_second` calls on average; 0 for no limit."""

    def __init__(self, per_second: float, clock: Clock) -> None:
        self._rate = per_second
        self._burst = max(1.0, per_second * BURST_SECONDS)
        self._clock = clock
        self._buckets: OrderedDict[Hashable, _Bucket] = OrderedDict()

    def take(self, caller: Hashable) -> float:
        """Count one call; 0, or the seconds after which this caller may call again. A refused call costs nothing."""
        if not self._rate:
            return 0.0
        now = self._clock.now()
        bucket = self._buckets.get(caller)
        if bucket is None:
            bucket = self._buckets[caller] = _Bucket(self._burst, now)
            while len(self._buckets) > MAX_CALLERS:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(caller)
        bucket.calls = min(self._burst, bucket.calls + (now - bucket.at) * self._rate)
        bucket.at = now
        if bucket.calls < 1.0:
            return (1.0 - bucket.calls) / self._rate
        bucket.calls -= 1.0
        return 0.0


@dataclass(slots=True)
class _Line:
    """Who of one caller's requests is served; `length` counts them, so that a line that is empty is forgotten."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    length: int = 0


def in_time() -> asyncio.Timeout:
    """What is in the block has BODY_WITHIN seconds. Raises TimeoutError."""
    return asyncio.timeout(BODY_WITHIN)


class LargeBodies:
    """Lets one large body of each caller, and a few of all, be in memory at a time."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(LARGE_AT_ONCE)
        self._lines: dict[Hashable, _Line] = {}

    @asynccontextmanager
    async def turn(self, caller: Hashable) -> AsyncIterator[None]:
        """Wait for this caller's turn; what is in the block has BODY_WITHIN seconds. Raises TimeoutError."""
        line = self._lines.setdefault(caller, _Line())
        line.length += 1
        try:
            async with line.turn, self._places, in_time():
                yield
        finally:
            line.length -= 1
            if line.length == 0:
                del self._lines[caller]


class ServerLog(logging.LoggerAdapter[logging.Logger]):
    """The log of the HTTP server: what is no HTTP, which anybody may send, is one line every LINE_EVERY seconds at most.

    Errors of ours are logged whole.
    """

    def __init__(self, logger: logging.Logger, clock: Clock) -> None:
        super().__init__(logger)
        self._clock = clock
        self._next = clock.now()
        self._left_out = 0

    def exception(self, msg: object, *args: object, exc_info: Any = True, **kwargs: Any) -> None:
        if not isinstance(exc_info, (HttpProcessingError, web.RequestPayloadError)):
            super().exception(msg, *args, exc_info=exc_info, **kwargs)
            return
        now = self._clock.now()
        if now < self._next:
            self._left_out += 1
            return
        before = f"; {self._left_out} more since the last such line" if self._left_out else ""
        sender = args[0] if args else "an address that is not known"
        self.warning("a request from %s is no HTTP: %s%s", sender, broken_as(exc_info), before)
        self._next, self._left_out = now + LINE_EVERY, 0


def broken_as(error: Exception) -> str:
    """What is wrong with a request that is no HTTP, in one line."""
    text = str(error.message if isinstance(error, HttpProcessingError) else error)
    return ascii(" ".join(text.split())[:120])
