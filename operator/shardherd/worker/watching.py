"""Says when the event loop of a program's coroutines stands still: one call blocks it, and all coroutines wait for that.

Run by `worker` beside the rest, on the session's loop. Nothing but the program can end such a call; it decides when it is told.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from shardherd.worker.crew import ThreadCrew

log = logging.getLogger(__name__)

LOOK = 5.0
"""Seconds between two looks."""

LONG = 10.0
"""Seconds after which a loop that has not turned is told of; and again when it has taken twice as long."""


async def watch(crew: ThreadCrew, fields: Callable[[], Mapping[str, Any]], *, look: float = LOOK, long: float = LONG) -> None:
    """For ever, until it is cancelled. `fields` are what every line of the log names."""
    clock = asyncio.get_running_loop().time
    while True:
        await asyncio.sleep(look)
        turned, began, seconds = crew.turned(), clock(), long
        while not turned.done():
            await asyncio.wait({turned}, timeout=began + seconds - clock())
            if not turned.done():
                log.warning(
                    "the event loop of the program's coroutines has stood still for %g s: a call blocks it, and all shards"
                    " whose processor or output has coroutines wait for it; make such a call by asyncio.to_thread. It is"
                    " at\n%s",
                    seconds,
                    crew.where_the_loop_is(),
                    extra=dict(fields()),
                )
                seconds *= 2
