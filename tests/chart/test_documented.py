"""What the documentation tells people to install can be installed: no image of ours is published."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest
import yaml

from dev.cluster import Cluster
from dev.release.chart import package
from dev.release.source import working_tree
from tests.chart.rendering import ROOT
from tests.harness.cluster import Names
from tests.integration.controller.bench import unique

PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))


BLOCKS = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[list[str]]:
    """The words of every `helm install` in the blocks of commands."""
    lines = [line for block in BLOCKS.findall(page.read_text()) for line in block.replace("\\\n", " ").splitlines()]
    return [shlex.split(line, comments=True) for line in lines if line.startswith("helm install ")]


INSTALLS = [(page.name, command) for page in PAGES for command in commands(page)]


def test_there_are_some() -> None:
    assert {name for name, _ in INSTALLS} == {"README.md", "install.md", "sizing.md"}


@pytest.fixture(scope="module")
def packed(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chart's archive of a release."""
    return package(working_tree(ROOT, os.environ), tmp_path_factory.mktemp("dist"), cluster.tools.helm)


@pytest.mark.parametrize(("page", "command"), INSTALLS)
def test_an_install_that_is_documented_runs_an_image_of_the_readers_own(
    cluster: Cluster, packed: Path, page: str, command: list[str]
) -> None:
    assert command[3] == f"dist/{packed.name}", page
    options = [word for word in command[4:] if word != "--create-namespace"]
    rendered = cluster.helm("template", command[2], str(packed), *options)
    images = [
        container["image"]
        for manifest in yaml.safe_load_all(rendered)
        if manifest and manifest["kind"] == "Deployment"
        for container in manifest["spec"]["template"]["spec"]["containers"]
    ]
    assert images == ["registry.example.com/shardherd/operator:0.1.0"]


def test_the_accounts_of_a_new_tenant_are_made_as_documented_and_the_label_fits(
    cluster: Cluster, packed: Path, names: Names
) -> None:
    page, tenant = (ROOT / "docs" / "sizing.md").read_text(), unique(names, "tenant")
    (block,) = [found for found in BLOCKS.findall(page) if "--show-only" in found]
    made, piped, labelled = block.replace("\\\n", " ").replace("tenant-7", tenant).splitlines()
    accounts, applied = piped.split(" | ")

    def words(command: str) -> list[str]:
        """What follows the program, with the archive of this release."""
        return [str(packed) if word == f"dist/{packed.name}" else word for word in shlex.split(command)[1:]]

    cluster.kubectl(*words(made))
    try:
        cluster.kubectl(*words(applied), input=cluster.helm(*words(accounts)))
        cluster.kubectl(*words(labelled))
        there = cluster.kubectl("-n", tenant, "get", "serviceaccounts,roles,rolebindings", "-o", "name").split()
        assert there == [
            "serviceaccount/default",
            *(f"serviceaccount/shardherd-{name}" for name in ("spark", "spark-executor", "worker")),
            "role.rbac.authorization.k8s.io/shardherd-spark",
            "rolebinding.rbac.authorization.k8s.io/shardherd-spark",
        ]
        drivers = f"system:serviceaccount:{tenant}:shardherd-spark"
        assert cluster.kubectl("-n", tenant, "auth", "can-i", "create", "pods", "--as", drivers).strip() == "yes"
        (install,) = [
            found for name, found in INSTALLS if name == "sizing.md" and "shardherd\\.dev/operator=a" in " ".join(found)
        ]
        options = [word for word in words(shlex.join(install))[2:] if word != "--create-namespace"]
        rendered = cluster.helm("template", install[2], *options)
        (selector,) = re.findall(r"name: SHARDHERD_WATCH_NAMESPACE_SELECTOR\s+value: \"(.*)\"", rendered)
        assert tenant in cluster.kubectl("get", "namespaces", "-l", selector, "-o", "name").replace("namespace/", "").split()
    finally:
        cluster.kubectl("delete", "namespace", tenant, "--wait=false")
