"""Click events from Kafka to Parquet: the smallest useful application of a ConsumerGroup.

The first argument is the folder for the rows. Every run of a consumer appends to a folder of its own below it: two writers of
one folder would clear away each other's unfinished files. TRIGGER may say how often a micro-batch begins.
"""

import os
import sys

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from shardherd.spark import session

CONSUMER, START = os.environ["SHARDHERD_CONSUMER"], os.environ["SHARDHERD_START"]
TRIGGER = os.environ.get("TRIGGER", "1 second")
ROWS = f"{sys.argv[1] if len(sys.argv) > 1 else '/data/clickstream/rows'}/{CONSUMER}.{START}"


def write(clicks: DataFrame, batch_id: int) -> None:
    (
        clicks.withColumn("click", F.from_json(F.col("value").cast("string"), "user STRING, page STRING, event_time TIMESTAMP"))
        .select("shard", "offset", F.lit(CONSUMER).alias("owner"), "click.*")
        .withColumns({"processed_at": F.current_timestamp(), "batch_id": F.lit(batch_id).cast("long")})
        .write.mode("append")
        .parquet(ROWS)
    )


spark = session()
clicks = (
    spark.readStream.format("shardherd")
    .schema("value BINARY, shard STRING, offset LONG")
    .option("targetBatchSeconds", 1)
    .load()
)
query = clicks.writeStream.queryName("clickstream").trigger(processingTime=TRIGGER).foreachBatch(write).start()
query.awaitTermination()
