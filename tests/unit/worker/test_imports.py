"""What a worker's process imports before it has read anything: each megabyte is there once for every consumer."""

from __future__ import annotations

import subprocess
import sys

from tests.harness.objects import objects
from tests.unit.source.kafka_bytes import Record, batch_of

NOT_NEEDED = (
    "kopf", "kubernetes", "llvmlite", "numba", "opentelemetry", "pandas", "prometheus_client", "py4j", "pyarrow", "pyspark",
)  # fmt: skip

BATCH = batch_of([Record(7, value=b"a"), Record(9, value=b"b")], codec="lz4")

READ = f"""
import sys
import shardherd.worker.starting
from shardherd.core.model.nouns import ShardId
from shardherd.source.kafka.fetching import Fetched
from shardherd.worker.fetched import batches
from shardherd.worker.fetching import KafkaFetcher

shard, data = ShardId("clicks/0"), bytes.fromhex({BATCH.hex()!r})
fetcher = KafkaFetcher(None, None, memory=0, fail_on_data_loss=True)
(records,) = batches(fetcher._part(Fetched(shard, 7, data, 10)), 500)
print([(record.offset, record.value) for record in records])
print([name for name in {NOT_NEEDED!r} if name in sys.modules])
print(records.table.num_rows, "pyarrow" in sys.modules)
"""


def test_a_worker_that_reads_records_one_by_one_imports_nothing_that_it_does_not_need() -> None:
    """Nor Arrow, which comes with the first program that asks for it."""
    objects()
    done = subprocess.run([sys.executable, "-c", READ], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["[(7, b'a'), (9, b'b')]", "[]", "2 True"], done.stderr
