"""What a JVM of Spark's logs when it is started with the options that a driver gives it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pyspark

from shardherd.spark.application import session_conf
from shardherd.spark.driver_logs import LOG_FORMAT
from shardherd.spark.pod import read_pod
from tests.unit.spark.test_driver_logs import WHOSE
from tests.unit.spark.test_pod import POD


def test_a_jvm_of_spark_writes_the_operators_fields() -> None:
    pod = read_pod({**POD, "SHARDHERD_SPARK_CONF": json.dumps({LOG_FORMAT: "json"})})
    options = session_conf(pod, {})["spark.driver.defaultJavaOptions"].split()
    java = Path(os.environ["JAVA_HOME"], "bin", "java") if "JAVA_HOME" in os.environ else Path("java")
    jars = Path(pyspark.__file__).parent / "jars" / "*"
    # A daemon of Spark's says in its log that it starts before it reads its arguments.
    command = [str(java), *options, "-cp", str(jars), "org.apache.spark.deploy.master.Master", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    lines = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    started = next(line for line in lines if "Started daemon with process name" in line["message"])
    assert started.pop("time").endswith("Z")
    assert started.pop("message")
    assert started == {"level": "INFO", "logger": "org.apache.spark.deploy.master.Master", **WHOSE}
