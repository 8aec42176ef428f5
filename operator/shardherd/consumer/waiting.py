"""How a session waits: for the answer to its one heartbeat unless there is news, and for an event for a while.

Called by `session`. Decides nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any


async def answered(request: asyncio.Future[Any], news: asyncio.Event) -> bool:
    """Wait for the answer, or give the request up because there is news. Returns whether it was answered."""
    noticed = asyncio.create_task(news.wait())
    try:
        both: list[asyncio.Future[Any]] = [request, noticed]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        return request.done()
    finally:
        noticed.cancel()
        if not request.done():
            request.cancel()


async def within(event: asyncio.Event, seconds: float | None) -> None:
    """Wait for it, but no longer than so many seconds; None: for ever."""
    if seconds is None:
        await event.wait()
        return
    with contextlib.suppress(TimeoutError):
        # Not wait_for: in Python 3.11 it can swallow a cancellation.
        async with asyncio.timeout(seconds):
            await event.wait()
