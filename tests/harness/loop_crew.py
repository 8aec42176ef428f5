"""A worker's crew without threads: what it is given runs on the loop of the test, or of the simulation.

Used by the tests of the worker and by the simulation; says nothing of what the work is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from shardherd.worker.crew import Call, CancelledInCrewError


class LoopCrew:
    """Functions run `delay` seconds after they are called, coroutines on the same loop: `loop`, or the one that runs."""

    def __init__(self, delay: Callable[[object], float], loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._delay = delay
        self._given = loop

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        return self._given or asyncio.get_running_loop()

    def call(self, work: Callable[[], Any]) -> Call:
        ended: asyncio.Future[Any] = self._loop.create_future()

        def run() -> None:
            if ended.cancelled():
                return
            try:
                ended.set_result(work())
            except Exception as error:  # noqa: BLE001 - as a crew of threads does
                ended.set_exception(error)
                ended.exception()

        self._loop.call_later(self._delay(work), run)
        return Call(ended)

    def spawn(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Call:
        task = self._loop.create_task(work())
        ended: asyncio.Future[Any] = self._loop.create_future()

        def done(_: object) -> None:
            error = CancelledInCrewError("it was cancelled") if task.cancelled() else task.exception()
            if error is None:
                ended.set_result(task.result())
            else:
                ended.set_exception(error)
                ended.exception()

        task.add_done_callback(done)

        def cancel() -> None:
            task.cancel()

        return Call(ended, cancel)
