"""The resource definition on a real API server: what it refuses, in which words, and what it fills in."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml

from dev.cluster import Cluster
from shardherd.adapters.kubernetes.api import MERGE_PATCH, ApiError, KubernetesApi
from shardherd.controller.declared import declared
from shardherd.controller.merge import merge
from shardherd.core.planning.observed import Scaling, ScalingMode
from tests.contract.definition import ACCEPTED, DEFAULTED, REFUSED, REFUSED_NAMES, SPEC, Json
from tests.harness.cluster import Names
from tests.harness.definition import define_resource
from tests.integration.controller.bench import RESOURCE, ROOT, unique


class Groups:
    """Makes groups in a namespace of its own, by dry runs unless it is to last."""

    def __init__(self, api: KubernetesApi, namespace: str) -> None:
        self.api = api
        self.path = f"/apis/shardherd.dev/v1alpha1/namespaces/{namespace}/consumergroups"

    def make(self, name: str = "clicks", *, last: bool = False, **spec: Any) -> Json:
        """The group as the server would keep it, `spec` merged over an ordinary one."""
        body = {
            "apiVersion": "shardherd.dev/v1alpha1",
            "kind": "ConsumerGroup",
            "metadata": {"name": name},
            "spec": merge(copy.deepcopy(SPEC), spec),
        }
        query = {"fieldValidation": "Strict"} | ({} if last else {"dryRun": "All"})
        made: Json = self.api.call("POST", self.path, body, query=query)
        return made

    def refused(self, name: str = "clicks", **spec: Any) -> str:
        """What the server says to this group."""
        with pytest.raises(ApiError) as refusal:
            self.make(name, **spec)
        assert refusal.value.status in (400, 422)
        return str(refusal.value)

    def change(self, name: str, **spec: Any) -> Json:
        """Change a group that lasts."""
        changed: Json = self.api.call("PATCH", f"{self.path}/{name}", {"spec": spec}, content_type=MERGE_PATCH)
        return changed


@pytest.fixture(scope="module")
def groups(cluster: Cluster, names: Names) -> Iterator[Groups]:
    define_resource(cluster)
    namespace = unique(names, "crd")
    cluster.kubectl("create", "namespace", namespace)
    api = KubernetesApi.from_kubeconfig(cluster.kubeconfig)
    yield Groups(api, namespace)
    cluster.kubectl("delete", "namespace", namespace, "--wait=false")
    api.close()


@pytest.mark.parametrize(("spec", "said"), REFUSED)
def test_a_wrong_group_is_refused_with_the_field_the_value_and_the_remedy(groups: Groups, spec: Json, said: str) -> None:
    assert said in groups.refused(**spec)


@pytest.mark.parametrize(("name", "said"), REFUSED_NAMES)
def test_a_name_that_pods_and_services_cannot_be_made_from_is_refused(groups: Groups, name: str, said: str) -> None:
    assert said in groups.refused(name)


def test_the_longest_name_is_accepted(groups: Groups) -> None:
    assert groups.make("a" * 40)["metadata"]["name"] == "a" * 40


@pytest.mark.parametrize("spec", ACCEPTED)
def test_what_is_right_is_accepted(groups: Groups, spec: Json) -> None:
    assert groups.make(**spec)["kind"] == "ConsumerGroup"


@pytest.mark.parametrize("path", sorted(ROOT.glob("spark_apps/*/consumergroup.yaml")), ids=lambda path: path.parent.name)
def test_the_applications_of_this_repository_are_accepted(groups: Groups, path: Path) -> None:
    resource = yaml.safe_load(path.read_text())
    body = {**resource, "metadata": {"name": resource["metadata"]["name"]}}
    made = groups.api.call("POST", groups.path, body, query={"fieldValidation": "Strict", "dryRun": "All"})
    assert declared(made).identity.name == resource["metadata"]["name"]


def test_every_default_is_in_the_schema(groups: Groups) -> None:
    made = groups.make()
    assert made["spec"] == DEFAULTED
    assert declared(made).scaling == Scaling()
    by_lag = declared(groups.make(scaling={"mode": "Lag", "lag": {}})).scaling
    assert by_lag == declared(groups.make(scaling={"mode": "Lag"})).scaling == Scaling(mode=ScalingMode.LAG)
    assert declared(made).kafka.group_id == f"{made['metadata']['namespace']}.clicks"


class TestTheKafkaGroup:
    """Its offsets are the durable positions, so it cannot be changed under a group."""

    @pytest.mark.parametrize(
        ("before", "after", "was"),
        [
            ("mine", "yours", '"mine"'),
            ("mine", None, '"mine"'),
            (None, "yours", "the default <namespace>.<name>"),
        ],
    )
    def test_it_cannot_change(self, groups: Groups, names: Names, before: str | None, after: str | None, was: str) -> None:
        name = names.fresh("fixed")
        groups.make(name, last=True, source={"kafka": {"groupId": before} if before else {}})
        with pytest.raises(ApiError) as refusal:
            groups.change(name, source={"kafka": {"groupId": after}})
        assert (
            f"spec.source.kafka.groupId cannot change (it was {was}), as its offsets are the durable positions: "
            "put it back, or create another ConsumerGroup"
        ) in str(refusal.value)

    def test_anything_else_can(self, groups: Groups, names: Names) -> None:
        name = names.fresh("open")
        groups.make(name, last=True)
        changed = groups.change(name, ordered=True, source={"kafka": {"topics": ["clicks", "views"]}})
        assert (changed["spec"]["ordered"], changed["metadata"]["generation"]) == (True, 2)


@pytest.mark.parametrize(
    ("before", "after"),
    [("2026-01-31T12:00:00Z", "2026-01-31T13:00:00Z"), ("2026-01-31T12:00:00Z", None), (None, "2026-01-31T12:00:00Z")],
    ids=["another time", "no end any more", "an end later on"],
)
def test_the_time_up_to_which_a_group_reads_cannot_change(
    groups: Groups, names: Names, before: str | None, after: str | None
) -> None:
    name = names.fresh("ending")
    groups.make(name, last=True, source={"kafka": {"endingTimestamp": before} if before else {}})
    with pytest.raises(ApiError) as refusal:
        groups.change(name, source={"kafka": {"endingTimestamp": after}})
    assert (
        "spec.source.kafka.endingTimestamp cannot be set, changed or removed later on, as consumers may have read past it: put"
        " it back as it was, or create another ConsumerGroup"
    ) in str(refusal.value)


class TestState:
    """Where the state of a key is depends on the number of cells, so that there are cells, and how many, is for good."""

    STATE: ClassVar[Json] = {"cells": 6, "checkpoint": {"claimName": "clicks-state"}}

    @pytest.mark.parametrize(
        ("before", "after", "said"),
        [
            (STATE, {"cells": 12}, "spec.state.cells cannot change (it was 6), as it says where the state of a key is"),
            (STATE, None, "spec.state cannot be removed, as positions belong to the state of its cells"),
            (None, STATE, "spec.state cannot be added to a group that runs, as its shards have no cells"),
        ],
        ids=["another number", "no cells any more", "cells later on"],
    )
    def test_it_cannot_change(self, groups: Groups, names: Names, before: Json | None, after: Json | None, said: str) -> None:
        name = names.fresh("cells")
        groups.make(name, last=True, **({"state": before} if before else {}))
        with pytest.raises(ApiError) as refusal:
            groups.change(name, state=after)
        assert said in str(refusal.value)

    def test_its_place_can(self, groups: Groups, names: Names) -> None:
        name = names.fresh("moved")
        groups.make(name, last=True, state=self.STATE)
        changed = groups.change(name, state={"checkpoint": {"claimName": "another"}})
        assert changed["spec"]["state"] == {"cells": 6, "checkpoint": {"claimName": "another"}}
        assert declared(changed).settings.cells == 6


class TestAReset:
    """It is made once for every id, so what it says cannot change under its id."""

    @pytest.mark.parametrize(
        "after",
        [
            pytest.param({"to": "Latest"}, id="another place"),
            pytest.param({"dryRun": True}, id="a dry run afterwards"),
            pytest.param({"shards": ["clicks/0"]}, id="other shards"),
        ],
    )
    def test_it_cannot_change_under_its_id(self, groups: Groups, names: Names, after: Json) -> None:
        name = names.fresh("reset")
        groups.make(name, last=True, reset={"id": "r1", "to": "Earliest"})
        with pytest.raises(ApiError) as refusal:
            groups.change(name, reset=after)
        assert (
            'spec.reset.id "r1" was declared already, and a reset is made once for every id: give spec.reset.id another value'
        ) in str(refusal.value)
        assert groups.change(name, reset={**after, "id": "r2"})["spec"]["reset"]["id"] == "r2"

    def test_a_dry_run_may_change_and_be_made_under_its_id(self, groups: Groups, names: Names) -> None:
        name = names.fresh("dry")
        groups.make(name, last=True, reset={"id": "r1", "to": "Earliest", "dryRun": True})
        changed = groups.change(name, paused=True, reset={"to": "Latest", "dryRun": False})
        assert changed["spec"]["reset"] == {"id": "r1", "to": "Latest", "dryRun": False}
        assert "reset" not in groups.change(name, paused=False, reset=None)["spec"]


class TestSubresources:
    def test_status_is_apart_from_the_spec(self, groups: Groups, names: Names) -> None:
        name = names.fresh("status")
        groups.make(name, last=True)
        path = f"{groups.path}/{name}"
        both = {"status": {"replicas": 3}, "spec": {"paused": True}}
        through_spec = groups.api.call("PATCH", path, both, content_type=MERGE_PATCH)
        assert (through_spec["spec"]["paused"], through_spec.get("status")) == (True, None)
        both["spec"] = {"paused": False}
        through_status = groups.api.call("PATCH", f"{path}/status", both, content_type=MERGE_PATCH)
        assert (through_status["spec"]["paused"], through_status["status"]) == (True, {"replicas": 3})

    def test_scale_maps_to_replicas_and_the_selector(self, groups: Groups, names: Names) -> None:
        name = names.fresh("scale")
        groups.make(name, last=True, replicas=2, scaling={"mode": "External"})
        path = f"{groups.path}/{name}"
        selector = f"shardherd.dev/consumergroup={name}"
        groups.api.call("PATCH", f"{path}/status", {"status": {"replicas": 1, "selector": selector}}, content_type=MERGE_PATCH)
        scale = groups.api.call("GET", f"{path}/scale")
        assert (scale["spec"], scale["status"]) == ({"replicas": 2}, {"replicas": 1, "selector": selector})
        groups.api.call("PATCH", f"{path}/scale", {"spec": {"replicas": 5}}, content_type=MERGE_PATCH)
        assert groups.api.call("GET", path)["spec"]["replicas"] == 5

    def test_scaling_a_group_that_chooses_its_number_itself_is_refused(self, groups: Groups, names: Names) -> None:
        name = names.fresh("chooses")
        groups.make(name, last=True)
        with pytest.raises(ApiError, match=r"spec.replicas says nothing in spec.scaling.mode Shards"):
            groups.api.call("PATCH", f"{groups.path}/{name}/scale", {"spec": {"replicas": 5}}, content_type=MERGE_PATCH)

    def test_a_number_may_stay_when_the_mode_changes(self, groups: Groups, names: Names) -> None:
        name = names.fresh("stays")
        groups.make(name, last=True, replicas=2, scaling={"mode": "Fixed"})
        changed = groups.change(name, scaling={"mode": "Shards"})
        assert (changed["spec"]["replicas"], changed["spec"]["scaling"]["mode"]) == (2, "Shards")

    def test_a_condition_needs_all_its_parts(self, groups: Groups, names: Names) -> None:
        name = names.fresh("condition")
        groups.make(name, last=True)
        status = {"status": {"conditions": [{"type": "Ready", "status": "Maybe"}]}}
        with pytest.raises(ApiError) as refusal:
            groups.api.call("PATCH", f"{groups.path}/{name}/status", status, content_type=MERGE_PATCH)
        for said in ("lastTransitionTime: Required value", "reason: Required value", 'Unsupported value: "Maybe"'):
            assert said in str(refusal.value)


def test_short_name_category_and_columns(groups: Groups, cluster: Cluster) -> None:
    found = definition(cluster)
    assert (found["names"]["shortNames"], found["names"]["categories"]) == (["shcg"], ["shardherd"])
    columns = found["versions"][0]["additionalPrinterColumns"]
    assert [column["name"] for column in columns if not column.get("priority")] == [
        "Ready",
        "Shards",
        "Assigned",
        "Consumers",
        "Lag",
        "Lag-S",
        "Epoch",
        "Age",
    ]
    cluster.kubectl("get", "shcg,shardherd", "--all-namespaces")


def definition(cluster: Cluster) -> Json:
    """The spec of the definition as the server has it."""
    api = KubernetesApi.from_kubeconfig(cluster.kubeconfig)
    try:
        found: Json = api.call("GET", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{RESOURCE}")["spec"]
    finally:
        api.close()
    return found
