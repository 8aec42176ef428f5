"""Kinesis: what reading a shard costs beside boto3's plain loop, how near it comes to what AWS allows; what a coordinator asks.

The service is played, in a process of its own; the processor's time is that of the reader alone. Both sides turn records into
the same Arrow columns, and take turns. Run as `python -m benchmarks.kinesis`.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import boto3
import pyarrow as pa

from benchmarks.table import Row, middle, render
from shardherd.source.kinesis.client import AccessKeys, Kinesis, StreamAccess
from shardherd.source.kinesis.listing import ListedShard, list_shards
from shardherd.source.kinesis.pacing import BYTES, Pace, Share
from shardherd.source.kinesis.range_reading import read_ranges
from shardherd.source.kinesis.ranges import ShardRecords
from shardherd.source.kinesis.searching import Bounds, Search
from tests.harness.kinesis import REGION, open_writer, put
from tests.harness.kinesis_group import KinesisGroup

STREAM, LARGE, WIDE = "bench", "bench-large", "bench-wide"
SHARDS = 1000
CALLS = 31.0
"""Calls a second of a coordinator with so many shards, by the documentation."""
LASTS = 60.0
"""Seconds for which they are counted."""
COLUMNS = ("key", "value", "sequenceNumber", "timestamp")
NO_LIMITS = 1e12
LARGE_RECORDS, LARGE_SIZE = 12_000, 2000
"""Twenty-four megabytes: what a shard gives in twelve seconds."""
ROUNDS = 5


def written(url: str, stream: str, records: int, size: int) -> tuple[Kinesis, ListedShard, ShardRecords]:
    """A stream of one shard with so many records, and who reads it."""
    client = open_writer(url)
    client.create_stream(StreamName=stream, ShardCount=1)
    put(client, stream, [(f"key-{number % 1000}", number.to_bytes(8, "big") + bytes(size - 8)) for number in range(records)])
    kinesis = Kinesis(StreamAccess(stream, REGION, url, lambda: AccessKeys("key", "secret")))
    (shard,) = list_shards(kinesis)
    return kinesis, shard, planned(kinesis, shard)


def plain_loop(url: str, stream: str, shard: str, records: int) -> int:
    """As the examples of boto3 read a shard; what is refused is asked again after a second."""
    client = boto3.client("kinesis", REGION, endpoint_url=url, aws_access_key_id="key", aws_secret_access_key="secret")
    start = client.get_shard_iterator(StreamName=stream, ShardId=shard, ShardIteratorType="TRIM_HORIZON")
    iterator, count = start["ShardIterator"], 0
    while count < records:
        try:
            answer = client.get_records(ShardIterator=iterator, Limit=10_000)
        except client.exceptions.ProvisionedThroughputExceededException:
            time.sleep(1.0)
            continue
        iterator = answer["NextShardIterator"]
        found = answer["Records"]
        batch = pa.RecordBatch.from_arrays(
            [
                pa.array([each["PartitionKey"].encode() for each in found], pa.binary()),
                pa.array([each["Data"] for each in found], pa.binary()),
                pa.array([each["SequenceNumber"] for each in found], pa.string()),
                pa.array([each["ApproximateArrivalTimestamp"] for each in found], pa.timestamp("us", tz="UTC")),
            ],
            names=list(COLUMNS),
        )
        count += batch.num_rows
    return count


def ours(kinesis: Kinesis, wanted: ShardRecords, pace: Pace) -> int:
    return sum(batch.num_rows for batch in read_ranges(kinesis, pace, [wanted], COLUMNS))


def cost(read: Callable[[], int], records: int) -> float:
    """Seconds of this process's processor for a million records."""
    began = time.process_time()
    count = read()
    if count != records:
        raise SystemExit(f"{count} of {records} records were read")
    return (time.process_time() - began) / count * 1e6


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--records", type=int, default=50_000)
    arguments.add_argument("--size", type=int, default=200)
    given = arguments.parse_args()
    with served() as url, served("--limits") as limited:
        rows = [*processor(url, given.records, given.size), *throughput(limited), *coordinator(url)]
    sys.stdout.write(render(rows) + "\n")


