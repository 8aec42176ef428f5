"""A Spark application that notes every record that it reads, as `ranges` does for workers; its first argument is the folder."""

import json
import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame

from shardherd.spark import session

FOLDER = Path(sys.argv[1])
FOLDER.mkdir(parents=True, exist_ok=True)
FILE = FOLDER / f"{os.environ['SHARDHERD_CONSUMER']}.{os.environ['SHARDHERD_START']}"


def write(rows: DataFrame, _: int) -> None:
    """A line for each record of a micro-batch."""
    found = [{"shard": row["shard"], "begin": row["offset"], "end": row["offset"] + 1} for row in rows.collect()]
    with FILE.open("a") as file:
        file.writelines(f"{json.dumps(each)}\n" for each in found)


shards = session().readStream.format("shardherd").load().selectExpr("concat(topic, '/', partition) as shard", "offset")
shards.writeStream.queryName("ranges").trigger(processingTime="1 second").foreachBatch(write).start().awaitTermination()
