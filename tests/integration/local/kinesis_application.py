"""A Spark application that appends what it reads of Kinesis to a file, batch by batch; its first argument is the folder."""

import json
import os
import sys
import time
from pathlib import Path

from pyspark.sql import DataFrame

from shardherd.spark import ranges, session

FOLDER = Path(sys.argv[1])
FOLDER.mkdir(parents=True, exist_ok=True)
FILE = FOLDER / f"{os.environ['SHARDHERD_CONSUMER']}.{os.environ['SHARDHERD_START']}.jsonl"


def write(rows: DataFrame, batch_id: int) -> None:
    """Append the rows of a micro-batch, each within the range of its shard."""
    spans = ranges(batch_id)
    lines = []
    for row in rows.selectExpr(
        "cast(key as string) as key", "cast(value as string) as value", "shard", "sequenceNumber"
    ).collect():
        span = spans[row["shard"]]
        assert span.start <= int(row["sequenceNumber"]) < span.stop
        lines.append(json.dumps({"order": row["key"], "event": row["value"], "shard": row["shard"], "at": time.time_ns()}))
    with FILE.open("a") as file:
        file.writelines(f"{line}\n" for line in lines)


orders = session().readStream.format("shardherd").load()
orders.writeStream.queryName("orders").trigger(processingTime="1 second").foreachBatch(write).start().awaitTermination()
