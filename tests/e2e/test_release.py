"""What a release gives to users, on a real node: the images' archives are loaded, and the chart's archive is installed."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from dev.cluster.images import digests, load_archive
from dev.demo.kube import is_ready
from dev.demo.lab import Lab
from dev.demo.report import DemoError, await_that
from dev.release import chart, checksums, images
from dev.release.__main__ import of_image
from dev.release.source import Source, working_tree
from tests.e2e.people import administrator
from tests.harness.long import long

ROOT = Path(__file__).parents[2]
NAMESPACE = "released"
WHERE = ("--operator-namespace", NAMESPACE, "--release", f"{NAMESPACE}-shardherd")


@pytest.fixture
def source() -> Source:
    return working_tree(ROOT, os.environ)


def load(lab: Lab, source: Source, target: str, folder: Path) -> Path:
    """Make the archive of an image and load it into the node."""
    archive = images.archive(source, target, folder)
    load_archive(lab.cluster.layout.containerd_socket, archive)
    assert images.name(source, target) in digests(lab.cluster.layout.containerd_socket)
    return archive


def test_the_operator_runs_from_the_archives_of_image_and_chart(installed: Lab, source: Source, tmp_path: Path) -> None:
    archive = load(installed, source, "operator", tmp_path)
    bill = json.loads(of_image(source, "operator", archive, tmp_path).read_text())
    names = {each["purl"].partition("@")[0] for each in bill["components"]}
    assert {"pkg:deb/debian/tini", "pkg:pypi/kopf"} <= names
    packed = chart.package(source, tmp_path, installed.cluster.tools.helm)
    checksums.write(tmp_path)
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=tmp_path, capture_output=True, check=True)

    installed.make_namespace(NAMESPACE)
    image = images.name(source, "operator")
    options = (
        "--set",
        f"image.repository={image.rpartition(':')[0]}",
        "--set",
        "crds.enabled=false",
        "--set",
        "replicaCount=1",
    )
    installed.cluster.helm("install", NAMESPACE, str(packed), "-n", NAMESPACE, *options)
    try:
        switch_the_page_on(installed, packed)
        done = installed.kube.attempt(
            "rollout", "status", f"deployment/{NAMESPACE}-shardherd", "-n", NAMESPACE, "--timeout=120s", timeout=130
        )
        assert done.returncode == 0, f"{done.stderr}\n{installed.kube.explain(NAMESPACE)}"
        (pod,) = [each for each in installed.kube.pods(NAMESPACE, "app.kubernetes.io/component=operator") if is_ready(each)]
        assert [each["image"] for each in pod["spec"]["containers"]] == [image]
        assert installed.kube.shell(NAMESPACE, pod["metadata"]["name"], "shardherd version").stdout == f"{source.version}\n"
        # A pod is ready a moment before the API server can send anybody to it.
        there = ("--for=jsonpath={.subsets[0].addresses[0].ip}", f"endpoints/{NAMESPACE}-shardherd-page", "--timeout=60s")
        done = installed.kube.attempt("wait", "-n", NAMESPACE, *there, timeout=70)
        assert done.returncode == 0, done.stderr
        with administrator(installed).page(*WHERE) as page:
            assert page.document()["groups"] == []
        assert "Succeeded" in installed.cluster.helm("test", NAMESPACE, "-n", NAMESPACE, "--timeout", "90s")
    finally:
        installed.cluster.helm("uninstall", NAMESPACE, "-n", NAMESPACE, "--wait")


def switch_the_page_on(lab: Lab, packed: Path) -> None:
    """The chart leaves it off; that is said, with the remedy, and the remedy is what docs/page.md has. Awaits no rollout."""
    look = administrator(lab).page(*WHERE)
    with pytest.raises(DemoError) as refused, look:
        pass
    assert str(refused.value) == (
        f"`kubectl shardherd page` ended with 1: shardherd: There is no Service {NAMESPACE}-shardherd-page in {NAMESPACE}:"
        " set page.enabled of the chart, or say by --operator-namespace and --release where it is."
    )
    upgraded = ("upgrade", NAMESPACE, str(packed), "-n", NAMESPACE, "--reuse-values", "--set", "page.enabled=true")
    said = lab.cluster.helm(*upgraded)
    assert f"kubectl shardherd page {' '.join(WHERE)}\n" in said


@long
def test_the_image_for_spark_runs_from_its_archive(installed: Lab, source: Source, tmp_path: Path) -> None:
    load(installed, source, "spark", tmp_path)
    installed.make_namespace(NAMESPACE)
    manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "spark", "namespace": NAMESPACE},
        "spec": {
            "restartPolicy": "Never",
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [
                {
                    "name": "spark",
                    "image": images.name(source, "spark"),
                    "imagePullPolicy": "Never",
                    "command": ["python", "-c", "import pyspark, shardherd.spark"],
                    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                }
            ],
        },
    }
    account = ("serviceaccount", "default", "-n", NAMESPACE)
    await_that("the namespace has an account", lambda: installed.kube.find(*account), within=30)
    installed.kube.apply(manifest)
    try:
        ended = "--for=jsonpath={.status.phase}=Succeeded"
        installed.kube.run("wait", "pod/spark", "-n", NAMESPACE, ended, "--timeout=120s", timeout=130)
    finally:
        installed.kube.run("delete", "pod/spark", "-n", NAMESPACE, "--wait=false")
