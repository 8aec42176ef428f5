"""Looks at what may grow: processes of pods, by /proc of this machine; what is stored; the metrics' series; Kubernetes objects.

Called by `run`: `Sampler` looks at the processes all the time, `snapshot` at all else at first and in the end. It judges
nothing.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dev.demo.kube import Json
from dev.demo.lab import SYSTEM, Lab
from dev.soak.groups import Group
from dev.soak.growth import Look, Use
from dev.soak.plan import PLAIN
from tests.e2e.groups import SOAK

COPIES = re.compile(r"configmap/.*-offsets-\d+")
"""ConfigMaps with copies of a group's checkpoints, which are made some minutes after the group."""

LEADING, STANDING_BY, DRIVER, PYTHON = "leading operator", "standing-by operator", "Spark driver", "Python consumer"
LISTENS = "0A"
"""The state of a socket in /proc/net/tcp."""

ROLES = (LEADING, STANDING_BY, DRIVER, PYTHON)


def processes() -> dict[str, list[int]]:
    """The processes of this machine that are in a container, by the last part of their cgroup's path: its id."""
    found: dict[str, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                groups = {
                    line.rpartition("/")[2] for line in (folder / "cgroup").read_text().splitlines() if "kubepods" in line
                }
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended since
            for group in groups:
                found.setdefault(group, []).append(int(folder.name))
    return found


def use_of(pids: list[int]) -> Use:
    """What these processes use together. One that ends meanwhile uses nothing."""
    memory, threads, files, sockets = 0.0, 0, 0, 0
    connections: Counter[str] = Counter()
    for pid in pids:
        folder = Path(f"/proc/{pid}")
        try:
            memory += _figure(folder / "smaps_rollup", "Pss") / 1024
            threads += _figure(folder / "status", "Threads")
            links = list(_links(folder / "fd"))
            purposes = _purposes(folder / "net")
        except (FileNotFoundError, ProcessLookupError):
            continue
        files += len(links)
        own = [link.removeprefix("socket:[").rstrip("]") for link in links if link.startswith("socket:")]
        sockets += len(own)
        connections.update(purposes[inode] for inode in own if inode in purposes)
    return Use(memory, threads, files, sockets, connections)


def _purposes(folder: Path) -> dict[str, str]:
    """What each TCP connection of a network namespace is for, by its inode: `at` our own port, or `to` the other end's."""
    rows = [line.split() for name in ("tcp", "tcp6") for line in (folder / name).read_text().splitlines()[1:]]
    ends = [(_port(row[1]), _port(row[2]), row[3], row[9]) for row in rows]
    listening = {ours for ours, _, state, _ in ends if state == LISTENS}
    return {
        inode: f"at {ours}" if ours in listening else f"to {theirs}" for ours, theirs, state, inode in ends if state != LISTENS
    }


def _port(address: str) -> int:
    return int(address.rpartition(":")[2], 16)


def _figure(file: Path, name: str) -> int:
    """The number of one line of a file of /proc."""
    for line in file.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise ProcessLookupError(f"{file} has no {name}: the process is ending")


def _links(folder: Path) -> Iterator[str]:
    for link in folder.iterdir():
        try:
            yield str(link.readlink())
        except FileNotFoundError:
            continue  # closed since


def looks(lab: Lab) -> list[Look]:
    """One look at every container of the operators and of the groups that runs."""
    by_container, at = processes(), time.time()
    found = []
    for pod in lab.kube.items("pods", "--all-namespaces"):
        role = _role(pod)
        for status in pod["status"].get("containerStatuses", ()) if role else ():
            container = status.get("containerID", "").rpartition("/")[2]
            if pids := by_container.get(container):
                found.append(Look(at, container, role, pod["metadata"]["name"], use_of(pids)))
    return found


def _role(pod: Json) -> str:
    """What a pod is to us; empty if it is nothing."""
    labels = pod["metadata"].get("labels", {})
    if pod["metadata"]["namespace"] == SYSTEM and labels.get("app.kubernetes.io/component") == "operator":
        return LEADING if labels.get("shardherd.dev/leader") == "true" else STANDING_BY
    if pod["metadata"]["namespace"] == SOAK and "shardherd.dev/consumergroup" in labels:
        return PYTHON if labels["shardherd.dev/consumergroup"].startswith(PLAIN) else DRIVER
    return ""


@dataclass
class Sampler:
    """Looks until it is stopped, in a thread of its own. What it could not do is raised by `stop`."""

    lab: Lab
    every: float
    """Seconds between two looks."""
    looks: list[Look] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _failed: list[Exception] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._look, name="looks at processes", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> list[Look]:
        """End it; all looks."""
        self._stop.set()
        self._thread.join()
        if self._failed:
            raise self._failed[0]
        return self.looks

    def _look(self) -> None:
        while not self._stop.wait(self.every):
            try:
                self.looks += looks(self.lab)
            except Exception as error:  # noqa: BLE001 - raised in the main thread, by `stop`
                self._failed.append(error)
                return


@dataclass(frozen=True)
class Stored:
    """How many rows a group's ownership has."""

    shards: int
    consumers: int
    superseded: int
    other: int


@dataclass(frozen=True)
class Snapshot:
    """What there is at a moment at which all groups are calm."""

    stored: Mapping[str, Stored]
    series_of_shards: int
    other_series: int
    objects: Mapping[str, int]
    events: int


def stored(group: Group) -> Stored:
    """Of this group."""
    found = group.deployed.ownership()
    return Stored(
        shards=len(found.shards),
        consumers=len(found.consumers),
        superseded=sum(len(each.superseded) + len(each.proven) for each in found.consumers.values()),
        other=len(found.group.growths) + len(found.group.reset_ids) + len(found.group.reset_sources),
    )


def snapshot(lab: Lab, groups: Mapping[str, Group]) -> Snapshot:
    """All of it, now."""
    samples = lab.operator_metrics()
    of_shards = sum(1 for sample in samples if "shard" in sample.labels)
    kinds = lab.kube.run("api-resources", "--verbs=list", "--namespaced", "-o", "name").split()
    watched = ",".join(kind for kind in kinds if kind.partition(".")[0] != "events")
    objects: Counter[str] = Counter()
    for namespace in (SYSTEM, SOAK):
        for line in lab.kube.run("get", watched, "-n", namespace, "-o", "name").split():
            objects[f"{namespace}: {'copies of checkpoints' if COPIES.fullmatch(line) else line.partition('/')[0]}"] += 1
    return Snapshot(
        stored={kind: stored(group) for kind, group in groups.items()},
        series_of_shards=of_shards,
        other_series=len(samples) - of_shards,
        objects=objects,
        events=len(lab.kube.items("events", "-n", SOAK)) + len(lab.kube.items("events", "-n", SYSTEM)),
    )
