"""The archives of the images: named, labelled, whole."""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from dev.cluster.builder import TARGETS
from dev.cluster.images import Exported
from dev.release.images import ABOUT, write
from dev.release.source import ReleaseError, Source

SOURCE = Source(Path(), "1.2.3", "a" * 40, 1_700_000_000)
BASE = {"org.opencontainers.image.base.name": "docker.io/library/debian:bookworm-slim"}


def blob(folder: Path, content: bytes) -> dict[str, Any]:
    digest = hashlib.sha256(content).hexdigest()
    path = folder / "blobs" / "sha256" / digest
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return {"digest": f"sha256:{digest}", "size": len(content)}


def built(folder: Path, architecture: str = "amd64") -> Exported:
    """An image of two layers as the builder leaves it."""
    settings = {"User": "10001:10001", "Labels": {"dev.shardherd.base": "base-1"}}
    configuration = {"architecture": architecture, "os": "linux", "config": settings, "created": "2026-01-01T00:00:00Z"}
    manifest = {
        "schemaVersion": 2,
        "config": {"mediaType": "c", **blob(folder, json.dumps(configuration).encode())},
        "layers": [{"mediaType": "l", **blob(folder, content)} for content in (b"one", b"two")],
        "annotations": BASE,
    }
    return Exported(folder, {"mediaType": "m", **blob(folder, json.dumps(manifest).encode())})


def files(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as tar:
        return {name: tar.extractfile(name).read() for name in tar.getnames()}  # type: ignore[union-attr]


def test_an_archive_has_the_image_by_name_and_every_file_under_its_digest(tmp_path: Path) -> None:
    path = write(built(tmp_path / "oci"), SOURCE, "operator", tmp_path)
    assert path.name == "shardherd-operator-1.2.3-linux-amd64.oci.tar"
    assert [each.name for each in tmp_path.iterdir() if each.name != "oci"] == [path.name]
    inside = files(path)
    (manifest,) = json.loads(inside["index.json"])["manifests"]
    assert manifest["annotations"] == {"io.containerd.image.name": "localhost/shardherd/operator:1.2.3"}
    assert json.loads(inside["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    blobs = {name.rpartition("/")[2]: content for name, content in inside.items() if name.startswith("blobs/")}
    assert {digest: hashlib.sha256(content).hexdigest() for digest, content in blobs.items()} == {each: each for each in blobs}
    content = json.loads(blobs[manifest["digest"].partition(":")[2]])
    assert manifest["size"] == len(blobs[manifest["digest"].partition(":")[2]])
    referred = [content["config"], *content["layers"]]
    assert {each["digest"].partition(":")[2] for each in referred} | {manifest["digest"].partition(":")[2]} == set(blobs)
    assert [each["size"] for each in referred] == [len(blobs[each["digest"].partition(":")[2]]) for each in referred]
    assert b"one" in blobs.values()


def test_docker_finds_the_same_files_by_a_list_of_its_own(tmp_path: Path) -> None:
    inside = files(write(built(tmp_path / "oci"), SOURCE, "operator", tmp_path))
    (named,) = json.loads(inside["index.json"])["manifests"]
    content = json.loads(inside[f"blobs/{named['digest'].replace(':', '/')}"])
    config, *layers = (each["digest"].replace(":", "/") for each in (content["config"], *content["layers"]))
    assert json.loads(inside["manifest.json"]) == [
        {
            "Config": f"blobs/{config}",
            "RepoTags": ["localhost/shardherd/operator:1.2.3"],
            "Layers": [f"blobs/{layer}" for layer in layers],
        }
    ]


def test_its_labels_say_what_it_is_and_of_which_commit(tmp_path: Path) -> None:
    inside = files(write(built(tmp_path / "oci"), SOURCE, "spark", tmp_path))
    (configuration,) = [json.loads(content) for content in inside.values() if b'"architecture"' in content]
    title, description = ABOUT["spark"]
    assert configuration["config"] == {
        "User": "10001:10001",
        "Labels": {
            "dev.shardherd.base": "base-1",
            "org.opencontainers.image.title": title,
            "org.opencontainers.image.description": description,
            "org.opencontainers.image.version": "1.2.3",
            "org.opencontainers.image.revision": "a" * 40,
            "org.opencontainers.image.created": "2023-11-14T22:13:20Z",
            "org.opencontainers.image.licenses": "Apache-2.0",
            "org.opencontainers.image.vendor": "the shardherd maintainers",
            **BASE,
        },
    }


def test_an_image_for_another_processor_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match="the image spark is for arm64: make the release on amd64"):
        write(built(tmp_path / "oci", "arm64"), SOURCE, "spark", tmp_path)


def test_every_image_is_told_of() -> None:
    assert ABOUT.keys() == TARGETS.keys()
