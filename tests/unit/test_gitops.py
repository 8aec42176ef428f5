"""What docs/gitops.md and docs/keda.md have people apply says of a group what it is, and names what there is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from lupa.lua51 import LuaRuntime

from shardherd.controller import declared as declarations
from shardherd.core.model.nouns import GroupSettings, ShardState
from shardherd.core.planning.observed import Observation, OwnedSet, Trouble
from shardherd.local.schema import admitted
from shardherd.telemetry import metrics
from tests.unit.core.planning.builders import consumers, declared, observation, pods, shards, status_of, view

ROOT = Path(__file__).resolve().parents[2]
Json = dict[str, Any]


def shown(page: str, kind: str) -> list[Json]:
    """The manifests of a kind that a page shows."""
    blocks = re.findall(r"^```yaml\n(.*?)^```", (ROOT / "docs" / page).read_text(), re.MULTILINE | re.DOTALL)
    return [found for block in blocks if (found := yaml.safe_load(block))["kind"] == kind]


(CHECK,) = (
    manifest["data"]["resource.customizations.health.shardherd.dev_ConsumerGroup"]
    for manifest in shown("gitops.md", "ConfigMap")
)


def health(resource: Mapping[str, Any]) -> tuple[str, str]:
    """What Argo CD's check says of a resource: status and message. Its interpreter speaks Lua 5.1."""
    lua = LuaRuntime(unpack_returned_tuples=True)
    check = lua.eval(f"function(obj) {CHECK} end")
    answer = check(lua.table_from(resource, recursive=True))
    return answer["status"], answer["message"]


def resource(seen: Observation, generation: int = 1, **spec: Any) -> Json:
    status: Any = status_of(seen)
    return {"metadata": {"name": "clicks", "generation": generation}, "spec": spec, "status": status}


WITHOUT_IMAGE = Trouble("ImageUnavailable", "Pod clicks-1 cannot get the image.")
AWAY = view(shards(8), source_reachable=False, source_error="no broker answers")


@pytest.mark.parametrize(
    ("seen", "status", "said"),
    [
        pytest.param(observation(), "Healthy", "", id="it reads"),
        pytest.param(
            observation(view=view((*shards(6), *shards(2, ShardState.TRANSFER)), consumers=consumers(4, 4))),
            "Healthy",
            "",
            id="shards move",
        ),
        pytest.param(observation(view=None, stateful_set=None, consumers=()), "Progressing", "", id="it is new"),
        pytest.param(observation(stateful_set=OwnedSet(replicas=1), consumers=pods(0)), "Progressing", "", id="it grows"),
        pytest.param(observation(view=AWAY), "Progressing", "no broker answers", id="its source is away"),
        pytest.param(
            observation(consumers=(*pods(0), *pods(1, ready=False, trouble=WITHOUT_IMAGE))),
            "Degraded",
            "Pod clicks-1 cannot get the image.",
            id="it has no image",
        ),
    ],
)
def test_argo_cd_says_what_the_status_says(seen: Observation, status: str, said: str) -> None:
    found, message = health(resource(seen))
    assert found == status
    assert said in message
    assert message != ""


def test_a_paused_group_is_suspended() -> None:
    seen = observation(declared=declared(settings=GroupSettings(paused=True)))
    assert health(resource(seen, paused=True))[0] == "Suspended"
    assert health(resource(observation(), paused=False))[0] == "Healthy"


def test_a_group_that_lost_a_position_is_degraded_although_it_may_get_it_back() -> None:
    written = resource(observation())
    for condition in written["status"]["conditions"]:
        if condition["type"] == "CheckpointLost":
            condition |= {"status": "True", "message": "clicks/3 has lost its position."}
    assert health(written) == ("Degraded", "clicks/3 has lost its position.")


@pytest.mark.parametrize(
    "written",
    [
        pytest.param({"metadata": {"generation": 1}, "spec": {}}, id="there is no status"),
        pytest.param({"metadata": {"generation": 1}, "spec": {}, "status": {"observedGeneration": 1}}, id="no conditions"),
        pytest.param(resource(observation(), generation=2), id="it was changed since"),
    ],
)
def test_nothing_is_said_of_what_the_operator_has_not_looked_at(written: Json) -> None:
    assert health(written) == ("Progressing", "The operator has not looked at this declaration yet.")


def test_flux_and_argo_cd_are_told_of_the_kind_and_the_field_that_there_are() -> None:
    (application,) = shown("gitops.md", "Application")
    (ignored,) = application["spec"]["ignoreDifferences"]
    definition = yaml.safe_load((ROOT / "crds" / "consumergroup.yaml").read_text())["spec"]
    (version,) = definition["versions"]
    assert (ignored["group"], ignored["kind"]) == (definition["group"], definition["names"]["kind"])
    assert [pointer.replace("/", ".") for pointer in ignored["jsonPointers"]] == [
        version["subresources"]["scale"]["specReplicasPath"]
    ]
    (kustomization,) = shown("gitops.md", "Kustomization")
    (checked,) = kustomization["spec"]["healthChecks"]
    assert (checked["apiVersion"], checked["kind"]) == (f"{definition['group']}/{version['name']}", ignored["kind"])


class TestKeda:
    def group(self) -> Json:
        (found,) = shown("keda.md", "ConsumerGroup")
        return admitted(found)

    def test_what_it_scales_is_the_group_that_is_shown(self) -> None:
        group, found = self.group(), shown("keda.md", "ScaledObject")
        expected = {"apiVersion": group["apiVersion"], "kind": group["kind"], "name": group["metadata"]["name"]}
        assert [scaled["spec"]["scaleTargetRef"] for scaled in found] == [expected, expected]
        assert {scaled["metadata"]["namespace"] for scaled in found} == {group["metadata"]["namespace"]}
        assert group["spec"]["scaling"]["mode"] == "External"

    def test_its_trigger_names_the_kafka_group_that_has_the_positions(self) -> None:
        group = self.group()
        group["metadata"] |= {"uid": "uid", "generation": 1}
        source = declarations.declared(group).kafka
        (trigger,) = (
            each
            for scaled in shown("keda.md", "ScaledObject")
            for each in scaled["spec"]["triggers"]
            if each["type"] == "kafka"
        )
        told = trigger["metadata"]
        assert (told["bootstrapServers"], told["consumerGroup"]) == (source.bootstrap_servers, source.group_id)
        assert (told["topic"],) == source.topics

    def test_its_query_names_a_metric_and_labels_that_there_are(self) -> None:
        (trigger,) = (
            each
            for scaled in shown("keda.md", "ScaledObject")
            for each in scaled["spec"]["triggers"]
            if each["type"] == "prometheus"
        )
        found = re.fullmatch(r"max\((\w+)\{(.*)\}\)", trigger["metadata"]["query"])
        assert found is not None
        known = {each.name: each.labels for each in vars(metrics).values() if isinstance(each, metrics.Metric)}
        assert set(re.findall(r"(\w+)=", found[2])) == {"namespace", "consumergroup"} <= set(known[found[1]])
