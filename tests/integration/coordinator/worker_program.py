"""What the workers of these tests process records with: a line a record, in a file, once it is done with."""

from __future__ import annotations

import os
import time
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


class Sequences(Processor):
    """A line a record: key, value. All workers append to one file, whose order is thus that in which they processed records."""

    def __init__(self) -> None:
        folder = Path(os.environ["NOTES"])
        self._held_up = folder / "held-up"
        self._file = os.open(folder / "sequences", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def process(self, records: Records, checkpoint: Checkpoint) -> None:
        while self._held_up.exists() and records.shard in self._held_up.read_text().splitlines():
            time.sleep(0.02)
        lines = [b"%s %s\n" % (record.key or b"", record.value or b"") for record in records]
        os.write(self._file, b"".join(lines))

    def shutdown(self, checkpoint: Checkpoint) -> None:
        super().shutdown(checkpoint)
        os.close(self._file)
