"""The rights that each side needs, on brokers that enforce access control lists: with exactly these it works.

docs/security-kafka.md documents them; without any one of them there is an error that names it.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from kafka.admin import ACL, ACLFilter, ACLOperation, ACLPermissionType, ResourcePattern, ResourceType

from dev.cluster.daemons import java
from dev.cluster.kafka import LIMITED, PASSWORDS, SUPER
from dev.cluster.tools import Tools
from shardherd.adapters.kafka.connector import KafkaConnector
from shardherd.core.model.nouns import GroupSpec, ShardId
from shardherd.ports import SourceUnavailableError
from shardherd.source.kafka.brokers import Brokers
from shardherd.source.kafka.cluster_connection import BrokersUnavailableError, SourceRefusedError
from tests.harness.kafka import KafkaLab
from tests.harness.long import long
from tests.harness.typed import RIGHTS, of
from tests.integration.brokers.conftest import Connect, Coordinate
from tests.integration.brokers.reading import Reading, sent, whole

Right = tuple[ResourceType, str, ACLOperation]
Grant = Callable[..., None]

PROPAGATION = 60.0
"""Seconds within which every broker knows of a change of rights."""


@pytest.fixture
def grant(kafka: KafkaLab) -> Iterator[Grant]:
    """Gives the limited user exactly these rights."""

    def grant(*rights: Right) -> None:
        if given:
            kafka.admin.delete_acls(
                [
                    ACLFilter(
                        f"User:{LIMITED}",
                        "*",
                        ACLOperation.ANY,
                        ACLPermissionType.ANY,
                        resource_pattern=ResourcePattern(kind, name),
                    )
                    for kind, name, _ in given
                ]
            )
        given[:] = rights
        if not rights:
            return
        made = kafka.admin.create_acls(
            [
                ACL(f"User:{LIMITED}", "*", operation, ACLPermissionType.ALLOW, ResourcePattern(kind, name))
                for kind, name, operation in rights
            ]
        )
        assert made["failed"] == []

    given: list[Right] = []
    yield grant
    grant()


async def coordinate_all(connector: KafkaConnector, spec: GroupSpec, topic: str) -> None:
    """Everything that a coordinator does at a broker."""
    source, offsets = connector.source(spec), connector.offsets(spec)
    shards = [info.shard for info in (await source.discover()).shards]
    await source.live_members()
    await offsets.take_over()
    await offsets.commit(dict.fromkeys(shards, 3), {})
    assert await offsets.read(shards) == dict.fromkeys(shards, 3)


async def settles(attempt: Callable[[], Awaitable[str]], wanted: str) -> None:
    """Wait until an attempt says what is wanted: every broker hears of a right in its own time."""
    deadline = time.monotonic() + PROPAGATION
    while not re.search(wanted, said := await attempt()):
        assert time.monotonic() < deadline, f"not {wanted!r} within {PROPAGATION:g} s, but: {said}"


class Operator:
    """The limited user as the operator's, with a group and a topic of its own."""

    def __init__(self, kafka: KafkaLab, connector: KafkaConnector) -> None:
        self.topic = kafka.create(2)
        self.spec = kafka.group(self.topic, "SASL_PLAINTEXT", "SCRAM-SHA-256")
        group = self.spec.kafka.group_id
        self.rights: dict[str, Right] = {
            "topic": (ResourceType.TOPIC, self.topic, ACLOperation.READ),
            "group": (ResourceType.GROUP, group, ACLOperation.READ),
            "transactional id": (ResourceType.TRANSACTIONAL_ID, f"shardherd.{group}", ACLOperation.WRITE),
        }
        self._connector = connector

    def all_but(self, missing: str = "") -> list[Right]:
        return [right for name, right in self.rights.items() if name != missing]

    async def attempt(self) -> str:
        """Do all of it; the error, or `done`."""
        try:
            await coordinate_all(self._connector, self.spec, self.topic)
        except SourceUnavailableError as error:
            return str(error)
        return "done"


