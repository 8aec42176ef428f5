"""One asynchronous call for an element: how long it may take, how often it is tried, and what stands in for its results.

Used by `worker.asynchronous` and `spark.async_map`. Decides nothing about the order of results.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, TypeVar

from shardherd.consumer.contained import contained
from shardherd.consumer.settings_given import no_number, no_truth

E = TypeVar("E")
R = TypeVar("R")


def wrong_settings(*, ordered: Any, timeout: Any, retries: Any, pause: Any) -> Iterator[tuple[str, str]]:
    """The settings of calls that cannot be, each by its name and what it must be. With retries below 0 nothing is called."""
    for name, wrong in (
        ("ordered", no_truth(ordered)),
        ("timeout", no_number(timeout, 0)),
        ("retries", no_number(retries, 0, whole=True)),
        ("pause", no_number(pause, 0)),
    ):
        if wrong:
            yield name, wrong


async def results_of(
    invoke: Callable[[E], Awaitable[Iterable[R]]],
    element: E,
    *,
    timeout: float,
    retries: int,
    pause: float,
    timed_out: Callable[[E], Iterable[R]] | None = None,
) -> tuple[R, ...]:
    """What `invoke` returns. It is called up to `retries` times again when it raises, `pause` seconds later. Raises TypeError
    for what are no results.

    All of it within `timeout` seconds; 0 or less: without a bound. Then it is cancelled, and the results are those of
    `timed_out`, or TimeoutError is raised.
    """
    try:
        async with asyncio.timeout(timeout if timeout > 0 else None) as bound:
            for left in range(retries, -1, -1):
                try:
                    with contained("invoke"):
                        return _results("invoke", await _awaitable(invoke(element)))
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
    with contained("timed_out"):
        return _results("timed_out", timed_out(element))


def _awaitable(called: Any) -> Awaitable[Any]:
    if not inspect.isawaitable(called):
        raise TypeError(f"invoke must be a coroutine, and returned {called!r} at once: write `async def invoke`")
    return called


def _results(method: str, returned: Any) -> tuple[Any, ...]:
    """What a method of the program has returned. A text could be iterated over, and is one result that nobody put in a list."""
    if isinstance(returned, str | bytes) or not isinstance(returned, Iterable):
        raise TypeError(f"{method} must return a list of results, which is empty for none, not {returned!r}")
    return tuple(returned)
