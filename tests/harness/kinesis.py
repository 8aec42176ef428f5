"""Kinesis played by moto's server, corrected to what AWS documents where moto is too kind: see docs/kinesis.md.

What tests do to any such service is here, too: `stream`, `put`, `split`, `merge`, `update_count` and `open_shards`.

In a thread of the test's process, so that a test can trim a shard, let iterators expire or refuse requests; for whoever needs a
process of its own: `python -m tests.harness.kinesis`, which says its URL and runs until its input ends. `--limits`: it refuses
what is above those of a shard.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import logging
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Protocol

import botocore.session
from botocore.config import Config
from moto.core.exceptions import JsonRESTError
from moto.kinesis import models
from moto.kinesis.exceptions import InvalidArgumentError, ResourceNotFoundError
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

REGION = "eu-central-1"

FIRST_NUMBER = 49590338271490256608559692538361571095921575989136588800
"""A sequence number as AWS gives it: 56 digits, far above 63 bits."""

STEP = 16
"""AWS's numbers are never neighbours: position - 1 of a record that is there is no number of a record."""

ITERATOR_LIFE = 300.0
LARGEST_ANSWER = 10 * 1024 * 1024
MOST_RECORDS = 10_000
PAGE = 1000


class Played:
    """What a test can say to the service. Everything is for all streams of one process."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.reset()

    def reset(self) -> None:
        self.number = FIRST_NUMBER
        self.iterator_life = ITERATOR_LIFE
        self.limits = False
        """Whether 5 calls and 2 MB a second and shard are all that is answered."""
        self.refusals: list[tuple[str, str]] = []
        """Errors that the next GetRecords have: (code, message)."""
        self.calls: dict[str, int] = defaultdict(int)
        """How often each operation was called."""
        self.read: list[tuple[float, str, int]] = []
        """Every answered GetRecords: when, shard, bytes."""
        self.empty_answers = 0
        """So many GetRecords are answered without records although there are some, as AWS may do."""
        self.asked_limits: list[int | None] = []
        self.page = PAGE
        """Shards that one ListShards answers with."""
        self.delay = 0.0
        """Seconds by which the clock of the service is ahead of the machine's."""

    def next_number(self) -> int:
        with self.lock:
            self.number += STEP
            return self.number

    def now(self) -> float:
        return time.time() + self.delay

    def monotonic(self) -> float:
        return time.monotonic() + self.delay

    def admit(self, shard: str) -> None:
        """Raise what GetRecords of this shard is refused with by now."""
        with self.lock:
            if self.refusals:
                raise JsonRESTError(*self.refusals.pop(0))
            if not self.limits:
                return
            recent = [each for each in self.read if each[1] == shard and time.monotonic() - each[0] < 1.0]
            debt = sum(size for when, of, size in self.read if of == shard and time.monotonic() - when < 5.0) - 5 * 2_000_000
            if len(recent) >= 5 or sum(size for _, _, size in recent) > 2_000_000 or debt > 0:
                self.calls["throttled"] += 1
                raise JsonRESTError("ProvisionedThroughputExceededException", f"Rate exceeded for shard {shard}")


PLAYED = Played()


class _Shard(models.Shard):
    """A shard that keeps its records when it is closed, takes no more, and has numbers like AWS's."""

    __module__ = models.__name__  # moto reads the service's name in it

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.begin = PLAYED.next_number()
        self.end: int | None = None

    def put_record(self, partition_key: str, data: str, explicit_hash_key: str) -> str:
        number = PLAYED.next_number()
        record = models.Record(partition_key, data, number, explicit_hash_key)
        if PLAYED.delay:
            record.created_at += PLAYED.delay
            record.created_at_datetime = datetime.fromtimestamp(record.created_at, UTC).replace(tzinfo=None)
        self.records[number] = record
        return str(number)

    def close(self) -> None:
        self.is_open = False
        self.end = PLAYED.next_number()

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = super().to_json()
        numbers = {"StartingSequenceNumber": str(self.begin)}
        if self.end is not None:
            numbers["EndingSequenceNumber"] = str(self.end)
        return {**found, "SequenceNumberRange": numbers}


