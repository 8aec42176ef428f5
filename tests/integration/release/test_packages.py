"""The packages of a release: what is in them, that they are the same each time, and what is installed from them."""

from __future__ import annotations

import os
import re
import subprocess
import tarfile
import zipfile
from datetime import timedelta
from pathlib import Path

import pytest

from dev.release import packages
from dev.release.packages import uv
from dev.release.source import Source, working_tree
from shardherd.source.compiled.compiling import build, libraries
from shardherd.source.compiled.processors import shipped
from tests.harness.long import long

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "operator" / "shardherd"
NOT_NEEDED = ("numba", "pyspark", "py4j")
"""Packages of the extra `spark` that what is tried here must do without: numba alone could compile anything."""


@pytest.fixture(scope="module")
def source() -> Source:
    return working_tree(ROOT, os.environ)


@pytest.fixture(scope="module")
def made(source: Source, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the source distribution."""
    return packages.build(source, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def bin_folder(made: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a fresh environment with the wheel and what its command line and its readers need, as it is locked."""
    folder = tmp_path_factory.mktemp("fresh")
    given = [_without(ROOT / "requirements" / f"{name}.lock", NOT_NEEDED) for name in ("cli", "spark")]
    lock = folder / "packages.lock"
    lock.write_text("\n".join(given))
    run(uv(), "venv", "--python", "3.11", folder / "environment")
    into = {"VIRTUAL_ENV": str(folder / "environment")}
    run(uv(), "pip", "install", "--no-deps", "--require-hashes", "--only-binary", ":all:", "-r", lock, **into)
    run(uv(), "pip", "install", "--no-deps", "--offline", made[0], **into)
    return folder / "environment" / "bin"


def _without(lock: Path, names: tuple[str, ...]) -> str:
    entries = re.split(r"\n(?=\S)", re.sub(r"^\s*#.*\n?", "", lock.read_text(), flags=re.MULTILINE).strip())
    return "\n".join(entry for entry in entries if entry.partition("==")[0] not in names)


def run(*command: object, **environment: str) -> str:
    """What a command says; it must succeed."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("PYTHON", "SHARDHERD_", "NUMBA_"))}
    certificates = {"UV_SYSTEM_CERTS": "1", "UV_NATIVE_TLS": "1"}
    done = subprocess.run(
        [str(each) for each in command], env=kept | certificates | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}: {(done.stdout + done.stderr)[-4000:]}"
    return done.stdout


def test_the_wheel_has_the_package_and_object_files_of_every_processor(made: tuple[Path, Path]) -> None:
    files = [path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".o"]
    ours = {str(path.relative_to(PACKAGE.parent)) for path in files}
    objects = {
        f"shardherd/source/compiled/objects/{each.file_name(processor)}" for each in libraries() for processor in shipped()
    }
    packed = {name for name in zipfile.ZipFile(made[0]).namelist() if ".dist-info/" not in name}
    assert packed == ours | objects
    assert objects != set()


def test_the_source_distribution_has_sources_and_what_they_were_tested_with(made: tuple[Path, Path]) -> None:
    with tarfile.open(made[1]) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    files = [path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".o"]
    beside = {"CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml", "PKG-INFO"}
    requirements = {f"requirements/{path.name}" for path in (ROOT / "requirements").iterdir()}
    assert names == {str(path.relative_to(ROOT)) for path in files} | beside | requirements


def test_two_builds_are_equal(made: tuple[Path, Path], source: Source, tmp_path: Path) -> None:
    again = packages.build(source, tmp_path / "again")
    assert [path.name for path in again] == [path.name for path in made]
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in made]


def test_every_file_is_as_old_as_the_commit(made: tuple[Path, Path], source: Source) -> None:
    # A zip archive counts in steps of two seconds.
    even = source.created - timedelta(seconds=source.epoch % 2)
    assert {entry.date_time for entry in zipfile.ZipFile(made[0]).infolist()} == {even.timetuple()[:6]}
    with tarfile.open(made[1]) as tar:
        assert {entry.mtime for entry in tar} == {source.epoch}


def test_what_is_installed_says_its_version_and_what_it_can_do(bin_folder: Path, source: Source) -> None:
    assert run(bin_folder / "shardherd", "version") == f"{source.version}\n"
    assert run(bin_folder / "shardherd", "--version") == f"shardherd {source.version}\n"
    assert run(bin_folder / "kubectl-shardherd", "--version") == f"kubectl shardherd {source.version}\n"
    assert "run ConsumerGroups on this machine" in run(bin_folder / "shardherd", "--help")
    assert "the manifest" in run(bin_folder / "shardherd", "local", "up", "--help")
    assert "--namespace" in run(bin_folder / "shardherd", "status", "--help")


LOADED = """
import importlib, importlib.util
from shardherd.source.compiled.machine_code import SHIPPED_FOLDER, existing
from shardherd.source.compiled.processors import here

assert importlib.util.find_spec("numba") is None
from shardherd.source.compiled.compiling import LIBRARIES

for module in LIBRARIES:
    for library in importlib.import_module(module).LIBRARIES:
        assert existing(library.file_name(here())).parent == SHIPPED_FOLDER
        print(library.name, *sorted(library.functions()))
"""


def test_the_machine_code_is_loaded_from_what_is_installed(bin_folder: Path) -> None:
    said = run(bin_folder / "python", "-P", "-c", LOADED)
    assert said == "".join(f"{' '.join((each.name, *sorted(each.arguments)))}\n" for each in libraries())


@long
@pytest.mark.timeout(1800)
def test_the_machine_code_is_the_same_each_time_that_it_is_compiled(tmp_path: Path) -> None:
    one, other = build(tmp_path / "one"), build(tmp_path / "other")
    assert [path.name for path in one] == [path.name for path in other]
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in other]
