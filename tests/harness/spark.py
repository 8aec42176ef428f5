"""SparkSessions in the process of the tests. Its JVM is started once, with what any of them needs on its class path."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from dev.cluster.tools import Tools
from shardherd.spark import python_path
from tests.harness.quick_spark import WORKERS


def make_session(folder: Path, settings: Mapping[str, str]) -> SparkSession:
    """A session that keeps its files in `folder`. Whoever stops it ends its context, but not the JVM."""
    os.environ.setdefault(WORKERS, sys.executable)
    os.environ["SPARK_LOCAL_DIRS"] = str(folder / "work")
    common = {
        "spark.driver.memory": "600m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        # The class path of a JVM that runs cannot be extended for a later session.
        "spark.jars": ",".join(str(each) for each in sorted(Tools().spark_jars.glob("*.jar"))),
    }
    builder = SparkSession.builder.appName("tests")
    for key, value in {**common, **settings}.items():
        builder = builder.config(key, value)
    with python_path.launched():
        return builder.getOrCreate()
