"""One pod's container on this machine: its process, and what is known of its ends, with real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shardherd.adapters.local import shim
from shardherd.adapters.local.containers import Container, Ended, Launch, Named

WITHIN = 60.0

WAITS = "import signal, time; print('up', flush=True); time.sleep(3600)"
HEEDS = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print('up', os.environ['SHARDHERD_START'], flush=True)
time.sleep(3600)
"""
LEAVES = """
import os, subprocess, sys
left = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(3600)'], start_new_session=True)
print('left', left.pid, flush=True)
os._exit(0)
"""


@pytest.fixture
async def container(tmp_path: Path) -> AsyncIterator[Container]:
    found = Container(tmp_path / "pod", "uid-0")
    yield found
    found.kill()
    await until(lambda: not found.locked())
    assert found.processes() == []


async def until(holds: object) -> None:
    """Wait until it holds."""
    assert callable(holds)
    deadline = time.monotonic() + WITHIN
    while not holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def start(container: Container, program: str) -> Path:
    """Start this program, and wait until it has said something; its log."""
    log = container.folder / f"{container.starts()}.log"
    container.folder.mkdir(exist_ok=True)
    await container.start(Launch([sys.executable, "-c", program], {"COLOUR": "blue"}, container.folder, log))
    await until(lambda: log.exists() and log.read_text().endswith("\n"))
    return log


async def test_it_runs_and_ends_with_the_code_and_the_message_of_its_start(container: Container) -> None:
    log = await start(container, HEEDS)
    running = container.running()
    assert running is not None
    assert (log.read_text(), running.number, container.last_end()) == ("up 1\n", 1, None)

    container.terminate()
    await until(lambda: container.last_end() is not None)

    ended = container.last_end()
    assert ended is not None
    assert ended == Ended(1, running.began, ended.ended, 7, 0, '{"start": 1}\n')
    assert container.running() is None


async def test_each_start_is_counted_and_has_an_end_of_its_own(container: Container) -> None:
    for number in (1, 2):
        log = await start(container, HEEDS)
        assert log.read_text() == f"up {number}\n"
        container.kill()
        await until(lambda: not container.locked())
        ended = container.last_end()
        assert ended is not None
        assert (ended.number, ended.code, ended.signal, ended.message) == (number, 137, 9, f'{{"start": {number}}}\n')


async def test_what_an_application_leaves_behind_is_ended_before_its_end_is_told(container: Container) -> None:
    log = await start(container, LEAVES)
    await until(lambda: container.last_end() is not None)

    left = int(log.read_text().split()[1])
    assert shim.fact(left, 3) is None
    assert container.processes() == []


async def test_an_end_is_told_to_who_watches(container: Container) -> None:
    await start(container, HEEDS)
    ended = asyncio.Event()
    assert container.watch(asyncio.get_running_loop(), ended.set)

    container.terminate()
    await asyncio.wait_for(ended.wait(), WITHIN)

    assert container.last_end() is not None
    assert not container.watch(asyncio.get_running_loop(), ended.set)


async def test_another_operator_finds_what_runs_and_how_it_ended(container: Container) -> None:
    await start(container, HEEDS)
    another = Container(container.folder, container.uid)
    assert another.running() == container.running()

    another.terminate()
    await until(lambda: not another.locked())

    assert another.last_end() == container.last_end()
    assert another.last_end() is not None


async def test_a_killed_shim_takes_its_application_with_it_and_that_is_an_end_too(container: Container) -> None:
    await start(container, WAITS)
    running = container.running()
    assert running is not None

    running.shim.signal(signal.SIGKILL)
    await until(lambda: container.last_end() is not None)

    ended = container.last_end()
    assert ended is not None
    assert (ended.number, ended.code, ended.message) == (1, 137, '{"start": 1}\n')
    await until(lambda: not running.driver.signal(0))


async def test_a_container_does_not_start_twice(container: Container) -> None:
    await start(container, WAITS)
    before = container.running()

    again = Container(container.folder, container.uid)
    await again.start(Launch([sys.executable, "-c", WAITS], {}, container.folder, container.folder / "again.log"))
    assert again._child is not None
    assert await asyncio.to_thread(again._child.wait) == shim.TAKEN

    assert container.running() == before


async def test_a_program_that_is_not_there_ends_with_127_and_says_so(container: Container) -> None:
    log = container.folder / "0.log"
    container.folder.mkdir()
    await container.start(Launch(["/no/such/python"], {}, container.folder, log))
    await until(lambda: container.last_end() is not None)

    ended = container.last_end()
    assert ended is not None
    assert ended.code == 127
    assert "the application cannot be started: [Errno 2] No such file or directory" in log.read_text()


async def test_a_process_that_stands_still_is_killed_as_any_other(container: Container) -> None:
    await start(container, HEEDS)
    running = container.running()
    assert running is not None
    assert container.signal(signal.SIGSTOP) == [running.driver.pid]

    container.terminate()
    container.kill()
    await until(lambda: not container.locked())

    ended = container.last_end()
    assert ended is not None
    assert ended.signal == signal.SIGKILL


async def test_nobody_else_is_taken_for_a_process_of_the_same_number() -> None:
    mine = Named(os.getpid(), "1")
    assert mine.descriptor() is None
    assert not mine.signal(signal.SIGKILL)
    began = shim.fact(os.getpid(), 22)
    assert began is not None
    assert Named(os.getpid(), began).signal(0)
