"""The command line, as far as it needs no cluster."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar

import pytest
import uvloop

from shardherd.cli import main
from shardherd.cli.command_line import MISCONFIGURED
from shardherd.cli.operator_process import FAILED
from shardherd.settings import Settings


def test_version_prints_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    assert capsys.readouterr().out == f"{version('shardherd')}\n"


def test_the_version_is_told_as_an_option_too(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"shardherd {version('shardherd')}\n"


def test_wrong_settings_end_it_with_a_sentence(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDHERD_NAMESPACE", "system")
    monkeypatch.setenv("SHARDHERD_POD_NAME", "shardherd-0")
    monkeypatch.setenv("SHARDHERD_API_PORT", "eighty")
    assert main(["operator"]) == MISCONFIGURED
    expected = 'shardherd: SHARDHERD_API_PORT is "eighty": use a port from 1 to 65535, for example 8080\n'
    assert capsys.readouterr().err == expected


def test_the_operator_runs_in_the_loop_of_uvloop(monkeypatch: pytest.MonkeyPatch) -> None:
    async def operate(_settings: Settings, traces: None) -> int:
        return 0 if isinstance(asyncio.get_running_loop(), uvloop.Loop) else FAILED

    monkeypatch.setenv("SHARDHERD_NAMESPACE", "system")
    monkeypatch.setenv("SHARDHERD_POD_NAME", "shardherd-0")
    monkeypatch.setattr("shardherd.cli.command_line.operate", operate)
    monkeypatch.setattr("shardherd.telemetry.logs.configure", lambda *_: None)
    assert main(["operator"]) == 0


class Answers(BaseHTTPRequestHandler):
    """An operator's /readyz that says one thing after the other."""

    texts: ClassVar[list[tuple[int, str]]] = []

    def do_GET(self) -> None:
        status, text = self.texts.pop(0) if self.path == "/readyz" else (404, "")
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Nothing is to be said of requests."""


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, list[tuple[int, str]]]]:
    """The address of an operator, and what it will say."""
    monkeypatch.setattr("shardherd.client.ping.INTERVAL", 0.01)
    server = HTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    Answers.texts = []
    yield f"http://127.0.0.1:{server.server_port}", Answers.texts
    server.shutdown()
    thread.join()
    server.server_close()


def test_ping_waits_for_an_operator_that_leads(
    answers: tuple[str, list[tuple[int, str]]], capsys: pytest.CaptureFixture[str]
) -> None:
    url, texts = answers
    texts += [(503, "not leading\n"), (200, "standing by\n"), (200, "ok\n")]
    assert main(["ping", url, "--within", "10"]) == 0
    assert texts == []
    assert capsys.readouterr().out == f"{url} answers and leads\n"


def test_ping_fails_if_who_answers_does_not_lead(
    answers: tuple[str, list[tuple[int, str]]], capsys: pytest.CaptureFixture[str]
) -> None:
    url, texts = answers
    texts += [(200, "standing by\n")]
    assert main(["ping", url, "--within", "0"]) == FAILED
    said = f"shardherd: no operator that leads answers at {url} within 0 s: standing by\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        *(
            ([url], f"argument url: {url!r} is no URL: write for example https://shardherd.shardherd-system.svc:8443")
            for url in ("shardherd:8443", "ftp://shardherd", "http://", "http://[::", "http://shardherd:99999")
        ),
        *(
            (
                ["http://here", "--within", within],
                f"argument --within: {within!r} is no number of seconds: write 0 or more, for example 60",
            )
            for within in ("nan", "inf", "-1", "soon")
        ),
    ],
)
def test_ping_refuses_what_it_cannot_call_or_wait_for(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["ping", *words])
    assert (ended.value.code, capsys.readouterr().err.splitlines()[-1]) == (2, f"shardherd ping: error: {said}")


def test_ping_names_a_file_of_authorities_that_it_cannot_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url, none = "https://127.0.0.1:1", tmp_path / "ca.crt"
    assert main(["ping", url, "--within", "0", "--ca-file", str(none)]) == FAILED
    why = f"{none} has no authorities that can be read: No such file or directory"
    assert capsys.readouterr().err == f"shardherd: no operator that leads answers at {url} within 0 s: {why}\n"


def test_ping_ends_by_ctrl_c(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("shardherd.client.ping.time.sleep", interrupted)
    assert main(["ping", "http://127.0.0.1:1"]) == FAILED
    assert capsys.readouterr() == ("", "")


def test_a_command_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2
    assert "command" in capsys.readouterr().err
