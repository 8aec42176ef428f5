"""The example orders-kinesis under load: what writes its stream, splits and merges it, and what its journal says.

Called by the tests that run the example on one machine and on a cluster. It starts nothing, and asserts nothing.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tests.harness.kinesis import merge, open_shards, split
from tests.harness.kinesis_load import put_round

STREAM = "orders"
ORDERS = tuple(f"order-{number}" for number in range(20))

Line = dict[str, Any]
"""What the example has written of one record."""
Until = Callable[[str, Callable[[], Any]], Any]
"""Waits for something that is named."""


class Writer:
    """Writes events 0, 1, 2 and so on of each order, a round every tenth of a second; every other one aggregated."""

    def __init__(self, client: Any) -> None:
        self.rounds = 0
        self._client = client
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def end(self) -> None:
        self._over.set()
        self._thread.join()

    def _write(self) -> None:
        while not self._over.wait(0.1):
            put_round(self._client, STREAM, ORDERS, self.rounds)
            self.rounds += 1


def lines(files: Iterable[Path]) -> list[Line]:
    """All lines that were written whole in these files."""
    found = [line for file in files for line in file.read_text().splitlines(keepends=True)]
    return [json.loads(line) for line in found if line.endswith("\n")]


def events(journal: list[Line]) -> dict[str, list[int]]:
    """The events of each order, as they were written."""
    found: dict[str, list[int]] = {each: [] for each in ORDERS}
    for line in sorted(journal, key=lambda line: int(line["at"])):
        found[line["order"]].append(int(line["event"]))
    return found


def split_and_merge(until: Until, journal: Callable[[], list[Line]], client: Any) -> None:
    """Split the first shard of two, and merge one of its children with the other shard, each once what was before is read."""

    def reads(shard: str) -> bool:
        return f"{STREAM}/{shard}" in {line["shard"] for line in journal()}

    low, high = open_shards(client, STREAM)
    until("reads both shards", lambda: reads(low) and reads(high))
    split(client, STREAM, low)
    children = open_shards(client, STREAM)[1:]
    until("reads the children", lambda: all(map(reads, children)))
    merge(client, STREAM, children[1], high)
    until("reads what they were merged into", lambda: reads(open_shards(client, STREAM)[-1]))
