"""The application of a group with cells that the tests run: it counts the records of each key, by a query for each cell.

Each micro-batch is a file of JSON, named by cell and batch id, so that one which is run again replaces itself. While the file
`hold-<cell>` exists beside them, that cell's micro-batches wait, and `holds-<cell>` says that one does.
"""

import json
import os
import time
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from shardherd.spark import ranges, run_cells, session
from shardherd.spark.cells.build import Cell

SINK = Path(os.environ["TEST_SINK"])
RUN = f"{os.environ['SHARDHERD_CONSUMER']}.{os.environ['SHARDHERD_START']}"


def build(cell: Cell) -> DataStreamWriter:
    def write(batch: DataFrame, batch_id: int) -> None:
        rows = [row.asDict() for row in batch.collect()]
        while (SINK / f"hold-{cell.number}").exists():
            (SINK / f"holds-{cell.number}").touch()
            time.sleep(0.02)
        found = {shard: list(each) for shard, each in ranges(batch_id).items()}
        told = {"run": RUN, "cell": cell.number, "batch": batch_id, "ranges": found, "rows": rows}
        partial = SINK / f".{RUN}.{cell.number}"
        partial.write_text(json.dumps(told) + "\n")
        partial.rename(SINK / f"{cell.number}.{batch_id}.json")

    records = cell.read().selectExpr("cast(key as string) as key", "cast(value as string) as value")
    return records.groupBy("key").count().writeStream.outputMode("update").foreachBatch(write)


session()
run_cells(build, trigger="200 milliseconds")
(SINK / f"ended-{RUN}").touch()
