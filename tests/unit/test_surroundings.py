"""Commands where the disk is full, the reader has enough, or the locale has few signs: processes, as a shell starts them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from tests.unit.local.manifests import group

COMMANDS = (("version",), ("--help",), ("status", "--help"), ("completion", "bash"))


def ended(words: Sequence[str], output: int, **variables: str) -> tuple[int, str]:
    """The exit code of a command that writes to this, and what it says of errors."""
    done = subprocess.run(
        [sys.executable, "-m", "shardherd", *words],
        stdout=output,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "", **variables},
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("buffered", ["", "1"])
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_full_disk_is_named_in_a_sentence(words: tuple[str, ...], buffered: str) -> None:
    with Path("/dev/full").open("w") as full:
        code, said = ended(words, full.fileno(), PYTHONUNBUFFERED=buffered)
    assert (code, said) == (1, "shardherd: standard output cannot be written: No space left on device\n")


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_reader_that_has_enough_is_told_nothing(words: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        assert ended(words, writer) == (1, "")
    finally:
        os.close(writer)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_yaml_means_the_same_in_an_output_that_does_not_have_all_its_signs(encoding: str, tmp_path: Path) -> None:
    manifest, written = tmp_path / "group.yaml", tmp_path / "out.yaml"
    manifest.write_text(yaml.safe_dump(group(application={"arguments": ["Größe → 数"]})), encoding="utf-8")
    with written.open("w") as out:
        code = ended(("render", "-f", str(manifest)), out.fileno(), PYTHONIOENCODING=encoding)
    found = [each for each in yaml.safe_load_all(written.read_text(encoding)) if each["kind"] == "StatefulSet"]
    said = [container["command"][-1] for each in found for container in each["spec"]["template"]["spec"]["containers"]]
    assert (code, said) == ((0, ""), ["Größe → 数"])


def test_a_manifest_is_read_as_utf_8_whatever_the_locale(tmp_path: Path) -> None:
    manifest = tmp_path / "group.yaml"
    manifest.write_text(yaml.safe_dump(group(application={"arguments": ["Größe"]}), allow_unicode=True), encoding="utf-8")
    code = ended(("render", "-f", str(manifest)), subprocess.DEVNULL, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert code == (0, "")
