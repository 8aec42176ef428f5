"""Decides which addresses an instance gets. Called by `cluster` under one lock for the machine. Starts nothing.

Instance i owns 10.88.i.0/24 (the wire between the machine, .1, and the node, .2), 10.89.i.0/24 (pods) and 10.90.i.0/24
(services). A number whose wire is already used by something else on the machine is passed over.
"""

from __future__ import annotations

import fcntl
import ipaddress
import json
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dev.cluster.errors import ClusterError
from dev.cluster.paths import clusters

NAME = re.compile(r"[a-z]([a-z0-9-]{0,30}[a-z0-9])?")
INSTANCES = range(1, 255)


@dataclass(frozen=True)
class Addresses:
    """The addresses of instance `index`. All are IPv4, as text."""

    index: int

    @property
    def link(self) -> str:
        """Name of the machine's end of the wire."""
        return f"shardherd{self.index}"

    @property
    def wire(self) -> str:
        return f"10.88.{self.index}.0/24"

    @property
    def machine(self) -> str:
        return f"10.88.{self.index}.1"

    @property
    def node(self) -> str:
        return f"10.88.{self.index}.2"

    @property
    def pods(self) -> str:
        return f"10.89.{self.index}.0/24"

    @property
    def services(self) -> str:
        return f"10.90.{self.index}.0/24"

    @property
    def first_service(self) -> str:
        """The address that Kubernetes gives to the service `kubernetes`."""
        return f"10.90.{self.index}.1"


def check_name(name: str) -> str:
    """The name itself, if it can name an instance; ClusterError otherwise."""
    if not NAME.fullmatch(name):
        raise ClusterError(f"name {name!r}: use 1 to 32 lower-case letters, digits and dashes, first a letter, last no dash")
    return name


def allocate(name: str, taken: Mapping[str, int], routes: Iterable[str]) -> Addresses:
    """The addresses of `name`: those that it has, or the lowest free ones that overlap none of the machine's `routes`."""
    if name in taken:
        return Addresses(taken[name])
    used = set(taken.values())
    networks = [ipaddress.ip_network(route, strict=False) for route in routes]
    for index in INSTANCES:
        candidate = Addresses(index)
        ours = [ipaddress.ip_network(each) for each in (candidate.wire, candidate.pods, candidate.services)]
        if index not in used and not any(a.overlaps(b) for a in ours for b in networks):
            return candidate
    raise ClusterError(f"no address left for instance {name!r}: {len(used)} instances exist; remove one with `down`")


def routes_of_machine() -> list[str]:
    """Every IPv4 network that the machine has a route to, except the default route."""
    listing = subprocess.run(["ip", "-4", "-j", "route", "show", "table", "all"], check=True, capture_output=True, text=True)
    return [route["dst"] for route in json.loads(listing.stdout or "[]") if route["dst"] != "default"]


class Registry:
    """The file that remembers which instance has which number, and what the first instance changed on the machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / "registry.json"

    @contextmanager
    def open(self) -> Iterator[dict[str, Any]]:
        """The content, to be changed in place; written back when the block ends. One process at a time."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "registry.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            content: dict[str, Any] = json.loads(self._file.read_text()) if self._file.exists() else {}
            content.setdefault("instances", {})
            content.setdefault("created", [])
            content.setdefault("sysctls", {})
            yield content
            scratch = self._file.with_suffix(".new")
            scratch.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
            scratch.replace(self._file)


def registry() -> Registry:
    """The registry of this machine's cache."""
    return Registry(clusters())
