"""Asynchronous calls for the rows of Arrow batches, as `mapInArrow` makes them; without Spark."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from shardherd.spark.async_map import Row, async_map

SCHEMA = pa.schema([("e", pa.int64())])


def batches(*sizes: int) -> Iterator[pa.RecordBatch]:
    """Rows that are numbered through."""
    first = 0
    for size in sizes:
        yield pa.RecordBatch.from_pylist([{"e": number} for number in range(first, first + size)], schema=SCHEMA)
        first += size


def rows(found: Iterator[pa.RecordBatch]) -> list[int]:
    return [row["e"] for batch in found for row in batch.to_pylist()]


@pytest.mark.parametrize("ordered", [True, False])
def test_ten_delayed_elements_ordered_and_unordered(ordered: bool) -> None:
    at_once: list[int] = []

    async def invoke(row: Row) -> list[Row]:
        at_once.append(len(asyncio.all_tasks()))
        await asyncio.sleep((row["e"] % 3 + 1) / 1000)
        return [row]

    found = rows(async_map(invoke, SCHEMA, ordered=ordered, timeout=10.0, capacity=10)(batches(4, 0, 6)))
    assert (found == list(range(10)), sorted(found)) == (ordered or found == list(range(10)), list(range(10)))
    assert max(at_once) == 11, "all ten are called at once, over the ends of batches"


def test_at_most_as_many_as_the_capacity_are_called_at_once_and_one_slow_call_holds_them_up_in_order() -> None:
    running: set[int] = set()
    most: list[int] = []

    async def invoke(row: Row) -> list[Row]:
        running.add(row["e"])
        most.append(len(running))
        await asyncio.sleep(0.002 if row["e"] % 4 == 0 else 0)
        running.discard(row["e"])
        return [row, row]

    assert rows(async_map(invoke, SCHEMA, capacity=3)(batches(20))) == [each for each in range(20) for _ in "ab"]
    assert max(most) == 3


@pytest.mark.parametrize("capacity", [1, 2, 100])
def test_without_an_order_no_row_passes_one_that_has_a_watermark(capacity: int) -> None:
    async def invoke(row: Row) -> list[Row]:
        await asyncio.sleep((10 - row["e"]) / 1000)
        return [row]

    def every_fourth(row: Row) -> int | None:
        return row["e"] if row["e"] % 4 == 3 else None

    found = rows(async_map(invoke, SCHEMA, ordered=False, capacity=capacity, watermark=every_fourth)(batches(10)))
    assert [sorted(found[:4]), sorted(found[4:8]), sorted(found[8:])] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert (found == [*range(10)]) is (capacity == 1), "within a segment they come as they are there"


def test_a_client_without_coroutines_is_called_by_a_pool_of_30_threads() -> None:
    together = threading.Barrier(30, timeout=60)

    with ThreadPoolExecutor(30) as pool:

        async def invoke(row: Row) -> list[Row]:
            await asyncio.get_running_loop().run_in_executor(pool, together.wait)
            return [row]

        assert rows(async_map(invoke, SCHEMA, capacity=30)(batches(60))) == list(range(60)), "thirty at once, and again"


def test_a_call_that_fails_in_the_end_fails_the_task_and_its_retries_are_as_many_as_said() -> None:
    tries: list[int] = []

    async def invoke(row: Row) -> list[Row]:
        tries.append(row["e"])
        if row["e"] == 1 and tries.count(1) < 3:
            raise ConnectionError("away")
        return [row]

    assert rows(async_map(invoke, SCHEMA, retries=2, pause=0.0)(batches(3))) == [0, 1, 2]
    assert tries.count(1) == 3
    tries.clear()
    with pytest.raises(ConnectionError, match="away"):
        rows(async_map(invoke, SCHEMA, retries=1, pause=0.0)(batches(3)))


def test_a_timeout_fails_the_task_unless_something_stands_in_for_the_results() -> None:
    async def never(row: Row) -> list[Row]:
        await asyncio.sleep(100.0 if row["e"] == 1 else 0)
        return [row]

    with pytest.raises(TimeoutError, match=r"no result within 0\.01 s"):
        rows(async_map(never, SCHEMA, timeout=0.01)(batches(3)))
    instead = async_map(never, SCHEMA, timeout=0.01, timed_out=lambda _row: [{"e": -1}])
    assert rows(instead(batches(3))) == [0, -1, 2]


def test_a_timeout_that_the_call_itself_raises_is_no_end_of_its_time() -> None:
    async def invoke(row: Row) -> list[Row]:
        raise TimeoutError("of a socket")

    with pytest.raises(TimeoutError, match="of a socket"):
        rows(async_map(invoke, SCHEMA, timeout=10.0, timed_out=lambda row: [row])(batches(1)))


def test_no_rows_and_no_results_make_no_batch_and_more_than_a_thousand_make_several() -> None:
    async def none(row: Row) -> list[Row]:
        return []

    async def many(row: Row) -> list[Row]:
        return [row] * 700

    assert list(async_map(none, SCHEMA)(batches(5))) == list(async_map(many, SCHEMA)(batches())) == []
    found = list(async_map(many, SCHEMA, capacity=1)(batches(4)))
    assert [batch.num_rows for batch in found] == [1400, 1400]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"capacity": 0}, "capacity must be 1 or more, not 0"),
        ({"capacity": "9"}, "capacity must be a whole number, 1 or more, not '9'"),
        ({"retries": -1}, "retries of async_map must be 0 or more, not -1"),
        ({"timeout": float("nan")}, "timeout of async_map must be a number of seconds, 0 or more, not nan"),
        ({"pause": "1"}, "pause of async_map must be a number of seconds, 0 or more, not '1'"),
        ({"ordered": "false"}, "ordered of async_map must be True or False, not 'false'"),
    ],
)
def test_what_calls_cannot_be_is_refused_before_the_first_row(given: dict[str, Any], message: str) -> None:
    async def none(row: Row) -> list[Row]:
        return []

    with pytest.raises(ValueError, match=message):
        async_map(none, SCHEMA, **given)


def test_a_call_that_returns_no_list_fails_the_task_with_the_remedy() -> None:
    async def nothing(row: Row) -> Any:
        return None

    with pytest.raises(TypeError, match="invoke must return a list of results, which is empty for none, not None"):
        rows(async_map(nothing, SCHEMA)(batches(1)))


@pytest.mark.parametrize("error", [asyncio.CancelledError("by a client"), SystemExit(3)], ids=repr)
def test_a_call_that_its_client_cancels_or_that_wants_to_exit_is_tried_again(error: BaseException) -> None:
    raises, called = [error], []

    async def invoke(row: Row) -> list[Row]:
        called.append(row["e"])
        if row["e"] == 1 and raises:
            raise raises.pop()
        return [row]

    assert rows(async_map(invoke, SCHEMA, retries=1, pause=0.0)(batches(3))) == [0, 1, 2]
    assert sorted(called) == [0, 1, 1, 2]
