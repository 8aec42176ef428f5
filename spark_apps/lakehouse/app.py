"""Orders from Kafka through three Delta tables: as they came (bronze), checked (silver), and added up by product (gold).

The first argument is the folder of the tables. Gold is brought up to date by what silver's change feed has since the last time.
"""

import sys

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from shardherd.spark import session
from shardherd.spark.sinks import delta

FOLDER = sys.argv[1] if len(sys.argv) > 1 else "/data/lakehouse"
GOLD: dict[str, pa.DataType] = {"product": pa.string(), "orders": pa.int64(), "cents": pa.int64()}
SILVER: dict[str, pa.DataType] = {
    "shard": pa.string(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "id": pa.string(),
    "product": pa.string(),
    "cents": pa.int64(),
}
BRONZE_SINK, SILVER_SINK = delta(f"{FOLDER}/bronze"), delta(f"{FOLDER}/silver")
FED = {"delta.enableChangeDataFeed": "true"}


def write(records: DataFrame, batch_id: int) -> None:
    BRONZE_SINK(records, batch_id)
    order = F.from_json(F.col("value").cast("string"), "id STRING, product STRING, cents LONG").alias("order")
    checked = records.select("shard", "offset", "timestamp", order).select("shard", "offset", "timestamp", "order.*")
    SILVER_SINK(checked.where("id IS NOT NULL AND product IS NOT NULL AND cents >= 0"), batch_id)
    refresh()


def refresh() -> None:
    """Add to gold what silver has gained. The commit says up to which version, so nobody adds the same twice."""
    while True:
        gold, silver = DeltaTable(f"{FOLDER}/gold"), DeltaTable(f"{FOLDER}/silver")
        done, newest = gold.transaction_version("silver"), silver.version()
        begin = 0 if done is None else done + 1
        if begin > newest:
            return
        changes = pa.table(silver.load_cdf(begin, newest, columns=["product", "cents", "_change_type"]).read_all())
        # Silver is only appended to, so that every change is an insert.
        added = changes.group_by("product").aggregate([("cents", "count"), ("cents", "sum")])
        rows = pa.table([added[name] for name in ("product", "cents_count", "cents_sum")], schema=pa.schema(GOLD))
        commit = CommitProperties(app_transactions=[Transaction("silver", newest)])
        merge = gold.merge(rows, "new.product = old.product", "new", "old", commit_properties=commit)
        both = {"orders": "old.orders + new.orders", "cents": "old.cents + new.cents"}
        try:
            merge.when_matched_update(both).when_not_matched_insert_all().execute()
        except CommitFailedError:
            continue  # another consumer was first: look again at what is left
        return


DeltaTable.create(f"{FOLDER}/silver", pa.schema(SILVER), mode="ignore", configuration=FED)
DeltaTable.create(f"{FOLDER}/gold", pa.schema(GOLD), mode="ignore", configuration=FED)
spark = session()
refresh()
records = spark.readStream.format("shardherd").option("targetBatchSeconds", 1).load()
bronze = records.select("shard", "offset", "timestamp", "key", "value")
bronze.writeStream.queryName("lakehouse").trigger(processingTime="1 second").foreachBatch(write).start().awaitTermination()
