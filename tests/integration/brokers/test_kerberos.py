"""GSSAPI on a real broker, with tickets of Debian's KDC, for the source and for the coordinator."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import NewTopic

from dev.cluster.broker import Broker
from dev.cluster.kerberos import NAME, Realm
from dev.cluster.ports import HOST
from dev.cluster.tools import Tools
from shardherd.adapters.kafka import connection
from shardherd.core.model.nouns import GroupIdentity, GroupSettings, GroupSpec, KafkaSource, ShardId
from shardherd.core.model.security import KafkaSecurity, SecretKey, Security
from shardherd.ports import SourceUnavailableError
from shardherd.source.kafka.cluster_connection import BrokersUnavailableError
from tests.harness.cluster import Tell
from tests.harness.kafka import NAMESPACE
from tests.harness.long import long
from tests.harness.memory_secrets import MemorySecrets
from tests.integration.brokers.conftest import Connect, Coordinate
from tests.integration.brokers.reading import Reading, read, whole
from tests.integration.brokers.test_security import SOON, commit_and_read

pytestmark = long

CLIENT = f"clicks@{NAME}"
TOPIC = "clicks"
LIFE = 6
"""Seconds of a ticket that is renewed in a test; the broker wants to see one every 3 s."""
ROWS = {f"{TOPIC}/{p}": [(n, b"%d:%d" % (p, n)) for n in range(20)] for p in range(2)}


class Lab:
    """A realm, a broker of it, and the keytab of a client."""

    def __init__(self, realm: Realm, keytab: Path, address: str) -> None:
        self.realm = realm
        self.keytab = keytab
        self.address = address

    def security(self, keytab: Path | None = None, user: str = CLIENT, service: str = "") -> Security:
        found = str(keytab or self.keytab)
        return Security("SASL_PLAINTEXT", "GSSAPI", username=user, keytab_file=found, service=service)

    def secrets(self) -> MemorySecrets:
        secrets = MemorySecrets()
        secrets.data[NAMESPACE, "kafka"] = {"keytab": self.keytab.read_bytes()}
        return secrets

    def group(self) -> GroupSpec:
        said = KafkaSecurity("SASL_PLAINTEXT", "GSSAPI", username=CLIENT, keytab_key=SecretKey("kafka", "keytab"))
        source = KafkaSource(self.address, (TOPIC,), "", f"{NAMESPACE}.clicks", security=said)
        return GroupSpec(GroupIdentity(NAMESPACE, "clicks", "uid-of-clicks"), source, GroupSettings(), wanted=1)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, tell: Tell) -> Iterator[Lab]:
    tell("starting a KDC and a Kafka broker of its realm")
    tools = Tools()
    _ = tools.packages
    realm = Realm(tmp_path_factory.mktemp("realm"), tools)
    keytab = realm.make("clicks")
    module = "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true isInitiator=false"
    service = f'keyTab="{realm.make(f"kafka/{HOST}")}" principal="kafka/{HOST}@{NAME}"'
    more = {
        "sasl.enabled.mechanisms": "GSSAPI",
        "sasl.kerberos.service.name": "kafka",
        "listener.name.other.gssapi.sasl.jaas.config": f"{module} {service};",
        "listener.name.other.gssapi.connections.max.reauth.ms": "3000",
    }
    options = (f"-Djava.security.krb5.conf={realm.client_settings}",)
    folder = tmp_path_factory.mktemp("broker") / "here"
    broker = Broker(folder, tools, outlives=False, other="SASL_PLAINTEXT", more=more, options=options)
    patch = pytest.MonkeyPatch()
    patch.setenv("KRB5_CONFIG", str(realm.client_settings))
    patch.syspath_prepend(str(realm.package))
    try:
        realm.start()
        broker.launch()
        broker.ready()
        admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
        admin.create_topics([NewTopic(TOPIC, 2, 1)])
        admin.close()
        producer = KafkaProducer(bootstrap_servers=broker.bootstrap, acks="all")
        for number in range(20):
            for partition in range(2):
                producer.send(TOPIC, value=b"%d:%d" % (partition, number), partition=partition)
        producer.flush()
        producer.close()
        yield Lab(realm, keytab, broker.other)
    finally:
        patch.undo()
        broker.remove()
        realm.close()


def test_the_source_reads_with_a_ticket(lab: Lab, connect: Connect) -> None:
    assert read(connect(lab.address, lab.security()), *whole(TOPIC, 2, 20)) == ROWS


async def test_the_coordinator_discovers_and_commits_with_a_ticket(lab: Lab, coordinate: Coordinate) -> None:
    assert await commit_and_read(coordinate(lab.secrets()), lab.group(), TOPIC) == {ShardId(f"{TOPIC}/1"): 7}


def test_connections_outlive_their_tickets_and_are_not_made_anew(lab: Lab, connect: Connect) -> None:
    user = f"brief@{NAME}"
    brokers = connect(lab.address, lab.security(lab.realm.make("brief", life=f"{LIFE}s"), user))
    shard = ShardId(f"{TOPIC}/0")
    brokers.end_offsets([shard], 20)
    (before,) = [each for each in brokers._manager._conns.values() if each.connected]
    first = before._reauth.authenticated_at

    while before.connected and before._reauth.authenticated_at < first + LIFE:
        assert brokers.end_offsets([shard], 20) == {shard: 20}

    assert [each for each in brokers._manager._conns.values() if each.connected] == [before]


@pytest.mark.parametrize(
    ("user", "service", "cause"),
    [
        (f"nobody@{NAME}", "", rf"no ticket for 'nobody@{NAME}' \(.*\): check the principal, its keytab"),
        (CLIENT, "other", rf"no ticket for other@{HOST} \(.*\): check that the KDC has a principal of this name"),
    ],
)
def test_what_the_kdc_does_not_know_is_named(lab: Lab, connect: Connect, user: str, service: str, cause: str) -> None:
    brokers = connect(lab.address, lab.security(user=user, service=service))

    with pytest.raises(BrokersUnavailableError, match=cause):
        brokers.end_offsets([ShardId(f"{TOPIC}/0")], SOON)


async def test_while_the_kdc_is_away_it_is_said_and_when_it_is_back_the_task_goes_on(
    lab: Lab,
    connect: Connect,
    coordinate: Coordinate,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(connection, "CONNECT_TIMEOUT", SOON)
    lab.realm.close()
    brokers = connect(lab.address, lab.security())
    try:
        with caplog.at_level(logging.DEBUG):
            with pytest.raises(BrokersUnavailableError, match=rf"no ticket for '{CLIENT}' \(.*[Cc]annot contact any KDC"):
                brokers.end_offsets([ShardId(f"{TOPIC}/0")], SOON)
            with pytest.raises(SourceUnavailableError, match=r"do not accept each other .*annot contact any KDC"):
                await coordinate(lab.secrets()).source(lab.group()).discover()
        reading = Reading(brokers, *whole(TOPIC, 2, 20))
        reading.go_on()
    finally:
        lab.realm.start()

    assert reading.finish() == ROWS
