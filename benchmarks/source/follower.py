"""A consumer's Spark application for `moves`: `python -m benchmarks.source.follower`, with a driver pod's environment.

Prints a line of JSON at the end of each micro-batch with rows: when, on the machine's monotonic clock, and of which shards.
"""

from __future__ import annotations

import json
import time

from pyspark.sql import DataFrame

from shardherd.spark import session


def said(batch: DataFrame, _number: int) -> None:
    """The sink."""
    shards = sorted({row.shard for row in batch.select("shard").collect()})
    if shards:
        print(json.dumps({"at": time.monotonic(), "shards": shards}), flush=True)


def main() -> None:
    """Read until the end."""
    rows = session().readStream.format("shardherd").schema("shard string, value binary").load()
    rows.writeStream.queryName("follower").foreachBatch(said).start().awaitTermination()


if __name__ == "__main__":
    main()
