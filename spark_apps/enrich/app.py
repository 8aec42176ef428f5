"""Keeps readings by rules that may change at any time, looks up where each was taken, and writes them to another topic.

Arguments: a folder with the rules as lines of JSON, `host:port` of the service that knows the places, the topic to write, and
`ordered` or `unordered`: whether a reading waits for slower ones before it.
"""

import asyncio
import json
import sys
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from shardherd.spark import session
from shardherd.spark.arrow_map import map_in_arrow
from shardherd.spark.async_map import async_map
from shardherd.spark.sinks import kafka

RULES, PLACES, TOPIC, ORDER = sys.argv[1:5]
SINK = kafka(TOPIC)
ENRICHED: dict[str, pa.DataType] = {
    "shard": pa.string(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "key": pa.string(),
    "value": pa.string(),
}


async def look_up(reading: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Ask the service for the place of one reading. With a client of your own, use its asynchronous calls here."""
    host, port = PLACES.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(f"GET /{reading['key']}/{reading['number']} HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
    if head.split()[1] != b"200":
        raise RuntimeError(f"the place of {reading['key']}: the service at {PLACES} says {head.splitlines()[0].decode()}")
    value = json.dumps({"number": reading["number"], "place": body.decode()})
    return [{name: reading[name] for name in ("shard", "offset", "timestamp", "key")} | {"value": value}]


def write(readings: DataFrame, batch_id: int) -> None:
    # Read in every micro-batch, so that a rule that has changed counts from the next one on.
    rules = readings.sparkSession.read.schema("key STRING, every LONG").json(RULES)
    kept = readings.join(F.broadcast(rules), "key").where("number % every = 0").drop("every")
    asked = async_map(look_up, pa.schema(ENRICHED), capacity=20, ordered=ORDER == "ordered", timeout=10, retries=3)
    columns = "shard STRING, offset LONG, timestamp TIMESTAMP, key STRING, value STRING"
    SINK(map_in_arrow(kept, asked, columns), batch_id)


spark = session()
records = spark.readStream.format("shardherd").option("targetBatchSeconds", 1).load()
value = F.from_json(F.col("value").cast("string"), "number LONG").alias("value")
readings = records.select("shard", "offset", "timestamp", F.col("key").cast("string").alias("key"), value)
numbers = readings.select("shard", "offset", "timestamp", "key", "value.number")
numbers.writeStream.queryName("enrich").trigger(processingTime="1 second").foreachBatch(write).start().awaitTermination()
