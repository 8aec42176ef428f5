"""What stands for a pod's volumes, paths and variables on a machine without containers."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from shardherd.adapters.local.volumes import Paths, VolumeError, Volumes, environment, paths, with_temporary
from shardherd.controller.manifests import Manifests
from tests.unit.controller.builders import resource

Json = dict[str, Any]

KEPT: dict[tuple[str, str], Json] = {
    ("Secret", "kafka"): {"data": {"password": base64.b64encode(b"hunter2").decode(), "key.bin": "/w=="}},
    ("ConfigMap", "code"): {"data": {"app.py": "print(1)"}},
}


def find(kind: str, name: str) -> Json | None:
    return KEPT.get((kind, name))


def volumes(folder: Path) -> Volumes:
    return Volumes(folder / "pod", folder / "claims", find, lambda: "the token")


def pod(**spec: Any) -> Json:
    """The pod of a group as the controller's manifests have it."""
    made = Manifests("http://127.0.0.1:4", "shardherd").stateful_set(resource(**spec), 1)["spec"]["template"]
    return {**made, "metadata": {**made["metadata"], "name": "clicks-0", "uid": "uid-0"}}


def template(*volume: Json, **container: Any) -> Json:
    """Overrides of a driver's pod."""
    return {"driver": {"template": {"spec": {"volumes": list(volume), "containers": [{"name": "driver", **container}]}}}}


def test_an_ordinary_pod_has_its_folders_and_its_token(tmp_path: Path) -> None:
    folders = volumes(tmp_path).provide(pod()["spec"], "clicks-0")

    place = tmp_path / "pod" / "volumes"
    assert folders == {
        "run": tmp_path / "pod" / "run",
        "tmp": place / "tmp",
        "work": place / "work",
        "token": place / "token",
        "checkpoint": place / "checkpoint",
    }
    assert (folders["token"] / "token").read_text() == "the token"
    assert (folders["token"] / "token").stat().st_mode & 0o777 == 0o600


def test_a_claim_is_a_folder_that_stays_and_a_claim_template_is_one_of_each_pod(tmp_path: Path) -> None:
    mine = {"name": "data", "persistentVolumeClaim": {"claimName": "clicks-data"}}
    checkpoint = {"volumeClaimTemplate": {"accessModes": ["ReadWriteOnce"]}}
    spec = pod(application={**template(mine), "checkpoint": checkpoint})["spec"]

    folders = volumes(tmp_path).provide(spec, "clicks-0")

    assert folders["data"] == tmp_path / "claims" / "clicks-data"
    assert folders["checkpoint"] == tmp_path / "claims" / "checkpoint-clicks-0"


def test_secrets_and_config_maps_are_files(tmp_path: Path) -> None:
    sources = [{"secret": {"name": "kafka", "items": [{"key": "password", "path": "deep/word"}]}}]
    spec = pod(
        application=template(
            {"name": "code", "configMap": {"name": "code"}},
            {"name": "kafka", "secret": {"secretName": "kafka"}},
            {"name": "both", "projected": {"sources": sources}},
            {"name": "none", "secret": {"secretName": "nothing", "optional": True}},
        )
    )["spec"]

    optional = {"secret": {"name": "kafka", "items": [{"key": "user", "path": "user"}], "optional": True}}
    (both,) = [each for each in spec["volumes"] if each["name"] == "both"]
    both["projected"]["sources"].append(optional)

    folders = volumes(tmp_path).provide(spec, "clicks-0")

    assert sorted(path.name for path in folders["both"].iterdir()) == ["deep"]
    assert (folders["code"] / "app.py").read_text() == "print(1)"
    assert (folders["kafka"] / "password").read_bytes() == b"hunter2"
    assert (folders["both"] / "deep" / "word").read_bytes() == b"hunter2"
    assert list(folders["none"].iterdir()) == []


@pytest.mark.parametrize(
    ("volume", "said"),
    [
        ({"name": "a", "secret": {"secretName": "nothing"}}, "volume 'a' needs the secret 'nothing': put it into the manifest"),
        (
            {"name": "a", "projected": {"sources": [{"secret": {"name": "kafka", "items": [{"key": "user", "path": "u"}]}}]}},
            "volume 'a' needs the key 'user' of the secret 'kafka': add it there",
        ),
        ({"name": "a", "nfs": {"server": "files"}}, "volume 'a' is of the kind nfs, which there is not on one machine"),
    ],
)
def test_a_volume_that_cannot_be_had_is_named_with_the_remedy(tmp_path: Path, volume: Json, said: str) -> None:
    with pytest.raises(VolumeError, match=said):
        volumes(tmp_path).provide(pod(application=template(volume))["spec"], "clicks-0")


