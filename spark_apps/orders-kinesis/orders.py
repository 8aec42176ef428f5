"""Keeps a journal of what happens to orders, in the order of each order's events, in a file of this consumer's run."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from shardherd.worker import Checkpoint, Processor, Records


class Orders(Processor):
    """One of these for each shard that this consumer holds; never called twice at once."""

    def initialize(self, _shard: str) -> None:
        folder = Path(os.environ.get("OUTPUT", "journal"))
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / f"{os.environ['SHARDHERD_CONSUMER']}.{os.environ['SHARDHERD_START']}.jsonl"

    def process(self, records: Records, _checkpoint: Checkpoint) -> None:
        lines = [
            json.dumps(
                {
                    "order": (record.key or b"").decode(),
                    "event": (record.value or b"").decode(errors="replace"),
                    "shard": records.shard,
                    # 56 digits: text, as most readers of JSON make a float of such a number.
                    "sequenceNumber": str(record.offset),
                    "sub": record.sub,
                    "at": time.time_ns(),
                }
            )
            for record in records
        ]
        # Appended whole, before its position counts as done: what is there twice was read again.
        with self.file.open("a") as file:
            file.writelines(f"{line}\n" for line in lines)
