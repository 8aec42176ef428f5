"""The processor of the workers in `test_workers`: it notes the range of each batch in a file of its run, if its sink is there.

The sink is away while the file AWAY exists. A batch that fails has noted nothing, so what is noted twice was processed twice.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from shardherd.worker import Checkpoint, Processor, Records


class Ranges(Processor):
    """A line for each batch: shard, begin, end."""

    def process(self, records: Records, checkpoint: Checkpoint) -> None:
        folder = Path(os.environ["NOTES"])
        if (folder / "away").exists():
            raise ConnectionError("the sink is away")
        notes = folder / "ranges"
        notes.mkdir(parents=True, exist_ok=True)
        name, start = os.environ["SHARDHERD_CONSUMER"], os.environ["SHARDHERD_START"]
        with (notes / f"{name}.{os.environ['SHARDHERD_POD_UID']}.{start}").open("a") as file:
            found = {"shard": records.shard, "begin": records.position, "end": records.next}
            file.write(json.dumps(found) + "\n")
