"""What goes into the images, and what makes `.venv`, is known by its hash or digest before it is fetched."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
INSTRUCTIONS = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.MULTILINE)).splitlines()
LOCKS = sorted((ROOT / "requirements").glob("*.lock"))


def test_images_stand_on_a_digest() -> None:
    stages = [re.fullmatch(r"FROM (\S+) AS (\S+)", line) for line in INSTRUCTIONS if line.startswith("FROM ")]
    bases = {stage[1] for stage in stages if stage} - {stage[2] for stage in stages if stage}
    (given,) = [line for line in INSTRUCTIONS if line.startswith("ARG BASE=")]
    assert None not in stages
    assert bases == {"${BASE}"}
    assert re.fullmatch(r"ARG BASE=debian:bookworm-slim@sha256:[0-9a-f]{64}", given)


def test_pip_fetches_nothing_but_by_its_hash() -> None:
    """Our own code is in the build's context; what a package is built with is hidden from --require-hashes."""
    installs = re.findall(r"pip (?:--python \S+ )?install (.+?)(?: &&|$)", "\n".join(INSTRUCTIONS), re.MULTILINE)
    assert len(installs) == 6
    for options in installs:
        assert "--require-hashes" in options or options.endswith(" /build"), options
        assert "--no-build-isolation" in options or "--only-binary :all:" in options, options


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.stem)
def test_every_locked_package_has_hashes(lock: Path) -> None:
    packages = re.split(r"\n(?=\S)", re.sub(r"^\s*#.*\n?", "", lock.read_text(), flags=re.MULTILINE).strip())
    assert [each for each in packages if not re.match(r"\S+==\S+ \\\n( +--hash=sha256:[0-9a-f]{64}( \\)?\n?)+$", each)] == []


def test_what_builds_our_package_is_locked() -> None:
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    given = (ROOT / "requirements" / "build.in").read_text().splitlines()
    locked = (ROOT / "requirements" / "build.lock").read_text()
    assert set(needed) <= set(given)
    assert all(re.search(rf"^{name}==", locked, re.MULTILINE) for name in re.findall(r"^\w+", "\n".join(given), re.MULTILINE))


def test_an_environment_is_built_by_what_is_locked() -> None:
    commands = re.sub(r"\\\n\s*", "", (ROOT / "dev" / "bootstrap").read_text())
    installs = re.findall(r'^(?!\s*#).*(?:pip" install|pip sync|pip install) .*$', commands, re.MULTILINE)
    assert len(installs) == 3
    for command in installs:
        assert "--build-constraints" in command or "--require-hashes -r" in command, command
