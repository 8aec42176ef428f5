"""Decides the wire between the machine and an instance. Called by `cluster` once the instance's first process lives.

The machine gets one link and two routes, which the kernel removes with the instance's network namespace. Nothing else of the
machine's network is touched: no iptables rule, no /etc/hosts line, no bridge.
"""

from __future__ import annotations

import subprocess

from dev.cluster.errors import ClusterError
from dev.cluster.registry import Addresses


def _batch(commands: list[str], prefix: list[str]) -> None:
    done = subprocess.run(
        [*prefix, "ip", "-batch", "-"], input="\n".join(commands) + "\n", capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise ClusterError(f"`ip` refused the instance's network:\n{done.stderr.strip()}")


def connect(addresses: Addresses, pid: int) -> None:
    """Lay the wire to the network namespace of process `pid`, and route the instance's pods and services through it."""
    remove(addresses)
    inside = ["nsenter", f"--net=/proc/{pid}/ns/net"]
    _batch([f"link add {addresses.link} type veth peer name eth0 netns {pid}"], [])
    _batch(
        [
            "link set lo up",
            f"address add {addresses.node}/24 dev eth0",
            "link set eth0 up",
            f"route add default via {addresses.machine}",
        ],
        inside,
    )
    _batch(
        [
            f"address add {addresses.machine}/24 dev {addresses.link}",
            f"link set {addresses.link} up",
            f"route add {addresses.pods} via {addresses.node}",
            f"route add {addresses.services} via {addresses.node}",
        ],
        [],
    )
    subprocess.run([*inside, "sysctl", "-q", "-w", "net.ipv4.ip_forward=1"], check=True)


def remove(addresses: Addresses) -> None:
    """Remove the machine's end, if it is there. The kernel does so by itself a moment after the namespace is gone."""
    subprocess.run(["ip", "link", "delete", addresses.link], capture_output=True, check=False)
