"""A group with cells under trial: records are written, things happen to it, and its tables must be those of one query.

What a group must have written is said here; how it is run is the affair of a `Group`, of which there is one for each place.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from tests.harness.keyed.application import CELLS
from tests.harness.keyed.records import Records
from tests.harness.keyed.reference import Reference, Rows, tables
from tests.harness.keyed.schedule import Step

T = TypeVar("T")

CLAIM = "state"
FILE = "/opt/keyed/application.py"


class Written(NamedTuple):
    """A micro-batch of a cell that was written, and by which run of which consumer."""

    consumer: str
    incarnation: str
    cell: int
    batch: int
    ranges: dict[str, list[int]]
    """Of each shard the first offset, and the one after the last."""


def declared(records: Records, consumers: int, notes: str, settle: str | None) -> dict[str, Any]:
    """What is the same of the group's `spec` wherever it runs; its tables and its history are below `notes`.

    `settle` is how long an ordered group waits once a topic grew; without it is not ordered.
    """
    ordered: dict[str, Any] = {} if settle is None else {"ordered": True, "sessionTimeout": "15s"}
    growth = {} if settle is None else {"growth": {"settle": settle}}
    return ordered | {
        "source": {"kafka": {"bootstrapServers": "kafka:9092", "topics": [records.clicks, records.views], **growth}},
        "replicas": consumers,
        "scaling": {"mode": "External"},
        "heartbeatInterval": "1s",
        "state": {"cells": CELLS, "checkpoint": {"claimName": CLAIM}},
        "application": {
            "mainApplicationFile": FILE,
            "arguments": [f"{notes}/tables", records.clicks, records.views],
            "driver": {"cores": 1, "memory": "640m"},
        },
    }


class Group(Protocol):
    """How the group is run. Its consumers are called `<name>-0`, `<name>-1` and so on."""

    @property
    def name(self) -> str: ...

    @property
    def settle(self) -> str | None:
        """See `declared`."""

    @property
    def notes(self) -> Path:
        """Where the application writes, for a process of this machine."""

    def begin(self, records: Records, consumers: int) -> None:
        """Declare the group where an operator runs."""

    def scale(self, consumers: int) -> None: ...

    def kill(self, consumer: str) -> None:
        """`kill -9` of a driver, as soon as it runs."""

    def kill_operator(self) -> None:
        """`kill -9` of the operator. Returns when one leads again."""

    def end(self) -> None:
        """End all consumers, as who deletes the group does; returns when they have ended."""

    def holders(self) -> Mapping[str, str | None]:
        """Who holds each shard for good; None: it is on its way."""

    def until(self, what: str, holds: Callable[[], T]) -> T:
        """Wait until it holds; what it gave."""


G = TypeVar("G", bound=Group)


class Trial(Generic[G]):
    """A group, its records, and how many consumers it should have."""

    def __init__(self, folder: Path, group: G, records: Records) -> None:
        """`folder` is for the queries that it is compared with."""
        self.folder = folder
        self.group = group
        self.records = records
        self._consumers = 0
        self._before: Mapping[str, int] = {}
        """How much each shard had when the topics were doubled last."""

    # --- what happens ----------------------------------------------------------------------------------------------------

    def begin(self, consumers: int) -> None:
        self._consumers = consumers
        self.group.begin(self.records, consumers)

    def settle(self) -> None:
        """Wait until everybody that there should be holds cells, and nothing moves."""
        wanted = {f"{self.group.name}-{number}" for number in range(self._consumers)}

        def holds() -> bool:
            holders = self.group.holders()
            return len(holders) == self.records.shards and set(holders.values()) == wanted

        self.group.until(f"{sorted(wanted)} hold all cells", holds)

    def take(self, step: Step) -> None:
        match step.what:
            case "grow":
                self._scale(self._consumers + 1)
            case "shrink":
                self._scale(self._consumers - 1)
            case "kill":
                self.group.kill(f"{self.group.name}-{step.victim}")
            case "operator":
                self.group.kill_operator()
            case "double":
                self._before = self.records.ends(self.records.rounds - 1)
                self.records.double(self.group.until)
            case what:
                raise AssertionError(what)

    def _scale(self, consumers: int) -> None:
        self._consumers = consumers
        self.group.scale(consumers)

    def await_read(self, number: int, *, but: int | None = None) -> None:
        """Wait until the records of this round, and of those before, are finished and durable; of all cells but one."""
        ends = self.records.ends(number, but=but)

        def read() -> bool:
            at = self.records.positions()
            return all(at.get(shard, 0) >= end for shard, end in ends.items())

        self.group.until(f"round {number} is read: {ends}", read)

    # --- what comes of it ------------------------------------------------------------------------------------------------

    def one_query(self) -> Reference:
        """Begin to run, from the same records, one query of each kind that never moves."""
        return Reference(self.folder, self.records)

    def found(self, generation: int = 0) -> Rows:
        """What the cells have written."""
        return tables(self.group.notes / "tables" / str(generation))

    def rows_are_those_of_one_query(
        self, begin: int, steps: Iterable[Step], taken: Callable[[Step], object] = lambda _: None
    ) -> None:
        """Write a round of records before each step; then compare. The group has ended after that.

        `taken` is called after each step, when the round before its own is read.
        """
        self.begin(begin)
        self.records.write_round()
        self.settle()
        for step in steps:
            if step.settled:
                self.settle()
            self.records.write_round()
            self.take(step)
            self.await_read(self.records.rounds - 2)
            taken(step)
        self.settle()
        self.records.write_round()
        self.await_read(self.records.rounds - 1)
        self.records.write_end()
        running = self.one_query()
        self.await_read(self.records.rounds - 1)
        wanted = running.rows()

        def there() -> bool:
            return all(rows.total() >= wanted[name].total() for name, rows in self.found().items())

        self.group.until("all rows are there", there)
        self.group.end()
        assert self.found() == wanted

    def history(self) -> list[Written]:
        """What was written, in the order of time."""
        return [Written(*json.loads(line)) for line in (self.group.notes / "history").read_text().splitlines()]

    def new_shards_waited(self) -> None:
        """Each was begun when the one that had its keys before was read to where that had ended."""
        read: dict[str, int] = {}
        begun = set[str]()
        for written in self.history():
            for shard, (_, stop) in written.ranges.items():
                topic, _, number = shard.rpartition("/")
                if shard not in self._before and shard not in begun:
                    parent = f"{topic}/{int(number) % sum(each.startswith(f'{topic}/') for each in self._before)}"
                    ends = self._before[parent]
                    assert read[parent] >= ends, f"{shard} was begun when {parent} was read to {read[parent]} only, not {ends}"
                    begun.add(shard)
                read[shard] = max(stop, read.get(shard, 0))
        assert begun == set(self.records.ends(self.records.rounds - 1)) - set(self._before)

    def batch_ids_go_on(self) -> None:
        """In each cell, whoever ran its micro-batches, there is each number from 0."""
        batches: dict[int, set[int]] = defaultdict(set)
        for each in self.history():
            batches[each.cell].add(each.batch)
        assert set(batches) == set(range(CELLS))
        assert {cell: sorted(ids) for cell, ids in batches.items()} == {
            cell: list(range(max(ids) + 1)) for cell, ids in batches.items()
        }, "batch ids go on"
