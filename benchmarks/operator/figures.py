"""Reads figures of an operator's process: what it uses, from /proc, and what it counts, from its metrics. Decides nothing."""

from __future__ import annotations

import os
import re
import urllib.request
from dataclasses import dataclass
from pathlib import Path

_SAMPLE = re.compile(r"^(?P<name>\w+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)$")


@dataclass(frozen=True)
class Use:
    """CPU seconds so far, resident memory now and at its most (MiB), threads, and open connections by the port they lead to."""

    cpu: float
    resident: float
    most: float
    threads: int
    sockets: dict[int, int]


def use(pid: int) -> Use:
    """What this process uses."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    cpu = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    return Use(
        cpu=cpu,
        resident=int(status["VmRSS"].split()[0]) / 1024,
        most=int(status["VmHWM"].split()[0]) / 1024,
        threads=int(status["Threads"]),
        sockets=_sockets(pid),
    )


def _sockets(pid: int) -> dict[int, int]:
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(link.readlink())
        except FileNotFoundError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    found: dict[int, int] = {}
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        parts = line.split()
        if parts[9] in inodes and parts[3] == "01":
            port = int(parts[2].split(":")[1], 16)
            found[port] = found.get(port, 0) + 1
    return found


@dataclass(frozen=True)
class Counts:
    """The samples of one scrape, by name and labels."""

    samples: dict[tuple[str, str], float]

    def total(self, name: str, *, but: str = "") -> float:
        """The sum of all series of a metric, without those whose labels have `but`."""
        return sum(value for (each, labels), value in self.samples.items() if each == name and not (but and but in labels))

    def quantile(self, name: str, share: float, before: Counts) -> float:
        """Which upper bound of a histogram so large a share of what was counted since `before` is below."""
        buckets = []
        for (each, labels), value in self.samples.items():
            if each == f"{name}_bucket":
                bound = float(labels.partition('le="')[2].partition('"')[0])
                buckets.append((bound, value - before.samples.get((each, labels), 0.0)))
        buckets.sort()
        whole = buckets[-1][1] if buckets else 0.0
        return next((bound for bound, count in buckets if count >= share * whole), float("nan"))


def scrape(port: int) -> Counts:
    """What an operator counts."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as response:
        text = response.read().decode()
    samples = {}
    for line in text.splitlines():
        match = _SAMPLE.match(line)
        if match:
            samples[match["name"], match["labels"] or ""] = float(match["value"])
    return Counts(samples)