@contextlib.contextmanager
def served(*arguments: str) -> Iterator[str]:
    """The service in a process of its own; yields its URL."""
    command = [sys.executable, "-m", "tests.harness.kinesis", *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as service:
        assert service.stdin is not None
        assert service.stdout is not None
        try:
            yield service.stdout.readline().strip()
        finally:
            service.stdin.close()


def processor(url: str, records: int, size: int) -> list[Row]:
    kinesis, shard, wanted = written(url, STREAM, records, size)
    pairs = []
    for _ in range(ROUNDS):
        fast = Pace(Share(NO_LIMITS, NO_LIMITS))
        mine = cost(lambda pace=fast: ours(kinesis, wanted, pace), records)  # type: ignore[misc]
        pairs.append((mine, cost(lambda: plain_loop(url, STREAM, shard.id, records), records)))
    return [
        Row(
            f"processor for a million records of {size} B",
            middle([mine for mine, _ in pairs]),
            middle([peer for _, peer in pairs]),
            goal=0.8,
            unit="s",
        )
    ]


def throughput(url: str) -> list[Row]:
    """Of a service that refuses what is above the limits of a shard. First answers are large, so it may be a little more."""
    kinesis, shard, wanted = written(url, LARGE, LARGE_RECORDS, LARGE_SIZE)

    def rate(read: Callable[[], int]) -> float:
        time.sleep(5.0)  # until nothing that was read before counts
        began = time.monotonic()
        if (count := read()) != LARGE_RECORDS:
            raise SystemExit(f"{count} of {LARGE_RECORDS} records were read")
        return LARGE_RECORDS * LARGE_SIZE / (time.monotonic() - began) / 1e6

    mine = rate(lambda: ours(kinesis, wanted, Pace()))
    peer = rate(lambda: plain_loop(url, LARGE, shard.id, LARGE_RECORDS))
    return [
        Row("one shard, and what AWS allows", mine, BYTES / 1e6, goal=0.9, unit="MB/s", more_is_better=True),
        Row("one shard, and boto3's plain loop", mine, peer, goal=0.9, unit="MB/s", more_is_better=True),
    ]


def coordinator(url: str) -> list[Row]:
    calls = coordinator_calls(url)
    said = ", ".join(f"{name} {count / LASTS:.1f}" for name, count in sorted(calls.items()))
    name = f"calls a second of a coordinator, {SHARDS:,} shards with records"
    return [Row(name, calls.total() / LASTS, CALLS, 1.0, "calls", note=said)]


class _Service:
    """What a played group needs of the service."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.client = open_writer(url)


def coordinator_calls(url: str) -> Counter[str]:
    """How often a coordinator calls Kinesis within LASTS seconds, by operation: all shards have positions, and lag."""
    service: Any = _Service(url)
    service.client.create_stream(StreamName=WIDE, ShardCount=SHARDS)
    hashes = {f"key-{number}": (2 * number + 1) * 2**127 // SHARDS for number in range(SHARDS)}
    if len(set(put(service.client, WIDE, [(key, b"unread") for key in hashes], hashes))) != SHARDS:
        raise SystemExit("not every shard has a record")
    counted: Counter[str] = Counter()
    lock, asked = threading.Lock(), Kinesis.call

    def call(kinesis: Kinesis, operation: str, **arguments: Any) -> dict[str, Any]:
        with lock:
            counted[operation] += 1
        return asked(kinesis, operation, **arguments)

    with mock.patch.object(Kinesis, "call", call), KinesisGroup(service, WIDE, discovery=1.0):
        with lock:
            counted.clear()
        time.sleep(LASTS)
        with lock:
            return Counter(counted)


def planned(kinesis: Kinesis, shard: ListedShard) -> ShardRecords:
    """The whole shard, as a planner finds it."""
    search = Search(kinesis, Pace(Share(NO_LIMITS, NO_LIMITS)))
    found = search.next(shard, 0, Bounds(span=1e9))
    newest = search.newest(shard)
    assert found is not None
    assert newest is not None
    return ShardRecords(shard.id, found.first, newest + 1, shard.hashes)


if __name__ == "__main__":
    main()
