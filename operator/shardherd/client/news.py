"""How one heartbeat at a time is kept under way: its answer is awaited, unless there is news to tell first.

Called by `client.consumer` and by the agent of `spark`, whose loops of heartbeats are alike. Decides nothing about shards.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import Any

from shardherd.core.model.nouns import Heartbeat, HeartbeatReply


async def answered(request: asyncio.Future[HeartbeatReply], news: asyncio.Event) -> bool:
    """Wait for the answer, or give the request up because there is news. Returns whether it was answered."""
    told = asyncio.ensure_future(news.wait())
    try:
        both: list[asyncio.Future[Any]] = [request, told]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        return request.done()
    finally:
        told.cancel()
        if not request.done():
            request.cancel()


async def within(news: asyncio.Event, seconds: float) -> None:
    """Wait for news, but no longer than so many seconds."""
    with contextlib.suppress(TimeoutError):
        # Not wait_for: in Python 3.11 it can swallow a cancellation.
        async with asyncio.timeout(max(0.0, seconds)):
            await news.wait()


def alike(told: Heartbeat, now: Heartbeat) -> bool:
    """Whether what would be said now is no news after what was told: only the count, the progress and the phase may differ."""
    phase, age, goes_on = told.phase, told.phase_age, told.goes_on_in
    return replace(now, seq=told.seq, progress=told.progress, phase=phase, phase_age=age, goes_on_in=goes_on) == told
