"""Who a worker is: by its pod's environment, and by what is given in its place."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from shardherd.core.model.errors import InvalidRequestError
from shardherd.core.model.security import Security
from shardherd.source.kinesis.client import AccessKeys, StreamAccess
from shardherd.source.security.environment import KafkaAccess
from shardherd.worker import Options, WorkerOptionError
from shardherd.worker.place import place

POD = {
    "SHARDHERD_COORDINATOR_URL": "https://shardherd:8443",
    "SHARDHERD_NAMESPACE": "streams",
    "SHARDHERD_GROUP": "clicks",
    "SHARDHERD_GROUP_UID": "uid",
    "SHARDHERD_CONSUMER": "clicks-0",
    "SHARDHERD_POD_UID": "pod",
    "SHARDHERD_START": "3",
    "SHARDHERD_TOKEN_FILE": "/token",
    "SHARDHERD_KAFKA_BOOTSTRAP_SERVERS": "kafka:9092",
    "SHARDHERD_ZONE": "a",
}


def test_a_pod_needs_nothing_else() -> None:
    found = place(POD | {"SHARDHERD_KAFKA_ISOLATION_LEVEL": "read_committed"})
    assert (found.kafka, found.zone) == (KafkaAccess("kafka:9092", Security(), read_committed=True), "a")
    assert POD.items() <= found.environment.items()


def test_a_stream_of_kinesis_may_be_given_in_the_place_of_kafka() -> None:
    found = place({}, stream="orders", region="eu-central-1", endpoint="http://here")
    assert found.kinesis == StreamAccess("orders", "eu-central-1", "http://here")


def test_what_is_given_wins_and_without_a_pod_the_host_is_the_consumer() -> None:
    found = place(
        {},
        bootstrap="kafka:9092",
        coordinator="http://127.0.0.1:8080",
        group="streams/clicks",
        group_uid="uid",
        token_file="/token",
        kafka={"security.protocol": "SSL", "ssl.truststore.location": "/ca.pem", "isolation.level": "read_uncommitted"},
    )
    environment = dict(found.environment)
    assert environment.pop("SHARDHERD_POD_UID") != place({}, bootstrap="kafka:9092").environment["SHARDHERD_POD_UID"]
    assert environment.pop("SHARDHERD_KAFKA_SECURITY")
    assert environment == {
        "SHARDHERD_COORDINATOR_URL": "http://127.0.0.1:8080",
        "SHARDHERD_NAMESPACE": "streams",
        "SHARDHERD_GROUP": "clicks",
        "SHARDHERD_GROUP_UID": "uid",
        "SHARDHERD_CONSUMER": socket.gethostname(),
        "SHARDHERD_START": "1",
        "SHARDHERD_TOKEN_FILE": "/token",
        "SHARDHERD_KAFKA_BOOTSTRAP_SERVERS": "kafka:9092",
        "SHARDHERD_KAFKA_ISOLATION_LEVEL": "read_uncommitted",
    }
    assert found.kafka == KafkaAccess("kafka:9092", Security(protocol="SSL", ca_file="/ca.pem"), read_committed=False)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (
            {},
            "or set SHARDHERD_KAFKA_BOOTSTRAP_SERVERS; for Kinesis give stream, or set SHARDHERD_KINESIS_STREAM",
        ),
        ({"group": "clicks"}, "group must be namespace/name, not 'clicks'"),
        ({"kafka": {"group.id": "clicks"}}, "option kafka.group.id has no meaning here"),
        ({"kafka": {"isolation.level": "some"}}, "must be read_uncommitted or read_committed, not 'some'"),
    ],
)
def test_what_is_wrong_is_named_with_the_remedy(given: dict[str, object], why: str) -> None:
    with pytest.raises(InvalidRequestError, match=why):
        place({}, **given)  # type: ignore[arg-type]


def test_in_a_pod_of_a_group_that_reads_kinesis_the_stream_is_there_in_the_place_of_kafka(tmp_path: Path) -> None:
    (tmp_path / "accessKeyId").write_text("id\n")
    (tmp_path / "secretAccessKey").write_text("secret\n")
    stream = {"SHARDHERD_KINESIS_STREAM": "orders", "SHARDHERD_KINESIS_REGION": "eu-central-1"}
    assert place(stream).kinesis == StreamAccess("orders", "eu-central-1")
    keys = {"SHARDHERD_KINESIS_ENDPOINT": "https://kinesis.example", "SHARDHERD_KINESIS_CREDENTIALS": str(tmp_path)}
    found = place(stream | keys).kinesis
    assert found == StreamAccess("orders", "eu-central-1", "https://kinesis.example")
    assert found.keys is not None
    assert found.keys() == AccessKeys("id", "secret")


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        (
            {"SHARDHERD_KINESIS_STREAM": "orders"},
            "SHARDHERD_KINESIS_REGION is not set, and no region given: .*SHARDHERD_KINESIS_STREAM names, orders",
        ),
        (
            {
                "SHARDHERD_KINESIS_STREAM": "orders",
                "SHARDHERD_KINESIS_REGION": "eu-central-1",
                "SHARDHERD_KAFKA_BOOTSTRAP_SERVERS": "kafka:9092",
            },
            "reads Kafka or Kinesis, not both: Kafka is at kafka:9092, and SHARDHERD_KINESIS_STREAM is orders",
        ),
    ],
)
def test_what_is_wrong_with_a_stream_is_named(environment: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidRequestError, match=why):
        place(environment)


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ({"threads": 0}, "threads must be 1 or more, not 0"),
        ({"batch_size": 0}, "batch_size must be 1 or more, not 0"),
        ({"memory": 1000}, "memory must be 16777216 or more, not 1000"),
        ({"revoke_timeout": -1}, "revoke_timeout must be 0 or more, not -1"),
        ({"batch_size": "100"}, "batch_size must be a whole number, 1 or more, not '100'"),
        ({"batch_size": 1.5}, r"batch_size must be a whole number, 1 or more, not 1\.5"),
        ({"threads": True}, "threads must be a whole number, 1 or more, not True"),
        ({"memory": "64Mi"}, "memory must be a whole number, 16777216 or more, not '64Mi'"),
        ({"max_pending": None}, "max_pending must be a whole number, 1 or more, not None"),
        ({"tries": 2.5, "bad_records": "skip"}, r"tries must be a whole number, 0 or more, not 2\.5"),
        ({"save_interval": "60"}, "save_interval must be a number of seconds, 0 or more, not '60'"),
        ({"save_interval": None}, "save_interval must be a number of seconds, 0 or more, not None"),
        ({"ack_timeout": float("nan")}, "ack_timeout must be a number of seconds, 0 or more, not nan"),
        ({"drain_timeout": float("nan")}, "drain_timeout must be a number of seconds, 0 or more, not nan"),
        ({"drain_timeout": float("inf")}, "drain_timeout must be a number of seconds, 0 or more, not inf"),
        ({"fetch_interval": -float("inf")}, "fetch_interval must be a number of seconds, 0 or more, not -inf"),
        ({"drain_timeout": 1e308}, r"drain_timeout must be at most 1000000000, not 1e\+308"),
        ({"threads": 2**63}, "threads must be at most 9223372036854775807, not 9223372036854775808"),
        ({"alarm_after": False}, "alarm_after must be a number of seconds, 0 or more, not False"),
        ({"in_order": "false"}, "in_order must be True or False, not 'false'"),
        ({"fail_on_data_loss": "no"}, "fail_on_data_loss must be True or False, not 'no'"),
        ({"bad_records": ["skip"]}, r"bad_records must be one of hold, fail, skip, dead-letter, not \['skip'\]"),
        ({"dead_letters": None}, "dead_letters must be the name of a topic, or empty for none, not None"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(option: dict[str, Any], why: str) -> None:
    with pytest.raises(WorkerOptionError, match=why):
        Options(**option)
