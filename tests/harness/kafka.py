"""Three real Kafka brokers with every way to authenticate: one set for all tests of a run, started when the first test asks.

`trio` gives them back whole to every test; `kafka` is what tests do to them beside stopping and starting.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.errors import TopicAlreadyExistsError

from dev.cluster.kafka import PASSWORDS, SUPER, KafkaTrio
from dev.cluster.tools import Tools
from shardherd.core.model.nouns import GroupIdentity, GroupSettings, GroupSpec, KafkaSource
from shardherd.core.model.security import KafkaSecurity, OAuth, SecretKey, Security
from tests.harness.cluster import Tell
from tests.harness.memory_secrets import MemorySecrets

NAMESPACE = "shop"


@pytest.fixture(scope="session")
def _trio(tmp_path_factory: pytest.TempPathFactory, tell: Tell) -> Iterator[KafkaTrio]:
    tell("starting three Kafka brokers")
    tools = Tools()
    _ = tools.packages
    brokers = KafkaTrio(tmp_path_factory.mktemp("kafka"), tools)
    try:
        brokers.start_all()
        yield brokers
    finally:
        brokers.close()


@pytest.fixture
def trio(_trio: KafkaTrio) -> Iterator[KafkaTrio]:
    """The brokers, all three running."""
    yield _trio
    _trio.restore()


@pytest.fixture(scope="session")
def kafka(_trio: KafkaTrio) -> Iterator[KafkaLab]:
    lab = KafkaLab(_trio)
    yield lab
    lab.close()


class KafkaLab:
    """Topics, records and users of three brokers."""

    def __init__(self, trio: KafkaTrio) -> None:
        self.trio = trio
        self._admin: Any = None
        self._started = 0

    @property
    def admin(self) -> Any:
        """Kafka's administrator; a new one after a broker was started, as it keeps to the controller that it has found."""
        if self._started != self.trio.started:
            self.close()
            self._admin = KafkaAdminClient(bootstrap_servers=self.trio.bootstrap())
            self._started = self.trio.started
        return self._admin

    def close(self) -> None:
        if self._admin is not None:
            self._admin.close()

    def create(self, partitions: int = 1, *, on: tuple[int, ...] = (1, 2, 3), name: str = "", **configuration: str) -> str:
        """A new topic; its partitions are on these brokers, the first of which leads. Returns its name.

        All brokers that run know the topic when this returns.
        """
        topic = name or f"topic-{uuid.uuid4().hex[:8]}"
        settings = {key.replace("_", "."): value for key, value in configuration.items()}
        assignments = {number: list(on) for number in range(partitions)}
        try:
            self.admin.create_topics({topic: {"assignments": assignments, "configs": settings}}, wait_for_metadata=True)
        except TopicAlreadyExistsError:
            if name:
                raise
            # Nobody else makes one of this name: a broker passed it on to the controller twice, as the first answer was lost.
            self.admin.wait_for_topics([topic])
        self.trio.await_topic(topic)
        return topic

    def send(self, topic: str, partitions: int, count: int, *, size: int = 100, batch: int = 16384) -> None:
        """Write so many numbered records to each partition: `<partition>:<number>:xxx`."""
        producer = KafkaProducer(bootstrap_servers=self.trio.bootstrap(), acks="all", linger_ms=5, batch_size=batch)
        for number in range(count):
            for partition in range(partitions):
                producer.send(topic, value=b"%d:%d:" % (partition, number) + b"x" * size, partition=partition)
        producer.flush()
        producer.close()

    def files(
        self,
        folder: Path,
        listener: str,
        mechanism: str = "",
        *,
        user: str = SUPER,
        password: str = "",
        ca: str = "ca.crt",
        oauth: OAuth | None = None,
    ) -> Security:
        """Credentials for this listener, in files of `folder`."""
        keys = self.trio.certificates
        sasl, tls = listener.startswith("SASL"), listener in ("SSL", "MUTUAL", "SASL_SSL")
        if sasl:
            (folder / "username").write_text(user)
            (folder / "password").write_text(password or PASSWORDS[user])
        return Security(
            protocol="SSL" if listener == "MUTUAL" else listener,
            mechanism=mechanism,
            username_file=str(folder / "username") if sasl else "",
            password_file=str(folder / "password") if sasl else "",
            ca_file=str(keys / ca) if tls else "",
            certificate_file=str(keys / f"{user}.crt") if listener == "MUTUAL" else "",
            key_file=str(keys / f"{user}.key") if listener == "MUTUAL" else "",
            oauth=oauth,
            issuer_ca_file=str(keys / ca) if oauth else "",
        )

    def secrets(self, *, user: str = SUPER, password: str = "") -> MemorySecrets:
        """The Secret `kafka` with everything that a group could name."""
        keys = self.trio.certificates
        secrets = MemorySecrets()
        secrets.data[NAMESPACE, "kafka"] = {
            "username": user.encode(),
            "password": (password or PASSWORDS[user]).encode(),
            "ca.crt": (keys / "ca.crt").read_bytes(),
            "tls.crt": (keys / f"{user}.crt").read_bytes(),
            "tls.key": (keys / f"{user}.key").read_bytes(),
        }
        return secrets

    def group(
        self, topic: str, listener: str = "PLAINTEXT", mechanism: str = "", *, name: str = "", oauth: OAuth | None = None
    ) -> GroupSpec:
        """A ConsumerGroup that reads the topic over this listener, with the credentials of `secrets`."""
        sasl, tls = listener.startswith("SASL"), listener in ("SSL", "MUTUAL", "SASL_SSL")

        def key(wanted: bool, name: str) -> SecretKey | None:
            return SecretKey("kafka", name) if wanted else None

        security = KafkaSecurity(
            protocol="SSL" if listener == "MUTUAL" else "PLAINTEXT" if listener == "ASTRAY" else listener,
            mechanism=mechanism,
            username_key=key(sasl, "username"),
            password_key=key(sasl, "password"),
            ca_key=key(tls, "ca.crt"),
            certificate_key=key(listener == "MUTUAL", "tls.crt"),
            private_key=key(listener == "MUTUAL", "tls.key"),
            oauth=oauth,
            issuer_ca_key=key(oauth is not None, "ca.crt"),
        )
        name = name or f"group-{uuid.uuid4().hex[:8]}"
        source = KafkaSource(self.trio.bootstrap(listener), (topic,), "", f"{NAMESPACE}.{name}", security=security)
        return GroupSpec(GroupIdentity(NAMESPACE, name, f"uid-of-{name}"), source, GroupSettings(), wanted=1)
