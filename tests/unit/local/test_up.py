"""`shardherd local up`: what it is asked for on the command line, and how it refuses what cannot be."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import pytest
import yaml

from shardherd.adapters.local.database import Database
from shardherd.adapters.local.identity import FileLeadership
from shardherd.adapters.local.node import FOLDER
from shardherd.adapters.local.objects import GROUP, Objects
from shardherd.cli import main
from shardherd.local.alone import program
from shardherd.local.operator import Asked
from shardherd.local.state import State
from tests.unit.local.manifests import group


class BeganError(Exception):
    """A process would have begun."""


@pytest.mark.parametrize("asked", [["-df", "group.yaml"], ["-d", "-f", "group.yaml"], ["--det", "--file=group.yaml"]])
def test_what_runs_in_the_background_does_not_begin_another_one_in_the_background(
    asked: Sequence[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    begun: list[list[str]] = []

    def begin(command: list[str], **_: object) -> None:
        begun.append(command)
        raise BeganError

    monkeypatch.setattr("subprocess.Popen", begin)
    with pytest.raises(BeganError):
        main(["local", "up", *asked, "--state", str(tmp_path), "--port", "8080", "--app-dir=-apps"])
    assert begun == [
        [
            *(sys.executable, "-m", "shardherd", "local", "up", f"--state={tmp_path}", "--file=group.yaml"),
            *("--app-dir=-apps", f"--python={sys.executable}", "--port=8080", "--metrics-port=0", "--page-port=0"),
            "--log-level=INFO",
        ]
    ]


@pytest.mark.parametrize(("file", "stdin"), [("-", None), ("group.yaml", subprocess.DEVNULL)])
def test_what_runs_in_the_background_reads_standard_input_if_that_is_the_manifest(
    file: str, stdin: int | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    begun: list[object] = []

    def begin(_command: list[str], **options: object) -> None:
        begun.append(options["stdin"])
        raise BeganError

    monkeypatch.setattr("subprocess.Popen", begin)
    with pytest.raises(BeganError):
        main(["local", "up", "-d", "-f", file, "--state", str(tmp_path)])
    assert begun == [stdin]


def test_what_is_to_be_known_of_a_manifest_is_seen_also_where_it_runs_in_the_background(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shardherd.telemetry.logs.configure", lambda *_: None)

    def operate(_state: State, objects: Objects, leadership: FileLeadership, asked: Asked, *_: object) -> int:
        leadership.let_go()
        objects.database.close()
        asked.ready("http://here:1", "http://here:2/metrics", "http://here:3/")
        return 0

    class InTheSameProcess:
        """Runs the command where it is begun, with what it says in the log."""

        def __init__(self, command: list[str], *, stdout: IO[bytes], stderr: IO[bytes], **_: object) -> None:
            capsys.readouterr()
            assert (main(command[3:]), stderr) == (0, stdout)
            out, err = capsys.readouterr()
            stdout.write(f"{err}2026-01-31 INFO warning: of something else\n{out}".encode())
            stdout.flush()

        def poll(self) -> None:
            pass

    monkeypatch.setattr("shardherd.local.commands._operate", operate)
    monkeypatch.setattr("subprocess.Popen", InTheSameProcess)
    file, state = tmp_path / "group.yaml", tmp_path / "state"
    file.write_text(yaml.safe_dump(group("before")))
    assert main(["local", "up", "-f", str(file), "--state", str(state)]) == 0
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}}
    file.write_text(yaml.safe_dump_all([group(), service]))
    assert main(["local", "apply", "-f", str(file), "--state", str(state)]) == 0
    warnings = capsys.readouterr().err.splitlines()[-3:]

    assert main(["local", "up", "-d", "-f", str(file), "--state", str(state)]) == 0

    assert warnings[-1] == f"warning: {file}: a Service named 'web' has no meaning on one machine and is left out"
    assert capsys.readouterr() == (
        "shop/before is not declared any more: its consumers drain and end\n"
        "leading: the coordinator answers at http://here:1, the page is at http://here:3/, metrics are at http://here:2/metrics\n"
        f"it runs in the background; its log is {state / 'operator.log'}\n",
        "".join(f"{warning}\n" for warning in warnings),
    )


@pytest.mark.parametrize("option", ["--port", "--metrics-port", "--page-port"])
@pytest.mark.parametrize("port", ["65536", "-1", "x", "1_0", "٣", "9" * 5000])
def test_a_port_that_is_none_is_refused_before_anything_is_declared(
    option: str, port: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["local", "up", "--state", str(tmp_path / "state"), f"{option}={port}"])
    said = capsys.readouterr().err.splitlines()[-1]
    assert (ended.value.code, said) == (
        2,
        f"shardherd local up: error: argument {option}: {port[:40]!r} is no port: use a number from 1 to 65535, or 0 for any",
    )
    assert not (tmp_path / "state").exists()


def test_a_state_folder_that_cannot_be_made_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "state"
    file.touch()
    assert main(["local", "up", "--state", str(file)]) == 1
    assert capsys.readouterr().err == (f"shardherd: {file} cannot be made a folder (File exists): name another by --state\n")


@pytest.mark.parametrize("command", [["local", "up"], ["local", "apply", "-f", "group.yaml"], ["run"]])
def test_a_python_that_is_none_is_refused(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command, "--python", "no/python"])
    said = capsys.readouterr().err.splitlines()[-1].partition(" error: ")[2]
    assert (ended.value.code, said) == (2, "argument --python: 'no/python' is no program that can be run: name a Python")


def test_a_python_is_found_from_the_folder_where_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "python").symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    assert program("venv/python") == f"{tmp_path}/venv/python"


def test_what_is_applied_reads_the_kafka_and_the_folder_that_up_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def operate(_state: State, objects: Objects, leadership: FileLeadership, *_: object) -> int:
        leadership.let_go()
        objects.database.close()
        return 0

    monkeypatch.setattr("shardherd.telemetry.logs.configure", lambda *_: None)
    monkeypatch.setattr("shardherd.local.commands._operate", operate)
    file, state, apps = tmp_path / "group.yaml", str(tmp_path / "state"), tmp_path / "apps"
    file.write_text(yaml.safe_dump(group()))
    apps.mkdir()

    def after(*words: str) -> tuple[str, str, list[str]]:
        """What a command leaves declared: the brokers, the folder; and what it prints."""
        assert main(["local", *words, "-f", str(file), "--state", state]) == 0
        database = Database(tmp_path / "state" / "state.db")
        (found,) = Objects(database).all(GROUP)
        database.close()
        folder = found["metadata"]["annotations"][FOLDER]
        return found["spec"]["source"]["kafka"]["bootstrapServers"], folder, capsys.readouterr().out.splitlines()

    said = "shop/clicks is declared"
    kept = [f"--app-dir is {apps}, as before", said]
    assert after("up", "--bootstrap", "here:1", "--app-dir", str(apps)) == ("here:1", str(apps), [])
    assert after("apply") == ("here:1", str(apps), ["--bootstrap is here:1, as before", *kept])
    assert after("apply", "--bootstrap", "there:2") == ("there:2", str(apps), kept)
    assert after("apply") == ("there:2", str(apps), ["--bootstrap is there:2, as before", *kept])
    assert after("apply", "--bootstrap", "") == ("kafka:9092", str(apps), kept)
    refused = f"shardherd: --app-dir {file} is no folder: name the one in which the applications are\n"
    assert main(["local", "apply", "-f", str(file), "--state", state, "--app-dir", str(file)]) == 1
    assert capsys.readouterr().err == refused
    assert after("apply") == ("kafka:9092", str(apps), kept)
    assert after("up") == ("kafka:9092", str(tmp_path), [])
    assert after("apply") == ("kafka:9092", str(tmp_path), [said])
