"""Debian packages that somebody who was ended has left half installed, by dpkg itself in a folder of the test."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from dev.cluster.tools import finish_interrupted

CONTROL = """\
Package: halfway
Version: 1
Architecture: all
Maintainer: Nobody <nobody@example.invalid>
Description: does nothing
"""


def dpkg(command: str, *arguments: str) -> str:
    return subprocess.run([command, *arguments], capture_output=True, text=True, check=True).stdout


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a package, where dpkg knows of no other one."""
    admin = tmp_path / "root" / "var" / "lib" / "dpkg"
    for folder in (admin / "info", admin / "updates", tmp_path / "halfway" / "DEBIAN"):
        folder.mkdir(parents=True)
    (admin / "status").touch()
    (tmp_path / "halfway" / "DEBIAN" / "control").write_text(CONTROL)
    monkeypatch.setenv("DPKG_ROOT", str(tmp_path / "root"))
    monkeypatch.setenv("DPKG_ADMINDIR", str(admin))
    dpkg("dpkg-deb", "--build", str(tmp_path / "halfway"))
    return tmp_path / "halfway.deb"


def state() -> str:
    return dpkg("dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}")


def test_what_is_only_unpacked_is_configured_before_more_is_installed(package: Path) -> None:
    dpkg("dpkg", "--unpack", str(package))
    assert state() == "halfway unpacked"
    finish_interrupted()
    assert state() == "halfway installed"
