"""Decides how an image gets from the builder into a node. Called by `cluster` and the command `load`. Builds nothing.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

from dev.cluster.errors import ClusterError

NAMESPACE = "k8s.io"


def ctr(socket: Path, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run containerd's client against an instance; with `check` a failure is a ClusterError."""
    command = ["ctr", "--address", str(socket), "--namespace", NAMESPACE, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        raise ClusterError(f"`ctr {' '.join(arguments)}` ended with {done.returncode}: {done.stderr.strip()}")
    return done


def present(socket: Path, names: Iterable[str]) -> bool:
    """Whether containerd has an image under each of these full names."""
    return set(names) <= set(ctr(socket, "images", "ls", "-q").stdout.split())


def load_archive(socket: Path, archive: Path) -> None:
    """Import a docker-archive."""
    ctr(socket, "images", "import", str(archive))


def load(socket: Path, tag: str) -> bool:
    raise ClusterError("not yet")
