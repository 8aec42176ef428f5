"""A result for each record, of what has come of its key so far, appended to a Delta table once.

Arguments: which result (`reduce`, `min`, `min-by` or `union`), the table, and the topic. Records are JSON: two numbers, `first`
and `second`.
"""

import sys
from collections.abc import Callable, Iterator
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from shardherd.spark import run_cells, session
from shardherd.spark.cells.build import Cell
from shardherd.spark.sinks import delta

Pair = tuple[int, int]
Step = Callable[[Pair, Pair], Pair]

STEPS: dict[str, Step] = {
    # What is kept and what has come make what is kept now.
    "reduce": lambda kept, come: (kept[0] + come[0], kept[1] + come[1]),
    # The least `first`; `second` stays that of the key's first record.
    "min": lambda kept, come: (min(kept[0], come[0]), kept[1]),
    # The record with the least `first`, of several the one that came first.
    "min-by": lambda kept, come: come if come[0] < kept[0] else kept,
}


class Running(StatefulProcessor):
    """Gives the kept pair after each record of a key. `reduce` has nothing to give for the first one alone."""

    def __init__(self, name: str) -> None:
        self._name = name

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._kept = handle.getValueState("kept", "first long, second long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: ARG002, N802, N803
        kept = self._kept.get() if self._kept.exists() else None
        # A key is in one partition, where offsets say in which order its records came.
        for row in sorted(rows, key=lambda each: each.offset):
            come = (row.first, row.second)
            found = come if kept is None else STEPS[self._name]((kept[0], kept[1]), come)
            if kept is not None or self._name != "reduce":
                yield Row(key=key[0], offset=row.offset, first=found[0], second=found[1])
            kept = found
        if kept is not None:
            self._kept.update(kept)

    def close(self) -> None:
        """Nothing is open."""


def twice(records: DataFrame) -> DataFrame:
    """Every record two times: a union removes nothing."""
    return records.unionByName(records)


def running(records: DataFrame, name: str) -> DataFrame:
    """The results, of records with `key`, `offset`, `first` and `second`."""
    if name == "union":
        return twice(records)
    result = "key string, offset long, first long, second long"
    return records.groupBy("key").transformWithState(Running(name), result, "Append", "None")


def main(name: str, place: str, topic: str) -> None:
    """Run it."""

    def build(cell: Cell) -> DataStreamWriter:
        value = F.from_json(F.col("value").cast("string"), "first LONG, second LONG")
        records = cell.read(topics=[topic]).select(F.col("key").cast("string").alias("key"), "offset", value.alias("value"))
        results = running(records.select("key", "offset", "value.first", "value.second"), name)
        return results.writeStream.outputMode("append").foreachBatch(delta(place, cell=cell))

    session()
    run_cells(build)


if __name__ == "__main__":
    main(*sys.argv[1:4])
