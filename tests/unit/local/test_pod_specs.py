"""Which StatefulSets this machine takes: those whose pods it can read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shardherd.adapters.local.database import Database
from shardherd.adapters.local.objects import STATEFUL_SET, LocalCluster, Objects
from shardherd.adapters.local.pod_specs import wrong
from shardherd.controller.manifests import Manifests
from shardherd.ports import ClusterRefusedError
from tests.unit.controller.builders import resource

Json = dict[str, Any]


def stateful_set(volume: Json | None = None, container: Json | None = None, **pod: Any) -> Json:
    """That of a group whose template has these."""
    containers = [{"name": "driver", **(container or {})}]
    spec = {"containers": containers, "volumes": [{"name": "mine", **volume}] if volume else [], **pod}
    made: Json = Manifests("http://127.0.0.1:4", "shardherd").stateful_set(
        resource(application={"driver": {"template": {"spec": spec}}}), 1
    )
    return made


def variable(**given: Any) -> Json:
    return {"env": [{"name": "A", **given}]}


FIRST, MINE = "spec.template.spec.containers[0]", "spec.template.spec.volumes[5]"
LABEL = "expected `str` matching regex '^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$'"


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (stateful_set(container={"args": [1]}), f"{FIRST}.args[0]: Invalid value: expected `str`, got `int`"),
        (stateful_set(container={"workingDir": 5}), f"{FIRST}.workingDir: Invalid value: expected `str | null`, got `int`"),
        (
            stateful_set(container=variable(valueFrom={"secretKeyRef": {"name": "kafka"}})),
            f"{FIRST}.env[31].valueFrom.secretKeyRef: Invalid value: object missing required field `key`",
        ),
        (stateful_set({"hostPath": {}}), f"{MINE}.hostPath: Invalid value: object missing required field `path`"),
        (stateful_set({"projected": {}}), f"{MINE}.projected: Invalid value: object missing required field `sources`"),
        (
            stateful_set({"persistentVolumeClaim": {}}),
            f"{MINE}.persistentVolumeClaim: Invalid value: object missing required field `claimName`",
        ),
        (
            stateful_set({"secret": {"secretName": "kafka", "items": [{"key": "password"}]}}),
            f"{MINE}.secret.items[0]: Invalid value: object missing required field `path`",
        ),
        (stateful_set({"name": "../../..", "secret": {"secretName": "kafka"}}), f"{MINE}.name: Invalid value: {LABEL}"),
        (
            stateful_set(terminationGracePeriodSeconds="soon"),
            "spec.template.spec.terminationGracePeriodSeconds: Invalid value: expected `int`, got `str`",
        ),
    ],
)
async def test_a_pod_that_an_api_server_would_refuse_is_refused_and_nothing_is_written(
    made: Json, said: str, tmp_path: Path
) -> None:
    objects = Objects(Database(tmp_path / "state.db"))
    with pytest.raises(ClusterRefusedError) as refused:
        await LocalCluster(objects).apply(made)
    assert (str(refused.value), objects.all()) == (f'StatefulSet "clicks" is invalid: {said}', [])
    objects.database.close()


@pytest.mark.parametrize("path", ["/etc/password", "../password", "a/../../password", ".."])
def test_no_file_of_a_volume_is_outside_of_it(path: str) -> None:
    made = stateful_set({"secret": {"secretName": "kafka", "items": [{"key": "password", "path": path}]}})
    assert wrong(made["spec"]["template"]["spec"]).startswith(f"{MINE}.secret.items[0].path: Invalid value: ")


def test_a_container_beside_the_driver_may_have_a_probe_of_any_kind() -> None:
    beside = {"name": "proxy", "image": "proxy", "readinessProbe": {"exec": {"command": ["true"]}, "periodSeconds": 5}}
    made: Json = Manifests("http://127.0.0.1:4", "shardherd").stateful_set(
        resource(application={"driver": {"template": {"spec": {"containers": [{"name": "driver"}, beside]}}}}), 1
    )
    assert wrong(made["spec"]["template"]["spec"]) == ""


async def test_what_is_right_is_kept(tmp_path: Path) -> None:
    objects = Objects(Database(tmp_path / "state.db"))
    items = [{"key": "password", "path": "deep/..password"}]
    made = stateful_set(
        {"secret": {"secretName": "kafka", "items": items}},
        {
            **variable(valueFrom={"fieldRef": {"fieldPath": "metadata.name"}}),
            "volumeMounts": [{"name": "mine", "mountPath": "/mine", "subPath": ""}],
        },
    )
    await LocalCluster(objects).apply(made)
    assert [each["kind"] for each in objects.all()] == [STATEFUL_SET]
    objects.database.close()
