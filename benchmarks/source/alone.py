"""Fetch and decode in one process, without Spark: `python -m benchmarks.source.alone SERVERS TOPIC PARTITIONS`.

Prints rows, seconds and CPU seconds. Connecting comes before the clock, as ConsumerPerformance leaves out joining its group.
"""

from __future__ import annotations

import json
import sys
import time

from benchmarks.source.cases import KAFKA_COLUMNS
from shardherd.core.model.nouns import ShardId
from shardherd.source.kafka.brokers import Brokers
from shardherd.source.reading.range_reader import read_ranges
from shardherd.source.reading.ranges import ShardRange


def main(servers: str, topic: str, partitions: int) -> None:
    """See the module."""
    brokers = Brokers(servers)
    shards = [ShardId(f"{topic}/{number}") for number in range(partitions)]
    ranges = [ShardRange(shard, 0, end) for shard, end in brokers.end_offsets(shards, 30).items()]
    columns = tuple(field.split()[0] for field in KAFKA_COLUMNS.split(", "))
    begun, used = time.monotonic(), time.process_time()
    rows = sum(batch.num_rows for batch in read_ranges(brokers, ranges, columns))
    print(json.dumps({"rows": rows, "seconds": time.monotonic() - begun, "cpu": time.process_time() - used}))
    brokers.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
