"""What is wrong is said where a user looks: a condition of the group, with the cause named. All groups fail side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from dev.cluster import Cluster
from dev.demo.kube import Json, condition
from dev.demo.lab import Lab
from dev.demo.report import await_that
from tests.e2e.groups import RESOURCE, group
from tests.e2e.groups import WRONG as NAMESPACE
from tests.harness.cluster import Names
from tests.harness.member import live_member

pytestmark = pytest.mark.timeout(420)

UNREACHABLE = "kafka.nowhere.example:9092"

Await = Callable[[str, str, str], Json]


@pytest.fixture(scope="module")
def topic(installed: Lab, names: Names) -> str:
    """A topic of one partition that exists."""
    topic = names.fresh("there")
    installed.create_topic(topic, 1)
    return topic


@pytest.fixture(scope="module")
def members(node_cluster: Cluster, topic: str) -> Iterator[str]:
    """A Kafka group with a live member of its own; its name."""
    name = f"taken-{topic}"
    with live_member(node_cluster.kafka_bootstrap, topic, name):
        yield name


@pytest.fixture(scope="module")
def wrong(lab: Lab, topic: str, members: str) -> Iterator[Await]:
    """All the wrong groups, applied at once; await a condition of one of them: (group, type, reason)."""
    one = {"scaling": {"maxReplicas": 1, "minReplicas": 1, "shardsPerConsumer": 4, "mode": "Shards"}}
    kafka = {"bootstrapServers": "kafka:9092", "topics": [topic]}
    groups: dict[str, dict[str, object]] = {
        "no-broker": {"source__kafka": {**kafka, "bootstrapServers": UNREACHABLE}},
        "no-topic": {"source__kafka": {**kafka, "topics": ["not-there"]}},
        "no-image": {"source__kafka": kafka, "application__image": "shardherd/not-there:dev"},
        "no-file": {"source__kafka": kafka, "application__mainApplicationFile": "/opt/shardherd/apps/not_there.py"},
        "members": {"source__kafka": {**kafka, "groupId": members}, "application__image": "shardherd/not-there:dev"},
    }
    template = {"application__driver__template": None}
    made = [group(name, NAMESPACE, **{**one, **template, **changes}) for name, changes in groups.items()]
    lab.kube.apply(*made)

    def await_reason(name: str, kind: str, reason: str) -> Json:
        def found() -> Json | None:
            seen = condition(lab.kube.get(RESOURCE, name, "-n", NAMESPACE), kind)
            return seen if seen is not None and seen["reason"] == reason else None

        return await_that(
            f"{name} has {kind} with reason {reason}",
            found,
            within=120,
            every=1,
            explain=lambda: lab.kube.explain(NAMESPACE, name),
        )

    yield await_reason
    lab.kube.run("delete", RESOURCE, "--all", "-n", NAMESPACE, "--wait=false")


def test_an_unreachable_broker_is_named(wrong: Await) -> None:
    found = wrong("no-broker", "SourceReachable", "SourceUnavailable")
    assert found["status"] == "False"
    assert UNREACHABLE in found["message"]
    assert wrong("no-broker", "Ready", "SourceUnavailable")["message"] == found["message"]


def test_a_topic_that_does_not_exist_is_named(wrong: Await) -> None:
    found = wrong("no-topic", "SourceReachable", "SourceUnavailable")
    assert found["status"] == "False"
    assert "not-there" in found["message"]


def test_an_image_that_does_not_exist_is_named_and_will_not_come_by_waiting(wrong: Await) -> None:
    found = wrong("no-image", "ConsumersReady", "ImageUnavailable")
    assert found["status"] == "False"
    assert "shardherd/not-there:dev" in found["message"]
    assert wrong("no-image", "Stalled", "ImageUnavailable")["status"] == "True"


def test_an_application_that_crashes_at_start_shows_its_last_words(wrong: Await) -> None:
    found = wrong("no-file", "ConsumersReady", "CrashLooping")
    assert found["status"] == "False"
    assert "not_there.py" in found["message"]


def test_a_kafka_group_with_members_of_its_own_is_not_touched(wrong: Await, lab: Lab, members: str) -> None:
    found = wrong("members", "Ready", "GroupHasLiveMembers")
    assert found["status"] == "False"
    assert members in found["message"]
    # Its own member commits nothing, and a start position would be committed before anything else.
    assert lab.committed(members) == {}


def test_a_wrong_group_has_an_event_that_a_user_finds(wrong: Await, lab: Lab) -> None:
    wrong("no-image", "Stalled", "ImageUnavailable")

    def events() -> list[Json]:
        return lab.kube.items(
            "events", "-n", NAMESPACE, "--field-selector=involvedObject.name=no-image,involvedObject.kind=ConsumerGroup"
        )

    found = await_that("there is an event", lambda: [e for e in events() if e["reason"] == "ImageUnavailable"], within=30)
    assert found[0]["type"] == "Warning"
