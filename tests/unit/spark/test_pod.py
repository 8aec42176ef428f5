"""What a pod's environment tells the agent."""

from __future__ import annotations

import pytest

from shardherd.core.model.nouns import Incarnation
from shardherd.core.model.security import Security
from shardherd.spark.application import spark_conf
from shardherd.spark.pod import NotInPodError, read_pod

POD = {
    "SHARDHERD_GROUP": "clicks",
    "SHARDHERD_GROUP_UID": "group-uid",
    "SHARDHERD_NAMESPACE": "demo",
    "SHARDHERD_CONSUMER": "clicks-0",
    "SHARDHERD_POD_UID": "pod-uid",
    "SHARDHERD_START": "3",
    "SHARDHERD_COORDINATOR_URL": "http://shardherd.system.svc:8080",
    "SHARDHERD_TOKEN_FILE": "/token",
    "SHARDHERD_RUN_DIR": "/run/shardherd",
    "SHARDHERD_KAFKA_BOOTSTRAP_SERVERS": "kafka:9092",
    "SHARDHERD_CHECKPOINT_PATH": "/data/checkpoints/",
}
EXECUTORS = {
    "SHARDHERD_EXECUTOR_INSTANCES": "2",
    "SHARDHERD_EXECUTOR_CORES": "3",
    "SHARDHERD_DRIVER_HOST": "clicks-0.clicks.demo.svc",
    "SHARDHERD_EXECUTOR_SERVICE_ACCOUNT": "shardherd-spark",
    "SHARDHERD_IMAGE": "shardherd/spark:dev",
}


def test_a_pods_environment_is_read() -> None:
    pod = read_pod({**POD, "SHARDHERD_HEARTBEAT_INTERVAL_MS": "1500", "SHARDHERD_DRIVER_CORES": "2"})

    assert pod.session.incarnation == Incarnation("pod-uid", 3)
    assert (pod.session.heartbeat_interval, pod.session.drain_timeout, pod.grace_period) == (1.5, 60, 90)
    assert pod.checkpoint_location == "/data/checkpoints/group-uid/clicks-0"
    assert pod.slots == 2
    assert read_pod({**POD, **EXECUTORS}).slots == 6
    assert (pod.session.zone, pod.session.capacity) == ("", 1)
    assert pod.worker_address == "127.0.0.1"
    assert read_pod({**POD, **EXECUTORS, "SHARDHERD_POD_IP": "10.0.0.7"}).worker_address == "10.0.0.7"
    placed = read_pod({**POD, "SHARDHERD_ZONE": "eu-1a", "SHARDHERD_CAPACITY": "4"}).session
    assert (placed.zone, placed.capacity) == ("eu-1a", 4)
    isolations = [
        {},
        {"SHARDHERD_KAFKA_ISOLATION_LEVEL": "read_uncommitted"},
        {"SHARDHERD_KAFKA_ISOLATION_LEVEL": "read_committed"},
    ]
    assert [read_pod({**POD, **isolation}).read_committed for isolation in isolations] == [None, False, True]


def test_outside_a_pod_every_missing_variable_is_named() -> None:
    with pytest.raises(NotInPodError, match=r"not set here: SHARDHERD_GROUP, .*SHARDHERD_CHECKPOINT_PATH\. Apply"):
        read_pod({})
    with pytest.raises(NotInPodError, match=r"not set here: SHARDHERD_START\."):
        read_pod({**POD, "SHARDHERD_START": ""})


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("SHARDHERD_START", "two", "SHARDHERD_START must be a whole number, 1 or more, not 'two'"),
        ("SHARDHERD_START", "²", "SHARDHERD_START must be a whole number, 1 or more, not '²'"),
        ("SHARDHERD_START", "9" * 5000, f"SHARDHERD_START must be a whole number, 1 or more, not '{'9' * 80}'"),
        ("SHARDHERD_CAPACITY", "much", "SHARDHERD_CAPACITY must be a whole number, 1 or more, not 'much'"),
        *(
            (name, value, f"{name} must be a whole number, from {least} to 1000000000000, not '{value[:80]}'")
            for name, least, value in (
                ("SHARDHERD_HEARTBEAT_INTERVAL_MS", 1, "0"),
                ("SHARDHERD_SESSION_TIMEOUT_MS", 1, "nan"),
                ("SHARDHERD_DRAIN_TIMEOUT_MS", 0, "9" * 400),
                ("SHARDHERD_GRACE_PERIOD_MS", 0, "inf"),
            )
        ),
        ("SHARDHERD_METRICS_PORT", "70000", "SHARDHERD_METRICS_PORT must be a whole number, from 0 to 65535, not '70000'"),
        (
            "SHARDHERD_KAFKA_ISOLATION_LEVEL",
            "serializable",
            "SHARDHERD_KAFKA_ISOLATION_LEVEL must be read_uncommitted or read_committed, not 'serializable'",
        ),
        ("SHARDHERD_SPARK_CONF", "[]", "SHARDHERD_SPARK_CONF must be a JSON object, not list"),
        ("SHARDHERD_SPARK_CONF", "{", "SHARDHERD_SPARK_CONF must be a JSON object"),
    ],
)
def test_a_wrong_variable_is_named_with_its_value(name: str, value: str, reason: str) -> None:
    with pytest.raises(NotInPodError, match=reason):
        read_pod({**POD, name: value})