class _Stream(models.Stream):
    """A stream whose children take the records after a split or a merge, and whose parents keep theirs."""

    __module__ = models.__name__
    shards: dict[str, _Shard]  # type: ignore[assignment]

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.creation_datetime += timedelta(seconds=PLAYED.delay)

    def _child(self, first: int, last: int, parent: str, adjacent: str | None = None) -> None:
        number = 1 + max(each._shard_id for each in self.shards.values())
        made = _Shard(number, first, last, parent=parent, adjacent_parent=adjacent)
        self.shards[made.shard_id] = made

    def split_shard(self, shard_to_split: str, new_starting_hash_key: str) -> None:
        with PLAYED.lock:
            shard, border = self.shards[shard_to_split], int(new_starting_hash_key)
            if not shard.is_open or not shard.starting_hash < border < shard.ending_hash:
                raise InvalidArgumentError(f"{shard_to_split} cannot be split at {border}")
            shard.close()
            self._child(shard.starting_hash, border - 1, shard_to_split)
            self._child(border, shard.ending_hash, shard_to_split)

    def merge_shards(self, shard_to_merge: str, adjacent_shard_to_merge: str) -> None:
        with PLAYED.lock:
            pair = [self.shards[shard_to_merge], self.shards[adjacent_shard_to_merge]]
            low, high = sorted(pair, key=lambda each: each.starting_hash)
            if low.ending_hash + 1 != high.starting_hash or not (low.is_open and high.is_open):
                raise InvalidArgumentError(f"{shard_to_merge} and {adjacent_shard_to_merge} cannot be merged")
            for each in pair:
                each.close()
            self._child(low.starting_hash, high.ending_hash, shard_to_merge, adjacent_shard_to_merge)

    def update_shard_count(self, target_shard_count: int) -> None:
        """Split every open shard in its middle for twice as many, merge neighbours for half as many: by what is above.

        More than twice as many is refused, and less than half, as AWS does by default. How AWS comes to a number between these
        it does not document: that is left to moto, which splits all, then merges as many as are too many.
        """
        with PLAYED.lock:
            found = sum(each.is_open for each in self.shards.values())
            if not found <= 2 * target_shard_count <= 4 * found:
                up = target_shard_count > found
                raise JsonRESTError(
                    "LimitExceededException",
                    f"UpdateShardCount cannot scale {'up over double' if up else 'down below half'} your current open shard "
                    f"count. Current open shard count: {found} Target shard count: {target_shard_count}",
                )
            super().update_shard_count(target_shard_count)

    def get_shard_for_key(self, partition_key: str, explicit_hash_key: str) -> Any:
        text = explicit_hash_key or str(int(hashlib.md5(partition_key.encode()).hexdigest(), 16))
        hash_key = int(text)
        return next(
            each for each in self.shards.values() if each.is_open and each.starting_hash <= hash_key <= each.ending_hash
        )

    def put_record(self, partition_key: str, explicit_hash_key: str, data: str) -> tuple[str, str]:
        with PLAYED.lock:
            shard = self.get_shard_for_key(partition_key, explicit_hash_key)
            return shard.put_record(partition_key, data, explicit_hash_key), shard.shard_id


def _iterator(stream: models.Stream, shard: str, first: int) -> str:
    return base64.b64encode(f"{stream.stream_name}:{shard}:{first}:{PLAYED.monotonic()}".encode()).decode()


