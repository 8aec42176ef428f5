"""The state folder: what it is called where its own path is too long for the kernel, and what is left when it is forgotten."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardherd.adapters.local.containers import Container, Launch
from shardherd.adapters.local.identity import secret_of
from shardherd.adapters.local.node import Node
from shardherd.adapters.local.objects import POD
from shardherd.cli import main
from shardherd.local.state import State
from shardherd.spark.workers import with_workers
from tests.unit.local.test_volumes import pod

UID = "00000000-0000-0000-0000-000000000000"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a path that is no longer than it must be."""
    made = Path(tempfile.mkdtemp(dir="/tmp", prefix="s"))
    yield made
    shutil.rmtree(made)


@pytest.mark.parametrize("name", [30 * "a", 30 * "\u00e4", 50 * "a", 50 * "\u00e4", 50 * "\udcff", "a b"])
def test_a_pods_socket_has_a_path_that_the_kernel_takes_in_whatever_script_its_folder_is_named(name: str, folder: Path) -> None:
    state = State(folder / name)
    state.make()
    run = state.machine("python", {}).container(UID).run
    run.mkdir(parents=True)

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.fspath(run / "agent.sock"))

    assert (state.folder / "pods" / UID / "run" / "agent.sock").is_socket()
    state.remove()
    assert list(folder.iterdir()) == []


def test_a_long_path_of_the_folder_for_temporary_files_keeps_no_pod_from_its_socket(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / (60 * "a")
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    state = State(folder / (40 * "a"))
    state.make()
    run = state.machine("python", {}).container(UID).run
    run.mkdir(parents=True)

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.fspath(run / "agent.sock"))

    assert list(long.iterdir()) == []
    state.remove()


@pytest.mark.parametrize("deep", [False, True])
def test_what_is_not_of_shardherd_stays_when_a_folder_is_forgotten(
    deep: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / (60 * "a") if deep else tmp_path
    state = State(folder)
    state.make()
    state.objects().database.close()
    secret_of(folder)
    for name in ("logs", "pods", "volumes"):
        (folder / name / "shop").mkdir(parents=True)
    (folder / "src").mkdir()
    (folder / "app.py").write_text("print(1)")

    assert main(["local", "down", "--forget", "--state", str(folder)]) == 0

    assert capsys.readouterr().out == f"{folder} stays, as there is more in it: app.py, src\n"
    assert sorted(each.name for each in folder.iterdir()) == ["app.py", "src"]


def test_a_folder_with_nothing_else_in_it_is_gone_when_it_is_forgotten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = State(tmp_path / "state")
    state.make()
    state.objects().database.close()

    assert main(["local", "down", "--forget", "--state", str(state.folder)]) == 0

    assert (capsys.readouterr().out, list(tmp_path.iterdir())) == ("", [])


def test_an_empty_name_is_no_state_folder(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["local", "down", "--forget", "--state", ""])
    said = capsys.readouterr().err.splitlines()[-1]
    assert (ended.value.code, said) == (
        2,
        "shardherd local down: error: argument --state: it is empty: name a folder, for example .shardherd",
    )


@pytest.mark.parametrize("name", ["a", "a b", 14 * "a", 50 * "a"])
def test_sparks_python_workers_have_unix_domain_sockets_whatever_the_folder_is_called(
    name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Launch] = []

    async def start(_container: Container, launch: Launch) -> None:
        begun.append(launch)

    monkeypatch.setattr(Container, "start", start)
    app = tmp_path / "app.py"
    app.touch()
    made = {**pod(application={"mainApplicationFile": str(app)}), "kind": POD}
    made["metadata"] |= {"namespace": "shop", "uid": UID}
    state = State(folder / name)
    state.make()
    objects = state.objects()
    objects.change((POD, "shop", "clicks-0"), lambda _: made)
    node = Node(objects, state.machine("python", {}), lambda _: "the token")

    asyncio.run(node.sync())

    (launch,) = begun
    temporary = Path(launch.environment["TMPDIR"])
    assert temporary.samefile(state.folder / "pods" / UID / "volumes" / "tmp")
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", launch.environment["JAVA_TOOL_OPTIONS"])
    assert str(temporary) in os.environ["JAVA_TOOL_OPTIONS"]
    assert with_workers({})["spark.python.unix.domain.socket.enabled"] == "true"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.fspath(temporary / f".{UID}.sock"))

    ending = {**made, "metadata": {**made["metadata"], "deletionTimestamp": "2026-01-01T12:00:00Z"}}
    objects.change((POD, "shop", "clicks-0"), lambda _: ending)
    asyncio.run(node.sync())
    assert (temporary.is_symlink(), objects.all(POD)) == (False, [])
    objects.database.close()
    state.remove()
