"""What the controller would create, from a manifest."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from shardherd.controller.manifests import Manifests
from shardherd.inspect.observed import InspectError
from shardherd.inspect.rendering import UID, render
from shardherd.local.schema import admitted
from tests.unit.local.manifests import Json, group

URL = "https://shardherd.system.svc:8443"


def rendered(folder: Path, *documents: Json, shards: int = 1) -> list[Json]:
    file = folder / "group.yaml"
    file.write_text(yaml.safe_dump_all(documents))
    return render([file], shards, URL, "shardherd")


def test_it_is_what_the_controllers_own_manifests_are(tmp_path: Path) -> None:
    made = rendered(tmp_path, {"kind": "Secret", "metadata": {"name": "x"}}, group())

    resource = admitted(group())
    resource["metadata"] |= {"uid": UID, "generation": 1}
    manifests = Manifests(URL, "shardherd", trust=True)
    assert made == [manifests.service(resource), manifests.budget(resource), manifests.stateful_set(resource, 1)]


@pytest.mark.parametrize(("shards", "replicas"), [(0, 1), (4, 1), (12, 3), (100, 10)])
def test_the_number_of_consumers_is_the_planners(tmp_path: Path, shards: int, replicas: int) -> None:
    assert rendered(tmp_path, group(), shards=shards)[2]["spec"]["replicas"] == replicas


def test_a_fixed_number_is_what_is_declared(tmp_path: Path) -> None:
    assert rendered(tmp_path, group(replicas=7, scaling={"mode": "Fixed"}))[2]["spec"]["replicas"] == 7


def test_what_the_api_server_would_refuse_is_refused_in_its_words(tmp_path: Path) -> None:
    with pytest.raises(InspectError, match=r"spec.sessionTimeout \(1s\) must be at least 3 x spec.heartbeatInterval"):
        rendered(tmp_path, group(sessionTimeout="1s"))
    with pytest.raises(InspectError, match=r"^no ConsumerGroup stands in .*group.yaml: add one"):
        rendered(tmp_path, {"kind": "Secret"})
    with pytest.raises(InspectError, match=r"cannot be read: No such file"):
        render([tmp_path / "none.yaml"], 1, URL, "shardherd")


def test_a_pod_that_the_api_server_would_refuse_is_refused_as_on_one_machine(tmp_path: Path) -> None:
    containers = [{"name": "driver", "workingDir": 5}]
    with pytest.raises(InspectError) as refused:
        rendered(tmp_path, group(application={"driver": {"template": {"spec": {"containers": containers}}}}))
    assert str(refused.value) == (
        'StatefulSet "clicks" is invalid: spec.template.spec.containers[0].workingDir: Invalid value:'
        " expected `str | null`, got `int`"
    )
