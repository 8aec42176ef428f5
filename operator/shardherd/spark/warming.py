"""Starts Spark's Python workers before the first query needs them, while Spark plans it; `registration` calls it.

A worker takes a second or two of the processor until it can read. Spark starts it when the first micro-batch has tasks, after
everything else that a cold start waits for, and leaves it running for the next task. It reads nothing and connects to nothing,
and no query waits for it or fails because of it.
"""

from __future__ import annotations

import importlib
import logging
import threading
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.functions import udf
from pyspark.sql.types import BooleanType

log = logging.getLogger(__name__)

MOST = 16
"""Workers that are started ahead: beyond that they would rather take memory than be waited for."""


def start_workers(spark: SparkSession, slots: int) -> threading.Thread:
    """Start as many as tasks can run at once, by a Spark job of its own in a thread of its own.

    There are fewer where a task is done before another one has begun: that is given its worker.
    """
    thread = threading.Thread(target=_job, args=(spark, min(slots, MOST)), name="shardherd-warm-up", daemon=True)
    thread.start()
    return thread


def _job(spark: SparkSession, count: int) -> None:
    try:
        spark.sparkContext.setLocalProperty("spark.job.description", "shardherd: start Python workers")
        # Spark keeps workers apart by what they run for; a function without Arrow shares those of the source.
        loaded = udf(_load, BooleanType(), useArrow=False)
        spark.range(0, count, 1, count).select(loaded("id")).collect()
    except Exception:
        # Whatever is wrong with workers, the query's own will say; mostly the session has ended meanwhile.
        log.info("Python workers were not started ahead", exc_info=True)


def _load(_number: Any) -> bool:
    """In a worker: import what reading takes. It compiles nothing: the processes that Spark starts meanwhile must not wait."""
    importlib.import_module("shardherd.spark.reader")
    kernels = importlib.import_module("shardherd.source.decoding.compiled_records").KERNELS
    if kernels.compiled():
        kernels.functions()
    return True
