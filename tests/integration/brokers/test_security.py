"""TLS, mutual TLS, SASL PLAIN and SCRAM on real brokers, for the source and for the coordinator."""

from __future__ import annotations

import logging
import pickle
import time
from pathlib import Path

import pytest
from kafka import KafkaAdminClient
from kafka.admin import UserScramCredentialUpsertion
from kafka.errors import KafkaError

from dev.cluster.kafka import NODES, PASSWORDS, SUPER, KafkaTrio
from shardherd.adapters.kafka import connection
from shardherd.adapters.kafka.connector import KafkaConnector
from shardherd.core.model.nouns import GroupSpec, ShardId
from shardherd.core.model.security import Security
from shardherd.source.kafka.cluster_connection import BrokersUnavailableError
from shardherd.source.reading.ranges import ShardRange
from shardherd.spark.kafka_readers import Slice
from tests.harness.kafka import NAMESPACE, KafkaLab
from tests.integration.brokers.conftest import Connect, Coordinate
from tests.integration.brokers.reading import Reading, operators_refusal, read, refusal, sent, whole

WAYS = [
    ("SSL", ""),
    ("MUTUAL", ""),
    ("SASL_PLAINTEXT", "PLAIN"),
    ("SASL_PLAINTEXT", "SCRAM-SHA-256"),
    ("SASL_PLAINTEXT", "SCRAM-SHA-512"),
    ("SASL_SSL", "PLAIN"),
    ("SASL_SSL", "SCRAM-SHA-256"),
    ("SASL_SSL", "SCRAM-SHA-512"),
]

SOON = 1.5
"""Seconds for an answer that will not come; what does come may take longer, and is waited for: see `refusal`."""


@pytest.mark.parametrize(("listener", "mechanism"), WAYS)
def test_the_source_reads(kafka: KafkaLab, connect: Connect, topic: str, tmp_path: Path, listener: str, mechanism: str) -> None:
    brokers = connect(kafka.trio.bootstrap(listener), kafka.files(tmp_path, listener, mechanism))

    assert brokers.end_offsets([ShardId(f"{topic}/0"), ShardId(f"{topic}/1")], 20) == {f"{topic}/0": 50, f"{topic}/1": 50}
    assert read(brokers, *whole(topic, 2, 50)) == sent(topic, 2, 0, 50)


@pytest.mark.parametrize(("listener", "mechanism"), WAYS)
async def test_the_coordinator_discovers_and_commits(
    kafka: KafkaLab, coordinate: Coordinate, topic: str, listener: str, mechanism: str
) -> None:
    connector = coordinate(kafka.secrets())
    spec = kafka.group(topic, listener, mechanism)

    assert await commit_and_read(connector, spec, topic) == {ShardId(f"{topic}/1"): 7}


async def commit_and_read(connector: KafkaConnector, spec: GroupSpec, topic: str) -> object:
    """All that a coordinator does at a broker; the positions that it then finds."""
    source, offsets = connector.source(spec), connector.offsets(spec)
    shards = [info.shard for info in (await source.discover()).shards]
    assert await source.live_members() == ()
    await offsets.take_over()
    await offsets.commit({ShardId(f"{topic}/1"): 7}, {})
    return await offsets.read(shards)


@pytest.mark.parametrize(
    ("listener", "mechanism", "change", "cause"),
    [
        (
            "SASL_PLAINTEXT",
            "PLAIN",
            {"password_file": "wrong"},
            "SaslAuthenticationFailedError: .*Invalid username or password",
        ),
        ("SASL_SSL", "SCRAM-SHA-512", {"password_file": "wrong"}, "SaslAuthenticationFailedError: .*invalid credentials"),
        ("SASL_PLAINTEXT", "PLAIN", {"password_file": "nowhere"}, "file .*/nowhere cannot be read"),
        ("SSL", "", {"ca_file": "other.crt"}, "Handshake failed: .*certificate verify failed"),
        (
            "MUTUAL",
            "",
            {"certificate_file": "", "key_file": ""},
            "(?i)bad.certificate|certificate.required",
        ),
    ],
)
def test_credentials_that_are_wrong_are_named_with_the_address(
    kafka: KafkaLab,
    connect: Connect,
    topic: str,
    tmp_path: Path,
    listener: str,
    mechanism: str,
    change: dict[str, str],
    cause: str,
) -> None:
    (tmp_path / "wrong").write_text("no-such-word")
    (tmp_path / "other.crt").write_bytes((kafka.trio.certificates / "stranger.crt").read_bytes())
    right = kafka.files(tmp_path, listener, mechanism).as_dict()
    wrong = Security.from_dict(right | {key: str(tmp_path / name) if name else "" for key, name in change.items()})
    brokers = connect(kafka.trio.bootstrap(listener, [1]), wrong)

    said = refusal(lambda: brokers.end_offsets([ShardId(f"{topic}/0")], SOON), cause)

    assert kafka.trio.bootstrap(listener, [1]) in said
    assert "no-such-word" not in said


@pytest.mark.parametrize(
    ("listener", "protocol", "cause"),
    [("PLAINTEXT", "SSL", "Handshake failed"), ("SSL", "PLAINTEXT", "no Kafka listener of PLAINTEXT .*: is it for TLS")],
)
def test_a_listener_of_another_protocol_is_named(
    kafka: KafkaLab, connect: Connect, topic: str, listener: str, protocol: str, cause: str
) -> None:
    address = kafka.trio.bootstrap(listener, [2])
    brokers = connect(address, Security(protocol))

    refusal(lambda: brokers.end_offsets([ShardId(f"{topic}/0")], SOON), f"{address}: KafkaConnectionError: {cause}")


