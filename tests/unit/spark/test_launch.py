"""What the Python processes that Spark's JVM starts do first: those that begin a query have little to import by that."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from shardherd.spark import application, python_path
from shardherd.spark.launch.sitecustomize import RUNNERS
from shardherd.spark.pod import read_pod
from shardherd.spark.python_path import LAUNCH
from tests.unit.spark.test_pod import POD

WHERE = "import py4j, pyspark, sys; print(pyspark.__file__, py4j.__file__, sys.path, sep='\\n')"


def started(arguments: list[str], path: list[Path], **environment: str) -> str:
    """What a process says that is started as Spark's JVM starts it, with this path."""
    said = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **environment, "PYTHONPATH": os.pathsep.join(map(str, path))},
        capture_output=True,
        check=True,
        text=True,
    )
    assert said.stderr == ""
    return said.stdout


def archived(home: Path) -> list[Path]:
    """The archives that come with this Spark: of py4j and of pyspark."""
    lib = home / "python" / "lib"
    lib.mkdir(parents=True)
    archives = [lib / "py4j-src.zip", lib / "pyspark.zip"]
    for archive, package in zip(archives, ("py4j", "pyspark"), strict=True):
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr(f"{package}/__init__.py", "")
    return archives


def installed(folder: Path) -> Path:
    """Spark's home where pip has installed pyspark, which brings it, and py4j into this folder."""
    for package in ("py4j", "pyspark"):
        (folder / package).mkdir()
        (folder / package / "__init__.py").touch()
    return folder / "pyspark"


def test_pyspark_is_imported_from_where_it_is_compiled_and_not_from_sparks_archive(tmp_path: Path) -> None:
    home = installed(tmp_path)
    archives = archived(home)
    said = started(["-c", WHERE], [*archives, LAUNCH, tmp_path], SPARK_HOME=f"{home}/").splitlines()
    assert said[:2] == [f"{home}/__init__.py", f"{tmp_path}/py4j/__init__.py"]
    assert not [each for each in archives if str(each) in said[2]]


def test_the_archives_of_another_spark_stay_as_what_is_installed_is_not_its_pyspark(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    installed(tmp_path / "site")
    py4j, pyspark = archived(tmp_path / "another")
    said = started(["-c", WHERE], [py4j, pyspark, LAUNCH, tmp_path / "site"], SPARK_HOME=str(tmp_path / "another"))
    assert said.splitlines()[:2] == [f"{pyspark}/pyspark/__init__.py", f"{py4j}/py4j/__init__.py"]


def test_they_stay_where_no_pyspark_is_installed(tmp_path: Path) -> None:
    py4j, pyspark = archived(tmp_path)
    said = started(
        ["-S", "-c", f"import site, sys; sys.path.append({str(LAUNCH)!r}); import sitecustomize; {WHERE}"],
        [py4j, pyspark],
        SPARK_HOME=str(tmp_path),
    )
    assert said.splitlines()[:2] == [f"{pyspark}/pyspark/__init__.py", f"{py4j}/py4j/__init__.py"]


def test_another_sitecustomize_is_imported_as_if_ours_were_not_there(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('the next')")
    assert started(["-c", "print('the program')"], [LAUNCH, tmp_path]) == "the next\nthe program\n"


@pytest.mark.parametrize(
    ("module", "has_it"),
    [("pyspark.sql.worker.plan_data_source_read", True), ("pyspark.sql.worker.lookup_data_sources", False)],
)
def test_the_daemon_of_what_plans_a_source_has_it_imported_before_it_forks(tmp_path: Path, module: str, has_it: bool) -> None:
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").touch()
    (tmp_path / "pyspark" / "daemon.py").write_text("import sys; print('source' in sys.modules)")
    (tmp_path / "source.py").touch()
    (tmp_path / "sitecustomize.py").write_text("import sitecustomize; sitecustomize.SOURCE = 'source'")
    assert started(["-m", "pyspark.daemon", module], [LAUNCH, tmp_path]) == f"{has_it}\n"


@pytest.mark.parametrize("module", RUNNERS)
def test_the_process_that_begins_a_query_starts_no_threads_for_matrices(tmp_path: Path, module: str) -> None:
    folder = tmp_path.joinpath(*module.split(".")[:-1])
    folder.mkdir(parents=True)
    for package in (folder, *folder.relative_to(tmp_path).parents):
        (tmp_path / package / "__init__.py").touch()
    (folder / f"{module.rpartition('.')[2]}.py").write_text("import numpy, os; print(len(os.listdir('/proc/self/task')))")
    assert started(["-m", module], [tmp_path, LAUNCH]) == "1\n"


def test_the_jvm_is_started_with_the_folder_before_the_users_path_which_is_as_it_was_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/mine")
    monkeypatch.delenv("MORE", raising=False)
    with python_path.launched({"MORE": "1"}):
        assert (os.environ["PYTHONPATH"], os.environ["MORE"]) == (f"{LAUNCH}:/mine", "1")
    assert (os.environ["PYTHONPATH"], "MORE" in os.environ) == ("/mine", False)

    monkeypatch.delenv("PYTHONPATH")
    with python_path.launched():
        assert os.environ["PYTHONPATH"] == str(LAUNCH)
    assert "PYTHONPATH" not in os.environ


def test_a_driver_starts_its_jvm_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with application._launching(read_pod(POD), {}):
        assert os.environ["PYTHONPATH"] == str(LAUNCH)
