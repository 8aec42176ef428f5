"""What the documentation says to type with the files of a release in `dist/`: the sums, the images to a registry, the packages.

The images are small ones in archives of the very form. The registry is a folder: what is behind its name is the user's.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from dev.cluster.images import Exported
from dev.cluster.tools import archive_packages
from dev.release import checksums, images, packages
from dev.release.source import working_tree
from tests.harness.long import long
from tests.harness.typed import RELEASE, ROOT, Command, of

pytestmark = long

LAYER = b"what is in the image\n"


def blob(folder: Path, content: bytes, media: str) -> dict[str, object]:
    """A file of an image, and how others refer to it."""
    digest = hashlib.sha256(content).hexdigest()
    path = folder / "blobs" / "sha256" / digest
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return {"mediaType": f"application/vnd.oci.image.{media}", "digest": f"sha256:{digest}", "size": len(content)}


def small(folder: Path) -> Exported:
    """An image of one file, as the builder leaves it."""
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as layer:
        entry = tarfile.TarInfo("note")
        entry.size = len(LAYER)
        layer.addfile(entry, io.BytesIO(LAYER))
    diff = f"sha256:{hashlib.sha256(tar.getvalue()).hexdigest()}"
    configuration = {"architecture": "amd64", "os": "linux", "config": {}, "rootfs": {"type": "layers", "diff_ids": [diff]}}
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": blob(folder, json.dumps(configuration).encode(), "config.v1+json"),
        "layers": [blob(folder, tar.getvalue(), "layer.v1.tar")],
    }
    return Exported(folder, blob(folder, json.dumps(manifest).encode(), "manifest.v1+json"))


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `dist/` as `make release` fills it."""
    archive_packages()
    folder = tmp_path_factory.mktemp("checkout")
    source, dist = working_tree(ROOT, os.environ), folder / "dist"
    packages.build(source, dist)
    for target in images.ABOUT:
        images.write(small(folder / "oci" / target), source, target, dist)
    checksums.write(dist)
    return folder


@pytest.fixture(scope="module")
def environment(checkout: Path) -> dict[str, str]:
    """Of a shell in which `pip` installs, at the locked versions, into an environment of its own."""
    uv = packages.uv()
    made = checkout / "environment"
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(made)], check=True)
    pip = made / "bin" / "pip"
    # As nothing of a lock's hashes is known of a wheel that was just made, versions alone hold: no other is in the cache.
    # Spark comes as source: what dev/bootstrap built is taken, if it is asked for in the same way and no registry for news.
    spark = '--config-settings-package "pyspark:--build-option=--compression=stored"'
    tools = f'--build-constraints "{ROOT / "requirements" / "build.lock"}"'
    call = f'"{uv}" pip "$@" {tools} {spark}'
    pip.write_text(f"#!/bin/sh\n{call} --offline --quiet || exec {call}\n")
    pip.chmod(0o755)
    constraints = checkout / "constraints.txt"
    locked = (ROOT / "requirements" / "dev.lock").read_text().splitlines()
    constraints.write_text("\n".join(line.split()[0] for line in locked if "==" in line and not line.startswith((" ", "#"))))
    return {
        **os.environ,
        "PATH": f"{made / 'bin'}:{os.environ['PATH']}",
        "VIRTUAL_ENV": str(made),
        "UV_CONSTRAINT": str(constraints),
        "UV_LINK_MODE": "symlink",
        "UV_SYSTEM_CERTS": "1",
    }


def run(script: str, folder: Path, environment: dict[str, str]) -> str:
    """What a shell prints; the command must succeed."""
    command = ["bash", "-euo", "pipefail", "-c", script]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.timeout(600)
@pytest.mark.parametrize("command", list({each.text: each for each in of(RELEASE)}.values()), ids=str)
def test_what_a_release_is_checked_and_installed_with(command: Command, checkout: Path, environment: dict[str, str]) -> None:
    if command.text.startswith("make help"):
        assert "release" in run(command.text, ROOT, environment)
    elif command.text.startswith("skopeo copy"):
        where = checkout / "registry" / command.text.rpartition("/")[2].replace(":", "-")
        where.parent.mkdir(exist_ok=True)
        source, _, name = command.text.rpartition(" ")
        assert name.startswith("docker://registry.example.com/shardherd/")
        run(f"{source} dir:{where}", checkout, environment)
        (layer,) = json.loads((where / "manifest.json").read_text())["layers"]
        assert LAYER in (where / layer["digest"].partition(":")[2]).read_bytes()
    elif command.text.startswith("pip install"):
        run(command.text, checkout, environment)
        said = run('"$VIRTUAL_ENV/bin/shardherd" --version', checkout, environment)
        assert said == f"shardherd {working_tree(ROOT, os.environ).version}\n"
    else:
        said = run(command.text, checkout, environment)
        assert {line.rpartition(": ")[2] for line in said.splitlines()} == {"OK"}
        assert len(said.splitlines()) == len(list((checkout / "dist").iterdir())) - 1


@pytest.mark.parametrize("target", images.ABOUT)
def test_an_archive_is_one_that_docker_load_takes(target: str, checkout: Path, environment: dict[str, str]) -> None:
    archive = checkout / "dist" / f"{images.file_name(working_tree(ROOT, os.environ), target)}.oci.tar"
    where = checkout / "docker" / target
    where.parent.mkdir(exist_ok=True)
    # What reads archives of Docker's own form: the list, the configuration, and each layer, which must be what it says.
    name = images.name(working_tree(ROOT, os.environ), target)
    run(f"skopeo copy docker-archive:{archive}:{name} dir:{where}", checkout, environment)
    (layer,) = json.loads((where / "manifest.json").read_text())["layers"]
    assert LAYER in (where / layer["digest"].partition(":")[2]).read_bytes()
