"""The application that the tests run: reads with `format("shardherd")` and writes every row as a line of JSON.

One file a micro-batch and run, complete before it gets its name. A test kills it where it waits: before it writes rows while
the file `wait` exists beside them, after it wrote them while the file `hold` does. While the file `fail` exists it fails before
it writes any. TEST_TRIGGER is how often its query is triggered; with TEST_STATE it keeps state. With TEST_SECOND_QUERY it
starts another query, with TEST_NEXT_TRIGGER one that follows when its own has failed, with TEST_STOPS it ends its own when the
file `stop` is there.
"""

import json
import os
import time
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from shardherd.spark import serve, session

SINK = Path(os.environ["TEST_SINK"])
RUN = f"{os.environ['SHARDHERD_CONSUMER']}.{os.environ['SHARDHERD_START']}"


def tell(name: str, text: str) -> None:
    """A file that is whole as soon as it is there."""
    partial = SINK / f".{name}"
    partial.write_text(text)
    partial.rename(SINK / name)


def write(batch: DataFrame, batch_id: int) -> None:
    number = "offset" if "offset" in batch.columns else "sequenceNumber as offset"
    rows = batch.selectExpr("shard", number, "cast(value as string) as value").collect()
    if not rows:
        return
    while (SINK / f"wait-{RUN}").exists():
        (SINK / f"waits-{RUN}").touch()
        time.sleep(0.02)
    if (SINK / f"fail-{RUN}").exists():
        raise RuntimeError("told to fail")
    if os.environ.get("TEST_EXPLAIN"):
        batch.explain(extended=True)
    lines = [json.dumps({"shard": row.shard, "offset": row.offset, "value": row.value, "run": RUN}) for row in rows]
    partial = SINK / f".{RUN}.{batch_id}"
    partial.write_text("\n".join(lines) + "\n")
    partial.rename(SINK / f"{RUN}.{batch_id}.{time.monotonic_ns()}.jsonl")
    while (SINK / f"hold-{RUN}").exists():
        time.sleep(0.02)


spark = session()
options = json.loads(os.environ.get("TEST_OPTIONS", "{}"))
records = spark.readStream.format("shardherd").options(**options).load()
if os.environ.get("TEST_STATE"):
    records = records.dropDuplicates(["value"])
query = records.writeStream.queryName("test").foreachBatch(write)
if every := os.environ.get("TEST_TRIGGER"):
    query = query.trigger(processingTime=every)
if os.environ.get("TEST_AVAILABLE_NOW"):
    query = query.trigger(availableNow=True)
running = query.start()
tell(f"started-{RUN}", str(running.runId))
if os.environ.get("TEST_SECOND_QUERY"):
    while running.lastProgress is None:  # else the second one may be the first to ask for shards, and the first is refused
        time.sleep(0.02)
    second = spark.readStream.format("shardherd").load().writeStream.format("noop").start()
    try:
        second.awaitTermination()
    except StreamingQueryException as error:
        tell(f"refused-{RUN}", str(error))
if every := os.environ.get("TEST_NEXT_TRIGGER"):
    serve.LEAVE_AFTER = 300.0  # on a busy machine the next query takes long to begin
    try:
        running.awaitTermination()
    except StreamingQueryException:
        (SINK / f"fail-{RUN}").unlink()
        running = query.option("checkpointLocation", f"next-{RUN}").trigger(processingTime=every).start()
if os.environ.get("TEST_STOPS"):
    while not (SINK / f"stop-{RUN}").exists():
        time.sleep(0.02)
    running.stop()
running.awaitTermination()
if os.environ.get("TEST_EXPLAIN"):
    running.explain(extended=True)
    print(running.recentProgress)
tell(f"ended-{RUN}", str(running.runId))
