"""This machine judges ConsumerGroups as an API server does: the same cases, the same words."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from dev.schema import COPY, rendered
from shardherd.controller.declared import declared
from shardherd.controller.merge import merge
from shardherd.local.cel import parsed
from shardherd.local.schema import RefusedError, admitted, schema
from tests.contract.definition import ACCEPTED, DEFAULTED, REFUSED, REFUSED_NAMES, SPEC, Json

ROOT = Path(__file__).resolve().parents[2]

OTHER_WORDS = "error parsing regexp: missing closing )"
"""What the API server's own regular expressions say, which are not ours."""


def make(name: str = "clicks", **spec: Any) -> Json:
    return admitted(written(name, **spec))


def written(name: str = "clicks", **spec: Any) -> Json:
    return {
        "apiVersion": "shardherd.dev/v1alpha1",
        "kind": "ConsumerGroup",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": merge(copy.deepcopy(SPEC), spec),
    }


def refused(resource: Json, old: Json | None = None) -> str:
    with pytest.raises(RefusedError) as refusal:
        admitted(resource, old)
    return str(refusal.value)


@pytest.mark.parametrize(("spec", "said"), REFUSED)
def test_a_wrong_group_is_refused_with_the_field_the_value_and_the_remedy(spec: Json, said: str) -> None:
    assert said.replace(OTHER_WORDS, "missing ): clicks(") in refused(written(**spec))


@pytest.mark.parametrize(("name", "said"), REFUSED_NAMES)
def test_a_name_that_pods_and_services_cannot_be_made_from_is_refused(name: str, said: str) -> None:
    assert said in refused(written(name))


@pytest.mark.parametrize("spec", ACCEPTED)
def test_what_is_right_is_accepted(spec: Json) -> None:
    assert make(**spec)["kind"] == "ConsumerGroup"


@pytest.mark.parametrize("path", sorted(ROOT.glob("spark_apps/*/consumergroup.yaml")), ids=lambda path: path.parent.name)
def test_the_applications_of_this_repository_are_accepted(path: Path) -> None:
    made = admitted(yaml.safe_load(path.read_text()))
    made["metadata"]["uid"] = "uid"
    assert declared(made).identity.name == made["metadata"]["name"]


def test_every_default_is_filled_in() -> None:
    assert make()["spec"] == DEFAULTED


def test_what_is_accepted_stays_as_it_is() -> None:
    assert admitted(make()) == make()


@pytest.mark.parametrize(
    ("before", "after", "was"), [("mine", "yours", '"mine"'), ("mine", None, '"mine"'), (None, "yours", "the default")]
)
def test_the_kafka_group_cannot_change(before: str | None, after: str | None, was: str) -> None:
    old = make(source={"kafka": {"groupId": before} if before else {}})
    said = refused(written(source={"kafka": {"groupId": after} if after else {}}), old)
    assert f"spec.source.kafka.groupId: spec.source.kafka.groupId cannot change (it was {was}" in said


def test_the_cells_of_a_group_cannot_change_but_the_place_of_their_state_can() -> None:
    def state(cells: int, claim: str = "a") -> Json:
        return {"cells": cells, "checkpoint": {"claimName": claim}}

    old = make(state=state(6))
    assert "spec.state.cells cannot change (it was 6)" in refused(written(state=state(12)), old)
    assert "spec.state cannot be removed" in refused(written(), old)
    assert "spec.state cannot be added to a group that runs" in refused(written(state=state(6)), make())
    assert admitted(written(state=state(6, "b")), old)["spec"]["state"] == state(6, "b")


def test_a_reset_cannot_change_under_its_id_but_after_a_dry_run() -> None:
    old = make(reset={"id": "r1", "to": "Earliest"})
    assert 'spec.reset.id "r1" was declared already' in refused(written(reset={"id": "r1", "to": "Latest"}), old)
    assert admitted(written(reset={"id": "r2", "to": "Latest"}), old)["spec"]["reset"]["id"] == "r2"
    dry = make(reset={"id": "r1", "to": "Earliest", "dryRun": True})
    assert admitted(written(reset={"id": "r1", "to": "Latest"}), dry)["spec"]["reset"]["to"] == "Latest"


def test_a_number_may_stay_when_the_mode_changes() -> None:
    old = make(replicas=2, scaling={"mode": "Fixed"})
    assert admitted(written(replicas=2), old)["spec"]["replicas"] == 2
    assert "spec.replicas says nothing" in refused(written(replicas=3), old)


def test_a_value_of_another_type_is_refused() -> None:
    said = 'spec.replicas: Invalid value: "2": spec.replicas in body must be of type integer'
    assert said in refused(written(replicas="2"))
    assert "spec.ordered in body must be of type boolean" in refused(written(ordered=1))
    assert "spec.replicas in body must be of type integer" in refused(written(replicas=True))


@pytest.mark.parametrize(
    ("resource", "said"),
    [
        ({}, "apiVersion and kind must be shardherd.dev/v1alpha1 and ConsumerGroup"),
        ({**written(), "metadata": {}}, "metadata.name: Required value"),
        ({**written(), "spec": None}, "spec: Invalid value: null: spec in body must be of type object"),
    ],
)
def test_what_is_no_group_at_all_is_refused(resource: Json, said: str) -> None:
    assert said in refused(resource)


def test_the_packages_copy_of_the_schema_is_current() -> None:
    assert COPY.read_text() == rendered(), "run: python -m dev.schema"


def test_every_rule_of_the_definition_can_be_read() -> None:
    rules = list(validations(schema()))
    assert len(rules) > 30
    for rule in rules:
        parsed(rule["rule"])
        parsed(rule.get("messageExpression", "''"))


def test_every_limit_of_the_definition_is_known() -> None:
    known = {
        *("type", "properties", "required", "items", "additionalProperties", "default", "enum", "pattern", "format"),
        *("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
        *(f"x-kubernetes-{name}" for name in ("validations", "list-type", "list-map-keys", "preserve-unknown-fields")),
    }
    spec = schema()["properties"]["spec"]
    assert {key for each in schemas(spec) for key in each} - known == set()
    assert json.dumps(spec)


def schemas(schema: Json) -> list[Json]:
    """This schema and all below it."""
    below = [*schema.get("properties", {}).values(), schema.get("items"), schema.get("additionalProperties")]
    return [schema, *(each for item in below if isinstance(item, dict) for each in schemas(item))]


def validations(schema: Json) -> list[Json]:
    return [rule for each in schemas(schema) for rule in each.get("x-kubernetes-validations", ())]
