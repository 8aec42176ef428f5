"""Decides how the project's images are built. Called by the command `images`, by fixtures and by the demo.

buildah keeps its store in the cache. The base image is made here from Debian packages, which apt knows by their signatures, and
is given to the Dockerfile in place of the one that it names by its digest; all else any other builder does too. Where there is
a registry to pull from, SHARDHERD_PULL_BASE=1 has the Dockerfile's own base pulled.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import subprocess
import time
from pathlib import Path

from dev.cluster.errors import ClusterError, tail
from dev.cluster.paths import REPOSITORY, cache
from dev.cluster.progress import say, step
from dev.cluster.tools import Tools

BASE_IMAGE = "docker.io/library/debian:bookworm-slim"
TARGETS = {target: f"docker.io/shardherd/{target}:dev" for target in ("operator", "spark", "worker")}
WITH_AWS = {f"{target}-aws": f"docker.io/shardherd/{target}:aws" for target in ("operator", "worker")}
"""The same with `EXTRAS=aws`, for who asks for them: a tag of their own."""
NAMES = TARGETS | WITH_AWS
PULL_BASE = "SHARDHERD_PULL_BASE"
BASE_LABEL = "dev.shardherd.base"
# Where the build finds the machine's authorities. Mounted over the image's own bundle they would break Java's installation.
AUTHORITIES_INSIDE = "/run/authorities.crt"
AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")


def buildah(*arguments: str, check: bool = True) -> str:
    """Standard output of buildah on the project's own store; with `check` a failure is a ClusterError."""
    done = subprocess.run(_command(*arguments), capture_output=True, text=True, check=False, env=_environment())
    if check and done.returncode != 0:
        raise ClusterError(f"`buildah {' '.join(arguments)}` ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout.strip()


def _command(*arguments: str) -> list[str]:
    store = cache() / "containers"
    return [
        "buildah",
        "--root",
        str(store / "store"),
        "--runroot",
        str(store / "run"),
        "--storage-driver",
        "overlay",
        *arguments,
    ]


def _environment() -> dict[str, str]:
    scratch = cache() / "containers" / "scratch"
    scratch.mkdir(parents=True, exist_ok=True)
    # The folders of `RUN --mount=type=cache` are kept below TMPDIR.
    return {**os.environ, "BUILDAH_ISOLATION": "chroot", "TMPDIR": str(scratch)}


def image_id(name: str) -> str | None:
    """The id of an image in the store, or None."""
    return buildah("images", "--quiet", "--no-trunc", "--filter", f"reference={name}", check=False) or None


def build(targets: tuple[str, ...] = tuple(TARGETS)) -> dict[str, str]:
    """Build these images; their ids by full name. A second build without a change takes seconds."""
    tools = Tools()
    _ = tools.packages
    (cache() / "containers").mkdir(parents=True, exist_ok=True)
    with (cache() / "containers" / "build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _pulled():
            _ensure_base(tools.base)
        for target in targets:
            if _current(target, tools):
                continue
            # As it was before: what is changed meanwhile is not in the image, or not all of it.
            inputs = _inputs(tools)
            with step(f"building image {NAMES[target]}", f"image {target}"):
                _build(target)
            _marker(target).write_text(json.dumps({**inputs, "image": image_id(NAMES[target])}))
    return {NAMES[target]: image_id(NAMES[target]) or "" for target in targets}


def built() -> bool:
    """Whether `build` would find all images as they should be."""
    tools = Tools()
    ready = tools.there("packages") and (bool(_pulled()) or tools.there("base")) and (cache() / "containers").exists()
    return ready and all(_current(target, tools) for target in TARGETS)


def _current(target: str, tools: Tools) -> bool:
    marker = _marker(target)
    return marker.exists() and json.loads(marker.read_text()) == {**_inputs(tools), "image": image_id(NAMES[target])}


def _marker(target: str) -> Path:
    return cache() / "containers" / f"built-{target}.json"


def _inputs(tools: Tools) -> dict[str, str | None]:
    """What an image is made of now."""
    return {"base": _pulled() or tools.base.parent.name, "context": context_digest(REPOSITORY)}


def _pulled() -> str:
    """The full name of the Dockerfile's own base, with its digest, if that is wanted; else empty."""
    if os.environ.get(PULL_BASE) != "1":
        return ""
    (named,) = re.findall(r"^ARG BASE=(\S+)$", (REPOSITORY / "Dockerfile").read_text(), re.MULTILINE)
    return f"docker.io/library/{named}"


def context_digest(repository: Path) -> str:
    """A digest of every file that the Dockerfile can see, and of the Dockerfile."""
    files = [repository / "Dockerfile", repository / ".dockerignore"]
    for line in (repository / ".dockerignore").read_text().splitlines():
        if line.startswith("!"):
            path = repository / line[1:]
            files += [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    digest = hashlib.sha256()
    for file in sorted(files):
        if "__pycache__" not in file.parts and file.suffix not in (".pyc", ".o"):
            content = file.read_bytes()
            digest.update(f"{file.relative_to(repository)} {file.stat().st_mode & 0o777:o} {len(content)}\n".encode())
            digest.update(content)
    return digest.hexdigest()


def _ensure_base(archive: Path) -> None:
    version = archive.parent.name
    label = f'{{{{index .OCIv1.Config.Labels "{BASE_LABEL}"}}}}'
    if buildah("inspect", "--type", "image", "--format", label, BASE_IMAGE, check=False) == version:
        return
    with step(f"importing {BASE_IMAGE}"):
        container = buildah("from", "scratch")
        try:
            buildah("add", "--quiet", container, str(archive), "/")
            buildah("config", "--cmd", "bash", "--label", f"{BASE_LABEL}={version}", container)
            buildah("commit", "--quiet", container, BASE_IMAGE)
        finally:
            buildah("rm", container)


def _options(target: str) -> list[str]:
    base = ["--build-arg", f"BASE={_pulled()}"] if _pulled() else ["--pull-never", "--build-arg", f"BASE={BASE_IMAGE}"]
    stage, _, extras = target.partition("-")
    options = ["--layers", *base, "--network", "host", "--target", stage, "--tag", NAMES[target]]
    if extras:
        options += ["--build-arg", f"EXTRAS={extras}"]
    if AUTHORITIES.exists():
        options += ["--volume", f"{AUTHORITIES}:{AUTHORITIES_INSIDE}:ro", "--build-arg", f"PIP_CERT={AUTHORITIES_INSIDE}"]
    if index := os.environ.get("PIP_INDEX_URL"):
        options += ["--build-arg", f"PIP_INDEX_URL={index}"]
    return options


def _build(target: str) -> None:
    command = _command("bud", *_options(target), "--file", str(REPOSITORY / "Dockerfile"), str(REPOSITORY))
    log = cache() / "containers" / f"build-{target}.log"
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=_environment())
        assert process.stdout is not None
        current, begun = "", time.monotonic()
        for line in process.stdout:
            output.write(line)
            output.flush()
            if "STEP " in line:
                _say_if_slow(current, begun)
                current, begun = line.split("STEP ", 1)[1].strip(), time.monotonic()
        _say_if_slow(current, begun)
    if process.wait() != 0:
        raise ClusterError(f"the image {NAMES[target]} was not built\n{tail(log)}")


def _say_if_slow(what: str, begun: float) -> None:
    taken = time.monotonic() - begun
    if what and taken > 1.0:
        say(f"    step {what[:90]}: {taken:.1f} s")
