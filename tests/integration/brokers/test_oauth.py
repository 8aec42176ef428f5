"""OAUTHBEARER on real brokers that check every token's signature, issuer and audience; the issuer itself is played."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from dev.cluster.kafka import LIMITED, PASSWORDS, SUPER
from dev.demo.report import await_that
from shardherd.adapters.kafka import connection
from shardherd.adapters.kafka.source import KafkaShardSource
from shardherd.core.model.nouns import ShardId, ShardInfo
from shardherd.core.model.security import OAuth
from shardherd.ports import SourceUnavailableError
from shardherd.source.kafka.brokers import Brokers
from shardherd.source.kafka.cluster_connection import SourceRefusedError
from tests.harness.issuer import Issuer
from tests.harness.kafka import NAMESPACE, KafkaLab
from tests.integration.brokers.conftest import Connect, Coordinate
from tests.integration.brokers.reading import Reading, operators_refusal, read, refusal, sent, whole
from tests.integration.brokers.test_security import SOON, commit_and_read

LISTENERS = ("SASL_PLAINTEXT", "SASL_SSL")


@pytest.fixture
def issuer(kafka: KafkaLab) -> Iterator[Issuer]:
    made = Issuer(kafka.trio.certificates, dict(PASSWORDS))
    yield made
    made.close()


@pytest.mark.parametrize("listener", LISTENERS)
def test_the_source_reads_with_a_token_that_all_its_connections_share(
    kafka: KafkaLab, connect: Connect, issuer: Issuer, topic: str, tmp_path: Path, listener: str
) -> None:
    oauth = OAuth(issuer.url, "kafka.read", (("logicalCluster", "lkc-1"), ("poolId", "pool-a")))
    brokers = connect(kafka.trio.bootstrap(listener), kafka.files(tmp_path, listener, "OAUTHBEARER", oauth=oauth))

    assert brokers.end_offsets([ShardId(f"{topic}/0"), ShardId(f"{topic}/1")], 20) == {f"{topic}/0": 50, f"{topic}/1": 50}
    assert read(brokers, *whole(topic, 2, 50)) == sent(topic, 2, 0, 50)

    (asked,) = issuer.asked
    assert (asked.client, asked.form) == (SUPER, {"grant_type": "client_credentials", "scope": "kafka.read"})


@pytest.mark.parametrize("listener", LISTENERS)
async def test_the_coordinator_discovers_and_commits_with_a_token(
    kafka: KafkaLab, coordinate: Coordinate, issuer: Issuer, topic: str, listener: str
) -> None:
    connector = coordinate(kafka.secrets())
    spec = kafka.group(topic, listener, "OAUTHBEARER", oauth=OAuth(issuer.url))

    assert await commit_and_read(connector, spec, topic) == {ShardId(f"{topic}/1"): 7}
    assert len(issuer.asked) == 1


def test_a_tokens_client_is_the_user_whose_rights_count(
    kafka: KafkaLab, connect: Connect, issuer: Issuer, topic: str, tmp_path: Path
) -> None:
    security = kafka.files(tmp_path, "SASL_SSL", "OAUTHBEARER", user=LIMITED, oauth=OAuth(issuer.url))
    brokers = connect(kafka.trio.bootstrap("SASL_SSL"), security)

    with pytest.raises(SourceRefusedError, match=f"allow it READ on topic '{topic}'"):
        brokers.end_offsets([ShardId(f"{topic}/0")], 20)


def test_connections_outlive_their_tokens_and_are_not_made_anew(
    kafka: KafkaLab, connect: Connect, issuer: Issuer, topic: str, tmp_path: Path
) -> None:
    """The brokers end a connection whose token has expired; it authenticates again before, with a newer token."""
    issuer.seconds = 16  # What is left of it when a connection authenticates again must do on a busy machine.
    shard = ShardId(f"{topic}/0")
    security = kafka.files(tmp_path, "SASL_PLAINTEXT", "OAUTHBEARER", oauth=OAuth(issuer.url))
    brokers = connect(kafka.trio.bootstrap("SASL_PLAINTEXT"), security)
    brokers.end_offsets([shard], 20)
    before = open_connections(brokers)

    def asked() -> bool:
        assert brokers.end_offsets([shard], 20) == {shard: 50}
        return len(issuer.given) >= 3

    await_that("a third token is asked for", asked, within=120, every=0.05)

    after = open_connections(brokers)
    assert {key: after[key] for key in before} == before, "the same connections, more than a life of a token later"
    assert len(issuer.given) == 3, "one token serves all connections"


def open_connections(brokers: Brokers) -> dict[object, int]:
    """Broker -> which connection; the ones of the bootstrap are closed after use."""
    return {node: id(each) for node, each in brokers._manager._conns.items() if each.connected}


def test_while_the_issuer_is_away_it_is_named_and_when_it_is_back_the_task_goes_on(
    kafka: KafkaLab, connect: Connect, issuer: Issuer, topic: str, tmp_path: Path
) -> None:
    issuer.stop()
    security = kafka.files(tmp_path, "SASL_SSL", "OAUTHBEARER", oauth=OAuth(issuer.url))
    brokers = connect(kafka.trio.bootstrap("SASL_SSL"), security)
    refusal(
        lambda: brokers.end_offsets([ShardId(f"{topic}/0")], SOON),
        f"no token from {issuer.url}: .*refused: check that it can be reached",
    )
    reading = Reading(brokers, *whole(topic, 2, 50))
    reading.go_on()

    issuer.start()

    assert reading.finish() == sent(topic, 2, 0, 50)


def test_an_issuer_that_goes_away_is_missed_by_nobody_until_the_token_ends(
    kafka: KafkaLab, connect: Connect, issuer: Issuer, tmp_path: Path
) -> None:
    known, new = (ShardId(f"{kafka.create(on=on)}/0") for on in ((1, 2), (2, 1)))
    security = kafka.files(tmp_path, "SASL_PLAINTEXT", "OAUTHBEARER", oauth=OAuth(issuer.url))
    brokers = connect(kafka.trio.bootstrap("SASL_PLAINTEXT", [1]), security)
    assert brokers.end_offsets([known], 20) == {known: 0}
    issuer.stop()

    assert brokers.end_offsets([new], 20) == {new: 0}, "another broker, so a connection that was not there before"
    assert len(issuer.given) == 1


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ("secret", r"no token from .*: HTTP 401 \(invalid_client Client authentication failed\): check the client's id and"),
        ("issuer", "SaslAuthenticationFailedError: .*invalid_token"),
    ],
)
async def test_what_is_wrong_with_a_client_is_said_without_its_secret(
    kafka: KafkaLab,
    connect: Connect,
    coordinate: Coordinate,
    issuer: Issuer,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    change: str,
    cause: str,
) -> None:
    monkeypatch.setattr(connection, "CONNECT_TIMEOUT", SOON)
    wrong = "no-such-word" if change == "secret" else PASSWORDS[SUPER]
    foreign = issuer.token(SUPER, iss="https://elsewhere.example")
    if change == "issuer":
        issuer.instead = lambda: (200, {"access_token": foreign, "expires_in": 3600}, {})
    oauth = OAuth(issuer.url)
    brokers = connect(
        kafka.trio.bootstrap("SASL_SSL"), kafka.files(tmp_path, "SASL_SSL", "OAUTHBEARER", password=wrong, oauth=oauth)
    )
    source = coordinate(kafka.secrets(password=wrong)).source(kafka.group(topic, "SASL_SSL", "OAUTHBEARER", oauth=oauth))

    with caplog.at_level(logging.DEBUG):
        worker = refusal(lambda: brokers.end_offsets([ShardId(f"{topic}/0")], SOON), cause)
        operator = await operators_refusal(source.discover, f"do not accept each other .*{cause}")

    shown = f"{worker}{operator}{caplog.text}"
    assert [word for word in (wrong, foreign) if word in shown] == []


async def test_a_clients_secret_that_is_rotated_is_read_again(
    kafka: KafkaLab, coordinate: Coordinate, issuer: Issuer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "CONNECT_TIMEOUT", SOON)
    secrets = kafka.secrets()
    source = coordinate(secrets).source(kafka.group(topic, "SASL_SSL", "OAUTHBEARER", oauth=OAuth(issuer.url)))
    issuer.clients[SUPER] = "second-word"
    await operators_refusal(source.discover, "invalid_client")

    secrets.data[NAMESPACE, "kafka"]["password"] = b"second-word"

    assert len(await found(source)) == 2


async def found(source: KafkaShardSource) -> Sequence[ShardInfo]:
    """What is discovered once the Secret is read again, which is at most once a second."""
    for _ in range(20):
        try:
            return (await source.discover()).shards
        except SourceUnavailableError as error:
            last = error
    raise last
