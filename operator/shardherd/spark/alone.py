"""The session of an application that is run by itself, without a ConsumerGroup: `shardherd run`. `session()` calls it there.

The options that a group would stand for come from the environment, and what the application gives itself wins. Spark keeps the
positions in its own checkpoint, and nobody else has a part of the shards.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from shardherd.spark import python_path
from shardherd.spark.network import guarded
from shardherd.spark.registration import register_source
from shardherd.spark.workers import with_workers

OPTIONS = "SHARDHERD_ALONE"
"""The variable that asks for it: the source's options as a JSON object."""

CHECKPOINT = "SHARDHERD_CHECKPOINT_PATH"


def make_alone(name: str | None, conf: Mapping[str, str] | None) -> SparkSession:
    """A session on this machine whose `format("shardherd")` reads what the environment says."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name or "shardherd")
    for key, value in session_conf(conf or {}).items():
        builder = builder.config(key, value)
    with python_path.launched():
        spark = builder.getOrCreate()
    register_source(spark, warm_up=True, given=json.loads(os.environ[OPTIONS]))
    return spark


def session_conf(conf: Mapping[str, str]) -> dict[str, str]:
    """All that the session is made with; what the application gives wins."""
    ours = {
        "spark.master": "local[*]",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.streaming.checkpointLocation": os.environ.get(CHECKPOINT, str(Path.cwd() / "checkpoint")),
    }
    return guarded(with_workers({**ours, **conf}))
