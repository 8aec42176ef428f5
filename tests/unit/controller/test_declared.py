"""Reading a ConsumerGroup resource."""

from __future__ import annotations

from typing import Any

import pytest

from shardherd.controller.declared import InvalidGroupError, declared, digest, seconds, template_hash
from shardherd.core.model import GroupIdentity, GroupSettings, KafkaSource
from shardherd.core.observed import Declared, Scaling, ScalingMode
from tests.unit.controller.builders import UID, resource


@pytest.mark.parametrize(
    ("text", "value"),
    [("3s", 3.0), ("500ms", 0.5), ("1m30s", 90.0), ("5m", 300.0), ("2h", 7200.0), ("0s", 0.0), ("1h1m1s1ms", 3661.001)],
)
def test_durations_are_read_in_seconds(text: str, value: float) -> None:
    assert seconds(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "3", "s", "3 s", "-3s", "3sx", "1.5s"])
def test_what_is_no_duration_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidGroupError, match=f'"{text}" is not a duration'):
        seconds(text)


def test_a_resource_is_read_whole() -> None:
    made = resource(
        generation=5,
        ordered=True,
        sessionTimeout="1m",
        scaling={"mode": "Fixed", "minReplicas": 2},
        replicas=3,
        drainTimeout="90s",
        application={"executor": {"instances": 2}},
    )
    assert declared(made) == Declared(
        identity=GroupIdentity("shop", "clicks", UID),
        generation=5,
        source=KafkaSource("kafka:9092", ("clicks",), "", "shop.clicks", "Earliest"),
        settings=GroupSettings(ordered=True, session_timeout=60.0),
        scaling=Scaling(ScalingMode.FIXED, 2, 10, 4),
        replicas=3,
        drain_timeout=90.0,
        executors=2,
        service_account="shardherd-spark",
        template_hash=template_hash(made["spec"]),
    )


def test_a_group_id_that_is_given_is_taken() -> None:
    assert declared(resource(source={"kafka": {"groupId": "mine"}})).source.group_id == "mine"


def test_a_resource_with_a_deletion_time_is_being_deleted() -> None:
    made = resource()
    made["metadata"]["deletionTimestamp"] = "2023-11-14T22:13:20Z"
    assert declared(made).deleting is True


def test_a_resource_that_an_older_schema_let_in_is_refused_by_name() -> None:
    made = resource()
    del made["spec"]["scaling"]
    with pytest.raises(InvalidGroupError, match="ConsumerGroup shop/clicks cannot be read: KeyError 'scaling'"):
        declared(made)


@pytest.mark.parametrize(
    "change",
    [
        {"application": {"image": "example/clicks:2"}},
        {"application": {"driver": {"template": {"spec": {"nodeSelector": {"disk": "ssd"}}}}}},
        {"source": {"kafka": {"bootstrapServers": "other:9092"}}},
        {"drainTimeout": "90s"},
    ],
)
def test_what_pods_are_made_from_changes_the_hash(change: dict[str, Any]) -> None:
    assert template_hash(resource(**change)["spec"]) != template_hash(resource()["spec"])


@pytest.mark.parametrize(
    "change",
    [
        {"heartbeatInterval": "5s"},
        {"sessionTimeout": "60s"},
        {"ordered": True},
        {"paused": True},
        {"scaling": {"maxReplicas": 3}},
    ],
)
def test_what_consumers_hear_while_they_run_does_not(change: dict[str, Any]) -> None:
    assert template_hash(resource(**change)["spec"]) == template_hash(resource()["spec"])


def test_the_order_of_keys_does_not_matter_to_a_digest() -> None:
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
