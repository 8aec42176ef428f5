"""Decides how an image gets from the builder's store into a node. Called by `cluster` and the command `load`. Builds nothing.

An image goes by way of an OCI layout in the cache, written anew only when the image has changed. Its layers are compressed:
containerd syncs what it takes to the disk, and that is what costs time. Of the layers only those that the node's containerd
lacks are sent, so a change of our own code sends the last ones.
"""

from __future__ import annotations

import fcntl
import io
import json
import subprocess
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from dev.cluster import builder
from dev.cluster.errors import ClusterError
from dev.cluster.paths import cache
from dev.cluster.progress import step

NAMESPACE = "k8s.io"
NAME_ANNOTATION = "io.containerd.image.name"


def ctr(socket: Path, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run containerd's client against an instance; with `check` a failure is a ClusterError."""
    done = subprocess.run(_ctr(socket, *arguments), capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        raise ClusterError(f"`ctr {' '.join(arguments)}` ended with {done.returncode}: {done.stderr.strip()}")
    return done


def _ctr(socket: Path, *arguments: str) -> list[str]:
    return ["ctr", "--address", str(socket), "--namespace", NAMESPACE, *arguments]


def present(socket: Path, names: Iterable[str]) -> bool:
    """Whether containerd has an image under each of these full names."""
    return set(names) <= digests(socket).keys()


def digests(socket: Path) -> dict[str, str]:
    """The images of a node: full name -> digest of its manifest."""
    rows = [line.split() for line in ctr(socket, "images", "ls").stdout.splitlines()[1:]]
    return {row[0]: row[2] for row in rows}


def load_archive(socket: Path, archive: Path) -> None:
    """Import a docker-archive."""
    ctr(socket, "images", "import", str(archive))


def full_name(tag: str) -> str:
    """The name under which containerd looks for `tag`: `shardherd/spark:dev` is short for `docker.io/shardherd/spark:dev`."""
    first, _, rest = tag.partition("/")
    if not rest:
        named = f"docker.io/library/{tag}"
    elif "." in first or ":" in first or first == "localhost":
        named = tag
    else:
        named = f"docker.io/{tag}"
    return named if ":" in named.rpartition("/")[2] else f"{named}:latest"


@dataclass(frozen=True)
class Exported:
    """One image as an OCI layout on disk."""

    folder: Path
    manifest: dict[str, Any]

    @property
    def digest(self) -> str:
        return str(self.manifest["digest"])

    def blob(self, digest: str) -> Path:
        return self.folder / "blobs" / digest.replace(":", "/")

    def blobs(self) -> list[str]:
        """Digests of the manifest, the configuration and the layers, in this order."""
        content = json.loads(self.blob(self.digest).read_text())
        return [self.digest, content["config"]["digest"], *(layer["digest"] for layer in content["layers"])]

    def write_tar(self, name: str, there: set[str], output: IO[bytes], *, for_docker: bool = False) -> None:
        """Write an OCI archive of the image under `name`, without the layers that are `there` already.

        With `for_docker` it is one that `docker load` takes, too, by the same files.
        """
        index = {
            "schemaVersion": 2,
            "manifests": [{**self.manifest, "annotations": {NAME_ANNOTATION: name}}],
        }
        with tarfile.open(fileobj=output, mode="w|") as tar:
            _add(tar, "oci-layout", json.dumps({"imageLayoutVersion": "1.0.0"}).encode())
            manifest, configuration, *layers = self.blobs()
            for digest in dict.fromkeys([manifest, configuration, *(each for each in layers if each not in there)]):
                tar.add(self.blob(digest), arcname=_place(digest))
            _add(tar, "index.json", json.dumps(index).encode())
            if for_docker:
                # Docker with a store of its own, not containerd's, reads this file alone.
                said = {"Config": _place(configuration), "RepoTags": [name], "Layers": [_place(each) for each in layers]}
                _add(tar, "manifest.json", json.dumps([said]).encode())


def _place(digest: str) -> str:
    """Where a file is in an archive."""
    return f"blobs/{digest.replace(':', '/')}"


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))


@contextmanager
def exported_image(name: str) -> Iterator[Exported]:
    """The image of the builder's store as an OCI layout, which nobody else changes during the block.

    Written only if the image has changed since the last time.
    """
    identity = builder.image_id(name)
    if identity is None:
        raise ClusterError(f"the builder has no image {name}: build it with `python3 -m dev.cluster images`")
    folder = cache() / "containers" / "oci" / name.replace("/", "-").replace(":", "-")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        marker = folder / "image-id"
        if not marker.exists() or marker.read_text() != identity:
            marker.unlink(missing_ok=True)
            (folder / "index.json").unlink(missing_ok=True)
            with step(f"packing image {name}"):
                builder.buildah("push", "--quiet", "--format", "oci", name, f"oci:{folder}:image")
            _prune(_exported(folder))
            marker.write_text(identity)
        yield _exported(folder)


def _exported(folder: Path) -> Exported:
    (manifest,) = json.loads((folder / "index.json").read_text())["manifests"]
    kept = {key: manifest[key] for key in ("mediaType", "digest", "size")}
    return Exported(folder, kept)


def _prune(exported: Exported) -> None:
    """Remove the layers of earlier versions."""
    wanted = {exported.blob(digest) for digest in exported.blobs()}
    for blob in (exported.folder / "blobs" / "sha256").iterdir():
        if blob not in wanted:
            blob.unlink()


def load(socket: Path, tag: str) -> bool:
    """Bring an image of the builder's store into the node under its full name. False if the node has it already."""
    name = full_name(tag)
    with exported_image(name) as exported:
        if digests(socket).get(name) == exported.digest:
            return False
        with step(f"loading image {name}"):
            _import(socket, name, exported)
    return True


def _import(socket: Path, name: str, exported: Exported) -> None:
    there = set(ctr(socket, "content", "ls", "-q").stdout.split())
    command = _ctr(socket, "images", "import", "-")
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdin is not None
    assert process.stdout is not None
    refused = None
    try:
        with process.stdin:
            exported.write_tar(name, there, process.stdin)
    except BrokenPipeError as error:
        refused = error
    said = process.stdout.read().decode(errors="replace")
    if process.wait() != 0 or refused:
        raise ClusterError(f"containerd did not take the image {name}: {said.strip() or refused}")
    if digests(socket).get(name) != exported.digest:
        raise ClusterError(f"containerd took the image {name}, but not as {exported.digest}: {said.strip()}")
