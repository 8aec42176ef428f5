"""The demo on a cluster of the user's: which context it uses, what it makes, and what it leaves alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from dev.demo import visit
from dev.demo.report import DemoError, Reporter
from dev.demo.visit import MARK, NAMESPACE, RESOURCE, Images, Visit

KUBECTL = """#!/bin/sh
# Answers `kubectl config` as kubectl does, from the kubeconfig that the environment names.
echo "${KUBECONFIG:-none} $*" >> "$(dirname "$0")/calls"
case "$*" in
  *get-contexts*) echo kind-mine; echo production;;
  *"--context=kind-mine"*) cat "$(dirname "$0")/found";;
  version*) echo '{"serverVersion": {"gitVersion": "v1.34.4"}}';;
  *) echo "error: cannot locate context" >&2; exit 1;;
esac
"""


@pytest.fixture
def bin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the PATH with a kubectl that notes how it was called."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "kubectl").write_text(KUBECTL)
    (folder / "kubectl").chmod(0o755)
    (folder / "found").write_text(yaml.safe_dump({"clusters": [{"cluster": {"server": "https://127.0.0.1:6443"}}]}))
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("KUBECONFIG", "/ambient")
    return folder


def here(tmp_path: Path, context: str = "kind-mine", source: str = "", said: list[str] | None = None) -> Visit:
    lines = [] if said is None else said
    return Visit(context, source, Reporter(lines.append), tmp_path / "state")


def test_the_named_context_is_copied_and_the_ambient_kubeconfig_is_never_used(bin: Path, tmp_path: Path) -> None:
    place = here(tmp_path, source="/chosen")
    place.connect()
    assert place.kubeconfig.read_text() == (bin / "found").read_text()
    assert place.kubeconfig.stat().st_mode & 0o777 == 0o600
    calls = (bin / "calls").read_text().splitlines()
    assert calls == [
        "/chosen config view --minify --flatten --raw --context=kind-mine",
        f"{place.kubeconfig} version -o json",
    ]


def test_without_a_kubeconfig_it_is_the_default_file_not_the_ambient_one(bin: Path, tmp_path: Path) -> None:
    here(tmp_path).connect()
    assert (bin / "calls").read_text().startswith("none config view")


def test_a_context_that_there_is_not_is_named_with_those_that_there_are(bin: Path, tmp_path: Path) -> None:
    with pytest.raises(DemoError, match=r"DEMO_CONTEXT is 'kind-other': .*your kubeconfig has: kind-mine, production"):
        here(tmp_path, "kind-other").connect()
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("reference", ["example.com/shardherd", "example.com:5000/shardherd", ""])
def test_images_without_a_tag_are_refused(reference: str) -> None:
    with pytest.raises(DemoError, match="it must be a prefix and a tag"):
        Images.of(reference)


def test_one_reference_stands_for_both_images() -> None:
    images = Images.of("example.com:5000/shardherd:1.2")
    assert (images.operator, images.tag, images.spark) == (
        "example.com:5000/shardherd/operator",
        "1.2",
        "example.com:5000/shardherd/spark:1.2",
    )


class Found:
    """A kubectl that finds these objects, by kind, and notes what it is told to remove."""

    def __init__(self, **objects: dict[str, Any]) -> None:
        self.objects = objects
        self.removed: list[str] = []

    def find(self, kind: str, *_: str) -> dict[str, Any] | None:
        return self.objects.get(kind)

    def items(self, *_: str) -> list[dict[str, Any]]:
        return list(self.objects.get("groups", {}).get("items", []))

    def pods(self, *_: str) -> list[dict[str, Any]]:
        return []

    def run(self, *arguments: str, **_: Any) -> str:
        self.removed.append(" ".join(arguments[:3]))
        return ""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Visit:
    """A cluster whose state the test sets by `kubectl_finds`; helm does nothing."""
    (tmp_path / "state").mkdir()
    monkeypatch.setattr(Visit, "helm", lambda *_: None)
    return here(tmp_path)


def kubectl_finds(monkeypatch: pytest.MonkeyPatch, **objects: dict[str, Any]) -> Found:
    found = Found(**objects)
    monkeypatch.setattr(Visit, "kube", property(lambda _: found))
    return found


OURS = {"metadata": {"labels": {MARK: "true"}}}
DEFINITION = {"metadata": {"annotations": {"meta.helm.sh/release-namespace": NAMESPACE}}}


def test_a_namespace_of_somebody_elses_is_left_alone(place: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
    found = kubectl_finds(monkeypatch, namespace={"metadata": {}}, crd=DEFINITION)
    with pytest.raises(DemoError, match="not of this demo"):
        place.check_room()
    with pytest.raises(DemoError, match="it is left alone"):
        place.remove("kafka:9092")
    assert found.removed == []


def test_a_cluster_with_another_shardherd_is_left_alone(place: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
    kubectl_finds(monkeypatch, crd=DEFINITION)
    with pytest.raises(DemoError, match=r"knows consumergroups\.shardherd\.dev already"):
        place.check_room()


@pytest.mark.parametrize(
    ("definition", "groups", "removed"),
    [
        pytest.param(DEFINITION, [], True, id="it came with the demo"),
        pytest.param(
            {"metadata": {"annotations": {"meta.helm.sh/release-namespace": "prod"}}}, [], False, id="another release's"
        ),
        pytest.param(DEFINITION, [{"metadata": {"name": "theirs"}}], False, id="somebody has a group"),
    ],
)
def test_the_definition_goes_only_if_it_is_the_demos_and_unused(
    place: Visit, monkeypatch: pytest.MonkeyPatch, definition: dict[str, Any], groups: list[Any], removed: bool
) -> None:
    found = kubectl_finds(monkeypatch, namespace=OURS, crd=definition, groups={"items": groups})
    place.remove("")
    expected = [
        f"delete {RESOURCE} clickstream",
        *([f"delete crd {RESOURCE}"] if removed else []),
        f"delete namespace {NAMESPACE}",
    ]
    assert found.removed == expected


def test_all_that_is_applied_is_in_its_own_namespace_and_restricted() -> None:
    images = Images.of("shardherd:dev")
    made = [visit.scripts(), visit.producer(images, "k:9092"), visit.group(images, "k:9092")]
    assert {each["metadata"]["namespace"] for each in made} == {NAMESPACE}
    pod = made[1]["spec"]
    assert pod["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert made[2]["spec"]["source"]["kafka"] == {"bootstrapServers": "k:9092", "topics": ["shardherd-demo"]}
    assert visit.chart_values(images)["watchNamespaces"] == [NAMESPACE]
