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

PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))


def commands(page: Path) -> list[list[str]]:
    """The words of every `helm install` in the blocks of commands."""
    blocks = re.findall(r"^```sh\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
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
