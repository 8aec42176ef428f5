"""An application with executors: the same manifest is run by drivers alone on one machine, and makes pods on a cluster."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from kafka import KafkaAdminClient

from shardherd.local.schema import admitted
from shardherd.spark.application import spark_conf
from shardherd.spark.pod import read_pod
from tests.harness.broker import Broker
from tests.harness.executors import MANIFEST, NAME
from tests.integration.local.test_laptop import EACH, SHARDS, Laptop
from tests.unit.controller.builders import MANIFESTS

TASKS = min(2, os.cpu_count() or 1)
NOT_KEPT = [
    "spec.application.executor: there are no executors here; each driver runs the tasks itself, as"
    f" local[{TASKS}] with a heap of 640m (at most 2 x 1 cores were asked for, this machine has {os.cpu_count()})",
    "spec.application.executor.template: not used, as there are no executors here",
    "spec.application.sparkConf: not used, as there are no executors here: spark.executor.extraJavaOptions,"
    " spark.executor.heartbeatInterval, spark.kubernetes.executor.deleteOnTermination",
]


@pytest.fixture
def laptop(tmp_path: Path, broker: Broker) -> Iterator[Laptop]:
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    admin.create_topics({NAME: {"num_partitions": SHARDS, "replication_factor": 1}}, wait_for_metadata=True)
    admin.close()
    found = Laptop(tmp_path / "app", broker.bootstrap, NAME, "default")
    shutil.copy(MANIFEST, found.folder)
    yield found
    found.close()


def jvm(folder: Path) -> tuple[list[str], dict[str, str]]:
    """The arguments and the variables of the driver's JVM; empty while it does not run."""
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if not entry.name.isdigit() or b"org.apache.spark.deploy.SparkSubmit" not in (entry / "cmdline").read_bytes():
                continue
            variables = dict(each.split("=", 1) for each in (entry / "environ").read_text().split("\0") if "=" in each)
            if variables.get("SHARDHERD_GROUP") == NAME and variables["SHARDHERD_CHECKPOINT_PATH"].startswith(str(folder)):
                return (entry / "cmdline").read_text().split("\0"), variables
    return [], {}


@pytest.mark.timeout(1200)
def test_a_manifest_with_executors_runs_unchanged_and_what_is_not_kept_is_named(laptop: Laptop) -> None:
    up = laptop.start("shardherd local up -f executors.yaml --bootstrap localhost:9092")
    laptop.until("it leads", lambda: "leading: " in laptop.said(up) or up.poll() is not None)
    said = [
        line.partition(f"ConsumerGroup default/{NAME}: ")[2] for line in laptop.said(up).splitlines() if "warning: " in line
    ]
    assert sorted(line for line in said if "executor" in line) == sorted(NOT_KEPT)

    laptop.write()
    wanted = {(f"{NAME}/{shard}", offset) for shard in range(SHARDS) for offset in range(EACH)}
    laptop.until("all events are rows", lambda: set(laptop.rows()) == wanted)

    assert sorted(laptop.rows()) == sorted(wanted)
    arguments, variables = jvm(laptop.folder)
    assert {f"spark.master=local[{TASKS}]", "spark.driver.memory=640m", "spark.sql.shuffle.partitions=3"} <= set(arguments)
    temporary = Path(variables["TMPDIR"])
    assert list(temporary.glob("spark-*")), "what the JVM keeps for a while is not in the pod's own folder"

    laptop.type("shardherd local down")
    assert up.wait(60) == 0
    assert not temporary.exists()
    assert sorted(laptop.rows()) == sorted(wanted)


def test_the_same_manifest_makes_executors_on_a_cluster() -> None:
    resource = admitted(yaml.safe_load(MANIFEST.read_text()))
    resource["metadata"] |= {"namespace": "default", "uid": "uid-of-the-group", "generation": 1}
    pod = MANIFESTS.stateful_set(resource, 1)["spec"]["template"]["spec"]
    (driver,) = pod["containers"]
    variables = {item["name"]: item["value"] for item in driver["env"] if "value" in item}
    of_the_pod = {"SHARDHERD_CONSUMER": f"{NAME}-0", "SHARDHERD_POD_UID": "uid-of-the-pod", "SHARDHERD_START": "1"}

    settings = read_pod({**variables, **of_the_pod})
    conf: dict[str, Any] = {**spark_conf(settings), **settings.spark_conf}

    assert pod["automountServiceAccountToken"] is True
    assert {
        "spark.master": "k8s://https://kubernetes.default.svc",
        "spark.executor.instances": "2",
        "spark.executor.cores": "1",
        "spark.executor.memory": "640m",
        "spark.executor.heartbeatInterval": "5s",
        "spark.executor.extraJavaOptions": "-XX:+UseSerialGC",
        "spark.kubernetes.executor.deleteOnTermination": "true",
        "spark.sql.shuffle.partitions": "3",
    }.items() <= conf.items()
    executor = json.loads(variables["SHARDHERD_EXECUTOR_TEMPLATE"])["spec"]
    assert {"name": "data", "mountPath": "/data"} in executor["containers"][0]["volumeMounts"]
    assert {"name": "data", "persistentVolumeClaim": {"claimName": "clickstream-data"}} in executor["volumes"]