@pytest.mark.parametrize(
    ("listener", "key", "value", "cause"),
    [
        ("SASL_SSL", "password", b"no-such-word", "do not accept each other .*SaslAuthenticationFailedError"),
        ("SSL", "ca.crt", b"no certificate", r"\(ca\.crt\) are not PEM"),
        ("SSL", "ca.crt", None, "Secret 'kafka' in namespace 'shop' has no key 'ca.crt': add it"),
    ],
)
async def test_the_coordinator_says_which_credentials_are_wrong(
    kafka: KafkaLab,
    coordinate: Coordinate,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    listener: str,
    key: str,
    value: bytes | None,
    cause: str,
) -> None:
    monkeypatch.setattr(connection, "CONNECT_TIMEOUT", SOON)
    secrets = kafka.secrets()
    if value is None:
        del secrets.data[NAMESPACE, "kafka"][key]
    else:
        secrets.data[NAMESPACE, "kafka"][key] = value
    spec = kafka.group(topic, listener, "SCRAM-SHA-256" if listener == "SASL_SSL" else "")

    source = coordinate(secrets).source(spec)

    assert "no-such-word" not in await operators_refusal(source.discover, cause)


def change_password(kafka: KafkaLab, user: str, password: str) -> None:
    """Give the user a password for SCRAM-SHA-512; the user is made if it is new."""
    said = kafka.admin.alter_user_scram_credentials([UserScramCredentialUpsertion(user, "SCRAM-SHA-512", password=password)])
    assert said == {user: None}
    for node in NODES:
        # The controller has it; each broker takes it over by itself, soon.
        address, deadline = kafka.trio.bootstrap("SASL_PLAINTEXT", (node,)), time.monotonic() + 30.0
        while not logs_in(address, user, password):
            assert time.monotonic() < deadline, f"the broker at {address} does not know the password"


def logs_in(address: str, user: str, password: str) -> bool:
    """Whether the broker at this address accepts the user by SCRAM-SHA-512."""
    try:
        KafkaAdminClient(
            bootstrap_servers=address,
            bootstrap_timeout_ms=2000,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="SCRAM-SHA-512",
            sasl_plain_username=user,
            sasl_plain_password=password,
        ).close()
    except KafkaError:
        return False
    return True


def test_a_password_that_is_rotated_is_read_again_from_its_file(
    kafka: KafkaLab, connect: Connect, topic: str, tmp_path: Path
) -> None:
    change_password(kafka, SUPER, "second-word")
    try:
        security = kafka.files(tmp_path, "SASL_PLAINTEXT", "SCRAM-SHA-512", password="first-word")
        brokers = connect(kafka.trio.bootstrap("SASL_PLAINTEXT"), security)
        refusal(lambda: brokers.end_offsets([ShardId(f"{topic}/0")], SOON), "SaslAuthenticationFailedError")
        reading = Reading(brokers, *whole(topic, 2, 50))
        reading.go_on()

        (tmp_path / "password").write_text("second-word")

        assert reading.finish() == sent(topic, 2, 0, 50), "the same task goes on"
    finally:
        change_password(kafka, SUPER, PASSWORDS[SUPER])


async def test_a_password_that_is_rotated_is_read_again_from_its_secret(
    kafka: KafkaLab, coordinate: Coordinate, topic: str
) -> None:
    secrets = kafka.secrets()
    connector = coordinate(secrets)
    spec = kafka.group(topic, "SASL_SSL", "SCRAM-SHA-512")
    source = connector.source(spec)
    await source.discover()
    change_password(kafka, SUPER, "second-word")
    try:
        assert (await source.discover()).shards, "connections that are open stay so"
        fresh = coordinate(secrets).source(spec)
        await operators_refusal(fresh.discover, "do not accept each other")

        secrets.data[NAMESPACE, "kafka"]["password"] = b"second-word"

        assert len((await fresh.discover()).shards) == 2
    finally:
        change_password(kafka, SUPER, PASSWORDS[SUPER])


def test_nothing_secret_is_logged_pickled_or_shown(
    kafka: KafkaLab, connect: Connect, topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    security = kafka.files(tmp_path, "SASL_PLAINTEXT", "PLAIN")
    task = Slice((ShardRange(ShardId(f"{topic}/0"), 0, 50),), kafka.trio.bootstrap("SASL_PLAINTEXT"), security.as_dict())
    with caplog.at_level(logging.DEBUG), caplog.at_level(logging.DEBUG, "kafka"):
        brokers = connect(kafka.trio.bootstrap("SASL_PLAINTEXT"), security)
        read(brokers, *whole(topic, 2, 50))

    assert "kafka.net" in {record.name[:9] for record in caplog.records}, "it is not that nothing is logged"
    shown = caplog.text.encode() + pickle.dumps(task) + repr(security).encode()
    assert PASSWORDS[SUPER].encode() not in shown


def test_a_broker_never_makes_a_topic_because_somebody_asks_for_it(kafka: KafkaLab, connect: Connect, trio: KafkaTrio) -> None:
    brokers = connect(trio.bootstrap())

    with pytest.raises(BrokersUnavailableError, match="topic 'never-made' of shard never-made/0 does not exist"):
        brokers.end_offsets([ShardId("never-made/0")], 5)

    assert "never-made" not in kafka.admin.list_topics()
