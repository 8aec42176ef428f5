"""Decides how an image gets from the builder into a node. Called by `cluster` and the command `load`. Builds nothing."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

from dev.cluster import builder
from dev.cluster.errors import ClusterError
from dev.cluster.progress import step

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
    """Bring an image of the builder's store into an instance. False if the instance has this very image already.

    The archive of an image is kept in the cache until the image changes: making it costs more than importing it.
    """
    name = full_name(tag)
    identity = builder.image_id(name)
    if identity is None:
        raise ClusterError(f"the image {name} was not built: `python3 -m dev.cluster images`")
    # The record lies beside containerd's socket and goes with the instance.
    record = socket.parent / f"image-{name.replace('/', '_')}"
    if record.exists() and record.read_text() == identity and present(socket, [name]):
        return False
    with step(f"loading image {name}"):
        load_archive(socket, builder.archive(name, identity))
    record.write_text(identity)
    return True


def full_name(tag: str) -> str:
    """The name as containerd has it: `shardherd/spark:dev` is docker.io/shardherd/spark:dev."""
    first = tag.split("/", 1)[0]
    return tag if "." in first or ":" in first else f"docker.io/{tag}"
