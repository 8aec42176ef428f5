"""Images on their way from the builder to the node."""

import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest

from dev.cluster.images import Exported, full_name
from dev.cluster.ociimage import write_busybox


@pytest.mark.parametrize(
    ("tag", "full"),
    [
        ("shardherd/spark:dev", "docker.io/shardherd/spark:dev"),
        ("shardherd/spark", "docker.io/shardherd/spark:latest"),
        ("busybox", "docker.io/library/busybox:latest"),
        ("localhost/a:1", "localhost/a:1"),
        ("example.org:5000/a/b", "example.org:5000/a/b:latest"),
    ],
)
def test_short_names_are_completed_as_containerd_does(tag: str, full: str) -> None:
    assert full_name(tag) == full


def blob(folder: Path, content: bytes) -> str:
    digest = hashlib.sha256(content).hexdigest()
    path = folder / "blobs" / "sha256" / digest
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return f"sha256:{digest}"


def test_only_layers_that_the_node_lacks_are_sent(tmp_path: Path) -> None:
    old, new, configuration = (blob(tmp_path, content) for content in (b"old layer", b"new layer", b"{}"))
    layers = [{"digest": old}, {"digest": new}, {"digest": new}]
    content = json.dumps({"config": {"digest": configuration}, "layers": layers}).encode()
    manifest = blob(tmp_path, content)
    exported = Exported(tmp_path, {"mediaType": "m", "digest": manifest, "size": len(content)})

    output = io.BytesIO()
    exported.write_tar("docker.io/a/b:1", {old, manifest, configuration}, output)

    with tarfile.open(fileobj=io.BytesIO(output.getvalue())) as tar:
        names = tar.getnames()
        index = json.loads(tar.extractfile("index.json").read())  # type: ignore[union-attr]
    sent = [f"blobs/{digest.replace(':', '/')}" for digest in (manifest, configuration, new)]
    assert names == ["oci-layout", *sent, "index.json"]
    assert index["manifests"] == [
        {
            "mediaType": "m",
            "digest": manifest,
            "size": len(content),
            "annotations": {"io.containerd.image.name": "docker.io/a/b:1"},
        }
    ]


def test_the_sandbox_image_names_the_layer_that_it_holds(tmp_path: Path) -> None:
    busybox = tmp_path / "busybox"
    busybox.write_text("#!/bin/sh\nprintf 'busybox\\nsh\\nls\\n'\n")
    busybox.chmod(0o755)
    write_busybox(busybox, tmp_path / "images.tar", "x86_64", "docker.io/p:1", "docker.io/b:1")
    with tarfile.open(tmp_path / "images.tar") as tar:
        files = {name: tar.extractfile(name).read() for name in tar.getnames()}  # type: ignore[union-attr]
    layer = f"sha256:{hashlib.sha256(files['layer.tar']).hexdigest()}"
    assert [image["RepoTags"] for image in json.loads(files["manifest.json"])] == [["docker.io/p:1"], ["docker.io/b:1"]]
    for image in ("pause.json", "busybox.json"):
        assert json.loads(files[image])["rootfs"]["diff_ids"] == [layer]
        assert json.loads(files[image])["architecture"] == "amd64"
    with tarfile.open(fileobj=io.BytesIO(files["layer.tar"])) as tar:
        assert {name for name in tar.getnames() if name.startswith("bin/")} == {"bin/busybox", "bin/sh", "bin/ls"}
