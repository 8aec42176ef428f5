"""Kinesis's shards are read completely, in order and once, whatever the service does. It is played: see `harness.kinesis`."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import botocore.session
import pyarrow as pa
import pytest
from aws_kinesis_agg.aggregator import RecordAggregator
from botocore.stub import Stubber

from shardherd.clock import boot_time
from shardherd.source.kinesis import deleted, listing, range_reading
from shardherd.source.kinesis.client import (
    AccessKeys,
    Kinesis,
    KinesisRefusedError,
    KinesisUnavailableError,
    StreamAccess,
    keys_in,
    open_client,
    stream_argument,
)
from shardherd.source.kinesis.deleted import CAUGHT, DAY, Edge, Trail
from shardherd.source.kinesis.listing import ListedShard, Stream, describe, list_shards
from shardherd.source.kinesis.pacing import Pace, Share
from shardherd.source.kinesis.range_reading import RangeReading, read_ranges
from shardherd.source.kinesis.ranges import RecordsLostError, ShardRecords
from shardherd.source.kinesis.searching import KEPT, Bounds, Found, Search
from shardherd.source.kinesis.shard_reader import BEGINNING, NumberError, ShardGoneError, ShardReader, ThrottledError, after, at
from tests.harness import kinesis as played
from tests.harness.kinesis import REGION, STEP, PlayedKinesis, put, stream

SHARD = "shardId-000000000000"
COLUMNS = ("key", "value", "sequenceNumber", "subSequenceNumber")
QUICK = 1_000_000.0
ALL = Bounds(span=3600.0)


def pace() -> Pace:
    """No limits: what obeys them is tested beside the limits."""
    return Pace(Share(QUICK, 1e15))


@pytest.fixture
def orders(kinesis: PlayedKinesis) -> Iterator[Any]:
    """A writer of the stream `orders`, which has one shard."""
    with stream(kinesis, "orders") as client:
        yield client


@pytest.fixture
def reading(kinesis: PlayedKinesis) -> Kinesis:
    """Whoever reads it."""
    return Kinesis(StreamAccess("orders", REGION, kinesis.url, lambda: AccessKeys("key", "secret")))


def search(reading: Kinesis) -> Search:
    return Search(reading, pace())


def write(client: Any, *values: str, key: str = "k") -> None:
    put(client, "orders", [(key, value.encode()) for value in values])


def values_of(batches: Iterator[pa.RecordBatch]) -> list[str]:
    return [row["value"].decode() for batch in batches for row in batch.to_pylist()]


def values(reading: Kinesis, *ranges: ShardRecords, **more: Any) -> list[str]:
    return values_of(read_ranges(reading, pace(), ranges, COLUMNS, **more))


def only(reading: Kinesis) -> ListedShard:
    (shard,) = list_shards(reading)
    return shard


# --- the stream and its shards -------------------------------------------------------------------------------------------


def test_a_stream_says_when_it_was_made_so_that_another_of_its_name_is_another(orders: Any, reading: Kinesis) -> None:
    said = describe(reading)
    assert said == Stream("orders", said.arn, said.created, 24 * 3600.0)
    assert said.arn.endswith(":stream/orders")
    assert abs(said.created - time.time()) < 60
    assert said.source_id == f"{said.arn}@{said.created}"


def test_shards_are_listed_over_all_pages() -> None:
    kinesis = Kinesis(StreamAccess("orders", REGION), client=_stubbed_client())
    stubber = Stubber(kinesis.client)
    page = {"Shards": [_shard_json(3)], "NextToken": "more"}
    stubber.add_response("list_shards", page, {"StreamName": "orders"})
    last = {"Shards": [_shard_json(1, end=500), _shard_json(2, parents=True)]}
    stubber.add_response("list_shards", last, {"NextToken": "more"})
    with stubber:
        found = list_shards(kinesis)
    assert [(each.id[-1], each.begin, each.end, each.parents) for each in found] == [
        ("1", 100, 501, ()),
        ("2", 200, None, ("a", "b")),
        ("3", 300, None, ()),
    ]


def test_pages_of_a_list_are_asked_for_by_their_token_alone(kinesis: PlayedKinesis, reading: Kinesis) -> None:
    with stream(kinesis, "orders", 5):
        whole = list_shards(reading)
        kinesis.played.calls.clear()
        kinesis.played.page = 2
        assert list_shards(reading) == whole
    assert (len(whole), kinesis.played.calls["ListShards"]) == (5, 3)


def _stubbed_client() -> Any:
    session = botocore.session.Session()
    session.set_credentials("key", "secret")
    return session.create_client("kinesis", REGION)


def _shard_json(number: int, end: int | None = None, *, parents: bool = False) -> dict[str, Any]:
    numbers = {"StartingSequenceNumber": str(number * 100)} | ({} if end is None else {"EndingSequenceNumber": str(end)})
    family = {"ParentShardId": "a", "AdjacentParentShardId": "b"} if parents else {}
    return {
        "ShardId": f"shardId-{number:012}",
        "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": "9"},
        "SequenceNumberRange": numbers,
        **family,
    }


def test_a_stream_that_is_not_there_is_named(kinesis: PlayedKinesis, reading: Kinesis) -> None:
    with pytest.raises(
        KinesisRefusedError, match=r"stream orders cannot be read in eu-central-1: .*not found.*correct its name"
    ):
        list_shards(reading)


def test_a_service_that_is_away_is_not_a_refusal() -> None:
    reading = Kinesis(StreamAccess("orders", REGION, "http://127.0.0.1:9", lambda: AccessKeys("key", "secret")))
    with pytest.raises(KinesisUnavailableError, match="describe_stream_summary of orders"):
        describe(reading)


@pytest.mark.parametrize("code", ["LimitExceededException", "InternalFailure"])
def test_what_passes_is_told_apart_from_what_is_refused(code: str) -> None:
    kinesis = Kinesis(StreamAccess("orders", REGION), client=_stubbed_client())
    with Stubber(kinesis.client) as stubber:
        stubber.add_client_error("list_shards", code, http_status_code=400)
        with pytest.raises(KinesisUnavailableError, match=code):
            list_shards(kinesis)
        stubber.add_client_error("list_shards", "AccessDeniedException", "no right", 400)
        with pytest.raises(KinesisRefusedError, match=r"refuses list_shards of orders in eu-central-1.*no right.*policy"):
            list_shards(kinesis)


def test_a_stream_is_named_by_its_arn_too() -> None:
    arn = "arn:aws:kinesis:eu-central-1:123456789012:stream/orders"
    assert stream_argument("orders") == {"StreamName": "orders"}
    assert stream_argument(arn) == {"StreamARN": arn}
    assert StreamAccess(arn, REGION).name == StreamAccess("orders", REGION).name == "orders"


def test_a_stream_is_read_by_its_arn(kinesis: PlayedKinesis, orders: Any, reading: Kinesis) -> None:
    write(orders, "a", "b")
    named = Kinesis(StreamAccess(describe(reading).arn, REGION, kinesis.url, lambda: AccessKeys("key", "secret")))
    found = search(named).next(only(named), 0, ALL)
    assert found is not None
    assert values(named, ShardRecords(SHARD, found.first, found.stop)) == ["a", "b"]


# --- access keys ---------------------------------------------------------------------------------------------------------


def test_access_keys_are_those_of_the_secret_of_now(tmp_path: Any) -> None:
    read = keys_in(str(tmp_path))
    with pytest.raises(KinesisRefusedError, match="its files are accessKeyId, secretAccessKey"):
        read()
    (tmp_path / "accessKeyId").write_text("AKIA1\n")
    (tmp_path / "secretAccessKey").write_text("s1")
    assert read() == AccessKeys("AKIA1", "s1", "")
    (tmp_path / "sessionToken").write_text("t2")
    assert read() == AccessKeys("AKIA1", "s1", "t2")


def test_after_a_refusal_of_the_keys_they_are_read_again(orders: Any, kinesis: PlayedKinesis) -> None:
    given = iter([AccessKeys("old", "old"), AccessKeys("new", "new")])
    reading = Kinesis(StreamAccess("orders", REGION, kinesis.url, lambda: next(given)))
    with Stubber(reading.client) as stubber:
        stubber.add_client_error("list_shards", "ExpiredTokenException", "expired", 400)
        assert [each.id for each in list_shards(reading)] == [SHARD]
    assert next(given, None) is None


@pytest.mark.parametrize("code", ["InvalidSignatureException", "AccessDeniedException", "ResourceNotFoundException"])
def test_keys_that_were_replaced_are_used_whatever_the_ones_before_were_refused_for(
    orders: Any, kinesis: PlayedKinesis, code: str
) -> None:
    """A secret that was mistyped, an identity without the right, one of an account without this stream: none becomes stale."""
    keys = [AccessKeys("key", "mistyped")]
    reading = Kinesis(StreamAccess("orders", REGION, kinesis.url, lambda: keys[-1]))
    with Stubber(reading.client) as stubber:
        for _ in range(2):
            stubber.add_client_error("list_shards", code, "as these keys say", 400)
        with pytest.raises(KinesisRefusedError, match="as these keys say"):
            list_shards(reading)
        keys.append(AccessKeys("key", "corrected"))
        assert [each.id for each in list_shards(reading)] == [SHARD]


def test_keys_that_stay_refused_are_an_error() -> None:
    made: list[Stubber] = []

    def refused() -> AccessKeys:
        return AccessKeys("a", "b")

    reading = Kinesis(StreamAccess("orders", REGION, "", refused))
    for _ in range(2):
        client = open_client(reading.access)
        stubber = Stubber(client)
        stubber.add_client_error("list_shards", "UnrecognizedClientException", "invalid token", 400)
        stubber.activate()
        made.append(stubber)
    clients = iter([each.client for each in made])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shardherd.source.kinesis.client.open_client", lambda *_, **__: next(clients))
        with pytest.raises(KinesisRefusedError, match="invalid token"):
            list_shards(reading)
    assert next(clients, None) is None


# --- one shard -----------------------------------------------------------------------------------------------------------


def test_a_closed_shard_ends_and_says_so_once_and_for_all(orders: Any, reading: Kinesis) -> None:
    write(orders, "a", "b", "c")
    orders.split_shard(StreamName="orders", ShardToSplit=SHARD, NewStartingHashKey=str(2**127))
    write(orders, "of a child")
    reader = ShardReader(reading, SHARD, (BEGINNING,))
    answer = reader.read(2)
    assert ([each.data for each in answer.records], answer.over) == ([b"a", b"b"], False)
    answer = reader.read(2)
    assert ([each.data for each in answer.records], answer.over) == ([b"c"], True)
    answer = reader.read(2)
    assert (answer.records, answer.behind, answer.over) == ([], 0.0, True)


def test_an_expired_iterator_is_got_anew_after_the_last_record(kinesis: PlayedKinesis, orders: Any, reading: Kinesis) -> None:
    write(orders, "a", "b", "c")
    reader = ShardReader(reading, SHARD, (BEGINNING,))
    assert [each.data for each in reader.read(2).records] == [b"a", b"b"]
    kinesis.played.refusals.append(("ExpiredIteratorException", "Iterator expired."))
    assert [each.data for each in reader.read(2).records] == [b"c"]
    kinesis.played.iterator_life = -1.0
    with pytest.raises(KinesisUnavailableError, match="expired before it was used"):
        reader.read()


def test_a_throttled_shard_and_one_that_is_gone_are_told_apart(kinesis: PlayedKinesis, orders: Any, reading: Kinesis) -> None:
    write(orders, "a")
    reader = ShardReader(reading, SHARD, (BEGINNING,))
    kinesis.played.refusals.append(("ProvisionedThroughputExceededException", "Rate exceeded"))
    with pytest.raises(ThrottledError, match=f"shard {SHARD} is asked too often"):
        reader.read()
    assert [each.data for each in reader.read().records] == [b"a"]
    with pytest.raises(ShardGoneError, match="shardId-7 of orders is gone"):
        ShardReader(reading, "shardId-7", (BEGINNING,)).read()
    with pytest.raises(NumberError):
        ShardReader(reading, SHARD, (at(7),)).read()


def test_the_first_start_that_kinesis_takes_is_where_it_begins(kinesis: PlayedKinesis, orders: Any, reading: Kinesis) -> None:
    write(orders, "a", "b", "c")
    second = kinesis.numbers("orders", SHARD)[1]
    reader = ShardReader(reading, SHARD, (at(second - 1), at(second)))
    assert [each.data for each in reader.read().records] == [b"b", b"c"]
    assert [each.number for each in ShardReader(reading, SHARD, (after(second),)).read().records] == [second + STEP]


# --- what a micro-batch has ----------------------------------------------------------------------------------------------


def test_nothing_new_is_nothing_and_costs_one_call(kinesis: PlayedKinesis, orders: Any, reading: Kinesis) -> None:
    shard, looks = only(reading), search(reading)
    assert looks.next(shard, 0, ALL) is None
    kinesis.played.calls.clear()
    assert looks.next(shard, 0, ALL) is None
    assert dict(kinesis.played.calls) == {"GetRecords": 1}


def test_what_comes_next_begins_at_a_record_and_ends_after_one(kinesis: PlayedKinesis, orders: Any, reading: Kinesis) -> None:
    shard, looks = only(reading), search(reading)
    write(orders, "a", "b")
    first, second = kinesis.numbers("orders", SHARD)
    assert looks.next(shard, 0, ALL) == Found(first, second + 1)
    assert looks.next(shard, second + 1, ALL) is None
    write(orders, "c")
    kinesis.played.calls.clear()
    third = kinesis.numbers("orders", SHARD)[-1]
    assert looks.next(shard, second + 1, ALL) == Found(third, third + 1)
    assert dict(kinesis.played.calls) == {"GetRecords": 1}
    assert search(reading).next(shard, second + 1, ALL) == Found(third, third + 1)


def test_a_batch_of_the_past_ends_where_its_span_ends(kinesis: PlayedKinesis, orders: Any, reading: Kinesis) -> None:
    """5,000 records of the last 5,000 seconds: a span of 60 is 60 of them, found by times and not by reading all."""
    put(orders, "orders", [("k", b"x" * 1000)] * 5000)
    kinesis.age("orders", SHARD, lambda place: 5000.0 - place)
    numbers = kinesis.numbers("orders", SHARD)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shardherd.source.kinesis.searching.LOOKED_AT", 10)
        kinesis.played.read.clear()
        found = search(reading).next(only(reading), 0, Bounds(span=60.0))
    assert found == Found(numbers[0], numbers[60])
    assert sum(size for _, _, size in kinesis.played.read) <= 12 * 1100
    assert len(values(reading, ShardRecords(SHARD, found.first, found.stop))) == 60


def test_a_span_begins_with_the_first_record_after_the_position(kinesis: PlayedKinesis, orders: Any, reading: Kinesis) -> None:
    """The record before it, which is read as the proof that none is missing, came long before."""
    put(orders, "orders", [("k", b"x")] * 400)
    kinesis.age("orders", SHARD, lambda place: 5000.0 - place if place else 80_000.0)
    numbers = kinesis.numbers("orders", SHARD)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shardherd.source.kinesis.searching.LOOKED_AT", 10)
        found = search(reading).next(only(reading), numbers[0] + 1, Bounds(span=60.0))
    assert found == Found(numbers[1], numbers[61])


def test_a_span_that_reaches_the_newest_record_ends_with_it(kinesis: PlayedKinesis, orders: Any, reading: Kinesis) -> None:
    """What came in the last moments is looked at, the time before it is not read."""
    put(orders, "orders", [("k", b"x" * 100)] * 3000)
    kinesis.age("orders", SHARD, lambda place: (3000 - place) / 100)
    numbers = kinesis.numbers("orders", SHARD)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shardherd.source.kinesis.searching.LOOKED_AT", 200)
        kinesis.played.read.clear()
        found = search(reading).next(only(reading), 0, ALL)
    assert found is not None
    assert found.first == numbers[0]
    assert numbers[2500] < found.stop <= numbers[-1] + 1
    assert sum(size for _, _, size in kinesis.played.read) <= 401 * 101


def test_a_stream_that_was_quiet_for_long_ends_with_its_last_record(
    kinesis: PlayedKinesis, orders: Any, reading: Kinesis
) -> None:
    put(orders, "orders", [("k", b"x")] * 50)
    kinesis.age("orders", SHARD, lambda place: 7200.0 - place / 10)
    numbers = kinesis.numbers("orders", SHARD)
    shard, looks, position, found = only(reading), search(reading), 0, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shardherd.source.kinesis.searching.LOOKED_AT", 10)
        while (each := looks.next(shard, position, ALL)) is not None:
            found += values(reading, ShardRecords(SHARD, each.first, each.stop))
            position = each.stop
    assert position == numbers[-1] + 1
    assert len(found) == 50
    assert looks.newest(shard) == numbers[-1]


@pytest.mark.parametrize(
    ("records", "size", "expected"), [(3, None, 3), (None, 35, 3), (None, 1, 1), (5, 25, 2), (30, None, 20)]
)
def test_a_batch_may_be_bounded_by_records_and_bytes(
    records: int | None, size: int | None, expected: int, orders: Any, reading: Kinesis
) -> None:
    put(orders, "orders", [("k", b"123456789")] * 20)
    bounds = Bounds(span=60.0, records=records, size=size)
    shard, looks, position, read = only(reading), search(reading), 0, []
    while (found := looks.next(shard, position, bounds)) is not None:
        read.append(len(values(reading, ShardRecords(SHARD, found.first, found.stop))))
        position = found.stop
    assert sum(read) == 20
    assert set(read[:-1]) <= {expected}
    assert 1 <= read[-1] <= expected


def test_a_look_never_goes_beyond_what_there_was_when_it_was_bounded(
    kinesis: PlayedKinesis, orders: Any, reading: Kinesis
) -> None:
    write(orders, "a", "b", "c")
    numbers = kinesis.numbers("orders", SHARD)
    until = Bounds(span=3600.0, until=numbers[1] + 1)
    shard, looks = only(reading), search(reading)
    assert looks.next(shard, 0, until) == Found(numbers[0], numbers[1] + 1)
    assert looks.next(shard, numbers[1] + 1, until) is None


def test_a_closed_shard_is_read_to_its_end_even_if_nothing_is_left(
    kinesis: PlayedKinesis, orders: Any, reading: Kinesis
) -> None:
    write(orders, "a")
    number = kinesis.numbers("orders", SHARD)[0]
    looks = search(reading)
    assert looks.next(only(reading), 0, ALL) == Found(number, number + 1)
    orders.split_shard(StreamName="orders", ShardToSplit=SHARD, NewStartingHashKey=str(2**127))
    shard = list_shards(reading)[0]
    assert shard.end is not None
    assert looks.next(shard, number + 1, ALL) == Found(shard.end, shard.end)
    assert search(reading).next(shard, 0, ALL) == Found(number, shard.end)
    assert search(reading).next(shard, 0, Bounds(60.0, records=1)) == Found(number, shard.end)
    assert values(reading, ShardRecords(SHARD, number, shard.end)) == ["a"]


def test_an_answer_without_records_is_not_the_end(kinesis: PlayedKinesis, orders: Any, reading: Kinesis) -> None:
    write(orders, "a", "b")
    first, last = kinesis.numbers("orders", SHARD)
    kinesis.played.empty_answers = 3
    assert search(reading).next(only(reading), 0, ALL) == Found(first, last + 1)
    kinesis.played.empty_answers = 3
    assert values(reading, ShardRecords(SHARD, first, last + 1)) == ["a", "b"]


def test_records_that_were_deleted_before_the_position_are_told(kinesis: PlayedKinesis, orders: Any, reading: Kinesis) -> None:
    write(orders, "a", "b", "c", "d")
    numbers = kinesis.numbers("orders", SHARD)
    shard = only(reading)
    assert search(reading).next(shard, numbers[1] + 1, ALL) == Found(numbers[2], numbers[3] + 1, gap=False)
    assert search(reading).next(shard, numbers[2], ALL) == Found(numbers[2], numbers[3] + 1, gap=False)
    kinesis.trim("orders", SHARD, numbers[3])
    assert search(reading).next(shard, numbers[1] + 1, ALL) == Found(numbers[3], numbers[3] + 1, gap=True)


class Scripted:
    """A stream whose shard answers with these: the numbers of records, and the seconds that follow."""

    def __init__(self, *answers: tuple[tuple[int, ...], float]) -> None:
        self.access = StreamAccess("orders", REGION)
        self.answers = list(answers)
        self.opened: list[str] = []

    def call(self, operation: str, **arguments: Any) -> dict[str, Any]:
        if operation == "get_shard_iterator":
            self.opened.append(arguments["ShardIteratorType"])
            return {"ShardIterator": "there"}
        numbers, behind = self.answers.pop(0) if self.answers else ((), 0.0)
        arrived = datetime(2026, 1, 1, tzinfo=UTC)
        records = [
            {"SequenceNumber": str(each), "PartitionKey": "k", "Data": b"x", "ApproximateArrivalTimestamp": arrived}
            for each in numbers
        ]
        return {"Records": records, "NextShardIterator": "next", "MillisBehindLatest": int(behind * 1000)}


def looks_at(*answers: tuple[tuple[int, ...], float]) -> tuple[Search, Scripted]:
    service = Scripted(*answers)
    made: Any = service
    return Search(made, pace()), service


OPEN = ListedShard(SHARD, 100, None, (), (0, 2**128 - 1))


def test_a_record_before_the_position_that_comes_in_an_answer_of_its_own_proves_that_nothing_is_gone() -> None:
    looks, _ = looks_at(((199,), 60.0), ((), 50.0), ((250, 260), 0.0))
    assert looks.next(OPEN, 200, ALL) == Found(250, 261, gap=False)
    looks, _ = looks_at(((), 60.0), ((250, 260), 0.0))
    assert looks.next(OPEN, 200, ALL) == Found(250, 261, gap=True)


def test_a_look_goes_on_after_answers_without_records_where_the_last_one_ended() -> None:
    looks, service = looks_at(((199,), 60.0), *[((), 50.0)] * 14, ((250,), 0.0))
    assert [looks.next(OPEN, 200, ALL) for _ in range(3)] == [None, None, Found(250, 251, gap=False)]
    assert service.opened == ["AT_SEQUENCE_NUMBER"]
    looks, service = looks_at(*[((), 50.0)] * 14, ((250,), 0.0))
    assert [looks.next(OPEN, 200, ALL) for _ in range(3)] == [None, None, Found(250, 251, gap=True)]
    assert service.opened == ["AT_SEQUENCE_NUMBER"]


def test_a_look_that_finds_nothing_says_whether_records_follow() -> None:
    looks, _ = looks_at(*[((), 50.0)] * 7, ((), 0.0))
    assert (looks.follows(SHARD), looks.next(OPEN, 200, ALL), looks.follows(SHARD)) == (False, None, True)
    assert (looks.next(OPEN, 200, ALL), looks.follows(SHARD)) == (None, False)


def test_a_place_is_found_behind_many_answers_without_records() -> None:
    looks, _ = looks_at(*[((), 50.0)] * 100, ((250,), 0.0))
    assert looks.newest(OPEN) == 250
    looks, _ = looks_at(*[((), 50.0)] * 100, ((250,), 0.0))
    assert looks.first_since(OPEN, 1.0) == 250


def test_a_search_for_a_place_that_is_answered_with_nothing_for_ever_is_an_error_and_no_place() -> None:
    looks, _ = looks_at(*[((), 50.0)] * 2100)
    with pytest.raises(KinesisUnavailableError, match="2000 answers without records, though some follow"):
        looks.newest(OPEN)


class Watched:
    """A shard of which one record is read: its number, and who looks on. `seconds` are what the clock says."""

    def __init__(self, service: PlayedKinesis, client: Any, reading: Kinesis) -> None:
        self.seconds = 0.0
        write(client, "a")
        (self.number,) = service.numbers("orders", SHARD)
        self._shard, self._looks = only(reading), Search(reading, pace(), clock=lambda: self.seconds)
        assert self._looks.next(self._shard, 0, ALL) == Found(self.number, self.number + 1)

    def look(self) -> Found | None:
        """What follows the record."""
        return self._looks.next(self._shard, self.number + 1, ALL)


@pytest.fixture
def watched(kinesis: PlayedKinesis, orders: Any, reading: Kinesis) -> Watched:
    return Watched(kinesis, orders, reading)


def test_a_quiet_shard_whose_last_record_was_deleted_has_no_gap_for_who_watched_it(
    kinesis: PlayedKinesis, orders: Any, watched: Watched
) -> None:
    kinesis.trim("orders", SHARD, watched.number + 1)
    assert watched.look() is None
    write(orders, "b")
    latest = kinesis.numbers("orders", SHARD)[0]
    assert watched.look() == Found(latest, latest + 1, gap=False)


def test_who_looks_seldom_knows_that_what_came_since_the_last_look_is_too_young_to_be_gone(
    kinesis: PlayedKinesis, orders: Any, watched: Watched
) -> None:
    for _ in range(2):
        watched.seconds += KEPT + 1
        assert watched.look() is None
    write(orders, "young")
    *_, young = kinesis.numbers("orders", SHARD)
    kinesis.trim("orders", SHARD, young)
    watched.seconds += KEPT + 1
    assert watched.look() == Found(young, young + 1, gap=False)


def test_who_looks_again_after_a_long_while_proves_anew_that_nothing_is_gone(
    kinesis: PlayedKinesis, orders: Any, watched: Watched
) -> None:
    """A new iterator after a record that is gone begins behind all that is gone by then."""
    write(orders, "lost", "left")
    *_, left = kinesis.numbers("orders", SHARD)
    kinesis.trim("orders", SHARD, left)
    watched.seconds = CAUGHT * DAY
    assert watched.look() == Found(left, left + 1, gap=True)


def test_so_does_who_is_nearly_as_far_behind_as_records_are_kept(kinesis: PlayedKinesis, orders: Any, reading: Kinesis) -> None:
    write(orders, *map(str, range(1003)))
    kinesis.age("orders", SHARD, lambda _: 23 * 3600.0)
    numbers, bounds = kinesis.numbers("orders", SHARD), Bounds(3600.0, records=1001)
    shard, looks = only(reading), search(reading)
    assert looks.next(shard, 0, bounds) == Found(numbers[0], numbers[1000] + 1)
    kinesis.trim("orders", SHARD, numbers[-1])
    assert looks.next(shard, numbers[1000] + 1, bounds) == Found(numbers[-1], numbers[-1] + 1, gap=True)


def test_single_places_of_a_shard(kinesis: PlayedKinesis, orders: Any, reading: Kinesis) -> None:
    shard, looks = only(reading), search(reading)
    assert (looks.newest(shard), looks.first_since(shard, 0.0), looks.peek(shard, 0).first) == (None, None, None)
    put(orders, "orders", [("k", b"x")] * 400)
    kinesis.age("orders", SHARD, lambda place: 4000.0 - 10 * place)
    numbers = kinesis.numbers("orders", SHARD)
    assert looks.newest(shard) == numbers[-1]
    assert looks.first_since(shard, time.time() - 1005.0) == numbers[300]
    assert looks.first_since(shard, time.time() - 1.0) is None
    peek = looks.peek(shard, numbers[7] + 1)
    assert peek.first == numbers[8]
    assert peek.arrived is not None
    assert abs(peek.arrived - (time.time() - 3920)) < 30
    assert abs(peek.behind - 3920) < 30
    assert not peek.over


# --- ranges --------------------------------------------------------------------------------------------------------------


def test_several_shards_are_read_side_by_side_each_in_order(kinesis: PlayedKinesis, reading: Kinesis) -> None:
    with stream(kinesis, "orders", 5) as client:
        written = [(f"k{number % 37}", str(number).encode()) for number in range(3000)]
        put(client, "orders", written)
        looks = search(reading)
        ranges = []
        for shard in list_shards(reading):
            found = looks.next(shard, 0, ALL)
            assert found is not None
            ranges.append(ShardRecords(shard.id, found.first, found.stop, shard.hashes))
        rows = [row for batch in read_ranges(reading, pace(), ranges, COLUMNS) for row in batch.to_pylist()]
    by_key: dict[str, list[int]] = {}
    for row in rows:
        by_key.setdefault(row["key"].decode(), []).append(int(row["value"]))
    wanted: dict[str, list[int]] = {}
    for key, value in written:
        wanted.setdefault(key, []).append(int(value))
    assert by_key == wanted


def test_the_columns_are_spark_s_and_kafka_s_where_they_mean_the_same(
    kinesis: PlayedKinesis, orders: Any, reading: Kinesis
) -> None:
    writer = RecordAggregator()
    writer.add_user_record("ann", b"1")
    writer.add_user_record("bob", b"2")
    put(orders, "orders", [("kpl", bytes(writer.clear_and_get().get_contents()[2])), ("schlüssel", b"3")])
    first, last = kinesis.numbers("orders", SHARD)
    names = ("key", "value", "sequenceNumber", "subSequenceNumber", "timestamp", "shard")
    wanted = ShardRecords(SHARD, first, last + 1, only(reading).hashes)
    (batch,) = read_ranges(reading, pace(), [wanted], names)
    assert {field.name: field.type for field in batch.schema} == {
        "key": pa.binary(),
        "value": pa.binary(),
        "sequenceNumber": pa.string(),
        "subSequenceNumber": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "shard": pa.string(),
    }
    rows = batch.to_pylist()
    assert all(abs((datetime.now(UTC) - row.pop("timestamp")).total_seconds()) < 60 for row in rows)
    assert rows == [
        {"key": b"ann", "value": b"1", "sequenceNumber": str(first), "subSequenceNumber": 0, "shard": f"orders/{SHARD}"},
        {"key": b"bob", "value": b"2", "sequenceNumber": str(first), "subSequenceNumber": 1, "shard": f"orders/{SHARD}"},
        {
            "key": "schlüssel".encode(),
            "value": b"3",
            "sequenceNumber": str(last),
            "subSequenceNumber": 0,
            "shard": f"orders/{SHARD}",
        },
    ]


def test_throttling_and_expiry_in_the_middle_of_a_range_lose_and_repeat_nothing(
    kinesis: PlayedKinesis, orders: Any, reading: Kinesis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardherd.source.kinesis.pacing.FIRST_DELAY", 0.01)
    monkeypatch.setattr("shardherd.source.kinesis.pacing.FIRST", 3)
    monkeypatch.setattr("shardherd.source.kinesis.pacing.BYTES", 300.0)
    put(orders, "orders", [("k", f"{number:099}".encode()) for number in range(30)])
    numbers = kinesis.numbers("orders", SHARD)
    troubles = itertools.cycle(["ProvisionedThroughputExceededException", "ExpiredIteratorException", "InternalFailure"])
    kinesis.played.refusals += [(next(troubles), "trouble") for _ in range(6)]
    found = values(reading, ShardRecords(SHARD, numbers[0], numbers[-1] + 1))
    assert found == [f"{number:099}" for number in range(30)]
    assert kinesis.played.refusals == []


def test_answers_are_as_large_as_a_second_allows(kinesis: PlayedKinesis, orders: Any, reading: Kinesis) -> None:
    put(orders, "orders", [("k", bytes(4999))] * 1500)
    numbers = kinesis.numbers("orders", SHARD)
    kinesis.played.asked_limits.clear()
    assert len(values(reading, ShardRecords(SHARD, numbers[0], numbers[-1] + 1))) == 1500
    assert kinesis.played.asked_limits == [1000, 400, 400]


def test_the_limits_of_a_shard_are_kept_so_that_the_service_refuses_nothing(
    kinesis: PlayedKinesis, orders: Any, reading: Kinesis
) -> None:
    """4 MB in answers of at most 1,000 records take two seconds; the played service refuses what AWS would refuse."""
    put(orders, "orders", [("k", bytes(999))] * 4000)
    numbers = kinesis.numbers("orders", SHARD)
    kinesis.played.limits = True
    began = time.monotonic()
    ours = Pace()
    batches = list(read_ranges(reading, ours, [ShardRecords(SHARD, numbers[0], numbers[-1] + 1)], ("value",)))
    assert sum(batch.num_rows for batch in batches) == 4000
    assert kinesis.played.calls["throttled"] == 0
    assert time.monotonic() - began >= 1.0


def test_a_task_elsewhere_waits_for_what_its_planner_has_read(kinesis: PlayedKinesis, orders: Any, reading: Kinesis) -> None:
    write(orders, "a")
    (number,) = kinesis.numbers("orders", SHARD)
    began = boot_time()
    wanted = ShardRecords(SHARD, number, number + 1, wait=0.75)
    assert values_of(read_ranges(reading, pace(), [wanted], ("value",), pays=True)) == ["a"]
    assert boot_time() - began >= 0.75


@pytest.mark.parametrize(("pays", "refused"), [(True, 0), (False, 1)])
def test_who_reads_on_elsewhere_is_not_refused_for_what_a_task_before_has_read(
    pays: bool, refused: int, kinesis: PlayedKinesis, orders: Any, reading: Kinesis
) -> None:
    for _ in range(3):
        put(orders, "orders", [("k", bytes(800_000))])
    numbers = kinesis.numbers("orders", SHARD)
    kinesis.played.limits = True
    for _ in range(2):  # each with an account of its own
        wanted = [ShardRecords(SHARD, numbers[0], numbers[-1] + 1)]
        assert sum(batch.num_rows for batch in read_ranges(reading, Pace(), wanted, ("value",), pays=pays)) == 3
    assert min(1, kinesis.played.calls["throttled"]) == refused


def test_what_others_read_makes_it_wait_and_not_fail(kinesis: PlayedKinesis, orders: Any, reading: Kinesis) -> None:
    put(orders, "orders", [("k", bytes(999))] * 100)
    numbers = kinesis.numbers("orders", SHARD)
    kinesis.played.limits = True
    other = ShardReader(reading, SHARD, (BEGINNING,))
    for _ in range(5):
        other.read()
    assert len(values(reading, ShardRecords(SHARD, numbers[0], numbers[-1] + 1))) == 100
    assert kinesis.played.calls["throttled"] >= 1


@pytest.mark.parametrize("keep", [2, 4])
def test_a_range_whose_first_records_were_deleted_is_an_error(
    keep: int, kinesis: PlayedKinesis, orders: Any, reading: Kinesis, caplog: pytest.LogCaptureFixture
) -> None:
    write(orders, *"abcd", "e")
    numbers = kinesis.numbers("orders", SHARD)
    wanted = ShardRecords(SHARD, numbers[0], numbers[4])
    kinesis.trim("orders", SHARD, numbers[keep])
    with pytest.raises(
        RecordsLostError,
        match=f"shard orders/{SHARD}: the records from {numbers[0]} up to {numbers[keep]} are lost; .*failOnDataLoss",
    ):
        values(reading, wanted)
    assert values(reading, wanted, fail_on_data_loss=False) == list("abcd"[keep:])
    assert "going on without them" in caplog.text


class Late:
    """The time of day, which goes on at once for who waits long between two answers."""

    seconds = 0.0

    def __call__(self) -> float:
        return time.time() + self.seconds


@pytest.mark.parametrize("grouped", [False, True])
def test_records_in_a_range_that_retention_deletes_just_before_they_are_read_are_an_error(
    grouped: bool,
    kinesis: PlayedKinesis,
    orders: Any,
    reading: Kinesis,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An iterator goes on behind them and does not say so."""
    monkeypatch.setattr(played, "LARGEST_ANSWER", 5)  # for one record
    write(orders, *"abxyc")
    kinesis.age("orders", SHARD, lambda _: 23 * 3600.0)
    numbers, late = kinesis.numbers("orders", SHARD), Late()
    wanted = ShardRecords(SHARD, numbers[0], numbers[-1] + 1, begin=only(reading).begin if grouped else None)
    ended, warned = (
        RangeReading(reading, pace(), [wanted], fail_on_data_loss=fail, clock=late).records() for fail in (True, False)
    )
    for each in (ended, warned):
        assert [[record.data for record in next(each)[1]] for _ in range(2)] == [[b"a"], [b"b"]]
    kinesis.trim("orders", SHARD, numbers[-1])
    late.seconds = 3600.0
    lost = f"shard orders/{SHARD}: records from {numbers[1] + 1} up to {numbers[-1]} are lost"
    with pytest.raises(RecordsLostError, match=f"{lost}.*, or {'reset the shard' if grouped else 'begin anew'}"):
        next(ended)
    assert [record.data for _, records in warned for record in records] == [b"c"]
    assert lost in caplog.text


