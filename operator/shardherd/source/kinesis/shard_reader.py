"""Reads one shard with an iterator: where it starts, an iterator that has expired, the end of a closed shard.

`range_reading` reads a task's ranges with it, and `searching` looks where records are. A position is the least number that is
still to be read, a Python int: sequence numbers have up to 56 digits. It waits for nobody; the limits are those of `pacing`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from shardherd.clock import boot_time
from shardherd.source.kinesis.client import (
    EXPIRED,
    GONE,
    INVALID_NUMBER,
    THROTTLED,
    Kinesis,
    KinesisRefusedError,
    KinesisUnavailableError,
    code_of,
    stream_argument,
)
from shardherd.source.kinesis.pacing import Pace

MOST_RECORDS = 10_000
"""Records that Kinesis answers with at most."""


class ThrottledError(KinesisUnavailableError):
    """The shard is asked too often, by us and others together."""


class ShardGoneError(Exception):
    """Kinesis has no such shard any more: all its records are older than the retention of the stream."""


class NumberError(Exception):
    """No record of this shard can have this sequence number, or no record can have come at that time."""


@dataclass(frozen=True, slots=True)
class Start:
    """Where an iterator begins, in Kinesis's words."""

    kind: str
    number: int | None = None
    seconds: float | None = None

    def arguments(self) -> dict[str, Any]:
        found: dict[str, Any] = {"ShardIteratorType": self.kind}
        if self.number is not None:
            found["StartingSequenceNumber"] = str(self.number)
        if self.seconds is not None:
            found["Timestamp"] = datetime.fromtimestamp(self.seconds, UTC)
        return found


BEGINNING = Start("TRIM_HORIZON")


def at(number: int) -> Start:
    """The record of this number, which must be one that was there."""
    return Start("AT_SEQUENCE_NUMBER", number)


def after(number: int) -> Start:
    """What comes after the record of this number."""
    return Start("AFTER_SEQUENCE_NUMBER", number)


def since(seconds: float) -> Start:
    """The first record that came then or later, in seconds since 1970."""
    return Start("AT_TIMESTAMP", seconds=seconds)


def of_position(position: int, begin: int) -> tuple[Start, ...]:
    """Where a position of a shard that begins at `begin` may be: the first of these that Kinesis takes.

    A position is the number after that of a record, or a record's own: Kinesis refuses numbers that it cannot have given. The
    record before the position is read again, as the only proof that nothing between it and the next one is gone.
    """
    return (BEGINNING,) if position <= begin else (at(position - 1), at(position), BEGINNING)


class Record(NamedTuple):
    """One record of Kinesis, which may be an aggregated one, or one that a program has put: `sub` is its place in that.

    `arrived` as botocore reads it. The number is made of its text where it is asked for, not for every record.
    """

    sequence: str
    key: str
    data: bytes
    arrived: datetime
    sub: int = 0

    @property
    def number(self) -> int:
        return int(self.sequence)


@dataclass(frozen=True, slots=True)
class Answer:
    """What one GetRecords brought. `behind` seconds of records follow; once it is `over` there will never be more."""

    records: list[Record]
    behind: float
    over: bool
    size: int = field(default=0)


class ShardReader:
    """Reads on from one of `starts`, the first that Kinesis takes. Not for several threads at once."""

    def __init__(self, kinesis: Kinesis, shard: str, starts: tuple[Start, ...]) -> None:
        self.shard = shard
        self._kinesis = kinesis
        self._starts = starts
        self._iterator: str | None = None
        self._over = False

    def read(self, limit: int = MOST_RECORDS) -> Answer:
        """The next records, at most so many; perhaps none although there are some.

        Raises ThrottledError, KinesisUnavailableError, KinesisRefusedError, ShardGoneError, and NumberError for a start that
        Kinesis does not take.
        """
        if self._over:
            return Answer([], 0.0, over=True)
        try:
            if self._iterator is None:
                self._iterator = self._open()
            said = self._get(self._iterator, limit)
            if said is None:
                # Iterators live for five minutes. A new one begins where this one was, which the last record says.
                self._iterator = self._open()
                said = self._get(self._iterator, limit)
        except Exception as error:
            raise self._meaning(error) from error
        if said is None:
            raise KinesisUnavailableError(f"shard {self.shard}: an iterator expired before it was used")
        records = [
            Record(each["SequenceNumber"], each["PartitionKey"], each["Data"], each["ApproximateArrivalTimestamp"])
            for each in said["Records"]
        ]
        self._iterator = said.get("NextShardIterator")
        self._over = self._iterator is None
        if records:
            self._starts = (after(records[-1].number),)
        size = sum(len(each.data) + len(each.key) for each in records)
        return Answer(records, (said.get("MillisBehindLatest") or 0) / 1000, self._over, size)

    def _open(self) -> str:
        from botocore.exceptions import ClientError

        stream = stream_argument(self._kinesis.access.stream)
        for start in self._starts[:-1]:
            try:
                return str(self._call("get_shard_iterator", **stream, ShardId=self.shard, **start.arguments())["ShardIterator"])
            except ClientError as error:
                if code_of(error) not in INVALID_NUMBER:
                    raise
        last = self._starts[-1].arguments()
        return str(self._call("get_shard_iterator", **stream, ShardId=self.shard, **last)["ShardIterator"])

    def _get(self, iterator: str, limit: int) -> dict[str, Any] | None:
        """The answer; None if the iterator has expired."""
        from botocore.exceptions import ClientError

        arn = {name: text for name, text in stream_argument(self._kinesis.access.stream).items() if name == "StreamARN"}
        try:
            return self._call("get_records", **arn, ShardIterator=iterator, Limit=min(MOST_RECORDS, max(1, limit)))
        except ClientError as error:
            if code_of(error) in EXPIRED:
                return None
            raise

    def _call(self, operation: str, **arguments: Any) -> dict[str, Any]:
        return self._kinesis.call(operation, **arguments)

    def _meaning(self, error: Exception) -> Exception:
        code = code_of(error)
        if code in THROTTLED:
            return ThrottledError(f"shard {self.shard} is asked too often: {error}")
        if code in GONE:
            return ShardGoneError(f"shard {self.shard} of {self._kinesis.access.stream} is gone: {error}")
        if code in INVALID_NUMBER:
            return NumberError(f"shard {self.shard} of {self._kinesis.access.stream}: {error}")
        if code:
            return KinesisRefusedError(f"shard {self.shard} of {self._kinesis.access.stream}: {error}")
        return error


def patiently(
    reader: ShardReader,
    pace: Pace,
    limit: int,
    deadline: float,
    now: Callable[[], float] = boot_time,
    wait: Callable[[float], object] = time.sleep,
) -> Answer:
    """The next answer, as soon as the shard's limits allow it; it is asked for again while Kinesis is throttling or away.

    Raises what `ShardReader.read` does, the errors that pass after `deadline` only.
    """
    while True:
        wait(max(0.0, pace.due(reader.shard) - now()))
        begun = now()
        pace.asked(reader.shard, begun)
        try:
            answer = reader.read(limit)
        except KinesisUnavailableError:
            pace.refused(reader.shard, now())
            if pace.due(reader.shard) > deadline:
                raise
        else:
            pace.answered(reader.shard, answer.size, len(answer.records), now() - begun)
            return answer
