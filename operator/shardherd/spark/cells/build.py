"""What the application builds for each cell: `Cell`, which reads the cell's shards, and the check of the writer it returns.

`runner` makes a `Cell` for each start of a cell's query, hands it to the application's function and gives its writer the
trigger, the name and the location. It starts nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from pyspark.sql.streaming.readwriter import DataStreamWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OURS = {"queryName": "queryName", "checkpointLocation": 'option("checkpointLocation", ...)'}


class CellsError(RuntimeError):
    """`run_cells` was called where it cannot do its work, or was given what it cannot run. Says what to do."""


@dataclass(frozen=True)
class Cell:
    """One cell, for the function that builds its query. `number` is 0 to C-1: a partition's number mod C.

    `id` and a batch id are of one micro-batch only: it is another one after a reset that discards state, when batch ids
    begin anew.
    """

    number: int
    id: str
    start: int
    spark: SparkSession

    def read(self, *, topics: Sequence[str] = (), **options: str) -> DataFrame:
        """A streaming DataFrame of this cell's records, of these topics of the group or of all of them.

        `options` are those of `format("shardherd")`. Called several times it makes several sources of one query, for joins.
        """
        if isinstance(topics, str):
            raise CellsError(f"cell.read: topics must be a list of names, not the text {topics!r}: write topics=[{topics!r}]")
        given = dict(options)
        if topics:
            given["topics"] = ",".join(topics)
        return self.spark.readStream.format("shardherd").options(**given).option("cell", f"{self.number}/{self.start}").load()


Build: TypeAlias = Callable[[Cell], DataStreamWriter]


def checked(writer: object, cell: int) -> DataStreamWriter:
    """The writer that the application's function has returned, which must leave trigger, name and location to us."""
    if not isinstance(writer, DataStreamWriter):
        raise CellsError(
            f"build(cell) has returned {type(writer).__name__} for cell {cell}: it must return the DataStreamWriter, "
            "df.writeStream..., and not call start()"
        )
    said: Any = writer._jwrite
    options = _field(said, "extraOptions")
    for name, call in OURS.items():
        if options.contains(name):
            raise CellsError(
                f"build(cell) has set {call} to {options.apply(name)!r}: run_cells gives the query of every cell its name, "
                "trigger and location; remove it"
            )
    trigger = _field(said, "trigger")
    if str(trigger) != "ProcessingTimeTrigger(0)":
        raise CellsError(f"build(cell) has set a trigger, {trigger}: remove it, and give run_cells(build, trigger=...) instead")
    return writer


def _field(java: Any, name: str) -> Any:
    """A private field of Spark's writer, which tells nobody what it was given."""
    found = java.getClass().getDeclaredField(name)
    found.setAccessible(True)
    return found.get(java)
