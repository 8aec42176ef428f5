"""`make bench-rebalance`: how long until everyone has its final share, ours and Kafka's two protocols on one broker in one run.

10 consumers, each a process of its own, share 1,000 shards. An 11th joins, it leaves, 900 shards are added; and a consumer is
killed, which ours knows by proof of death, and everybody by the session timeout of 45 s that all have by default.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.broker import broker, create_topic, delete_topic, grow_topic
from benchmarks.table import Row, render

ROOT = Path(__file__).resolve().parents[1]
CALM = 1.0
"""Seconds that a share must stay as it is to be the final one."""

JOIN_GOAL, LEAVE_GOAL, GROWTH_GOAL = 10.0, 10.0, 3.0


@dataclass
class Member:
    """One consumer's process."""

    process: subprocess.Popen[str]
    ordinal: int
    joined_at: float = 0.0
    start: int = 0
    count: int = 0
    changed_at: float = 0.0
    gone: bool = False


@dataclass
class Herd:
    """The consumers of one protocol on one topic. `coordinator` is ours, None for Kafka's."""

    protocol: str
    where: str
    group: str
    topic: str
    coordinator: subprocess.Popen[str] | None = None
    members: dict[int, Member] = field(default_factory=dict)

    def add(self, ordinal: int) -> Member:
        """Start one more; returns once it is about to join."""
        command = [sys.executable, "-m", "benchmarks.member", self.protocol, self.where, self.group, self.topic, str(ordinal)]
        member = Member(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True), ordinal)
        joining = threading.Event()
        threading.Thread(target=self._listen, args=(member, joining), daemon=True).start()
        if not joining.wait(60):
            raise RuntimeError(f"consumer {ordinal} of {self.protocol} did not start")
        self.members[ordinal] = member
        return member

    def leave(self, ordinal: int) -> float:
        """It leaves cleanly; the time at which it was told to."""
        at = time.monotonic()
        self.members[ordinal].gone = True
        self.members[ordinal].process.terminate()
        return at

    def kill(self, ordinal: int, *, proof: bool = False) -> float:
        """It dies; with `proof` the coordinator is told so. The time of it."""
        member = self.members[ordinal]
        member.gone = True
        at = time.monotonic()
        member.process.kill()
        member.process.wait()
        if proof and self.coordinator is not None:
            assert self.coordinator.stdin is not None
            self.coordinator.stdin.write(f"died {ordinal} {member.start}\n")
            self.coordinator.stdin.flush()
        return at

    def settled(self, shards: int, since: float, within: float = 120.0) -> float:
        """Seconds from `since` until everyone had its final share."""
        until = time.monotonic() + within
        while time.monotonic() < until:
            there = [member for member in self.members.values() if not member.gone]
            counts = [member.count for member in there]
            changed = max(member.changed_at for member in there)
            if sum(counts) == shards and max(counts) - min(counts) <= 1 and time.monotonic() - changed >= CALM:
                return max(0.0, changed - since)
            time.sleep(0.02)
        held = sorted(member.count for member in self.members.values() if not member.gone)
        raise RuntimeError(f"{self.protocol}: after {within:g} s the consumers hold {held} of {shards}")

    def close(self) -> None:
        """End all of it."""
        for member in self.members.values():
            if member.process.poll() is None:
                member.process.kill()
            member.process.wait()

    def _listen(self, member: Member, joining: threading.Event) -> None:
        assert member.process.stdout is not None
        for line in member.process.stdout:
            first, second = line.split()
            if first == "joining":
                member.joined_at = float(second)
                joining.set()
            elif first == "start":
                member.start = int(second)
            else:
                member.changed_at, member.count = float(first), int(second)


@contextlib.contextmanager
def herd(protocol: str, servers: str, topic: str, shards: int, consumers: int) -> Iterator[Herd]:
    """Consumers of this protocol, which hold everything."""
    group, coordinator, where = f"rebalance-{protocol}", None, servers
    if protocol == "ours":
        group = "g"
        command = [sys.executable, "-m", "benchmarks.serving", f"--kafka={servers}", f"--topic={topic}", f"--shards={shards}"]
        command += [f"--consumers={consumers}", "--session=45"]
        coordinator = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert coordinator.stdout is not None
        where = f"http://127.0.0.1:{int(coordinator.stdout.readline())}"
    made = Herd(protocol, where, group, topic, coordinator)
    try:
        first = [made.add(ordinal) for ordinal in range(consumers)]
        made.settled(shards, first[0].joined_at)
        yield made
    finally:
        made.close()
        if coordinator is not None:
            assert coordinator.stdin is not None
            coordinator.stdin.close()
            coordinator.wait(30)


def measure(protocol: str, servers: str, arguments: argparse.Namespace) -> dict[str, float]:
    """Seconds of each event for one protocol."""
    consumers, shards = arguments.consumers, arguments.shards
    topic = create_topic(servers, shards)
    joins, leaves = list[float](), list[float]()
    found: dict[str, float] = {}
    with herd(protocol, servers, topic, shards, consumers) as made:
        for _ in range(arguments.rounds):
            newcomer = made.add(consumers)
            joins.append(made.settled(shards, newcomer.joined_at))
            leaves.append(made.settled(shards, made.leave(consumers)))
            newcomer.process.wait(60)
        found["join"], found["leave"] = statistics.median(joins), statistics.median(leaves)
        if protocol == "ours":
            found["death, proven"] = made.settled(shards, made.kill(1, proof=True))
            again = made.add(1)
            made.settled(shards, again.joined_at)
        if not arguments.no_timeout:
            found["death, by timeout"] = made.settled(shards, made.kill(0))
        begun = time.monotonic()
        grow_topic(servers, topic, shards + arguments.growth)
        found["growth"] = made.settled(shards + arguments.growth, begun)
    delete_topic(servers, topic)
    for name, seconds in found.items():
        print(f"{protocol}: {name} {seconds:.3f} s", flush=True)
    return found


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--consumers", type=int, default=10)
    parser.add_argument("--shards", type=int, default=1000)
    parser.add_argument("--growth", type=int, default=900)
    parser.add_argument("--rounds", type=int, default=3, help="joins and leaves; the median counts")
    parser.add_argument("--no-timeout", action="store_true", help="leave out what waits for the session timeout")
    arguments = parser.parse_args()
    with broker() as servers:
        found = {protocol: measure(protocol, servers, arguments) for protocol in ("ours", "kip848", "classic")}
    goals = {"join": JOIN_GOAL, "leave": LEAVE_GOAL, "growth": GROWTH_GOAL}
    names = {"kip848": "KIP-848", "classic": "classic cooperative"}
    rows = [
        Row(f"{event} / {names[peer]}", found["ours"][event], found[peer][event], goal, "s")
        for event, goal in goals.items()
        for peer in names
        if (event, peer) != ("growth", "classic")
    ]
    note = "told to look every second"
    rows.append(Row(f"growth / {names['classic']}", found["ours"]["growth"], found["classic"]["growth"], 0, "s", note=note))
    timed = [peer for peer in names if "death, by timeout" in found[peer]]
    rows += [
        Row(f"death, by timeout / {names[peer]}", found["ours"]["death, by timeout"], found[peer]["death, by timeout"], 0, "s")
        for peer in timed
    ]
    rows += [
        Row(
            f"death, proven / {names[peer]} by timeout",
            found["ours"]["death, proven"],
            found[peer]["death, by timeout"],
            0,
            "s",
            note="Kafka knows no proof",
        )
        for peer in timed
    ]
    print(render(rows), flush=True)


if __name__ == "__main__":
    main()
