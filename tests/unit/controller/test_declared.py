"""Reading a ConsumerGroup resource."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from shardherd.controller.declared import (
    APPLICATION_DEFAULTS,
    InvalidGroupError,
    declared,
    digest,
    pod_inputs,
    seconds,
    template_hash,
    with_pod_inputs,
)
from shardherd.core.model.gauges import Marks, Watermarks
from shardherd.core.model.nouns import GroupIdentity, GroupSettings, KafkaSource, Reset, ResetTo, ShardId
from shardherd.core.planning.observed import Declared, Scaling, ScalingMode
from tests.unit.controller.builders import python_resource, resource
from tests.unit.core.planning.builders import UID

DEFINITION = Path(__file__).resolve().parents[3] / "crds" / "consumergroup.yaml"


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
    assert declared(resource(source={"kafka": {"groupId": "mine"}})).kafka.group_id == "mine"


def test_the_time_up_to_which_topics_are_read_is_one_in_seconds() -> None:
    made = resource()
    assert declared(made).kafka.ending_timestamp is None
    made["spec"]["source"]["kafka"]["endingTimestamp"] = "2026-01-31T12:00:00.500+01:00"
    assert declared(made).kafka.ending_timestamp == 1769857200.5
    assert template_hash(made["spec"]) == template_hash(resource()["spec"]), "pods hear of ends while they run"


@pytest.mark.parametrize(("cleanup", "deletes"), [({}, False), ({"cleanup": "Keep"}, False), ({"cleanup": "Delete"}, True)])
def test_offsets_are_deleted_only_where_that_is_declared(cleanup: dict[str, Any], deletes: bool) -> None:
    assert declared(resource(**cleanup)).source.delete_offsets is deletes


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
        {"source": {"kafka": {"isolationLevel": "ReadCommitted"}}},
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
        {"rollout": {"strategy": "InPlace"}},
        {"cleanup": "Delete"},
    ],
)
def test_what_consumers_hear_while_they_run_does_not(change: dict[str, Any]) -> None:
    assert template_hash(resource(**change)["spec"]) == template_hash(resource()["spec"])


def test_a_default_that_is_written_out_is_no_change() -> None:
    spelled = resource(application={"imagePullPolicy": "IfNotPresent", "executor": {"instances": 1, "cores": 1}})
    silent = resource()
    silent["spec"]["application"] = {"image": "example/clicks:1", "mainApplicationFile": "/opt/app/app.py"}
    assert template_hash(spelled["spec"]) == template_hash(silent["spec"])


def test_every_default_that_the_definition_fills_in_for_pods_is_known() -> None:
    schema = yaml.safe_load(DEFINITION.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert defaults(schema["properties"]["spec"]["properties"]["application"]) == APPLICATION_DEFAULTS


def defaults(schema: dict[str, Any]) -> dict[str, Any]:
    """What the API server fills in below an object of the schema."""
    found = {}
    for name, child in schema.get("properties", {}).items():
        inner = defaults(child)
        if inner:
            found[name] = inner
        elif child.get("default", {}) != {}:
            found[name] = child["default"]
    return found


def test_the_hash_is_that_of_earlier_versions() -> None:
    """If this fails, an upgrade of the operator restarts every pod of every group."""
    assert template_hash(resource()["spec"]) == "3870456ce67ee96b"


def test_inputs_of_pods_are_put_back_whole() -> None:
    before = resource(application={"image": "example/clicks:1", "executor": {"instances": 3}}, drainTimeout="90s")
    after = resource(application={"image": "example/clicks:2", "arguments": ["--new"]}, paused=True)
    back = with_pod_inputs(after, pod_inputs(before["spec"]))
    assert back["spec"] == {**after["spec"], "application": before["spec"]["application"], "drainTimeout": "90s"}


def test_what_was_not_declared_of_kafka_is_put_back_as_not_declared() -> None:
    before = resource()
    after = resource(source={"kafka": {"isolationLevel": "ReadCommitted"}})
    assert with_pod_inputs(after, pod_inputs(before["spec"])) == before


def test_the_account_of_spark_is_the_default_that_it_was_before_and_is_declared_for_python() -> None:
    spark, python = resource(), python_resource()
    spelled = {"serviceAccountName": "shardherd-spark"}
    assert template_hash(resource(application=spelled)["spec"]) == template_hash(spark["spec"])
    assert template_hash(python_resource(application=spelled)["spec"]) != template_hash(python["spec"])
    found = [declared(each).service_account for each in (spark, python, python_resource(application=spelled))]
    assert found == ["shardherd-spark", "shardherd-worker", "shardherd-spark"]


def test_a_python_consumer_has_no_executors() -> None:
    found = declared(python_resource())
    assert (found.executors, found.executors_vary) == (0, False)


def test_another_type_is_another_application_and_is_put_back_whole() -> None:
    spark, python = resource(), python_resource()
    assert template_hash(spark["spec"]) != template_hash(python["spec"])
    for before, after in ((spark, python), (python, spark)):
        back = with_pod_inputs(after, pod_inputs(before["spec"]))
        assert back["spec"]["application"] == before["spec"]["application"]


def test_the_order_of_keys_does_not_matter_to_a_digest() -> None:
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ({"id": "r1", "to": "Latest", "dryRun": True}, Reset("r1", ResetTo.LATEST, dry_run=True)),
        (
            {"id": "r1", "to": "Earliest", "dryRun": False, "shards": ["clicks/1"]},
            Reset("r1", ResetTo.EARLIEST, shards=(ShardId("clicks/1"),)),
        ),
        (
            {"id": "r1", "to": "Timestamp", "dryRun": False, "timestamp": "2023-11-14T23:13:20.5+01:00"},
            Reset("r1", ResetTo.TIMESTAMP, timestamp=1_700_000_000.5),
        ),
        (
            {"id": "r1", "to": "Offsets", "dryRun": False, "offsets": {"clicks/1": 7, "clicks/0": 0}},
            Reset("r1", ResetTo.OFFSETS, offsets=((ShardId("clicks/1"), 7), (ShardId("clicks/0"), 0))),
        ),
    ],
)
def test_a_reset_is_read_whole(written: dict[str, Any], read: Reset) -> None:
    assert declared(resource(reset=written)).reset == read


def test_without_a_reset_there_is_none() -> None:
    assert declared(resource()).reset is None


def test_the_tool_that_declared_a_reset_is_known_by_its_field_manager() -> None:
    made = resource(reset={"id": "r1", "to": "Latest", "dryRun": False})
    made["metadata"]["managedFields"] = [
        {"manager": "helm", "fieldsV1": {"f:spec": {"f:source": {}, "f:reset": {".": {}, "f:dryRun": {}}}}},
        {"manager": "shardherd", "subresource": "status", "fieldsV1": {"f:status": {}}},
        {"manager": "kubectl-edit", "fieldsV1": {"f:spec": {"f:reset": {"f:id": {}, "f:to": {}}}}},
    ]
    assert (declared(made).reset or Reset("none", ResetTo.LATEST)).manager == "kubectl-edit"


def test_executors_are_a_number_or_a_range_of_which_the_most_counts() -> None:
    fixed = declared(resource(application={"executor": {"instances": 2}}))
    varying = declared(resource(application={"executor": {"instances": 1, "dynamicAllocation": {"maxExecutors": 4}}}))
    assert [(each.executors, each.executors_vary) for each in (fixed, varying)] == [(2, False), (4, True)]


def test_a_range_of_executors_replaces_pods_and_is_put_back_whole() -> None:
    before = resource(application={"executor": {"instances": 1, "dynamicAllocation": {"maxExecutors": 4}}})
    after = resource(application={"executor": {"instances": 1, "dynamicAllocation": {"maxExecutors": 5}}})
    assert template_hash(before["spec"]) != template_hash(after["spec"])
    assert with_pod_inputs(after, pod_inputs(before["spec"]))["spec"] == before["spec"]


def test_a_reset_replaces_no_pod() -> None:
    assert template_hash(resource(reset={"id": "r1", "to": "Latest"})["spec"]) == template_hash(resource()["spec"])


def test_a_group_has_no_watermarks_unless_it_declares_some() -> None:
    assert declared(resource()).settings.watermarks == Watermarks()


def test_watermarks_are_read_as_percent_or_as_free_bytes() -> None:
    disk = {"low": "800Mi", "high": "600M", "flood": "500"}
    own = {"low": "1%", "high": "50%", "flood": "100%"}
    assert declared(resource(watermarks={"disk": disk, "own": own})).settings.watermarks == Watermarks(
        disk=Marks(800 * 1024**2, 600 * 1000**2, 500, free=True), own=Marks(1, 50, 100)
    )


@pytest.mark.parametrize(
    ("low", "high", "flood", "wrong"),
    [
        ("85%", "90%", "5Gi", "write all three as percent that are used, such as 85%, or as bytes that are free, such as 10Gi"),
        ("85%", "lots", "95%", "write all three as percent that are used"),
        ("85%", "85%", "95%", "high must be fuller than low, and flood fuller than high"),
        ("5Gi", "6Gi", "1Gi", "high must be fuller than low, and flood fuller than high"),
    ],
)
def test_watermarks_that_an_older_schema_let_in_are_refused_by_name(low: str, high: str, flood: str, wrong: str) -> None:
    text = f"spec.watermarks.memory is low {low}, high {high} and flood {flood}: {wrong}"
    with pytest.raises(InvalidGroupError, match=re.escape(text)):
        declared(resource(watermarks={"memory": {"low": low, "high": high, "flood": flood}}))


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("0000-01-01T00:00:00Z", "year 0 is out of range"),
        ("2026-02-30T00:00:00Z", "day is out of range for month"),
        ("2026-01-01T23:59:60Z", "second must be in 0..59"),
        ("2026-01-01T00:00:00+99:99", "offset must be a timedelta strictly between"),
        ("9999-12-31T23:59:59-12:00", "year 10000 is out of range"),
        ("0001-01-01T00:00:00+14:00", "year 0 is out of range"),
    ],
)
def test_a_time_that_is_only_written_like_one_is_refused_by_name(text: str, wrong: str) -> None:
    for field, given in (
        ("spec.source.kafka.endingTimestamp", {"source": {"kafka": {"endingTimestamp": text}}}),
        ("spec.reset.timestamp", {"reset": {"id": "r1", "to": "Timestamp", "dryRun": False, "timestamp": text}}),
    ):
        with pytest.raises(InvalidGroupError) as refusal:
            declared(resource(**given))
        assert str(refusal.value).startswith(f'{field} is "{text}", which is no time: {wrong}')
        assert str(refusal.value).endswith("; write one that there is, with its zone, such as 2026-01-31T12:00:00Z")


def test_watermarks_replace_no_pod() -> None:
    marked = resource(watermarks={"disk": {"low": "85%", "high": "90%", "flood": "95%"}})
    assert declared(marked).template_hash == declared(resource()).template_hash
