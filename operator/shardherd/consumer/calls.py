"""One asynchronous call for an element: how long it may take, how often it is tried, and what stands in for its results.

Used by `worker.asynchronous` and `spark.async_map`. Decides nothing about the order of results.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

E = TypeVar("E")
R = TypeVar("R")


async def results_of(
    invoke: Callable[[E], Awaitable[Iterable[R]]],
    element: E,
    *,
    timeout: float,
    retries: int,
    pause: float,
    timed_out: Callable[[E], Iterable[R]] | None = None,
) -> tuple[R, ...]:
    """What `invoke` returns. It is called up to `retries` times again when it raises, `pause` seconds later.

    All of it within `timeout` seconds; 0 or less: without a bound. Then it is cancelled, and the results are those of
    `timed_out`, or TimeoutError is raised.
    """
    try:
        async with asyncio.timeout(timeout if timeout > 0 else None) as bound:
            for left in range(retries, -1, -1):
                try:
                    return tuple(await invoke(element))
                except Exception:
                    if not left:
                        raise
                    await asyncio.sleep(pause)
    except TimeoutError:
        # One that the call raises itself is a failure as any other.
        if not bound.expired():
            raise
        if timed_out is None:
            raise TimeoutError(f"no result within {timeout:g} s") from None
    assert timed_out is not None
    return tuple(timed_out(element))
