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


def read(repository: Path, environment: Mapping[str, str], *, committed: bool = True) -> Source:
    """The source in a working tree. Raises ReleaseError if it is not what its commit says, unless that does not matter."""
    version = tomllib.loads((repository / "pyproject.toml").read_text())["project"]["version"]
    revision = _git(repository, "rev-parse", "HEAD")
    if committed:
        if changed := _git(repository, "status", "--porcelain"):
            raise ReleaseError(
                f"a release is of a commit, but these files differ from {revision[:12]}; commit them:\n{changed}"
            )
        tags = [tag for tag in _git(repository, "tag", "--points-at", "HEAD").split() if tag.startswith("v")]
        if tags and f"v{version}" not in tags:
            raise ReleaseError(f"the commit has the tag {', '.join(tags)}, but pyproject.toml says version {version}")
    given = environment.get("SOURCE_DATE_EPOCH")
    return Source(repository, version, revision, int(given or _git(repository, "show", "--no-patch", "--format=%ct", "HEAD")))


def _git(repository: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=repository, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ReleaseError(f"`git {' '.join(arguments)}` ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout.strip()
