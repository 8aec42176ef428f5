"""What the page on workers says: its example runs, its command is one, its options are all there are."""

from __future__ import annotations

import dataclasses
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from shardherd import cli
from shardherd.local import alone
from shardherd.testing.group import PlayedGroup
from shardherd.worker import Checkpoint, Options, Processor, Records, Worker
from shardherd.worker import worker as module
from tests.unit.worker.scene import Logs, in_threads
from tests.unit.worker.test_worker import running

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "worker.md").read_text()


def block(language: str, begin: str) -> str:
    """The one block of code in this language that has this text."""
    (found,) = [each for each in re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL) if begin in each]
    return str(found)


def test_the_example_processes_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    handled: list[bytes] = []
    names: dict[str, Any] = {"handle": handled.append}
    exec(compile(block("python", "# clicks.py"), "clicks.py", "exec"), names)
    with PlayedGroup(shards=2) as group:
        logs = Logs()
        for shard in group.shards:
            logs.append(shard, 3)
        where = group.environment("played-0")
        worker = Worker(
            names["Clicks"], environment=where, fetcher=in_threads(logs), bootstrap="k:1", options=Options(save_interval=0.1)
        )
        with running(worker) as raised:
            group.until("all is processed", lambda: set(group.checkpoints().values()) == {3})
    assert (raised, sorted(handled)) == ([], sorted(2 * [b"0", b"1", b"2"]))


class Clicks(Processor):
    def process(self, records: Records, checkpoint: Checkpoint) -> None: ...


def test_run_makes_a_worker_of_a_class_and_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[Any, Options]] = []

    def note(worker: Worker) -> None:
        made.append((worker._factory, worker._options))

    monkeypatch.setattr(module.Worker, "run", note)
    monkeypatch.setenv("SHARDHERD_KAFKA_BOOTSTRAP_SERVERS", "k:1")
    exec(compile(block("python", "run(Clicks)"), "program.py", "exec"), {"Clicks": Clicks})
    assert made == [(Clicks, Options())]


def test_the_command_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    became: list[list[str]] = []

    def become(command: list[str], variables: dict[str, str]) -> int:
        became.append(command)
        return 0

    monkeypatch.setattr(alone, "_become", become)
    assert cli.main([*shlex.split(block("sh", "shardherd run"))[1:]]) == 0
    assert [command[1:] for command in became] == [["-m", "shardherd.worker", "clicks:Clicks"]]


def test_all_options_are_named_with_their_defaults() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", PAGE, re.MULTILINE))
    shown: dict[Any, str] = {True: "true", 64 * 1024 * 1024: "64 MiB", None: "the group's, or 60", "": "none"}
    wanted = {
        field.name: shown.get(field.default, f"{field.default:g}" if isinstance(field.default, float) else str(field.default))
        for field in dataclasses.fields(Options)
    }
    assert {name: default for name, default in rows.items() if name in wanted} == wanted
