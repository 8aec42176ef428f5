"""Records of the Kinesis Producer Library: read as the library's authors read them, and nothing else taken for one."""

from __future__ import annotations

import hashlib
import random
from base64 import b64decode
from datetime import UTC, datetime

import pytest
from aws_kinesis_agg.aggregator import RecordAggregator
from aws_kinesis_agg.deaggregator import iter_deaggregate_records

from shardherd.source.kinesis.aggregation import (
    MAGIC,
    AggregationError,
    UserRecord,
    belongs,
    hash_of,
    is_aggregated,
    user_records,
)
from shardherd.source.kinesis.columns import rows_of
from shardherd.source.kinesis.shard_reader import Record

ARRIVED = datetime(2026, 1, 2, tzinfo=UTC)


def aggregated(*records: tuple[str, bytes, str | None]) -> bytes:
    """As the authors' own library writes it."""
    writer = RecordAggregator()
    for key, data, hash_key in records:
        assert writer.add_user_record(key, data, hash_key) is None
    return bytes(writer.clear_and_get().get_contents()[2])


def sealed(message: bytes) -> bytes:
    return MAGIC + message + hashlib.md5(message).digest()


def test_an_aggregated_record_is_the_records_that_programs_have_put() -> None:
    data = aggregated(("ann", b"1", None), ("bob", b"", None), ("ann", b"3" * 300, "170141183460469231731687303715884105728"))
    assert is_aggregated(data)
    found = user_records(data)
    assert [(each.sub, each.key, each.data) for each in found] == [(0, "ann", b"1"), (1, "bob", b""), (2, "ann", b"3" * 300)]
    assert found[2].hash_key == "170141183460469231731687303715884105728"


def test_random_records_are_read_as_the_authors_read_them() -> None:
    draw = random.Random(7)
    for _ in range(50):
        written = [
            (f"schlüssel-{draw.randrange(4)}", draw.randbytes(draw.randrange(400)), str(draw.randrange(2**128)))
            for _ in range(draw.randrange(1, 20))
        ]
        data = aggregated(*written)
        assert [(each.key, each.hash_key, each.data) for each in user_records(data)] == _theirs(data)


def _theirs(data: bytes) -> list[tuple[str, str | None, bytes]]:
    record = {"SequenceNumber": "1", "PartitionKey": "a", "ApproximateArrivalTimestamp": ARRIVED, "Data": data}
    return [
        (each["kinesis"]["partitionKey"], each["kinesis"]["explicitHashKey"], b64decode(each["kinesis"]["data"]))
        for each in iter_deaggregate_records([record], data_format="Boto3")
    ]


@pytest.mark.parametrize(
    "data",
    [b"", MAGIC, MAGIC + bytes(16), b"{}", MAGIC + b"what a program has put itself" + bytes(16)],
    ids=["empty", "magic", "magic and a wrong digest", "json", "another digest"],
)
def test_what_has_not_the_digest_is_a_users_own_record(data: bytes) -> None:
    assert not is_aggregated(data)


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"\x1a\x02\x08\x00", "names a key that it has not"),
        (b"\x1a\x05\x08", "cut off"),
        (b"\x1a\x01\x1a", "cut off"),
        (b"\x08\x01", "is a number"),
        (b"\x0a\x01a\x1a\x02\x1a\x00", "has no key"),
        (b"\x0b", "wire type 3"),
        (b"\xff" * 11, "more than 64 bits"),
        (b"\x0a\x01a\x12\x01z\x1a\x04\x08\x00\x10\x00", "hash key 'z'"),
    ],
)
def test_a_broken_one_says_what_is_wrong(message: bytes, why: str) -> None:
    with pytest.raises(AggregationError, match=why):
        user_records(sealed(message))


def test_unknown_fields_are_passed_over() -> None:
    record = b"\x08\x00" + b"\x1a\x01x" + b"\x22\x00" + b"\x29" + bytes(8)
    message = b"\x0a\x01a" + b"\x1a" + bytes([len(record)]) + record + b"\x25" + bytes(4)
    assert user_records(sealed(message)) == [UserRecord(0, "a", None, b"x")]


def test_a_record_belongs_where_its_hash_key_is() -> None:
    half = 2**127
    for key, hash_key in (("a", None), ("b", None), ("a", str(half)), ("a", str(half - 1))):
        where = hash_of(key) if hash_key is None else int(hash_key)
        record = UserRecord(0, key, hash_key, b"")
        assert belongs(record, (0, half - 1)) is (where < half)
        assert belongs(record, (half, 2**128 - 1)) is (where >= half)


def test_after_a_split_a_shard_leaves_out_what_the_producer_sends_to_its_sibling() -> None:
    low, high = str(5), str(2**127 + 5)
    data = aggregated(("a", b"low", low), ("a", b"high", high), ("b", b"low too", low))
    records = [Record("16", "a", data, ARRIVED), Record("32", "c", b"plain", ARRIVED)]
    assert rows_of(records, (0, 2**127 - 1), "s") == [
        Record("16", "a", b"low", ARRIVED, 0),
        Record("16", "b", b"low too", ARRIVED, 2),
        Record("32", "c", b"plain", ARRIVED, 0),
    ]
    assert [each.data for each in rows_of(records, None, "s")] == [b"low", b"high", b"low too", b"plain"]


def with_hash_key(digits: bytes) -> bytes:
    """An aggregated record with one in it, which has this hash key."""
    size = bytes([len(digits) & 0x7F | 0x80, len(digits) >> 7])
    return sealed(b"\x0a\x01a" + b"\x12" + size + digits + b"\x1a\x07\x08\x00\x10\x00\x1a\x01x")


def test_that_records_are_left_out_is_told_once_for_each_shard(caplog: pytest.LogCaptureFixture) -> None:
    low, high = (0, 2**127 - 1), (2**127, 2**128 - 1)
    data = aggregated(("k", b"low", "0"), ("k", b"high", str(2**127)), ("k", b"higher", str(2**128 - 1)))
    for number in ("1", "2"):
        for shard, hashes in (
            ("orders/told of-low", low),
            ("orders/told of-high", high),
            ("orders/told of-all", (0, 2**128 - 1)),
        ):
            rows_of([Record(number, "a", data, ARRIVED)], hashes, shard)
    assert [each.getMessage().partition(", as")[0] for each in caplog.records] == [
        "shard orders/told of-low, record 1 is an aggregated one: 2 of its 3 records are left out",
        "shard orders/told of-high, record 1 is an aggregated one: 1 of its 3 records are left out",
    ]


def test_the_largest_hash_key_is_one() -> None:
    largest = str(2**128 - 1)
    assert user_records(with_hash_key(largest.encode())) == [UserRecord(0, "a", largest, b"x")]


@pytest.mark.parametrize(
    "data",
    [sealed(b"\x0b"), with_hash_key(b"9" * 5000), with_hash_key(str(2**128).encode())],
    ids=["a wire type that there is not", "a hash key of too many digits", "a hash key that no shard has"],
)
@pytest.mark.parametrize("hashes", [None, (0, 2**128 - 1)], ids=["any shard", "a shard"])
def test_what_looks_aggregated_and_is_broken_is_read_as_it_is(
    data: bytes, hashes: tuple[int, int] | None, caplog: pytest.LogCaptureFixture
) -> None:
    assert rows_of([Record("16", "k", data, ARRIVED)], hashes, "orders/shardId-1") == [Record("16", "k", data, ARRIVED)]
    assert "orders/shardId-1, record 16" in caplog.text