class _Backend(models.KinesisBackend):
    """Iterators that end, expire and are refused. An iterator is the lowest number that it reads."""

    __module__ = models.__name__  # moto looks for its URLs beside it

    def get_shard_iterator(self, *arguments: Any, **more: Any) -> str:
        PLAYED.calls["GetShardIterator"] += 1
        stream_arn, stream_name, shard_id, kind, starting, at = arguments
        stream = self.describe_stream(stream_arn=stream_arn, stream_name=stream_name)
        if shard_id not in stream.shards:
            raise ResourceNotFoundError(f"Shard {shard_id} in stream {stream.stream_name} does not exist")
        shard: Any = stream.shards[shard_id]
        with PLAYED.lock:
            match kind:
                case "AT_SEQUENCE_NUMBER" | "AFTER_SEQUENCE_NUMBER":
                    number = int(starting)
                    if number % STEP or number < shard.begin or number > (shard.end or number):
                        raise InvalidArgumentError(
                            f"StartingSequenceNumber {number} used in GetShardIterator on shard {shard_id} in stream "
                            f"{stream.stream_name} is invalid."
                        )
                    first = number + (kind == "AFTER_SEQUENCE_NUMBER")
                case "TRIM_HORIZON":
                    first = 0
                case "LATEST":
                    first = PLAYED.number + 1
                case "AT_TIMESTAMP":
                    later = (each.sequence_number for each in shard.records.values() if each.created_at >= float(at))
                    first = next(later, PLAYED.number + 1)
                case _:
                    raise InvalidArgumentError(f"ShardIteratorType {kind}")
        return _iterator(stream, shard_id, first)

    def get_records(self, *arguments: Any, **more: Any) -> tuple[str, list[models.Record], int]:
        PLAYED.calls["GetRecords"] += 1
        _, iterator, limit = arguments
        PLAYED.asked_limits.append(limit)
        name, shard_id, number, made = base64.b64decode(iterator).decode().split(":")
        stream = self.describe_stream(stream_arn=None, stream_name=name)
        PLAYED.admit(shard_id)
        if PLAYED.monotonic() - float(made) > PLAYED.iterator_life:
            raise JsonRESTError("ExpiredIteratorException", "Iterator expired.")
        with PLAYED.lock:
            shard, first = stream.shards[shard_id], int(number)
            if PLAYED.empty_answers and any(each >= first for each in shard.records):
                PLAYED.empty_answers -= 1
                return _iterator(stream, shard_id, first), [], 5000
            found: list[models.Record] = []
            size, left = 0, False
            for each, record in shard.records.items():
                if each < first:
                    continue
                length = len(record.data) * 3 // 4 + len(record.partition_key)
                if len(found) == (limit or MOST_RECORDS) or size + length > LARGEST_ANSWER:
                    left = True
                    break
                found.append(record)
                size += length
            PLAYED.read.append((time.monotonic(), shard_id, size))
            over = not shard.is_open and not left
            behind = 0
            if left:
                behind = max(1, round(1000 * (PLAYED.now() - found[-1].created_at)))
            following = found[-1].sequence_number + 1 if found else first
            return ("" if over else _iterator(stream, shard_id, following)), found, behind

    def list_shards(  # type: ignore[override]
        self, stream_arn: str | None, stream_name: str | None, limit: int, next_token: str | None
    ) -> tuple[list[models.Shard], str | None]:
        PLAYED.calls["ListShards"] += 1
        last = ""
        if next_token:
            if stream_arn or stream_name:
                raise InvalidArgumentError("NextToken and StreamName cannot be provided together.")
            stream_name, last = base64.b64decode(next_token).decode().split(":")
        shards = self.describe_stream(stream_arn=stream_arn, stream_name=stream_name).shards
        left = sorted(each for each in shards if each > last)
        page = left[: min(limit, PLAYED.page)]
        name = stream_name or str(stream_arn).rpartition("/")[2]
        token = base64.b64encode(f"{name}:{page[-1]}".encode()).decode() if len(page) < len(left) else None
        return [shards[each] for each in page], token


def _get_records(self: Any) -> Any:
    from moto.core.responses import ActionResult

    backend = self.kinesis_backend
    following, records, behind = backend.get_records(
        self._get_param("StreamARN"), self._get_param("ShardIterator"), self._get_param("Limit")
    )
    found: dict[str, Any] = {"Records": [each.to_json() for each in records], "MillisBehindLatest": behind}
    if following:
        found["NextShardIterator"] = following
    else:
        name, shard, *_ = base64.b64decode(self._get_param("ShardIterator")).decode().split(":")
        found["ChildShards"] = [
            {
                "ShardId": each.shard_id,
                "ParentShards": [parent for parent in (each.parent, each.adjacent_parent) if parent],
                "HashKeyRange": {"StartingHashKey": str(each.starting_hash), "EndingHashKey": str(each.ending_hash)},
            }
            for each in backend.streams[name].shards.values()
            if shard in (each.parent, each.adjacent_parent)
        ]
    return ActionResult(found)


def _correct() -> None:
    from moto.kinesis import responses

    models.Shard, models.Stream = _Shard, _Stream  # type: ignore[misc]
    models.kinesis_backends.backend = _Backend
    responses.KinesisResponse.get_records = _get_records  # type: ignore[method-assign]


class Service(Protocol):
    """What does as Kinesis does, here or in `kinesalite`."""

    @property
    def url(self) -> str: ...

    @property
    def client(self) -> Any:
        """A client of its own, for a test that writes and reshards."""

    def now(self) -> float:
        """Seconds since 1970 by its clock."""

    def pass_time(self, seconds: float) -> None:
        """Let so much time pass by its clock: iterators expire, and retention deletes records."""


