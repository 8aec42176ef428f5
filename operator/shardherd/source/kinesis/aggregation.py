"""What the Kinesis Producer Library puts into one record: many records of users, each with a key of its own.

`columns` calls it for every record. The format is published with the library: four bytes of magic, a protobuf message
(`AggregatedRecord`), and the MD5 of that message. A record that is not of this form is a user's own. Nothing here asks anybody.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import NamedTuple

MAGIC = b"\xf3\x89\x9a\xc2"
_DIGEST = 16

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
"""Wire types of protobuf."""

_PARTITION_KEYS, _HASH_KEYS, _RECORDS = 1, 2, 3
"""Fields of AggregatedRecord."""

_KEY_INDEX, _HASH_INDEX, _DATA = 1, 2, 3
"""Fields of its records."""


_MOST_DIGITS, _HASHES = 39, 2**128
"""Of hash keys: digits at most, and how many there are."""


class UserRecord(NamedTuple):
    """One record that a program has put: its place in the aggregated record, its keys and its data."""

    sub: int
    key: str
    hash_key: str | None
    data: bytes


class AggregationError(ValueError):
    """A record has the magic and the digest of an aggregated one, and is none."""


def is_aggregated(data: bytes) -> bool:
    """Whether the digest says so too: anybody may begin with the magic."""
    if not data.startswith(MAGIC) or len(data) <= len(MAGIC) + _DIGEST:
        return False
    digest = hashlib.md5(memoryview(data)[len(MAGIC) : -_DIGEST], usedforsecurity=False).digest()
    return digest == data[-_DIGEST:]


def user_records(data: bytes) -> list[UserRecord]:
    """The records of an aggregated one, in their order. Raises AggregationError."""
    keys: list[str] = []
    hash_keys: list[str] = []
    records: list[bytes] = []
    try:
        for number, value in _fields(data[len(MAGIC) : -_DIGEST]):
            if number in (_PARTITION_KEYS, _HASH_KEYS, _RECORDS) and not isinstance(value, bytes):
                raise AggregationError(f"field {number} of an aggregated record is a number")
            if number == _PARTITION_KEYS:
                keys.append(_text(value))
            elif number == _HASH_KEYS:
                hash_keys.append(_text(value))
            elif number == _RECORDS:
                assert isinstance(value, bytes)
                records.append(value)
        return [_user_record(sub, each, keys, hash_keys) for sub, each in enumerate(records)]
    except (IndexError, UnicodeDecodeError) as error:
        raise AggregationError(f"an aggregated record is cut off or names a key that it has not: {error}") from error


def belongs(record: UserRecord, hashes: tuple[int, int]) -> bool:
    """Whether a record is of the shard with this range of hash keys (both ends belong to it).

    The producer aggregates for the shards that it knows. After a split or a merge it learns that a record has got to another
    shard than it meant, and sends those of its records again that are not that shard's: there they are to be left out.
    """
    at = int(record.hash_key) if record.hash_key else hash_of(record.key)
    return hashes[0] <= at <= hashes[1]


def hash_of(key: str) -> int:
    """Where a partition key is among the hash keys."""
    return int.from_bytes(hashlib.md5(key.encode(), usedforsecurity=False).digest(), "big")


def _user_record(sub: int, raw: bytes, keys: list[str], hash_keys: list[str]) -> UserRecord:
    key = hash_index = None
    data = b""
    for number, value in _fields(raw):
        if number == _DATA and isinstance(value, bytes):
            data = value
        elif number in (_KEY_INDEX, _HASH_INDEX) and isinstance(value, int):
            if number == _KEY_INDEX:
                key = value
            else:
                hash_index = value
        elif number in (_DATA, _KEY_INDEX, _HASH_INDEX):
            raise AggregationError(f"field {number} of a record in an aggregated one is of another type")
    if key is None:
        raise AggregationError("a record in an aggregated one has no key")
    hash_key = None if hash_index is None else hash_keys[hash_index]
    if hash_key and not _is_hash(hash_key):
        raise AggregationError(
            f"a record in an aggregated one has the hash key {hash_key[:50]!r}, which is no number of 128 bits"
        )
    return UserRecord(sub, keys[key], hash_key, data)


def _is_hash(text: str) -> bool:
    # Python refuses to read thousands of digits, and what is of no shard would be left out as another one's.
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS and int(text) < _HASHES


def _text(value: bytes | int) -> str:
    assert isinstance(value, bytes)
    return value.decode()


def _fields(raw: bytes) -> Iterator[tuple[int, bytes | int]]:
    """The fields of a protobuf message: its numbers, and bytes or integers. Raises AggregationError, IndexError."""
    at = 0
    while at < len(raw):
        tag, at = _varint(raw, at)
        wire = tag & 7
        if wire == _VARINT:
            value, at = _varint(raw, at)
            yield tag >> 3, value
            continue
        if wire == _BYTES:
            size, at = _varint(raw, at)
        elif wire in (_FIXED64, _FIXED32):
            size = 8 if wire == _FIXED64 else 4
        else:
            raise AggregationError(f"an aggregated record has a field of wire type {wire}")
        if at + size > len(raw):
            raise AggregationError("an aggregated record is cut off")
        yield tag >> 3, raw[at : at + size]
        at += size


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise AggregationError("an aggregated record has a number of more than 64 bits")
