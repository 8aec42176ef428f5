"""An iteration: each record goes round by one, through the topic that it came from, until nothing of it is left.

Arguments: the topic that goes round, and the one that records leave to. Records are JSON: a name and a number.
"""

import sys

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from shardherd.spark import session
from shardherd.spark.sinks import kafka


def less_one(records: DataFrame) -> DataFrame:
    """The records after one more round."""
    value = F.from_json(F.col("value").cast("string"), "name STRING, left LONG")
    named = records.select("shard", "offset", value.alias("value"))
    return named.select("shard", "offset", "value.name", (F.col("value.left") - 1).alias("left"))


def go_on(records: DataFrame) -> DataFrame:
    """Those that go round again."""
    return records.where("left > 0")


def leave(records: DataFrame) -> DataFrame:
    """Those of which nothing is left."""
    return records.where("left <= 0")


def as_records(rows: DataFrame) -> DataFrame:
    """Rows as the Kafka sink takes them."""
    return rows.select("shard", "offset", F.col("name").alias("key"), F.to_json(F.struct("name", "left")).alias("value"))


def main(around: str, out: str) -> None:
    """Run it."""
    again, over = kafka(around), kafka(out)

    def write(records: DataFrame, batch_id: int) -> None:
        rows = less_one(records)
        again(as_records(go_on(rows)), batch_id)
        over(as_records(leave(rows)), batch_id)

    spark = session()
    records = spark.readStream.format("shardherd").load()
    records.writeStream.queryName("countdown").foreachBatch(write).start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:3])
