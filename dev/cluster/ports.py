"""Decides on which ports of this machine servers listen that `dev.cluster` or a test starts. Starts nothing."""

from __future__ import annotations

import os
import socket
from itertools import chain

from dev.cluster.errors import ClusterError

HOST = "127.0.0.1"
PORTS = range(12_000, 20_000)
"""Outside of the range from which the machine gives ports to clients, and of the one of one-machine mode."""

_claims: list[socket.socket] = []


def free_ports(count: int, first: int | None = None) -> list[int]:
    """So many ports that are free now.

    No port is given again while the process lives that it was given to, to this one or to another: on some nobody listens yet,
    on some nobody does for a while. They are looked for from `first` on; left out, where depends on the process.
    """
    start = PORTS[os.getpid() % len(PORTS)] if first is None else first
    return [_free(start) for _ in range(count)]


def _free(start: int) -> int:
    for port in chain(range(start, PORTS.stop), range(PORTS.start, start)):
        claim = socket.socket(socket.AF_UNIX)
        try:
            # A name without a file: it is one of the network namespace, as ports are, and is free again when the process ends.
            claim.bind(f"\0shardherd-port-{port}")
            with socket.socket() as probe:
                probe.bind((HOST, port))
        except OSError:
            claim.close()
            continue
        _claims.append(claim)
        return port
    raise ClusterError(f"no port is free from {PORTS.start} to {PORTS.stop}")