class PlayedKinesis:
    """The service, in a thread, at one address of this machine; use it as a context manager."""

    def __init__(self, address: str = "127.0.0.1") -> None:
        _correct()
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        application = DomainDispatcherApplication(create_backend_app)
        self._server = make_server(address, 0, application, threaded=True)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self.played = PLAYED

    @property
    def url(self) -> str:
        return f"http://{self._server.host}:{self._server.server_port}"

    @property
    def client(self) -> Any:
        """A client of its own, for a test that writes and reshards."""
        return open_writer(self.url)

    def __enter__(self) -> PlayedKinesis:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def shard(self, stream: str, shard: str) -> Any:
        """moto's own object."""
        return models.kinesis_backends["123456789012"][REGION].streams[stream].shards[shard]

    def now(self) -> float:
        """Seconds since 1970 by the clock of the service."""
        return self.played.now()

    def pass_time(self, seconds: float) -> None:
        """Let so much time pass by that clock: iterators expire, and retention deletes records."""
        with self.played.lock:
            self.played.delay += seconds
            for kept in models.kinesis_backends["123456789012"][REGION].streams.values():
                oldest = self.played.now() - kept.retention_period_hours * 3600
                for shard in kept.shards.values():
                    for number in [each for each, record in shard.records.items() if record.created_at < oldest]:
                        del shard.records[number]

    def trim(self, stream: str, shard: str, first: int) -> None:
        """Retention deletes what is below this number."""
        with self.played.lock:
            records = self.shard(stream, shard).records
            for number in [each for each in records if each < first]:
                del records[number]

    def forget(self, stream: str, shard: str) -> None:
        """A closed shard is listed no more: all its records were deleted by retention."""
        with self.played.lock:
            del models.kinesis_backends["123456789012"][REGION].streams[stream].shards[shard]

    def numbers(self, stream: str, shard: str) -> list[int]:
        return list(self.shard(stream, shard).records)

    def age(self, stream: str, shard: str, seconds: Callable[[int], float]) -> None:
        """Let the records have arrived so many seconds ago; `seconds` is asked for each by its place."""
        with self.played.lock:
            for place, record in enumerate(self.shard(stream, shard).records.values()):
                record.created_at = self.played.now() - seconds(place)
                record.created_at_datetime = datetime.fromtimestamp(record.created_at, UTC).replace(tzinfo=None)


@functools.cache
def _session() -> Any:
    session = botocore.session.Session()
    session.set_credentials("key", "secret")
    return session


def open_writer(url: str) -> Any:
    return _session().create_client("kinesis", REGION, endpoint_url=url, config=Config(retries={"total_max_attempts": 1}))


def put(client: Any, stream: str, records: Sequence[tuple[str, bytes]], hashes: Mapping[str, int] | None = None) -> list[str]:
    """Write these (partition key, data); returns the shards that took them. `hashes` are explicit hash keys of keys."""
    found: list[str] = []
    for at in range(0, len(records), 500):
        entries = [
            {"PartitionKey": key, "Data": data, **({"ExplicitHashKey": str(hashes[key])} if hashes and key in hashes else {})}
            for key, data in records[at : at + 500]
        ]
        found += [each["ShardId"] for each in client.put_records(StreamName=stream, Records=entries)["Records"]]
    return found


@contextmanager
def stream(service: Service, name: str, shards: int = 1) -> Iterator[Any]:
    """A new stream; yields a client of it. It is deleted after the block."""
    client = service.client
    client.create_stream(StreamName=name, ShardCount=shards)
    _await_active(client, name)
    try:
        yield client
    finally:
        client.delete_stream(StreamName=name)
        _await(f"stream {name} to be gone", lambda: name not in client.list_streams()["StreamNames"])


def open_shards(client: Any, name: str) -> list[str]:
    """The shards that take records."""
    listed = client.list_shards(StreamName=name)["Shards"]
    return [each["ShardId"] for each in listed if "EndingSequenceNumber" not in each["SequenceNumberRange"]]


def split(client: Any, name: str, shard: str) -> None:
    """Split a shard in the middle."""
    (hashes,) = [each["HashKeyRange"] for each in client.list_shards(StreamName=name)["Shards"] if each["ShardId"] == shard]
    middle = (int(hashes["StartingHashKey"]) + int(hashes["EndingHashKey"]) + 1) // 2
    client.split_shard(StreamName=name, ShardToSplit=shard, NewStartingHashKey=str(middle))
    _await_active(client, name)


def merge(client: Any, name: str, shard: str, adjacent: str) -> None:
    client.merge_shards(StreamName=name, ShardToMerge=shard, AdjacentShardToMerge=adjacent)
    _await_active(client, name)


def update_count(client: Any, name: str, shards: int) -> None:
    """As UpdateShardCount does it: by splits, or by merges."""
    client.update_shard_count(StreamName=name, TargetShardCount=shards, ScalingType="UNIFORM_SCALING")
    _await_active(client, name)


def _await_active(client: Any, name: str) -> None:
    def active() -> bool:
        said = client.describe_stream_summary(StreamName=name)["StreamDescriptionSummary"]
        return bool(said["StreamStatus"] == "ACTIVE")

    _await(f"stream {name} to be active", active)


def _await(what: str, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60.0
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def main() -> None:
    with PlayedKinesis() as service:
        service.played.limits = "--limits" in sys.argv[1:]
        print(service.url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
