"""Decides where everything of the local cluster lives on disk. Read by every module here. Creates nothing.

The cache (`SHARDHERD_CACHE`; default ~/.cache/shardherd, or where XDG_CACHE_HOME says) holds what is built once;
`clusters/NAME` in it is the state of one instance. Unix sockets live below /run/shardherd/NAME, because the path of a socket
may not exceed 107 bytes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCES = Path(__file__).resolve().parent / "tools"


def cache() -> Path:
    """The folder of all that may be built again."""
    if chosen := os.environ.get("SHARDHERD_CACHE"):
        return Path(chosen).expanduser().resolve()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shardherd"


def clusters() -> Path:
    """The folder with one folder of state per instance, and the registry of their addresses."""
    return cache() / "clusters"


@dataclass(frozen=True)
class Layout:
    """The paths of one instance."""

    name: str

    @property
    def state(self) -> Path:
        return clusters() / self.name

    @property
    def run(self) -> Path:
        return Path("/run/shardherd") / self.name

    @property
    def record(self) -> Path:
        """Which process is the instance's first one."""
        return self.state / "process.json"

    @property
    def control_socket(self) -> Path:
        return self.run / "control.sock"

    @property
    def containerd_socket(self) -> Path:
        return self.run / "containerd.sock"

    @property
    def kubeconfig(self) -> Path:
        return self.state / "kubeconfig"

    @property
    def certificates(self) -> Path:
        return self.state / "certificates"

    @property
    def config(self) -> Path:
        return self.state / "config"

    @property
    def logs(self) -> Path:
        return self.state / "logs"

    def log(self, daemon: str) -> Path:
        return self.logs / f"{daemon}.log"
