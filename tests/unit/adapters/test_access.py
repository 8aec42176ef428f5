"""The coordinator's Kafka credentials, as they come from Secrets and change there."""

from __future__ import annotations

import asyncio
import logging

import pytest

from shardherd.adapters.kafka.access import LEAST_PAUSE, MAX_AGE, Access
from shardherd.adapters.kafka.connector import KafkaConnector
from shardherd.core.model.nouns import GroupIdentity, GroupSettings, GroupSpec, KafkaSource
from shardherd.core.model.security import NO_SECURITY, KafkaSecurity, SecretKey
from shardherd.ports import SourceUnavailableError
from tests.harness.memory_secrets import MemorySecrets
from tests.harness.simulated_clock import SimulatedClock

SCRAM = KafkaSecurity(
    "SASL_PLAINTEXT",
    "SCRAM-SHA-512",
    username_key=SecretKey("kafka", "username"),
    password_key=SecretKey("kafka", "password"),
)
USER_KEY = SecretKey("kafka", "username")
USER = {"username": b"operator", "password": b"hunter2"}


@pytest.fixture
def secrets() -> MemorySecrets:
    made = MemorySecrets()
    made.data["shop", "kafka"] = dict(USER)
    return made


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def access(secrets: MemorySecrets, clock: SimulatedClock) -> Access:
    return Access(secrets, "shop", SCRAM, clock.now)


@pytest.mark.parametrize(("key", "own", "used"), [(None, False, False), (None, True, True), (USER_KEY, False, True)])
async def test_the_operators_own_identity_at_aws_is_for_groups_only_if_that_was_said(
    secrets: MemorySecrets, key: SecretKey | None, own: bool, used: bool
) -> None:
    security = KafkaSecurity("SASL_SSL", "AWS_MSK_IAM", username_key=key, password_key=key, region="eu-west-1")
    access = Access(secrets, "shop", security, own_identity=own)

    if used:
        await access.ready(failing=False)
    else:
        with pytest.raises(SourceUnavailableError, match=r"by secretRef, or set kafkaCredentials\.ownAwsIdentity"):
            await access.ready(failing=False)


async def test_credentials_are_read_once_for_many_groups(access: Access, secrets: MemorySecrets) -> None:
    await asyncio.gather(*(access.ready(failing=False) for _ in range(10)))

    assert access.settings() == {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "operator",
        "sasl_plain_password": "hunter2",
    }
    assert secrets.reads == 1


async def test_after_a_failure_they_are_read_again_but_not_by_every_group(
    access: Access, secrets: MemorySecrets, clock: SimulatedClock
) -> None:
    await access.ready(failing=False)
    secrets.data["shop", "kafka"]["password"] = b"hunter3"
    clock.advance(LEAST_PAUSE)
    await asyncio.gather(*(access.ready(failing=True) for _ in range(10)))

    assert access.settings()["sasl_plain_password"] == "hunter3"
    assert secrets.reads == 2


async def test_while_all_is_well_nobody_waits_for_the_reading_anew(
    access: Access, secrets: MemorySecrets, clock: SimulatedClock
) -> None:
    await access.ready(failing=False)
    secrets.data["shop", "kafka"]["password"] = b"hunter3"
    clock.advance(MAX_AGE)
    await access.ready(failing=False)
    assert access.settings()["sasl_plain_password"] == "hunter2", "it is read in the background"

    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert access.settings()["sasl_plain_password"] == "hunter3"
    await access.close()


async def test_an_api_server_that_is_away_leaves_what_was_read(
    access: Access, secrets: MemorySecrets, clock: SimulatedClock, caplog: pytest.LogCaptureFixture
) -> None:
    await access.ready(failing=False)
    secrets.available = False
    clock.advance(LEAST_PAUSE)
    with caplog.at_level(logging.WARNING):
        await access.ready(failing=True)

    assert access.settings()["sasl_plain_password"] == "hunter2"
    assert "going on with the Kafka credentials that were read before" in caplog.text


async def test_without_any_credentials_the_source_is_unavailable(access: Access, secrets: MemorySecrets) -> None:
    secrets.available = False

    with pytest.raises(SourceUnavailableError, match="Secret 'kafka' in namespace 'shop' cannot be read now"):
        await access.ready(failing=False)


async def test_a_missing_key_is_named_with_what_to_do(access: Access, secrets: MemorySecrets, clock: SimulatedClock) -> None:
    del secrets.data["shop", "kafka"]["password"]
    wanted = r"Secret 'kafka' in namespace 'shop' has no key 'password': add it, or name another key in spec\.source\.kafka"

    for _ in range(3):
        with pytest.raises(SourceUnavailableError, match=wanted):
            await access.ready(failing=False)
    assert secrets.reads == 1

    secrets.data["shop", "kafka"] = dict(USER)
    clock.advance(LEAST_PAUSE)
    await access.ready(failing=False)
    assert access.settings()["sasl_plain_password"] == "hunter2"


async def test_a_secret_whose_label_was_taken_away_is_used_no_more(
    access: Access, secrets: MemorySecrets, clock: SimulatedClock
) -> None:
    await access.ready(failing=False)
    secrets.unlabelled.add(("shop", "kafka"))
    clock.advance(LEAST_PAUSE)

    with pytest.raises(SourceUnavailableError, match=r"has no label shardherd\.dev/kafka-credentials=true"):
        await access.ready(failing=True)


async def test_no_secret_is_in_a_message_of_ours(
    access: Access, secrets: MemorySecrets, clock: SimulatedClock, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        await access.ready(failing=False)
        secrets.data["shop", "kafka"]["password"] = b"hunter\xff"
        clock.advance(LEAST_PAUSE)
        with pytest.raises(SourceUnavailableError, match="key 'password' of Secret 'kafka' is not UTF-8 text") as raised:
            await access.ready(failing=True)

    assert "hunter" not in caplog.text + str(raised.value) + repr(vars(access))


def spec(namespace: str, security: KafkaSecurity) -> GroupSpec:
    source = KafkaSource("kafka:9092", ("clicks",), "", f"{namespace}.clicks", security=security)
    return GroupSpec(GroupIdentity(namespace, "clicks", f"uid-{namespace}"), source, GroupSettings(), wanted=1)


async def test_groups_share_a_connection_only_if_they_share_their_secrets(secrets: MemorySecrets) -> None:
    connector = KafkaConnector(secrets)

    def connection(namespace: str, security: KafkaSecurity) -> object:
        return connector.source(spec(namespace, security))._connection

    assert connection("shop", SCRAM) is connection("shop", SCRAM)
    assert connection("shop", SCRAM) is not connection("other", SCRAM), "Secrets of one namespace are never used for another"
    assert connection("shop", SCRAM) is not connection("shop", NO_SECURITY)
    assert connection("shop", NO_SECURITY) is connection("other", NO_SECURITY)
    await connector.close()