def test_an_answer_may_follow_a_gap_where_retention_has_come_since_the_record_before_it_was_seen(
    kinesis: PlayedKinesis, orders: Any, reading: Kinesis
) -> None:
    now = 10 * DAY
    edge = Edge(reading, clock=lambda: now)
    assert [edge.passed(Trail(now - DAY, now - seen), now) for seen in (deleted.GRACE - 1, deleted.GRACE)] == [False, True]
    assert [edge.passed(Trail(now - age, now - 60.0), now) for age in (DAY - deleted.MARGIN - 1, DAY - deleted.MARGIN)] == [
        False,
        True,
    ]
    assert [edge.ahead(Trail(now - age)) for age in (DAY - deleted.AHEAD - 1, DAY - deleted.AHEAD)] == [False, True]


def test_an_answer_that_comes_late_is_used_if_the_record_before_it_is_still_there(
    kinesis: PlayedKinesis, orders: Any, reading: Kinesis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each answer has room for one record, and comes long after the one before."""
    monkeypatch.setattr(played, "LARGEST_ANSWER", 5)
    monkeypatch.setattr(deleted, "GRACE", 0.0)
    write(orders, *"abcdef")
    kinesis.age("orders", SHARD, lambda _: 24 * 3600.0)
    numbers = kinesis.numbers("orders", SHARD)
    assert values(reading, ShardRecords(SHARD, numbers[0], numbers[-1] + 1)) == list("abcdef")


def test_a_range_goes_on_where_kinesis_takes_the_last_record_for_none_any_more(
    kinesis: PlayedKinesis, orders: Any, reading: Kinesis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(played, "LARGEST_ANSWER", 5)
    write(orders, *"ab")
    numbers = kinesis.numbers("orders", SHARD)
    found = RangeReading(reading, pace(), [ShardRecords(SHARD, numbers[0], numbers[-1] + 1)]).records()
    assert [record.data for record in next(found)[1]] == [b"a"]
    kinesis.played.refusals = [("ExpiredIteratorException", "Iterator expired")]
    kinesis.played.refusals += [("InvalidArgumentException", "StartingSequenceNumber is invalid")]
    assert [record.data for _, records in found for record in records] == [b"b"]
    assert kinesis.played.refusals == []


def test_so_are_they_where_the_shard_is_closed_and_none_is_left(
    kinesis: PlayedKinesis, orders: Any, reading: Kinesis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(played, "LARGEST_ANSWER", 5)
    write(orders, *"abxyc")
    kinesis.age("orders", SHARD, lambda _: 23 * 3600.0)
    numbers, late = kinesis.numbers("orders", SHARD), Late()
    found = RangeReading(reading, pace(), [ShardRecords(SHARD, numbers[0], numbers[-1] + 1)], clock=late).records()
    assert [record.data for record in next(found)[1]] == [b"a"]
    orders.split_shard(StreamName="orders", ShardToSplit=SHARD, NewStartingHashKey=str(2**127))
    kinesis.trim("orders", SHARD, numbers[-1] + 1)
    late.seconds = 3600.0
    with pytest.raises(RecordsLostError, match=f"the records from {numbers[0] + 1} up to {numbers[-1] + 1} are lost"):
        next(found)


def test_where_nothing_is_deleted_a_range_that_is_that_far_behind_is_read_like_others_and_retention_asked_for_once(
    kinesis: PlayedKinesis,
    orders: Any,
    reading: Kinesis,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(played, "LARGEST_ANSWER", 5)
    asked: list[Kinesis] = []

    def describe(kinesis: Kinesis) -> Stream:
        asked.append(kinesis)
        return listing.describe(kinesis)

    monkeypatch.setattr(deleted, "describe", describe)
    write(orders, *"abcdef")
    kinesis.age("orders", SHARD, lambda _: 24 * 3600.0)
    numbers, edge = kinesis.numbers("orders", SHARD), Edge(reading)
    for begin in (None, only(reading).begin):
        wanted = ShardRecords(SHARD, numbers[0], numbers[-1] + 1, begin=begin)
        assert values(reading, wanted, edge=edge) == list("abcdef")
    assert (caplog.records, asked) == ([], [reading])


def test_a_first_record_that_kinesis_no_longer_knows_loses_no_others(
    kinesis: PlayedKinesis, orders: Any, reading: Kinesis, caplog: pytest.LogCaptureFixture
) -> None:
    """AWS does not say whether it takes the number of a record that retention has deleted."""
    write(orders, *"abcd")
    numbers = kinesis.numbers("orders", SHARD)
    refused = ShardRecords(SHARD, numbers[1] + 1, numbers[3])
    with pytest.raises(RecordsLostError, match=f"from {numbers[1] + 1} up to {numbers[2]} are lost"):
        values(reading, refused)
    assert values(reading, refused, fail_on_data_loss=False) == ["c"]


def test_a_range_that_was_deleted_to_the_last_record_ends(
    kinesis: PlayedKinesis, orders: Any, reading: Kinesis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_reading, "LOSS_GRACE", 0.02)
    write(orders, *"ab")
    numbers = kinesis.numbers("orders", SHARD)
    wanted = ShardRecords(SHARD, numbers[0], numbers[1] + 1)
    kinesis.trim("orders", SHARD, numbers[1] + 1)
    with pytest.raises(RecordsLostError, match="the shard has nothing from there on"):
        values(reading, wanted)
    assert values(reading, wanted, fail_on_data_loss=False) == []
    orders.split_shard(StreamName="orders", ShardToSplit=SHARD, NewStartingHashKey=str(2**127))
    with pytest.raises(RecordsLostError, match="retention deleted them"):
        values(reading, wanted)
    with pytest.raises(RecordsLostError, match="is gone"):
        values(reading, ShardRecords("shardId-000000000009", numbers[0], numbers[1]))


def test_a_service_that_stays_away_fails_the_task(
    kinesis: PlayedKinesis, orders: Any, reading: Kinesis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_reading, "STALL_TIMEOUT", 0.3)
    monkeypatch.setattr("shardherd.source.kinesis.pacing.FIRST_DELAY", 0.01)
    write(orders, "a")
    number = kinesis.numbers("orders", SHARD)[0]
    away = Kinesis(StreamAccess("orders", REGION, "http://127.0.0.1:9", lambda: AccessKeys("key", "secret")))
    with pytest.raises(KinesisUnavailableError, match=rf"orders/{SHARD}: no record for 0.3 s, wanted up to {number + 1}: "):
        values(away, ShardRecords(SHARD, number, number + 1))


def quiet_range(*answers: tuple[tuple[int, ...], float]) -> list[int]:
    """The numbers of the records of a range up to 250; it is a tenth of a second later whenever somebody looks at the clock."""
    made: Any = Scripted(*answers)
    looks, arrived = itertools.count(), datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    wanted = ShardRecords(SHARD, 200, 251)
    reading = RangeReading(made, pace(), [wanted], now=lambda: next(looks) / 10, clock=lambda: arrived + 60.0)
    return [each.number for _, records in reading.records() for each in records]


def test_a_task_reads_on_through_answers_without_records_as_long_as_they_lead_on() -> None:
    """As of a shard that was quiet for days: each answer leads some minutes on."""
    quiet = [((), 90_000.0 - 300.0 * each) for each in range(250)]
    assert quiet_range(((200,), 90_300.0), *quiet, ((250,), 0.0)) == [200, 250]


def test_a_task_that_is_answered_with_nothing_and_comes_no_further_fails() -> None:
    with pytest.raises(KinesisUnavailableError, match="no record for 120 s, wanted up to 251"):
        quiet_range(((200,), 90_300.0), *[((), 90_300.0 + each) for each in range(250)], ((250,), 0.0))


def test_a_refusal_fails_the_task_at_once(kinesis: PlayedKinesis, orders: Any, reading: Kinesis) -> None:
    kinesis.played.refusals.append(("AccessDeniedException", "not authorized to perform kinesis:GetRecords"))
    write(orders, "a")
    number = kinesis.numbers("orders", SHARD)[0]
    with pytest.raises(KinesisRefusedError, match="not authorized to perform kinesis:GetRecords"):
        values(reading, ShardRecords(SHARD, number, number + 1))


def test_no_thread_is_left_behind_by_a_task_that_is_stopped(kinesis: PlayedKinesis, orders: Any, reading: Kinesis) -> None:
    write(orders, "a", "b")
    numbers = kinesis.numbers("orders", SHARD)
    batches = read_ranges(reading, pace(), [ShardRecords(SHARD, numbers[0], numbers[1] + 1)], COLUMNS)
    next(batches)
    close: Callable[[], None] = batches.close  # type: ignore[attr-defined]
    close()
    assert [each.name for each in threading.enumerate() if each.name.startswith("kinesis")] == []
