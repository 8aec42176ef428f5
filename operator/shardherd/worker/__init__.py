"""Plain Python consumers: a processor for each shard, and everything around it.

from shardherd.worker import Processor, run

class Clicks(Processor):
    def process(self, records, checkpoint):
        for record in records:
            ...

run(Clicks)
"""

from shardherd.source.kafka_python.unfinished_package import leave_unfinished

# Before anything imports kafka-python, of which a worker uses parts only.
leave_unfinished()

from shardherd.worker.asynchronous import AsyncOperator  # noqa: E402
from shardherd.worker.database_output import DatabaseOutput  # noqa: E402
from shardherd.worker.delivery import BadRecordError  # noqa: E402
from shardherd.worker.guarantees import OutputsError  # noqa: E402
from shardherd.worker.kafka_output import KafkaOutput  # noqa: E402
from shardherd.worker.listener import Listener  # noqa: E402
from shardherd.worker.options import Options, WorkerOptionError  # noqa: E402
from shardherd.worker.output import Output, ShardGrant, TransactionalOutput  # noqa: E402
from shardherd.worker.outputs import Outputs  # noqa: E402
from shardherd.worker.processor import AsyncCheckpoint, AsyncProcessor, Checkpoint, Processor  # noqa: E402
from shardherd.worker.record_processor import Ack, RecordProcessor  # noqa: E402
from shardherd.worker.records import Record, Records  # noqa: E402
from shardherd.worker.trees import Out, TreeProcessor, Tuple  # noqa: E402
from shardherd.worker.worker import Worker, run  # noqa: E402

__all__ = [
    "Ack",
    "AsyncCheckpoint",
    "AsyncOperator",
    "AsyncProcessor",
    "BadRecordError",
    "Checkpoint",
    "DatabaseOutput",
    "KafkaOutput",
    "Listener",
    "Options",
    "Out",
    "Output",
    "Outputs",
    "OutputsError",
    "Processor",
    "Record",
    "RecordProcessor",
    "Records",
    "ShardGrant",
    "TransactionalOutput",
    "TreeProcessor",
    "Tuple",
    "Worker",
    "WorkerOptionError",
    "run",
]