def test_the_environment_is_that_of_the_manifest_with_this_machines_own_port() -> None:
    found = environment(pod(), find, {"SHARDHERD_METRICS_PORT": "20001"})

    assert (found["SHARDHERD_CONSUMER"], found["SHARDHERD_POD_UID"]) == ("clicks-0", "uid-0")
    assert (found["SHARDHERD_POD_IP"], found["SHARDHERD_METRICS_PORT"]) == ("127.0.0.1", "20001")
    assert found["SHARDHERD_DRIVER_HOST"] == "clicks-0.clicks.shop.svc"
    assert (found["SHARDHERD_ZONE"], found["SHARDHERD_CAPACITY"]) == ("", "")
    assert found["SHARDHERD_COORDINATOR_URL"] == "http://127.0.0.1:4"


def test_a_variable_comes_from_where_it_says() -> None:
    env = [
        {"name": "WORD", "valueFrom": {"secretKeyRef": {"name": "kafka", "key": "password"}}},
        {"name": "CODE", "valueFrom": {"configMapKeyRef": {"name": "code", "key": "app.py"}}},
        {"name": "NONE", "valueFrom": {"secretKeyRef": {"name": "kafka", "key": "nothing", "optional": True}}},
        {"name": "BOTH", "value": "$(WORD)-$(UNKNOWN)-$$(WORD)"},
    ]
    found = environment(pod(application={"env": env}), find, {})

    assert (found["WORD"], found["CODE"], "NONE" in found) == ("hunter2", "print(1)", False)
    assert found["BOTH"] == "hunter2-$(UNKNOWN)-$(WORD)"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"secretKeyRef": {"name": "kafka", "key": "user"}}, "the variable A needs the key 'user' of the secret 'kafka'"),
        (
            {"secretKeyRef": {"name": "kafka", "key": "key.bin"}},
            "the variable A needs the key 'key.bin' of the secret 'kafka', which is no text: mount the Secret as a volume",
        ),
        ({"resourceFieldRef": {"resource": "limits.cpu"}}, "the variable A comes from resourceFieldRef"),
        ({}, "the variable A comes from nowhere, which there is not on one machine: give a value"),
    ],
)
def test_a_variable_that_cannot_be_had_is_named(source: Json, said: str) -> None:
    with pytest.raises(VolumeError, match=said):
        environment(pod(application={"env": [{"name": "A", "valueFrom": source}]}), find, {})


def test_a_path_below_a_mount_leads_to_the_volumes_folder(tmp_path: Path) -> None:
    mounts = [{"name": "data", "mountPath": "/data"}, {"name": "deep", "mountPath": "/data/deep/", "subPath": "part"}]
    volume = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in ("data", "deep")]
    spec = pod(application=template(*volume, volumeMounts=mounts))["spec"]
    leads = paths(spec, volumes(tmp_path).provide(spec, "clicks-0"))

    claims = tmp_path / "claims"
    assert leads.of("/data") == f"{claims}/data"
    assert leads.of("/data/rows") == f"{claims}/data/rows"
    assert leads.of("/data/deep/rows") == f"{claims}/deep/part/rows"
    assert leads.of("/database") == "/database"
    assert leads.of("s3a://data/rows") == "s3a://data/rows"
    assert leads.of("/var/lib/shardherd/work") == f"{tmp_path}/pod/volumes/work"


def test_paths_within_json_lead_there_too() -> None:
    leads = Paths((("/data", "/here"),))

    text = json.dumps({"spark.sql.warehouse.dir": "/data/w", "list": ["/data", 1, "data"], "n": None})

    assert json.loads(leads.of(text)) == {"spark.sql.warehouse.dir": "/here/w", "list": ["/here", 1, "data"], "n": None}
    assert leads.of("{/data") == "{/data"


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, {"TMPDIR": "/pod/tmp", "JAVA_TOOL_OPTIONS": "-Djava.io.tmpdir=/pod/tmp"}),
        (
            {"JAVA_TOOL_OPTIONS": "-Djava.io.tmpdir=/mine -Da=b"},
            {"TMPDIR": "/pod/tmp", "JAVA_TOOL_OPTIONS": "-Djava.io.tmpdir=/pod/tmp -Djava.io.tmpdir=/mine -Da=b"},
        ),
        ({"TMPDIR": "/my own"}, {"TMPDIR": "/my own", "JAVA_TOOL_OPTIONS": '"-Djava.io.tmpdir=/my own"'}),
    ],
    ids=["by default", "Java's options of the user come last", "a folder of the user's"],
)
def test_what_a_process_and_its_jvm_keep_for_a_while_is_in_the_pods_folder(given: dict[str, str], found: Json) -> None:
    assert with_temporary(given, Path("/pod/tmp")) == found
