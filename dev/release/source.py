"""Decides what a release is of: which version, of which commit, at which time. Called by the command. Makes nothing."""

from __future__ import annotations

import os
import subprocess
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path


class ReleaseError(Exception):
    """A release cannot be made. Says why, and the remedy."""


@dataclass(frozen=True)
class Source:
    """The files of a commit. `revision` is its id; `epoch` is when it was made, and the time of every file of the release."""

    repository: Path
    version: str
    revision: str
    epoch: int

    @property
    def created(self) -> datetime:
        return datetime.fromtimestamp(self.epoch, UTC)

    def environment(self) -> dict[str, str]:
        """Of a program that makes a part of the release."""
        return {**os.environ, "SOURCE_DATE_EPOCH": str(self.epoch)}


WITHOUT_A_COMMIT = 1_700_000_000
"""The time of the files of a working tree that is no checkout of git."""


def read(repository: Path, environment: Mapping[str, str]) -> Source:
    """What a release is made of: the commit that is checked out. Raises ReleaseError if the files are not what it says."""
    version = _version(repository)
    revision = _git(repository, "rev-parse", "HEAD")
    if changed := _git(repository, "status", "--porcelain"):
        raise ReleaseError(f"a release is of a commit, but these files differ from {revision[:12]}; commit them:\n{changed}")
    tags = [tag for tag in _git(repository, "tag", "--points-at", "HEAD").split() if tag.startswith("v")]
    if tags and f"v{version}" not in tags:
        raise ReleaseError(f"the commit has the tag {', '.join(tags)}, but pyproject.toml says version {version}")
    return Source(repository, version, revision, _epoch(repository, environment))


def working_tree(repository: Path, environment: Mapping[str, str]) -> Source:
    """What is there now, committed or not: for tests, and for a wheel of one's own."""
    try:
        return Source(repository, _version(repository), _git(repository, "rev-parse", "HEAD"), _epoch(repository, environment))
    except ReleaseError:
        return Source(repository, _version(repository), "", int(environment.get("SOURCE_DATE_EPOCH") or WITHOUT_A_COMMIT))


def _version(repository: Path) -> str:
    found: str = tomllib.loads((repository / "pyproject.toml").read_text())["project"]["version"]
    return found


def _epoch(repository: Path, environment: Mapping[str, str]) -> int:
    return int(environment.get("SOURCE_DATE_EPOCH") or _git(repository, "show", "--no-patch", "--format=%ct", "HEAD"))


def _git(repository: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=repository, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise ReleaseError("a release is of a commit, and git, which knows it, is not installed") from None
    if done.returncode != 0:
        raise ReleaseError(f"`git {' '.join(arguments)}` ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout.strip()
