"""What pods stand on here: the state folder's places, the Python that runs them, free ports, and how long a restart waits.

Used by `node` and the composition root. Decides no more than that.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from shardherd.adapters.local.containers import Container
from shardherd.adapters.local.objects import Json

PORTS = range(20_000, 32_000)
"""Where drivers' ports are looked for: outside of the range from which the machine gives ports to clients."""


class NoPortError(Exception):
    """Every port is taken."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Seconds until a container that ended is started again: doubled each time, until it has run for `forgotten`.

    A kubelet waits 10 s to 5 min; who sits in front of the machine waits less.
    """

    first: float = 1.0
    most: float = 60.0
    forgotten: float = 600.0

    def after(self, ends: int) -> float:
        """The wait after so many ends in a row."""
        return min(self.most, self.first * 2.0 ** min(ends - 1, 30))


@dataclass(frozen=True, slots=True)
class Machine:
    """`state` is the state folder; `python` runs the applications; `inherited` is the environment that they all have."""

    state: Path
    python: str
    inherited: Mapping[str, str]
    backoff: Backoff = Backoff()

    def log_of(self, pod: Json, start: int) -> Path:
        """What this start of the pod writes."""
        metadata = pod["metadata"]
        place = self.state / "logs" / f"{metadata['namespace']}" / f"{metadata['name']}"
        return place / f"{metadata['uid'][:8]}.{start}.log"

    def container(self, uid: str) -> Container:
        """The container of the pod with this UID."""
        return Container(self.short / "pods" / uid, uid)

    def temporary(self, uid: str) -> Path:
        """What the folder of this pod's temporary files is called, for the sockets of Spark's Python workers in it."""
        return self.short / "t" / uid[:8]

    def claims(self, namespace: str) -> Path:
        """The folder of the namespace's volume claims."""
        return self.state / "volumes" / namespace

    @property
    def short(self) -> Path:
        """The state folder by a name that is short enough for the sockets below it."""
        link = self.state / "short"
        return link.readlink() if link.is_symlink() else self.state


def free_port() -> int:
    """A port on which nobody listens now, another one each time."""
    first = random.choice(PORTS)
    for port in chain(range(first, PORTS.stop), PORTS):
        with socket.socket() as tried:
            try:
                tried.bind(("0.0.0.0", port))
            except OSError:
                continue
            return port
    raise NoPortError(f"no port is free from {PORTS.start} to {PORTS.stop}")
