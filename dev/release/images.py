"""Decides how the archives of the images are made: by which names and labels users find them. Called by the command.

`dev.cluster.builder` builds the images, for the tests and the demo as well. Here what it built is labelled and put into one
file each; the layers stay as they are.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dev.cluster import builder
from dev.cluster.images import Exported, exported_image
from dev.release.source import ReleaseError, Source

ABOUT = {
    "operator": ("shardherd operator", "Scales Spark applications to the shards of a stream, and decides which holds which."),
    "spark": ("shardherd Spark", "Python, Java and Spark with shardherd's source: drivers and executors of applications."),
    "worker": ("shardherd worker", "Python with shardherd's worker: plain Python consumers, without Java and Spark."),
}
"""Title and description of each image."""

REGISTRY = "localhost"
"""What an image is loaded as is nowhere published, so that nothing is fetched in its place."""

ARCHITECTURE = "amd64"
LABEL = "org.opencontainers.image."


def name(source: Source, target: str) -> str:
    """What an image is called where its archive is loaded."""
    return f"{REGISTRY}/shardherd/{target}:{source.version}"


def file_name(source: Source, target: str) -> str:
    """Of the archive, without what says its kind."""
    return f"shardherd-{target}-{source.version}-linux-{ARCHITECTURE}"


def build() -> None:
    """Have the images built of what is in the working tree."""
    builder.build()


def archive(source: Source, target: str, out: Path) -> Path:
    """Make the archive of an image that is built, in the folder `out`."""
    out.mkdir(parents=True, exist_ok=True)
    with exported_image(builder.TARGETS[target]) as exported:
        return write(exported, source, target, out)


def write(exported: Exported, source: Source, target: str, out: Path) -> Path:
    """Make the archive of this image, with the labels of the release. Raises ReleaseError if it is not for amd64."""
    manifest = json.loads(exported.blob(exported.digest).read_text())
    configuration = json.loads(exported.blob(manifest["config"]["digest"]).read_text())
    if configuration["architecture"] != ARCHITECTURE:
        raise ReleaseError(f"the image {target} is for {configuration['architecture']}: make the release on {ARCHITECTURE}")
    labels = _labels(source, target, manifest.get("annotations", {}))
    configuration["config"]["Labels"] = configuration["config"].get("Labels", {}) | labels
    blobs: dict[str, bytes] = {}
    manifest["config"] |= _blob(configuration, blobs)
    named = {**exported.manifest, **_blob(manifest, blobs)}
    path = out / f"{file_name(source, target)}.oci.tar"
    folder = out / f".{path.name}"
    labelled = Labelled(exported.folder, named, folder)
    try:
        folder.mkdir()
        for digest, content in blobs.items():
            labelled.changed(digest).write_bytes(content)
        with path.open("wb") as output:
            labelled.write_tar(name(source, target), set(), output, for_docker=True)
    finally:
        for left in folder.iterdir():
            left.unlink()
        folder.rmdir()
    return path


@dataclass(frozen=True)
class Labelled(Exported):
    """An image on disk of which some files are others."""

    others: Path

    def changed(self, digest: str) -> Path:
        return self.others / digest.partition(":")[2]

    def blob(self, digest: str) -> Path:
        other = self.changed(digest)
        return other if other.exists() else super().blob(digest)


def _blob(content: Mapping[str, Any], blobs: dict[str, bytes]) -> dict[str, Any]:
    """Add a file; returns how others refer to it."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    digest = f"sha256:{hashlib.sha256(text).hexdigest()}"
    blobs[digest] = text
    return {"digest": digest, "size": len(text)}


def _labels(source: Source, target: str, annotations: Mapping[str, str]) -> dict[str, str]:
    title, description = ABOUT[target]
    labels = {
        "title": title,
        "description": description,
        "version": source.version,
        "revision": source.revision,
        "created": source.created.isoformat().replace("+00:00", "Z"),
        "licenses": "Apache-2.0",
        "vendor": "the shardherd maintainers",
    }
    # What the builder says of the base that it stood on.
    base = {key: text for key, text in annotations.items() if key.startswith(f"{LABEL}base.")}
    return {f"{LABEL}{key}": text for key, text in labels.items()} | base


def debian_status(target: str) -> str:
    """dpkg's status file of an image that is built."""
    container = builder.buildah("from", "--pull-never", builder.TARGETS[target])
    try:
        return (Path(builder.buildah("mount", container)) / "var" / "lib" / "dpkg" / "status").read_text()
    finally:
        builder.buildah("rm", container)
