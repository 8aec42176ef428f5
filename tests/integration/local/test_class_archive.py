"""The archive of Spark's classes: that a driver's JVM really maps them from it, and what happens where Java makes none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dev import class_archive
from tests.harness.quick_spark import OPTIONS


def test_a_driver_loads_sparks_classes_from_the_archive(tmp_path: Path) -> None:
    log = tmp_path / "loaded"

    done = class_archive.train(f"{os.environ[OPTIONS]} -Xlog:class+load:file={log}")

    assert done.returncode == 0, done.stderr
    loaded = [line for line in log.read_text().splitlines() if " org.apache.spark." in line and "$$Lambda" not in line]
    mapped = [line for line in loaded if "source: shared objects file (top)" in line]
    assert len(mapped) > 0.9 * len(loaded) > 1000


def test_where_java_makes_no_archive_the_options_say_nothing_of_one_and_the_reason_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text('#!/bin/sh\n[ "$1" = -version ] && exit 0\necho "Unrecognized VM option" >&2\nexit 1\n')
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    monkeypatch.setenv("SHARDHERD_CACHE", str(tmp_path / "cache"))
    said: list[str] = []

    assert class_archive.options(said.append) == class_archive.QUICK

    (message,) = said
    assert message.startswith("Spark's classes are not archived, and each driver starts some seconds later: ")
    assert "Unrecognized VM option" in message
    assert [each.name for each in (tmp_path / "cache" / "classes").iterdir()] == ["lock"]
