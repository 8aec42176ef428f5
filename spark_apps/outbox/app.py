"""Paid orders from one Kafka topic to another, each exactly once: a filter, with its results in transactions.

The first argument is the topic to write. A consumer of it must read with `isolation.level=read_committed`.
"""

import sys

from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from shardherd.spark import session
from shardherd.spark.sinks import kafka

TOPIC = sys.argv[1] if len(sys.argv) > 1 else "paid-orders"

spark = session()
orders = spark.readStream.format("shardherd").option("targetBatchSeconds", 1).load()
order = F.from_json(F.col("value").cast("string"), "id STRING, state STRING, cents LONG").alias("order")
paid = orders.select("shard", "offset", "timestamp", order).where("order.state = 'paid'")
records = paid.select("shard", "offset", "timestamp", F.col("order.id").alias("key"), F.to_json("order").alias("value"))
query = records.writeStream.queryName("outbox").trigger(processingTime="1 second").foreachBatch(kafka(TOPIC)).start()
query.awaitTermination()
