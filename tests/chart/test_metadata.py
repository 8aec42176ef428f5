"""What the chart says of itself: to Helm, to Artifact Hub, and to who has just installed it."""

from __future__ import annotations

import json
from importlib.metadata import version
from typing import Any

import pytest
import yaml

from dev.cluster import Cluster, ClusterError
from tests.chart.rendering import CHART, IMAGE, ROOT, Chart, Json
from tests.harness.definition import define_resource

ABOUT: Json = yaml.safe_load((CHART / "Chart.yaml").read_text())
NOTES: Json = ABOUT["annotations"]


def annotation(name: str) -> list[Json]:
    """One of Artifact Hub's annotations, which are YAML in themselves."""
    found: list[Json] = yaml.safe_load(NOTES[f"artifacthub.io/{name}"])
    return found


def test_its_versions_are_those_of_the_package(chart: Chart) -> None:
    assert ABOUT["version"] == ABOUT["appVersion"] == version("shardherd")


def test_nobody_is_told_of_an_image_that_is_not_published() -> None:
    (example,) = annotation("crdsExamples")
    assert "artifacthub.io/images" not in NOTES
    assert example["spec"]["application"]["image"].startswith("registry.example.com/")


def test_who_names_no_image_is_told_that_none_is_published(cluster: Cluster) -> None:
    with pytest.raises(ClusterError, match=r"image\.repository is not set, and no image is published: push"):
        cluster.helm("template", "shardherd", str(CHART))


def test_artifact_hub_is_told_of_the_definition(chart: Chart) -> None:
    definition = yaml.safe_load((ROOT / "crds" / "consumergroup.yaml").read_text())
    (shown,) = annotation("crds")
    names = {"kind": definition["spec"]["names"]["kind"], "name": definition["metadata"]["name"]}
    assert shown.items() >= {**names, "version": definition["spec"]["versions"][0]["name"]}.items()


def test_the_example_for_artifact_hub_is_accepted(cluster: Cluster) -> None:
    define_resource(cluster)
    (example,) = annotation("crdsExamples")
    said = cluster.kubectl("create", "--dry-run=server", "--validate=strict", "-f", "-", input=yaml.safe_dump(example))
    assert said.strip() == "consumergroup.shardherd.dev/clickstream created (server dry run)"


def test_an_older_kubernetes_is_refused(cluster: Cluster) -> None:
    render = ("template", "shardherd", str(CHART), *IMAGE, "--kube-version")
    with pytest.raises(ClusterError, match=r"chart requires kubeVersion: >=1\.30\.0-0"):
        cluster.helm(*render, "1.29.14")
    assert "kind: ValidatingAdmissionPolicy\n" in cluster.helm(*render, "1.30.0")


@pytest.mark.parametrize(
    ("values", "shown", "not_shown"),
    [
        ({}, ["2 operators, of which one leads", "kubectl delete crd consumergroups"], ["over plain HTTP", "nobody stands by"]),
        ({"tls": {"mode": "disabled"}}, ["TLS is disabled: consumers show their tokens over plain HTTP"], []),
        ({"replicaCount": 1}, ["With one operator nobody stands by"], []),
        ({"crds": {"enabled": False}}, ["apply crds/consumergroup.yaml, also before each upgrade"], ["delete crd"]),
        ({}, ["served in default, and nowhere else", "No namespace has the service account shardherd-spark"], ["ALL"]),
        (
            {"watchNamespaces": ["shop"]},
            [
                "kubectl get consumergroups.shardherd.dev -n shop",
                "served in shop, and",
                "shardherd-spark, which drivers have by default, is in shop",
            ],
            ["--all-namespaces", "ALL", "could become the operator"],
        ),
        (
            {"watchAllNamespaces": True},
            ["in ALL namespaces", "kube-system too, the operator may get Secrets by name", "--all-namespaces"],
            ["nowhere else"],
        ),
        ({"watchAllNamespaces": True, "kafkaCredentials": {"enabled": False}}, ["in ALL namespaces"], ["get Secrets"]),
        ({"applicationNamespaces": ["default"]}, ["a pod of theirs could become the operator"], []),
        (
            {"watchNamespaceSelector": {"matchLabels": {"shardherd.dev/operator": "a"}}},
            [
                'whose labels match "shardherd.dev/operator=a" (watchNamespaceSelector)',
                "in every one, kube-system too, it may get Secrets by name",
                'kubectl get namespaces -l "shardherd.dev/operator=a"',
                "make it where you make a namespace",
                "--all-namespaces",
            ],
            ["nowhere else", "name those of your groups in applicationNamespaces"],
        ),
    ],
)
def test_who_has_installed_it_is_told_what_to_do_next(
    cluster: Cluster, values: dict[str, Any], shown: list[str], not_shown: list[str]
) -> None:
    options = [part for name, value in values.items() for part in ("--set-json", f"{name}={json.dumps(value)}")]
    notes = cluster.helm("install", "tried", str(CHART), *IMAGE, "--dry-run=client", *options).partition("\nNOTES:\n")[2]
    assert "kubectl -n default rollout status deployment/tried-shardherd" in notes
    assert "helm test tried -n default" in notes
    assert [words for words in shown if words not in notes] == []
    assert [words for words in not_shown if words in notes] == []
