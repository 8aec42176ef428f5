"""The state folder: what it is called where its own path is too long for the kernel."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardherd.local.state import State

UID = "00000000-0000-0000-0000-000000000000"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a path that is no longer than it must be."""
    made = Path(tempfile.mkdtemp(dir="/tmp", prefix="s"))
    yield made
    shutil.rmtree(made)


@pytest.mark.parametrize("name", [30 * "a", 30 * "\u00e4", 50 * "a", 50 * "\u00e4", "a b"])
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
