"""Decides which cgroup folders an instance has. Called by `cluster`. Works with version 1, hybrid and version 2 hierarchies."""

from __future__ import annotations

from pathlib import Path

from dev.cluster.errors import ClusterError
from dev.cluster.waiting import wait_for

MOUNT = Path("/sys/fs/cgroup")
# All pods of an instance share one folder, whose weight by default is that of a single session of the machine: beside a build
# or a test run they would starve. Much heavier, and the API server and kubectl starve beside a few starting applications: with
# fifty times the default a `kubectl get` took 25 s on two cores.
WEIGHT = {"cpu.shares": "4096", "cpu.weight": "400"}


def folder_name(instance: str) -> str:
    """The folder of an instance below the root of every hierarchy, as the kubelet wants it."""
    return f"/shardherd-{instance}"


def hierarchies() -> list[Path]:
    """The root of every mounted hierarchy."""
    roots = []
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, target, kind, *_ = line.split()
        if kind in ("cgroup", "cgroup2"):
            roots.append(Path(target))
    if not roots:
        raise ClusterError("no cgroup hierarchy is mounted below /sys/fs/cgroup: the kubelet cannot run here")
    return sorted(set(roots))


def create(instance: str) -> None:
    """Make the instance's folder in every hierarchy."""
    for root in hierarchies():
        folder = Path(f"{root}{folder_name(instance)}")
        if (root / "cgroup.controllers").exists() and root == MOUNT:
            controllers = (root / "cgroup.controllers").read_text().split()
            (root / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in controllers))
        folder.mkdir(exist_ok=True)
        for file, weight in WEIGHT.items():
            if (folder / file).exists():
                (folder / file).write_text(weight)
        for file in ("cpuset.cpus", "cpuset.mems"):
            # A version 1 cpuset is born empty and takes no process until it has both.
            if (root / "tasks").exists() and (folder / file).exists() and not (folder / file).read_text().strip():
                (folder / file).write_text((root / file).read_text())


def remove(instance: str, log: Path) -> None:
    """Remove the instance's folders. Their processes must be dead; the kernel may need a moment to let go of them."""

    def removed() -> str | None:
        left = [Path(f"{root}{folder_name(instance)}") for root in hierarchies()]
        for top in left:
            for folder in sorted((each for each in top.rglob("*") if each.is_dir()), reverse=True):
                _try_rmdir(folder)
            _try_rmdir(top)
        still = [str(folder) for folder in left if folder.exists()]
        return f"still busy: {', '.join(still)}" if still else None

    wait_for("the removal of the instance's cgroups", removed, log, timeout=120.0)


def _try_rmdir(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError as error:
        if error.errno not in (2, 16):  # gone already, busy: the caller looks again
            raise
