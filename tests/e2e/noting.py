"""A processor of plain Python consumers that notes, in a file of its run, which records it was given and when.

Runs in the pods of `test_worker`'s group, to which a ConfigMap brings it. The folder is that of its group, below NOTES; its
sink is away while a file `<group>.away` stands beside it. A batch that fails has noted nothing, so what is noted twice was
processed twice.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from shardherd.worker import Checkpoint, Processor, Records


class Noting(Processor):
    """A line for each batch: shard, begin, end, and seconds since 1970."""

    def process(self, records: Records, checkpoint: Checkpoint) -> None:
        folder = Path(os.environ["NOTES"], os.environ["SHARDHERD_GROUP"])
        if folder.with_suffix(".away").exists():
            raise ConnectionError("the sink is away")
        folder.mkdir(parents=True, exist_ok=True)
        run = ".".join(os.environ[f"SHARDHERD_{each}"] for each in ("CONSUMER", "POD_UID", "START"))
        with (folder / run).open("a") as notes:
            found = {"shard": records.shard, "begin": records.position, "end": records.next, "at": time.time()}
            notes.write(json.dumps(found) + "\n")
