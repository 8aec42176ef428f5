"""Counts the clicks of each page, shard by shard, and writes the counts to a file of this consumer's run."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

from shardherd.worker import Checkpoint, Processor, Records


class Clicks(Processor):
    """One of these for each shard that this consumer holds; never called twice at once."""

    def initialize(self, shard: str) -> None:
        self.shard = shard
        folder = Path(os.environ.get("OUTPUT", "counts"))
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / f"{os.environ['SHARDHERD_CONSUMER']}.{os.environ['SHARDHERD_START']}.jsonl"

    def process(self, records: Records, _checkpoint: Checkpoint) -> None:
        pages = Counter(page_of(record.value) for record in records)
        line = {"shard": self.shard, "from": records.position, "to": records.done, "pages": dict(sorted(pages.items()))}
        # Appended whole, before its position counts as done: what is there twice was read again.
        with self.file.open("a") as file:
            file.write(json.dumps(line) + "\n")


def page_of(value: bytes | None) -> str:
    """The page of a click; empty for what is no click."""
    try:
        click = json.loads(value or b"")
    except ValueError:
        return ""
    return str(click.get("page", "")) if isinstance(click, dict) else ""
