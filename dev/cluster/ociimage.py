"""Decides the bytes of the sandbox image. Called by `tools`. Needs no builder: an archive is a tar of tars and JSON files.

The image is Debian's static busybox with its applets. As `pause` it sleeps and ends on SIGTERM, which is all that a sandbox
container has to do; as `busybox` it is what tests run in a pod.
"""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PAUSE = "trap 'exit 0' TERM INT; while :; do sleep 2147483647 & wait $!; done"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def write_busybox(busybox: Path, archive: Path, machine: str, pause_name: str, busybox_name: str) -> None:
    """Write a docker-archive with two images that share one layer.

    `machine` is the platform as uname says it; the names are full references with a tag.
    """
    applets = subprocess.run([str(busybox), "--list"], check=True, capture_output=True, text=True).stdout.split()
    layer = _layer(busybox.read_bytes(), applets)
    architecture = ARCHITECTURES.get(machine, machine)
    pause = _config(layer, architecture, {"Entrypoint": ["/bin/sh", "-c", PAUSE]})
    shell = _config(layer, architecture, {"Cmd": ["sh"], "Env": ["PATH=/bin"], "User": "10001"})
    files = {"layer.tar": layer, "pause.json": pause, "busybox.json": shell}
    manifest = [
        {"Config": "pause.json", "RepoTags": [pause_name], "Layers": ["layer.tar"]},
        {"Config": "busybox.json", "RepoTags": [busybox_name], "Layers": ["layer.tar"]},
    ]
    archive.write_bytes(_tar({**files, "manifest.json": json.dumps(manifest).encode()}))


def _config(layer: bytes, architecture: str, config: Mapping[str, Any]) -> bytes:
    content = {
        "architecture": architecture,
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    return json.dumps(content, sort_keys=True).encode()


def _layer(busybox: bytes, applets: list[str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for folder, mode in (("bin", 0o755), ("etc", 0o755), ("tmp", 0o1777)):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            tar.addfile(entry)
        passwd = b"root:x:0:0:root:/:/bin/sh\nuser:x:10001:10001:user:/tmp:/bin/sh\n"
        for name, content, mode in (("bin/busybox", busybox, 0o755), ("etc/passwd", passwd, 0o644)):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            tar.addfile(entry, io.BytesIO(content))
        for applet in sorted(set(applets) - {"busybox"}):
            entry = tarfile.TarInfo(f"bin/{applet}")
            entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(entry)
    return buffer.getvalue()


def _tar(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o644
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
