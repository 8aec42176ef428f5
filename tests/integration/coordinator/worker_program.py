"""The processor of the workers in `test_workers`: it notes each record in a file of its run once it is done with it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TextIO

from shardherd.worker import Checkpoint, Processor, Records


class Notes(Processor):
    """A line a record: shard, offset, value. Written at once, as what was not written when a process is killed is not done."""

    def __init__(self) -> None:
        name, start = os.environ["SHARDHERD_CONSUMER"], os.environ["SHARDHERD_START"]
        self._file: TextIO = (Path(os.environ["NOTES"]) / f"{name}.{start}").open("a", buffering=1)

    def process(self, records: Records, checkpoint: Checkpoint) -> None:
        for record in records:
            assert record.value is not None
            self._file.write(f"{records.shard} {record.offset} {record.value.decode()}\n")

    def shutdown(self, checkpoint: Checkpoint) -> None:
        super().shutdown(checkpoint)
        self._file.close()
