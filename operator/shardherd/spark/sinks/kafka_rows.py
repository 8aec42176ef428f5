"""Writes the rows of one task to a topic, each shard's in a transaction with its position. In the executors' workers.

`kafka_topic` calls it, with all rows of a shard in one task. A producer is new for every shard of a micro-batch, so that
another attempt of this very task is fenced, too; the connection is kept from one micro-batch to the next.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from shardherd.core.model.nouns import ShardId
from shardherd.core.model.security import Security
from shardherd.source.encoding.record_encoding import Encoder, RowError
from shardherd.spark.running_batch import BatchRange
from shardherd.spark.sinks.positions import Pending
from shardherd.spark.sinks.rows import SHARD, Rows
from shardherd.transactions.kafka_transactions import Output, Transaction, Transactions
from shardherd.transactions.outcomes import ConflictError, SinkError
from shardherd.transactions.topics import connection, rounds_of

SHARD_BYTES = 4 * 1024 * 1024
"""Bytes of rows of one shard that are kept before they are sent."""

TASK_BYTES = 16 * 1024 * 1024
"""The same of all shards of a task."""


@dataclass(frozen=True, slots=True)
class WriteJob:
    """What every task of a micro-batch is told. There are no secrets in it, only names of files."""

    bootstrap_servers: str
    security: Security
    output: Output
    partitions: int
    compression: str
    columns: tuple[str, ...]
    ranges: Mapping[str, BatchRange]
    wanted: Mapping[str, Pending]
    by_record: bool = True


def write_records(batches: Iterable[pa.RecordBatch], job: WriteJob) -> Iterator[pa.RecordBatch]:
    """Write the rows that the output does not have yet. Gives one row for each shard of which there were some."""
    rows = Rows(job.ranges, job.wanted, by_record=job.by_record)
    writing = _Writing(connection(job.bootstrap_servers, job.security), job)
    conflict = ""
    try:
        for batch in map(rows.of_batch, batches):
            writing.add(batch)
        writing.commit()
    except ConflictError as error:
        writing.abort()
        conflict = str(error)
    except BaseException:
        writing.abort()
        raise
    yield rows.answer(conflict)


def opened(opening: Callable[[], Transaction], wanted: Pending, output: Output) -> Transaction:
    """A transaction before which the output stands where it was thought to. Raises ConflictError."""
    transaction = opening()
    expected = None if wanted.before is None else output.stored(transaction.shard, wanted.before, wanted.epoch)
    if transaction.stood != expected:
        raise ConflictError(f"the position of {transaction.shard} is {transaction.stood}, and was thought to be {expected}")
    return transaction


@dataclass(slots=True, eq=False)
class _Shard:
    """What of one shard is on its way."""

    opening: Callable[[], Transaction]
    transaction: Transaction | None = None
    encoder: Encoder | None = None
    waiting: list[pa.RecordBatch] = field(default_factory=list)
    bytes: int = 0
    sending: Callable[[], None] | None = None


class _Writing:
    """The shards of one task."""

    def __init__(self, kafka: Transactions, job: WriteJob) -> None:
        self._kafka = kafka
        self._job = job
        self._shards: dict[str, _Shard] = {}
        # Records without a key fill batches of one partition after the other.
        self._keyless = random.randrange(job.partitions)

    def add(self, batch: pa.RecordBatch) -> None:
        """Rows to write; some are sent, while others may still be on their way."""
        parts = dict(_by_shard(batch) if self._job.by_record else ((shard, batch) for shard in self._job.ranges))
        for shard in parts.keys() - self._shards.keys():
            self._shards[shard] = _Shard(self._kafka.begin_open(self._job.output, ShardId(shard)))
        for shard, part in parts.items():
            each = self._shards[shard]
            each.waiting.append(part.select(list(self._job.columns)))
            each.bytes += part.nbytes
            if each.bytes > SHARD_BYTES:
                self._send(shard, each)
        if sum(each.bytes for each in self._shards.values()) > TASK_BYTES:
            for shard, each in self._shards.items():
                self._send(shard, each)

    def commit(self) -> None:
        """Send the rest and commit every shard. Raises ConflictError if one of them is not known to be there."""
        for shard, each in self._shards.items():
            self._send(shard, each)
        for each in self._shards.values():
            _wait(each)
        ends = []
        for shard, each in self._shards.items():
            wanted = self._job.wanted[shard]
            assert each.transaction is not None
            stored = self._job.output.stored(shard, wanted.stop, wanted.epoch)
            ends.append(self._kafka.begin_commit(self._job.output, each.transaction, stored))
        all_of(ends)

    def abort(self) -> None:
        """End what was begun, without its records."""
        for each in self._shards.values():
            with contextlib.suppress(SinkError):
                _wait(each)  # or what is on its way would begin another transaction
            if each.transaction is not None:
                self._kafka.abort(each.transaction)

    def _send(self, shard: str, each: _Shard) -> None:
        if not each.waiting:
            return
        if each.encoder is None:
            each.transaction = opened(each.opening, self._job.wanted[shard], self._job.output)
            each.encoder = Encoder(each.transaction.producer, self._job.compression)
        assert each.transaction is not None
        rows = pa.Table.from_batches(each.waiting)
        each.waiting, each.bytes = [], 0
        self._keyless = (self._keyless + 1) % self._job.partitions
        try:
            rounds = rounds_of(each.encoder.encode(rows, self._job.partitions, self._keyless, int(time.time() * 1000)))
        except RowError as error:
            raise SinkError(f"the topic {self._job.output.topic}: {error}") from error
        _wait(each)
        each.sending = self._kafka.begin_send(self._job.output, each.transaction, rounds)


def all_of(waits: Iterable[Callable[[], Any]]) -> None:
    """Wait for all, and raise the first error only then."""
    failures = []
    for wait in waits:
        try:
            wait()
        except SinkError as error:
            failures.append(error)
    if failures:
        raise failures[0]


def _wait(each: _Shard) -> None:
    sending, each.sending = each.sending, None
    if sending is not None:
        sending()


def _by_shard(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    if not batch.num_rows:
        return
    codes = batch.column(SHARD).dictionary_encode()
    names: list[Any] = codes.dictionary.to_pylist()
    if len(names) == 1:
        yield names[0], batch
        return
    for number, name in enumerate(names):
        yield name, batch.filter(pc.equal(codes.indices, pa.scalar(number, codes.indices.type)))