def test_without_executors_the_driver_runs_the_tasks() -> None:
    conf = spark_conf(read_pod({**POD, "SHARDHERD_DRIVER_CORES": "2", "SHARDHERD_DRIVER_MEMORY": "640m"}))

    assert conf["spark.master"] == "local[2]"
    assert conf["spark.driver.memory"] == "640m"
    assert conf["spark.sql.streaming.checkpointLocation"] == "/data/checkpoints/group-uid/clicks-0"


def test_executors_are_named_and_labelled_after_their_run() -> None:
    conf = spark_conf(read_pod({**POD, **EXECUTORS}))

    assert conf["spark.master"] == "k8s://https://kubernetes.default.svc"
    assert conf["spark.kubernetes.executor.podNamePrefix"] == "clicks-0-3"
    assert conf["spark.kubernetes.executor.label.shardherd.dev/incarnation"] == "pod-uid.3"
    assert conf["spark.kubernetes.executor.label.shardherd.dev/consumer"] == "clicks-0"
    assert conf["spark.kubernetes.executor.deleteOnTermination"] == "false"
    assert conf["spark.driver.host"] == "clicks-0.clicks.demo.svc"
    assert conf["spark.kubernetes.driver.service.deleteOnTermination"] == "false", "drivers have no right on Services"


def test_a_driver_with_executors_waits_a_minute_for_the_answers_of_the_api_server() -> None:
    conf = spark_conf(read_pod({**POD, **EXECUTORS}))

    assert conf["spark.kubernetes.driver.requestTimeout"] == "60000"
    assert conf["spark.kubernetes.driver.connectionTimeout"] == "60000"


def test_a_pod_is_told_the_files_of_its_kafka_credentials_and_a_wrong_one_is_named() -> None:
    security = '{"protocol": "SASL_SSL", "mechanism": "PLAIN", "username": "app", "password_file": "/kafka/password"}'

    assert read_pod({**POD, "SHARDHERD_KAFKA_SECURITY": security}).security == Security(
        "SASL_SSL", "PLAIN", username="app", password_file="/kafka/password"
    )
    assert read_pod(POD).security == Security()
    with pytest.raises(NotInPodError, match="SHARDHERD_KAFKA_SECURITY is wrong: the security protocol 'SSH' is none of"):
        read_pod({**POD, "SHARDHERD_KAFKA_SECURITY": '{"protocol": "SSH"}'})


def test_a_driver_in_a_group_with_state_keeps_it_in_rocksdb_and_stores_its_snapshots_within_ten_seconds() -> None:
    stateless, stateful = (spark_conf(read_pod({**POD, **more})) for more in ({}, {"SHARDHERD_STATE_LOCATION": "/state"}))
    store = "spark.sql.streaming.stateStore"

    assert {name: text for name, text in stateful.items() if name not in stateless} == {
        f"{store}.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        f"{store}.rocksdb.changelogCheckpointing.enabled": "true",
        f"{store}.checkpointFormatVersion": "2",
        f"{store}.maintenanceInterval": "10s",
        "spark.sql.shuffle.partitions": "1",
        "spark.scheduler.mode": "FAIR",
    }


def test_a_fixed_number_of_executors_is_what_spark_is_told() -> None:
    conf = spark_conf(read_pod({**POD, **EXECUTORS}))

    assert conf["spark.executor.instances"] == "2"
    assert not [name for name in conf if name.startswith("spark.dynamicAllocation")]


def test_executors_get_the_memory_that_they_need_and_a_limit_on_their_cpu_on_request() -> None:
    """Spark makes what a pod requests in memory its limit, too."""
    names = ("memory", "memoryOverheadFactor", "minMemoryOverhead")
    usual = spark_conf(read_pod({**POD, **EXECUTORS}))
    limited = spark_conf(read_pod({**POD, **EXECUTORS, "SHARDHERD_EXECUTOR_CPU_LIMIT": "4"}))

    assert {name: usual[f"spark.executor.{name}"] for name in names} == dict(zip(names, ("1g", "0.4", "1536m"), strict=True))
    assert usual["spark.kubernetes.executor.request.cores"] == "750m"
    assert limited == usual | {"spark.kubernetes.executor.limit.cores": "4"}


@pytest.mark.parametrize(("ordered", "deletes"), [("false", "true"), ("true", "false")])
def test_with_dynamic_allocation_spark_is_told_the_limits_and_deletes_what_is_no_proof(ordered: str, deletes: str) -> None:
    pod = read_pod({**POD, **EXECUTORS, "SHARDHERD_EXECUTOR_LEAST": "0", "SHARDHERD_ORDERED": ordered})
    conf = spark_conf(pod)

    assert "spark.executor.instances" not in conf
    assert {name.removeprefix("spark.dynamicAllocation."): conf[name] for name in conf if "dynamicAllocation" in name} == {
        "enabled": "true",
        "shuffleTracking.enabled": "true",
        "initialExecutors": "0",
        "minExecutors": "0",
        "maxExecutors": "2",
    }
    assert conf["spark.kubernetes.executor.deleteOnTermination"] == deletes
    assert pod.slots == 3, "one executor's, until Spark reports"
