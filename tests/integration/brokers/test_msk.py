"""AWS_MSK_IAM: what stands before AWS's brokers is played, and judges by Amazon's own signer; the brokers are real."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dev.cluster.kafka import NODES
from shardherd.adapters.kafka import connection
from shardherd.core.model.nouns import GroupIdentity, GroupSettings, GroupSpec, KafkaSource, ShardId
from shardherd.core.model.security import KafkaSecurity, SecretKey, Security
from shardherd.ports import SourceUnavailableError
from shardherd.source.security.aws_msk_iam import AccessKeys
from tests.harness.kafka import NAMESPACE, KafkaLab
from tests.harness.msk import Gateway
from tests.integration.brokers.conftest import Connect, Coordinate
from tests.integration.brokers.reading import read, refusal, sent, whole
from tests.integration.brokers.test_security import SOON, commit_and_read

REGION = "eu-west-1"
KEY, SECRET = "AKIA1", "wJalr/hunter2"

Open = Callable[..., list[Gateway]]


@pytest.fixture
def gateways(kafka: KafkaLab) -> Iterator[Open]:
    """One before each broker, where it says that it is."""
    made: list[Gateway] = []

    def open_all(token: str = "", session_ms: int = 0) -> list[Gateway]:
        trio = kafka.trio
        accounts = {KEY: (SECRET, token)}
        for node in NODES:
            behind = trio.bootstrap("GATED", [node])
            made.append(Gateway(trio.certificates, trio.gate(node), behind, accounts, region=REGION, session_ms=session_ms))
        return made

    yield open_all
    for each in made:
        each.close()


def address(kafka: KafkaLab) -> str:
    return ",".join(f"127.0.0.1:{kafka.trio.gate(node)}" for node in NODES)


def security(kafka: KafkaLab, folder: Path, secret: str = SECRET, region: str = REGION) -> Security:
    (folder / "secret").write_text(secret)
    authorities = str(kafka.trio.certificates / "ca.crt")
    return Security(
        "SASL_SSL", "AWS_MSK_IAM", username=KEY, password_file=str(folder / "secret"), ca_file=authorities, region=region
    )


def group(kafka: KafkaLab, topic: str) -> GroupSpec:
    said = KafkaSecurity(
        "SASL_SSL",
        "AWS_MSK_IAM",
        username=KEY,
        password_key=SecretKey("kafka", "password"),
        ca_key=SecretKey("kafka", "ca.crt"),
        region=REGION,
    )
    source = KafkaSource(address(kafka), (topic,), "", f"{NAMESPACE}.msk", security=said)
    return GroupSpec(GroupIdentity(NAMESPACE, "msk", "uid-of-msk"), source, GroupSettings(), wanted=1)


def test_the_source_reads_with_an_access_key(
    kafka: KafkaLab, connect: Connect, gateways: Open, topic: str, tmp_path: Path
) -> None:
    gateways()
    brokers = connect(address(kafka), security(kafka, tmp_path))

    assert read(brokers, *whole(topic, 2, 50)) == sent(topic, 2, 0, 50)


async def test_the_coordinator_discovers_and_commits_with_an_access_key(
    kafka: KafkaLab, coordinate: Coordinate, gateways: Open, topic: str
) -> None:
    gateways()
    connector = coordinate(kafka.secrets(password=SECRET))

    assert await commit_and_read(connector, group(kafka, topic), topic) == {ShardId(f"{topic}/1"): 7}


def test_a_pods_role_reads_too_and_its_connections_outlive_what_they_signed(
    kafka: KafkaLab, connect: Connect, gateways: Open, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-a-role")
    opened = gateways("of-a-role", session_ms=1000)
    said = Security("SASL_SSL", "AWS_MSK_IAM", ca_file=str(kafka.trio.certificates / "ca.crt"), region=REGION)
    brokers = connect(address(kafka), said)
    shard = ShardId(f"{topic}/0")
    assert brokers.end_offsets([shard], 20) == {shard: 50}
    before = sum(each.accepted for each in opened)

    while sum(len(each.messages) for each in opened) < before + 3:
        assert brokers.end_offsets([shard], 20) == {shard: 50}

    assert sum(each.accepted for each in opened) == before, "who signs again keeps the connection"


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"secret": "no-such-word"}, "SaslAuthenticationFailedError: .*Invalid signature"),
        ({"region": "eu-west-2"}, "SaslAuthenticationFailedError: .*Credential should be scoped to a valid region"),
    ],
)
def test_what_aws_does_not_believe_is_said(
    kafka: KafkaLab, connect: Connect, gateways: Open, topic: str, tmp_path: Path, change: dict[str, str], cause: str
) -> None:
    gateways()
    brokers = connect(address(kafka), security(kafka, tmp_path, **change))

    assert "no-such-word" not in refusal(lambda: brokers.end_offsets([ShardId(f"{topic}/0")], SOON), cause)


async def test_the_operator_lends_its_own_identity_to_nobody(
    kafka: KafkaLab, coordinate: Coordinate, gateways: Open, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "CONNECT_TIMEOUT", SOON)
    monkeypatch.setattr(AccessKeys, "_of_the_pod", lambda _: pytest.fail("nobody allowed it"))
    opened = gateways()
    spec = group(kafka, topic)
    source = KafkaSource(
        spec.kafka.bootstrap_servers, (topic,), "", "g", security=KafkaSecurity("SASL_SSL", "AWS_MSK_IAM", region=REGION)
    )

    with pytest.raises(SourceUnavailableError, match="may not use its own identity at AWS for groups"):
        await coordinate(kafka.secrets()).source(GroupSpec(spec.identity, source, spec.settings, wanted=1)).discover()
    assert sum(each.accepted for each in opened) == 0
