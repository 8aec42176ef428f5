"""A Spark driver in client mode, with the settings that the test gives it, until its input ends. Run as a program."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

if __name__ == "__main__":
    builder = SparkSession.builder
    for key, value in json.loads(Path(sys.argv[1]).read_text()).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    print("started", flush=True)
    sys.stdin.read()
    spark.stop()
