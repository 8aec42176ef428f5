"""How a consumer says that it goes: again and again while there is time, since otherwise only its silence tells, much later.

Called by `client.consumer` and by the Spark agent at the end of a drain. Decides nothing about shards.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from shardherd.consumer.ports import Coordinator
from shardherd.core.model.errors import ShardherdError
from shardherd.core.model.nouns import Leave

log = logging.getLogger(__name__)

FIRST_RETRY, LAST_RETRY = 0.1, 1.0
"""Seconds before a failed request is made again; doubled each time up to the second."""


async def leave(
    coordinator: Coordinator,
    request: Leave,
    until: float,
    now: Callable[[], float],
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Tell the coordinator, trying on until `until`, in seconds of `now`. What fails is logged, with `extra` as its fields."""
    delay = FIRST_RETRY
    while True:
        try:
            await coordinator.leave(request)
            return
        except ShardherdError as error:
            log.warning("leaving of %s failed (%s): %s", request.consumer, error.code, error, extra=extra)
            if not error.retryable or now() + delay > until:
                return
        await asyncio.sleep(delay)
        delay = min(LAST_RETRY, delay * 2)
