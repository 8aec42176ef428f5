"""Which shards a stream has, open and closed, with their parents: one ListShards, all its pages.

The planner of a query and the operator's look at the source call it. It knows no positions, and no group.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

from shardherd.source.kinesis.client import (
    EXPIRED,
    THROTTLED,
    Kinesis,
    KinesisRefusedError,
    KinesisUnavailableError,
    code_of,
    stream_argument,
)

_TOKEN_EXPIRED = "ExpiredNextTokenException"


class ListedShard(NamedTuple):
    """A shard as Kinesis lists it. `begin` is no record's position but at or below the first; `end` is above the last.

    `end` is None while the shard is open. `hashes` are the hash keys that it takes, both ends included. Parents that Kinesis
    lists no longer are named all the same.
    """

    id: str
    begin: int
    end: int | None
    parents: tuple[str, ...]
    hashes: tuple[int, int]

    def reaches(self, newest: int | None) -> int:
        """Where it ends by now: where it was closed, or after its newest record, whose number is an argument; 0 without any."""
        if self.end is not None:
            return self.end
        return 0 if newest is None else newest + 1


class Stream(NamedTuple):
    """A stream: when it was made, in seconds since 1970, and for how many seconds it keeps records."""

    name: str
    arn: str
    created: int
    retention: float

    @property
    def source_id(self) -> str:
        """Another one once the stream was deleted and made again under its name."""
        return f"{self.arn}@{self.created}"


def describe(kinesis: Kinesis) -> Stream:
    """The stream itself. Raises KinesisUnavailableError, KinesisRefusedError."""
    said = _ask(kinesis, "describe_stream_summary", **stream_argument(kinesis.access.stream))["StreamDescriptionSummary"]
    created: datetime = said["StreamCreationTimestamp"]
    return Stream(said["StreamName"], said["StreamARN"], int(created.timestamp()), said["RetentionPeriodHours"] * 3600.0)


def list_shards(kinesis: Kinesis) -> tuple[ListedShard, ...]:
    """Every shard of which there may be records, in the order of their ids. Raises as `describe`."""
    first = stream_argument(kinesis.access.stream)
    asked: dict[str, Any] = first
    found: list[ListedShard] = []
    while True:
        page = _ask(kinesis, "list_shards", **asked)
        found += [_listed(each) for each in page["Shards"]]
        token = page.get("NextToken")
        if not token:
            return tuple(sorted(found))
        asked = {"NextToken": token}  # it stands for the stream, and goes with no other argument


def _ask(kinesis: Kinesis, operation: str, **arguments: Any) -> dict[str, Any]:
    from botocore.exceptions import ClientError

    try:
        return kinesis.call(operation, **arguments)
    except ClientError as error:
        code = code_of(error)
        if code in THROTTLED | EXPIRED or code == _TOKEN_EXPIRED:
            raise KinesisUnavailableError(f"Kinesis cannot answer {operation} now: {error}") from error
        raise KinesisRefusedError(
            f"stream {kinesis.access.stream} cannot be read in {kinesis.access.region}: {error}; correct its name or the region"
        ) from error


def _listed(said: dict[str, Any]) -> ListedShard:
    numbers, hashes = said["SequenceNumberRange"], said["HashKeyRange"]
    end = numbers.get("EndingSequenceNumber")
    return ListedShard(
        said["ShardId"],
        int(numbers["StartingSequenceNumber"]),
        None if end is None else int(end) + 1,
        tuple(said[name] for name in ("ParentShardId", "AdjacentParentShardId") if said.get(name)),
        (int(hashes["StartingHashKey"]), int(hashes["EndingHashKey"])),
    )
