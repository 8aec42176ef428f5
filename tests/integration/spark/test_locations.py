"""Where the queries of cells keep their files: how these are created on a mounted path, and what is no place for them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from shardherd.spark.cells.location import FILES, LocationError, Locations
from tests.harness.spark import make_session

ROOT = Path(__file__).resolve().parents[3]
WITHIN = 300


@pytest.fixture
def spark(tmp_path: Path) -> Iterator[SparkSession]:
    session = make_session(tmp_path, {"spark.master": "local[1]"})
    yield session
    session.stop()


def noting(folder: Path) -> dict[str, str]:
    """An environment whose `readlink` adds a line to the file `links` of the folder."""
    links, program = folder / "links", folder / "bin" / "readlink"
    links.touch()
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >> {links}\nexec /usr/bin/readlink "$@"\n')
    program.chmod(0o755)
    paths = f"{ROOT}:{ROOT / 'operator'}"
    return {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}", "PYTHONPATH": paths}


def test_a_cells_query_starts_no_process_to_follow_links_unless_the_user_says_what_creates_its_files(tmp_path: Path) -> None:
    environment = noting(tmp_path)
    module = "tests.integration.spark.locations_application"
    ran = subprocess.run(
        [sys.executable, "-m", module, str(tmp_path), str(tmp_path / "links")],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=WITHIN,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    ours, elsewhere, said = json.loads(ran.stdout.splitlines()[-1])
    assert (ours, elsewhere > 0, said > 0) == (0, True, True)


def test_a_place_is_tried_and_nothing_of_that_is_left(spark: SparkSession, tmp_path: Path) -> None:
    Locations(spark, str(tmp_path / "state"), "group-uid").check()
    assert list((tmp_path / "state" / "group-uid").iterdir()) == []
    assert spark.conf.get(FILES, None) is None


def test_the_storage_is_tried_with_what_creates_the_files_of_the_queries(spark: SparkSession, tmp_path: Path) -> None:
    spark.conf.set(FILES, "example.NoSuchManager")
    with pytest.raises(LocationError, match=r"nothing can be written below .*/state, .*NoSuchManager"):
        Locations(spark, str(tmp_path / "state"), "group-uid").check()


def test_a_place_that_cannot_be_written_is_named_with_the_remedy(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        LocationError, match=r"nothing can be written below .*/file/state, .* Check that the claim of spec\.state\.checkpoint"
    ):
        Locations(spark, str(tmp_path / "file" / "state"), "group-uid").check()


def test_storage_that_lets_a_file_be_created_over_another_one_is_refused(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overwrites(self: Locations, manager: Any, name: str) -> None:
        stream = manager.createAtomic(self._path(name), True)
        stream.write(1)
        stream.close()

    monkeypatch.setattr(Locations, "_create", overwrites)
    with pytest.raises(LocationError) as refused:
        Locations(spark, str(tmp_path / "state"), "group-uid").check()
    assert str(refused.value) == (
        f"{tmp_path}/state, where the state of this group is kept, lets a file be created over another one: two consumers "
        "could both believe that they run a cell; set spec.state.checkpoint to storage that creates a file only if there is "
        "none of its name: a ReadWriteMany claim, HDFS, ABFS, GCS, or S3 with conditional writes"
    )
    assert list((tmp_path / "state" / "group-uid").iterdir()) == []
