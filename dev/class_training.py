"""A short streaming query that loads the classes of Spark which an application of ours loads. Ends its JVM in good order.

Run by `class_archive`, with Java told to keep at its end what was loaded (`-XX:ArchiveClassesAtExit`). It reads a Python data
source in batches of Arrow, parses JSON and writes Parquet, as the clickstream application does. It must not need a broker.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

BATCHES = 2
ROWS = 10


class _Numbers(DataSourceStreamReader):
    """Ten more rows in each micro-batch."""

    def __init__(self) -> None:
        self._end = 0

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"end": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: ARG002, N802 - Spark's names
        self._end += ROWS
        return {"end": self._end}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition((start["end"], end["end"]))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        offsets = range(*partition.value)
        values = [f'{{"user": "u{each}", "event_time": "2026-01-01T00:00:00Z"}}'.encode() for each in offsets]
        yield pa.RecordBatch.from_pydict({"value": values, "shard": ["a"] * len(values), "offset": list(offsets)})


class Training(DataSource):
    """The data source `training`."""

    @classmethod
    def name(cls) -> str:
        return "training"

    def schema(self) -> str:
        return "value BINARY, shard STRING, offset LONG"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: ARG002, N802 - Spark's names
        return _Numbers()


def train(folder: Path) -> None:
    """Run a query for a few micro-batches; everything that it writes is below `folder`."""
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    spark.dataSource.register(Training)

    def write(numbers: DataFrame, batch_id: int) -> None:
        parsed = numbers.withColumn("said", F.from_json(F.col("value").cast("string"), "user STRING, event_time TIMESTAMP"))
        rows = parsed.select("shard", "offset", "said.*").withColumn("at", F.current_timestamp())
        rows.withColumn("batch_id", F.lit(batch_id).cast("long")).write.mode("append").parquet(str(folder / "rows"))
        numbers.selectExpr("shard", "offset", "cast(value as string) as value").collect()

    numbers = spark.readStream.format("training").load()
    query = numbers.writeStream.option("checkpointLocation", str(folder / "checkpoint")).foreachBatch(write).start()
    while query.isActive and ((progress := query.lastProgress) is None or progress.batchId < BATCHES):
        query.awaitTermination(1)
    if (error := query.exception()) is not None:
        raise error
    query.stop()
    java = spark.sparkContext._gateway.proc  # type: ignore[union-attr]  # the JVM that PySpark started; there is no public way to it
    spark.stop()
    java.stdin.close()
    java.wait()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        train(Path(folder))
