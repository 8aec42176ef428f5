"""The chart's archive of a release: the same each time, and it renders what the chart's folder does. Asks no cluster."""

from __future__ import annotations

import os
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from dev.cluster.tools import Tools
from dev.release.chart import package
from dev.release.source import Source, working_tree
from tests.chart.rendering import CHART, IMAGE, ROOT


@pytest.fixture(scope="module")
def source() -> Source:
    return working_tree(ROOT, os.environ)


@pytest.fixture(scope="module")
def archive(source: Source, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return package(source, tmp_path_factory.mktemp("dist"), Tools().helm)


def template(chart: Path) -> str:
    command = [str(Tools().helm), "template", "shardherd", str(chart), *IMAGE]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_it_has_the_version_and_every_file_as_old_as_the_commit(archive: Path, source: Source) -> None:
    assert archive.name == f"shardherd-{source.version}.tgz"
    with tarfile.open(archive) as tar:
        assert {entry.mtime for entry in tar} == {source.epoch}
        packed = {entry.name for entry in tar}
    assert packed == {f"shardherd/{path.relative_to(CHART)}" for path in CHART.rglob("*") if path.is_file()}


def test_two_are_equal_and_another_time_makes_another(archive: Path, source: Source, tmp_path: Path) -> None:
    assert package(source, tmp_path / "again", Tools().helm).read_bytes() == archive.read_bytes()
    later = replace(source, epoch=source.epoch + 86_400)
    assert package(later, tmp_path / "later", Tools().helm).read_bytes() != archive.read_bytes()


def test_it_renders_what_the_folder_renders(archive: Path) -> None:
    assert template(archive) == template(CHART)
    assert "kind: CustomResourceDefinition\n" in template(archive)
