"""Sessions of users from a topic of clicks into a table of PostgreSQL: windows by key, which close after a pause.

The first argument says where the database is, as libpq takes it. A session ends when its user has not clicked for 30 minutes.
Clicks may come up to 10 minutes late; what comes later than its session is written is left out.
"""

import sys

import psycopg
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.streaming.readwriter import DataStreamWriter

from shardherd.spark import run_cells, session
from shardherd.spark.cells.build import Cell

DATABASE = sys.argv[1]
PAUSE, LATE = "30 minutes", "10 minutes"

# Written again after a crash, the same session is the same row.
WRITE = """
INSERT INTO sessions (user_id, began_at, ended_at, clicks) VALUES (%s, %s, %s, %s)
ON CONFLICT (user_id, began_at) DO UPDATE SET ended_at = EXCLUDED.ended_at, clicks = EXCLUDED.clicks
"""


def write(sessions: DataFrame, _batch_id: int) -> None:
    rows = [tuple(row) for row in sessions.collect()]
    if not rows:
        return
    with psycopg.connect(DATABASE, options="-c TimeZone=UTC") as database:
        database.cursor().executemany(WRITE, rows)


def build(cell: Cell) -> DataStreamWriter:
    click = F.from_json(F.col("value").cast("string"), "event_time TIMESTAMP").alias("click")
    clicks = cell.read().select(F.col("key").cast("string").alias("user"), click).select("user", "click.event_time")
    sessions = (
        clicks.where("user IS NOT NULL AND event_time IS NOT NULL")
        .withWatermark("event_time", LATE)
        .groupBy("user", F.session_window("event_time", PAUSE))
        .agg(F.min("event_time").alias("began"), F.max("event_time").alias("ended"), F.count("*").alias("clicks"))
    )
    # As texts with their zone: a timestamp would be the machine's local time in Python.
    times = (F.date_format(name, "yyyy-MM-dd'T'HH:mm:ss.SSSXXX").alias(name) for name in ("began", "ended"))
    return sessions.select("user", *times, "clicks").writeStream.outputMode("append").foreachBatch(write)


session()
run_cells(build)
