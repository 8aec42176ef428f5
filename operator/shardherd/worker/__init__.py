"""Plain Python consumers: a processor for each shard, and everything around it.

from shardherd.worker import Processor, run

class Clicks(Processor):
    def process(self, records, checkpoint):
        for record in records:
            ...

run(Clicks)
"""

from shardherd.worker.options import Options, WorkerOptionError
from shardherd.worker.processor import AsyncCheckpoint, AsyncProcessor, Checkpoint, Processor
from shardherd.worker.records import Record, Records
from shardherd.worker.worker import Worker, run

__all__ = [
    "AsyncCheckpoint",
    "AsyncProcessor",
    "Checkpoint",
    "Options",
    "Processor",
    "Record",
    "Records",
    "Worker",
    "WorkerOptionError",
    "run",
]
