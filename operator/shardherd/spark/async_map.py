"""Asynchronous calls for the rows of a DataFrame: what is given to Spark's `mapInArrow`, or to `arrow_map` without pandas.

Runs in a Python worker of Spark, on an event loop of its own, while Spark asks for the next batch. The order is
`core.consumer.awaiting`'s rule, how a call ends that of `consumer.calls`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from shardherd.consumer.calls import results_of, wrong_settings
from shardherd.consumer.settings_given import no_number
from shardherd.core.consumer.awaiting import Awaiting, Watermark

Row = Mapping[str, Any]

ROWS = 1000
"""Most rows of a batch that is given to Spark."""


def async_map(
    invoke: Callable[[Row], Awaitable[Iterable[Row]]],
    schema: pa.Schema,
    *,
    capacity: int = 100,
    ordered: bool = True,
    timeout: float = 0.0,
    retries: int = 0,
    pause: float = 0.1,
    timed_out: Callable[[Row], Iterable[Row]] | None = None,
    watermark: Callable[[Row], int | None] | None = None,
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function for `map_in_arrow`: `invoke` is called for each row, for up to `capacity` at once, and gives rows of `schema`.

    `map_in_arrow` is that of `shardherd.spark.arrow_map`, or Spark's `mapInArrow` where pandas is installed.

    `ordered`, `timeout` in seconds, `retries`, `pause`, `timed_out` and `watermark` as of an AsyncOperator: no row passes one
    that has a watermark. A call that fails in the end fails the task. Raises ValueError for one of them that cannot be, such
    as a capacity below 1.
    """
    if wrong := no_number(capacity, 1, whole=True):
        raise ValueError(f"capacity {wrong}")
    for name, wrong in wrong_settings(ordered=ordered, timeout=timeout, retries=retries, pause=pause):
        raise ValueError(f"{name} of async_map {wrong}")

    def batches(given: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        queue: Awaiting[Row, Row] = Awaiting(capacity, ordered=ordered)
        rows = (row for batch in given for row in batch.to_pylist())
        tasks: set[asyncio.Task[None]] = set()
        loop = asyncio.new_event_loop()

        async def one(call: Any) -> None:
            row: Row = call.element
            found = await results_of(invoke, row, timeout=timeout, retries=retries, pause=pause, timed_out=timed_out)
            queue.finish(call, found)

        mark: Watermark | None = None

        def begin_some() -> None:
            """Calls and watermarks, as many as there is room for."""
            nonlocal mark
            while queue.room:
                if mark is not None:
                    queue.watermark(mark)
                    mark = None
                elif (row := next(rows, None)) is not None:
                    tasks.add(asyncio.ensure_future(one(queue.begin(row))))
                    time = watermark(row) if watermark is not None else None
                    mark = None if time is None else Watermark(time)
                else:
                    return

        async def some() -> tuple[list[Row], bool]:
            """Results for a batch, and whether there are more."""
            ready: list[Row] = []
            while len(ready) < ROWS:
                begin_some()
                if not tasks and not len(queue):
                    return ready, False
                if tasks:
                    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                    tasks.difference_update(done)
                    for task in done:
                        task.result()
                while (found := queue.emit()) is not None:
                    if not isinstance(found, Watermark):
                        ready += found.results
            return ready, True

        async def ended() -> None:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        try:
            more = True
            while more:
                ready, more = loop.run_until_complete(some())
                if ready:
                    yield pa.RecordBatch.from_pylist([dict(row) for row in ready], schema=schema)
        finally:
            loop.run_until_complete(ended())
            loop.close()

    return batches