@pytest.fixture
def operator(kafka: KafkaLab, coordinate: Coordinate) -> Operator:
    return Operator(kafka, coordinate(kafka.secrets(user=LIMITED)))


async def test_the_operator_needs_three_rights_and_no_more(operator: Operator, grant: Grant) -> None:
    grant(*operator.all_but())

    await settles(operator.attempt, "^done$")


@long
async def test_the_commands_of_the_page_give_these_rights(kafka: KafkaLab, operator: Operator, tmp_path: Path) -> None:
    """Typed as the page has them, with names of this test's own."""
    (tmp_path / "admin.properties").write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="{SUPER}" password="{PASSWORDS[SUPER]}";\n'
    )
    names = {
        "kafka:9092": kafka.trio.bootstrap("SASL_PLAINTEXT"),
        "User:clickstream": f"User:{LIMITED}",
        "streams.clickstream": operator.spec.kafka.group_id,
        "--topic clickstream": f"--topic {operator.topic}",
    }
    commands = [command.text for command in of(RIGHTS)]
    assert len(commands) == len(operator.rights)

    def type_all(change: str) -> None:
        for text in commands:
            for shown, own in names.items():
                text = text.replace(shown, own)
            program, *options = shlex.split(text.replace("--add", change))
            command = java(Tools(), {"kafka-acls": "org.apache.kafka.tools.AclCommand"}[program], *options)
            subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)

    await settles(operator.attempt, "allow the operator's user")
    type_all("--add")
    try:
        await settles(operator.attempt, "^done$")
    finally:
        type_all("--remove --force")


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("topic", "does not show topic '{topic}': TopicAuthorizationFailedError; allow the operator's user READ on it"),
        ("group", "'{group}'.*GroupAuthorizationFailedError.*; allow the operator's user READ on this group"),
        (
            "transactional id",
            r"TransactionalIdAuthorizationFailedError.*'shardherd\.{group}'.*; allow the operator's user WRITE on this"
            " transactional id",
        ),
    ],
)
async def test_a_right_that_the_operator_lacks_is_named(operator: Operator, grant: Grant, missing: str, said: str) -> None:
    grant(*operator.all_but(missing))

    await settles(operator.attempt, said.format(topic=operator.topic, group=operator.spec.kafka.group_id))


async def test_to_describe_a_topic_is_not_enough_to_commit_its_offsets(operator: Operator, grant: Grant) -> None:
    grant(*operator.all_but("topic"), (ResourceType.TOPIC, operator.topic, ACLOperation.DESCRIBE))

    await settles(
        operator.attempt, "cannot commit.*TopicAuthorizationFailedError.*; allow the operator's user READ on the group's topics"
    )


def consumer(kafka: KafkaLab, connect: Connect, folder: Path) -> Brokers:
    security = kafka.files(folder, "SASL_PLAINTEXT", "SCRAM-SHA-512", user=LIMITED)
    return connect(kafka.trio.bootstrap("SASL_PLAINTEXT"), security)


async def test_a_consumer_needs_one_right_for_each_topic(
    kafka: KafkaLab, connect: Connect, grant: Grant, tmp_path: Path
) -> None:
    topic = kafka.create(2)
    kafka.send(topic, 2, 20)
    brokers = consumer(kafka, connect, tmp_path)

    async def attempt() -> str:
        try:
            brokers.end_offsets([ShardId(f"{topic}/0")], 5)
            assert Reading(brokers, *whole(topic, 2, 20)).rest() == sent(topic, 2, 0, 20)
        except (SourceRefusedError, BrokersUnavailableError) as error:
            return str(error)
        return "done"

    await settles(attempt, f"shard {topic}/0: Kafka does not show its topic to this client: allow it READ on topic '{topic}'")
    grant((ResourceType.TOPIC, topic, ACLOperation.DESCRIBE))
    await settles(
        attempt, f"Kafka refuses to read it: TopicAuthorizationFailedError.*; allow this client READ on topic '{topic}'"
    )
    grant((ResourceType.TOPIC, topic, ACLOperation.READ))
    await settles(attempt, "^done$")
