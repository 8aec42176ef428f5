"""The three groups of a run, each with a producer: stateless and ordered ones of Spark, and one of plain Python consumers.

Called by `run`. They are those of the end-to-end tests, in a namespace of their own and sized for two cores. It says how to
declare something else, and what each has read; it decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from dev.demo.kube import is_true
from dev.demo.lab import Lab
from dev.demo.place import CLAIM
from dev.demo.sink import SCHEMA, Rows
from dev.demo.traffic import Traffic
from dev.soak.plan import CONSUMERS, ORDERED, PLAIN, SESSION_S, SHARDS, STATELESS
from tests.e2e import plain
from tests.e2e.groups import RESOURCE, SOAK, Deployed, group
from tests.e2e.running import start

RATES = {STATELESS: 150, ORDERED: 75}
"""Records a second; that of the plain group is the harness's own."""

TRIGGER = "2 seconds"
"""How often a micro-batch begins. Four drivers share two cores, and every micro-batch makes files."""

START_S, CALM_S, DRAIN_S = 420.0, 300.0, 300.0
"""Seconds in which a group must be Ready, be calm again, and have committed everything once its producer has stopped."""


@dataclass(frozen=True)
class Group:
    """One of the three. `kind` is its name in the plan."""

    kind: str
    deployed: Deployed
    traffic: Traffic
    rows: Callable[[], Rows]

    @property
    def name(self) -> str:
        return self.deployed.name

    def pod(self, number: int) -> str:
        """The name of a consumer's pod."""
        return f"{self.name}-{number}"

    def scale(self, consumers: int) -> None:
        """Have at most so many consumers."""
        self.deployed.change({"replicas": consumers} if self.kind == PLAIN else {"scaling": {"maxReplicas": consumers}})

    def roll_out(self, number: str) -> None:
        """Declare other pods."""
        self.deployed.change({"application": {"env": environment(self.kind, number)}})

    def await_ready(self) -> None:
        """Wait until all of its consumers run."""
        self.deployed.await_ready(START_S)

    def await_calm(self, consumers: int, shards: int) -> None:
        """Wait until so many consumers hold all shards, and the group is Ready and Balanced."""

        def calm() -> bool:
            resource = self.deployed.resource()
            holders = [holder for holder, _, _ in self.deployed.grants().values() if holder is not None]
            there = is_true(resource, "Ready") and is_true(resource, "Balanced")
            return there and len(holders) == shards and len(set(holders)) == consumers

        self.deployed.until(f"is read evenly by {consumers}", calm, CALM_S, every=1)

    def await_committed(self, produced: Mapping[str, int]) -> None:
        """Wait until everything that was produced is committed."""
        wanted = {shard: number for shard, number in produced.items() if number}
        self.deployed.until("has committed everything", lambda: self.committed() == wanted, DRAIN_S, every=2)

    def committed(self) -> dict[str, int]:
        """The committed offset of each shard that has more than none, as Kafka itself says."""
        found = self.deployed.lab.committed(f"{self.deployed.namespace}.{self.name}")
        return {shard: offset for shard, offset in found.items() if offset}


def environment(kind: str, rollout: str) -> list[dict[str, str]]:
    """The environment of an application; another one for each rollout."""
    found = [{"name": "ROLLOUT", "value": rollout}]
    return found if kind == PLAIN else [*found, {"name": "TRIGGER", "value": TRIGGER}]


@contextmanager
def three(lab: Lab) -> Iterator[dict[str, Group]]:
    """All three, calm; deleted afterwards, their producers stopped."""
    lab.make_volume(SOAK, CLAIM)
    plain.prepare(lab, SOAK)
    with ExitStack() as stack:
        groups: dict[str, Group] = {}
        for kind in (STATELESS, ORDERED):
            # One after the other: drivers that start take all that there is of two cores, from the operators too.
            groups[kind] = _of_spark(lab, stack, kind)
            groups[kind].await_ready()
        reading = plain.reading(
            lab,
            PLAIN,
            consumers=CONSUMERS,
            shards=SHARDS,
            namespace=SOAK,
            sessionTimeout=f"{SESSION_S:.0f}s",
            application__env=environment(PLAIN, "0"),
        )
        consumers = stack.enter_context(reading)
        groups[PLAIN] = Group(PLAIN, consumers, consumers.traffic, lambda: rows_of(consumers.reads()))
        groups[PLAIN].await_ready()
        for each in groups.values():
            each.await_calm(CONSUMERS, SHARDS)
        yield groups


def _of_spark(lab: Lab, stack: ExitStack, kind: str) -> Group:
    """One of Spark drivers without executors."""
    changes: dict[str, Any] = {
        "source__kafka": {"bootstrapServers": "kafka:9092", "topics": [kind]},
        "sessionTimeout": f"{SESSION_S:.0f}s",
        "heartbeatInterval": "2s",
        "ordered": kind == ORDERED,
        "scaling__shardsPerConsumer": SHARDS // CONSUMERS,
        "scaling__maxReplicas": CONSUMERS,
        "application__arguments": [f"/data/{kind}/rows"],
        "application__env": environment(kind, "0"),
    }
    declared = group(kind, SOAK, **changes)
    running = start(lab, SOAK, kind, SHARDS, 0, RATES[kind], lambda: lab.kube.apply(declared))
    stack.callback(lab.kube.attempt, "delete", RESOURCE, kind, "-n", SOAK, "--ignore-not-found", "--wait=false")
    stack.callback(running.traffic.end)
    return Group(kind, running, running.traffic, running.sink.rows)


def rows_of(reads: list[plain.Read]) -> Rows:
    """What plain consumers have noted, as rows of a sink: one for each record, made when it was read."""
    columns: Mapping[str, list[Any]] = {name: [] for name in SCHEMA.names}
    for read in reads:
        many, moment = read.end - read.begin, round(read.at * 1e6)
        values = {"shard": read.shard, "owner": read.consumer, "processed_at": moment, "event_time": moment}
        for name, value in values.items():
            columns[name].extend([value] * many)
        columns["offset"].extend(range(read.begin, read.end))
    return Rows.of(pa.table({field.name: pa.array(columns[field.name], field.type) for field in SCHEMA}))
