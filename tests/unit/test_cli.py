"""The command line, as far as it needs no cluster."""

from __future__ import annotations

from importlib.metadata import version

import pytest

from shardherd.cli import MISCONFIGURED, main


def test_version_prints_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    assert capsys.readouterr().out == f"{version('shardherd')}\n"


def test_wrong_settings_end_it_with_a_sentence(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDHERD_NAMESPACE", "system")
    monkeypatch.setenv("SHARDHERD_POD_NAME", "shardherd-0")
    monkeypatch.setenv("SHARDHERD_API_PORT", "eighty")
    assert main(["operator"]) == MISCONFIGURED
    expected = 'shardherd: SHARDHERD_API_PORT is "eighty": use a port from 1 to 65535, for example 8080\n'
    assert capsys.readouterr().err == expected


def test_a_command_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2
    assert "command" in capsys.readouterr().err
