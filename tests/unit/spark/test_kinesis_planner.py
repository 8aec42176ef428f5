"""What the micro-batches of a query have that reads Kinesis: everything once, the same in a replay, parents before children."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from shardherd.source.kinesis.client import Kinesis, KinesisRefusedError, KinesisUnavailableError
from shardherd.source.kinesis.listing import ListedShard, Stream
from shardherd.source.kinesis.pacing import Pace, Share
from shardherd.source.kinesis.range_reading import read_ranges
from shardherd.source.kinesis.ranges import RecordsLostError, ShardRecords
from shardherd.source.kinesis.searching import Bounds, Found
from shardherd.source.kinesis.shard_reader import NumberError
from shardherd.spark.kinesis import planner as planning
from shardherd.spark.kinesis.offsets import KinesisOffsets, ShardOffsets
from shardherd.spark.kinesis.options import read_options
from shardherd.spark.kinesis.planner import KinesisPlanner, StreamService
from shardherd.spark.source import ShardherdSource
from tests.harness.kinesis import REGION, PlayedKinesis, put, split, stream

FIRST = "shardId-000000000000"


def quick() -> Pace:
    return Pace(Share(1e6, 1e15))


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "LOOK_INTERVAL", 0.0)
    monkeypatch.setattr(planning, "LIST_INTERVAL", 0.0)
    monkeypatch.setattr(planning, "RETRY_DELAY", 0.01)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")


@pytest.fixture
def orders(kinesis: PlayedKinesis) -> Iterator[Any]:
    with stream(kinesis, "orders") as client:
        yield client


class Query:
    """A query with its log of offsets, as Spark has it: each micro-batch is planned, logged and read."""

    def __init__(self, service: PlayedKinesis, log: list[KinesisOffsets] | None = None, **options: str) -> None:
        given = {"kinesis.stream": "orders", "kinesis.region": REGION, "kinesis.endpoint": service.url, **options}
        self.settings = read_options(given, batch=False)
        self.log = [KinesisOffsets()] if log is None else log
        self.planner = KinesisPlanner(self.settings, StreamService(self.settings, quick()))

    def read(self, end: KinesisOffsets) -> list[str]:
        ranges = self.planner.ranges(end)
        batches = read_ranges(Kinesis(self.settings.access), quick(), ranges, ("value",))
        return [row["value"].decode() for batch in batches for row in batch.to_pylist()]

    def batch(self) -> list[str] | None:
        """The values of the next micro-batch, None if there is none."""
        end = self.planner.latest(self.log[-1], once=False)
        if end is None:
            return None
        self.log.append(end)
        return self.read(end)

    def rest(self) -> list[list[str]]:
        found = []
        while (values := self.batch()) is not None:
            found.append(values)
        return found


def write(client: Any, *values: str) -> None:
    put(client, "orders", [(value[0], value.encode()) for value in values])


# --- where it starts -----------------------------------------------------------------------------------------------------


def test_a_new_query_starts_at_the_end_and_reads_what_comes(kinesis: PlayedKinesis, orders: Any) -> None:
    write(orders, "a", "b")
    query = Query(kinesis)
    assert query.batch() == []
    assert query.batch() is None
    write(orders, "c")
    assert query.batch() == ["c"]
    assert query.batch() is None


def test_an_empty_stream_is_read_from_its_first_record_on(kinesis: PlayedKinesis, orders: Any) -> None:
    query = Query(kinesis)
    assert query.batch() == []
    write(orders, "a")
    assert query.batch() == ["a"]


def test_it_starts_at_the_beginning_or_at_a_time(kinesis: PlayedKinesis, orders: Any) -> None:
    write(orders, "a", "b", "c")
    kinesis.age("orders", FIRST, lambda place: 300.0 - 100 * place)
    assert Query(kinesis, startingOffsets="earliest").batch() == ["a", "b", "c"]
    assert Query(kinesis, startingTimestamp=str(int((kinesis.played.now() - 210) * 1000))).batch() == ["b", "c"]
    late = Query(kinesis, startingTimestamp=str(int((kinesis.played.now() - 5) * 1000)))
    assert late.batch() == []
    write(orders, "d")
    assert late.batch() == ["d"]


# --- order ---------------------------------------------------------------------------------------------------------------


def test_children_are_read_after_their_parents_end(kinesis: PlayedKinesis, orders: Any) -> None:
    write(orders, *(f"{key}1" for key in "abcdefgh"))
    split(orders, "orders", FIRST)
    write(orders, *(f"{key}2" for key in "abcdefgh"))
    low, high = f"{FIRST[:-1]}1", f"{FIRST[:-1]}2"
    orders.merge_shards(StreamName="orders", ShardToMerge=low, AdjacentShardToMerge=high)
    write(orders, *(f"{key}3" for key in "abcdefgh"))
    query = Query(kinesis, startingOffsets="earliest")
    assert [sorted(values) for values in query.rest()] == [[f"{key}{round}" for key in "abcdefgh"] for round in (1, 2, 3)]
    assert [each.over for each in query.log[-1].shards.values()] == [True, True, True, False]


def test_a_parent_without_anything_left_lets_its_children_be_read(kinesis: PlayedKinesis, orders: Any) -> None:
    write(orders, "a")
    query = Query(kinesis, startingOffsets="earliest")
    assert query.batch() == ["a"]
    split(orders, "orders", FIRST)
    write(orders, "b", "c", "d")
    assert [sorted(values) for values in query.rest()] == [[], ["b", "c", "d"]]


def test_a_query_that_starts_at_the_end_passes_over_closed_shards(kinesis: PlayedKinesis, orders: Any) -> None:
    write(orders, "a")
    split(orders, "orders", FIRST)
    query = Query(kinesis)
    assert query.batch() == []
    write(orders, "b", "c")
    assert [sorted(values) for values in query.rest()] == [["b", "c"]]


def test_a_shard_whose_parent_is_no_longer_listed_is_read(kinesis: PlayedKinesis, orders: Any) -> None:
    split(orders, "orders", FIRST)
    write(orders, "a", "b")
    query = Query(kinesis, startingOffsets="earliest")
    query.rest()
    assert query.log[-1].shards[FIRST].over
    kinesis.forget("orders", FIRST)
    write(orders, "c")
    assert query.batch() == ["c"]
    assert FIRST not in query.log[-1].shards
    assert sorted(value for values in Query(kinesis, startingOffsets="earliest").rest() for value in values) == ["a", "b", "c"]


# --- replays -------------------------------------------------------------------------------------------------------------


def test_a_replayed_batch_has_the_same_records(kinesis: PlayedKinesis, orders: Any) -> None:
    write(orders, "a", "b")
    first = Query(kinesis, startingOffsets="earliest")
    assert first.batch() == ["a", "b"]
    write(orders, "c")
    assert first.batch() == ["c"]
    write(orders, "d")
    split(orders, "orders", FIRST)
    again = Query(kinesis, first.log)
    assert [again.read(end) for end in first.log[1:]] == [["a", "b"], ["c"]]
    assert [values for values in again.rest() if values] == [["d"]]


def test_after_a_restart_it_goes_on_where_the_log_ends(kinesis: PlayedKinesis, orders: Any) -> None:
    written = [f"{number}" for number in range(50)]
    write(orders, *written[:20])
    log = [KinesisOffsets()]
    found: list[str] = []
    for part in (written[20:35], written[35:50], []):
        query = Query(kinesis, log, startingOffsets="earliest", maxOffsetsPerTrigger="7")
        for _ in range(2):
            found += query.batch() or []
        write(orders, *part)
    found += [value for values in Query(kinesis, log, maxOffsetsPerTrigger="7").rest() for value in values]
    assert found == written


# --- bounds --------------------------------------------------------------------------------------------------------------


def test_the_records_of_a_batch_are_shared_by_the_shards(kinesis: PlayedKinesis) -> None:
    with stream(kinesis, "orders", 2) as client:
        put(client, "orders", [(f"k{number}", b"x" * 10) for number in range(40)])
        sizes = [len(values) for values in Query(kinesis, startingOffsets="earliest", maxOffsetsPerTrigger="10").rest()]
        assert sum(sizes) == 40
        assert max(sizes) == 10
        end = Query(kinesis, startingOffsets="earliest", maxBytesPerTrigger="1")
        assert len(end.batch() or []) == 2


def test_a_span_bounds_a_batch(kinesis: PlayedKinesis, orders: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardherd.source.kinesis.searching.LOOKED_AT", 5)
    write(orders, *(str(number) for number in range(100)))
    kinesis.age("orders", FIRST, lambda place: 1000.0 - 10 * place)
    query = Query(kinesis, None, **{"startingOffsets": "earliest", "kinesis.maxSpanPerTrigger": "200s"})
    assert [len(values) for values in query.rest()] == [20, 20, 20, 20, 20]
    assert query.planner.latest(KinesisOffsets(query.log[-1].source), once=True) is not None


def test_once_is_all_there_is(kinesis: PlayedKinesis, orders: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardherd.source.kinesis.searching.LOOKED_AT", 5)
    write(orders, *(str(number) for number in range(100)))
    kinesis.age("orders", FIRST, lambda place: 1000.0 - 10 * place)
    query = Query(kinesis, startingOffsets="earliest")
    end = query.planner.latest(KinesisOffsets(), once=True)
    assert end is not None
    assert len(query.read(end)) == 100


def test_available_now_ends_with_what_there_was(kinesis: PlayedKinesis, orders: Any) -> None:
    write(orders, "a1", "b1", "c1")
    split(orders, "orders", FIRST)
    write(orders, "a2", "b2", "c2")
    query = Query(kinesis, startingOffsets="earliest", maxOffsetsPerTrigger="2")
    query.planner.prepare()
    write(orders, "a3", "b3", "c3")
    kinesis.played.empty_answers = 8
    found = [value for values in query.rest() for value in values]
    assert sorted(found) == ["a1", "a2", "b1", "b2", "c1", "c2"]
    assert [sorted(values) for values in Query(kinesis, query.log).rest()] == [["a3", "b3", "c3"]]


def test_a_batch_reads_what_there_is_of_every_shard(kinesis: PlayedKinesis, orders: Any) -> None:
    write(orders, "a1", "b1")
    split(orders, "orders", FIRST)
    write(orders, "a2", "b2", "c2")
    query = Query(kinesis, startingOffsets="earliest")
    found = query.planner.between()
    write(orders, "later")
    assert sorted(query.read(found)) == ["a1", "a2", "b1", "b2", "c2"]


# --- trouble -------------------------------------------------------------------------------------------------------------


def test_what_was_deleted_before_it_was_read_ends_the_query(
    kinesis: PlayedKinesis, orders: Any, caplog: pytest.LogCaptureFixture
) -> None:
    write(orders, "a", "b", "c", "d")
    numbers = kinesis.numbers("orders", FIRST)
    query = Query(kinesis, startingOffsets="earliest", maxOffsetsPerTrigger="2")
    assert query.batch() == ["a", "b"]
    kinesis.trim("orders", FIRST, numbers[3])
    with pytest.raises(RecordsLostError, match=f"shard {FIRST}: the record before {numbers[1] + 1} is gone.*failOnDataLoss"):
        Query(kinesis, query.log).batch()
    assert Query(kinesis, query.log, failOnDataLoss="false").batch() == ["d"]
    assert f"up to {numbers[3]}" in caplog.text


def test_a_closed_shard_that_was_deleted_to_its_end_before_it_was_read_ends_the_query(
    kinesis: PlayedKinesis, orders: Any, caplog: pytest.LogCaptureFixture
) -> None:
    write(orders, "a", "b", "c")
    query = Query(kinesis, startingOffsets="earliest", maxOffsetsPerTrigger="1")
    assert query.batch() == ["a"]
    split(orders, "orders", FIRST)
    write(orders, "d")
    first, *_, last = kinesis.numbers("orders", FIRST)
    kinesis.trim("orders", FIRST, last + 1)
    with pytest.raises(RecordsLostError, match=f"shard {FIRST}: the record before {first + 1} is gone"):
        Query(kinesis, query.log).rest()
    assert Query(kinesis, query.log, failOnDataLoss="false").rest() == [[], ["d"]]
    assert f"the record before {first + 1} is gone" in caplog.text


def test_a_closed_shard_that_was_read_to_its_last_record_and_deleted_then_ends_nothing(
    kinesis: PlayedKinesis, orders: Any
) -> None:
    write(orders, "a")
    query = Query(kinesis, startingOffsets="earliest")
    assert query.rest() == [["a"]]
    split(orders, "orders", FIRST)
    write(orders, "b")
    kinesis.trim("orders", FIRST, kinesis.numbers("orders", FIRST)[-1] + 1)
    assert query.rest() == [[], ["b"]]


def test_a_shard_that_vanishes_unread_ends_the_query(kinesis: PlayedKinesis, orders: Any) -> None:
    write(orders, "a")
    query = Query(kinesis, startingOffsets="earliest")
    assert query.batch() == ["a"]
    split(orders, "orders", FIRST)
    write(orders, "b")
    kinesis.forget("orders", FIRST)
    with pytest.raises(RecordsLostError, match=f"shard {FIRST} is gone, and was read up to"):
        query.batch()
    assert [sorted(values) for values in Query(kinesis, query.log, failOnDataLoss="false").rest()] == [["b"]]


def test_another_stream_of_the_same_name_ends_the_query(kinesis: PlayedKinesis, orders: Any) -> None:
    write(orders, "a")
    query = Query(kinesis, startingOffsets="earliest")
    query.batch()
    log = [KinesisOffsets("arn@1", query.log[-1].shards)]
    with pytest.raises(RecordsLostError, match="stream orders was deleted and made anew"):
        Query(kinesis, log).batch()
    assert Query(kinesis, log, failOnDataLoss="false").batch() == ["a"]


class Scripted:
    """A service whose looks fail as the test says."""

    def __init__(self, *looks: Found | Exception | None) -> None:
        self.looks = list(looks)
        self.asked: list[tuple[int, Bounds]] = []
        self.due_at = 0.0
        self.following = False

    def describe(self) -> Stream:
        return Stream("orders", "arn", 1, 86400.0)

    def shards(self) -> tuple[ListedShard, ...]:
        return (ListedShard(FIRST, 1, None, (), (0, 1)),)

    def next(self, shard: ListedShard, position: int, bounds: Bounds) -> Found | None:
        self.asked.append((position, bounds))
        found = self.looks.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    def newest(self, shard: ListedShard) -> int | None:
        return 41

    def first_since(self, shard: ListedShard, seconds: float) -> int | None:
        return None

    def due(self, shard: str) -> float:
        return self.due_at

    def follows(self, shard: str) -> bool:
        return self.following


def scripted(service: Scripted, **options: str) -> KinesisPlanner:
    return KinesisPlanner(read_options({"kinesis.stream": "orders", "kinesis.region": "r", **options}, batch=False), service)


AWAY = KinesisUnavailableError("does not answer")
BEGUN = KinesisOffsets("arn@1", {FIRST: ShardOffsets(5, 10)})


def test_a_batch_leaves_no_shard_out_whose_first_record_is_not_answered_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    earliest = {"startingOffsets": "earliest"}
    planner = scripted(Scripted(None, None, Found(12, 13)), **earliest)
    assert planner.between() == KinesisOffsets("arn@1", {FIRST: ShardOffsets(12, 42)})
    monkeypatch.setattr(planning, "FIRST_TIMEOUT", 0.0)
    with pytest.raises(KinesisUnavailableError, match=f"shard {FIRST} has records before 42, and none is answered"):
        scripted(Scripted(None, None), **earliest).between()


def test_while_kinesis_is_away_nothing_is_new(caplog: pytest.LogCaptureFixture) -> None:
    planner = scripted(Scripted(AWAY, AWAY, Found(12, 20)))
    assert planner.latest(BEGUN, once=False) is None
    assert planner.latest(BEGUN, once=False) is None
    assert planner.latest(BEGUN, once=False) == KinesisOffsets("arn@1", {FIRST: ShardOffsets(12, 20)})
    assert [each.message for each in caplog.records if each.levelname == "WARNING"] == [
        "cannot ask Kinesis for new records, trying on: does not answer",
        "Kinesis answers again",
    ]


def test_a_shard_whose_last_record_kinesis_takes_for_none_any_more_is_looked_at_anew() -> None:
    planner = scripted(Scripted(NumberError("is invalid"), Found(12, 20)))
    assert planner.latest(BEGUN, once=False) is None
    assert planner.latest(BEGUN, once=False) == KinesisOffsets("arn@1", {FIRST: ShardOffsets(12, 20)})


def test_before_the_first_batch_it_waits_for_kinesis(monkeypatch: pytest.MonkeyPatch) -> None:
    planner = scripted(Scripted(AWAY, AWAY, None))
    assert planner.latest(KinesisOffsets(), once=False) == KinesisOffsets("arn@1", {FIRST: ShardOffsets(42, 42)})
    monkeypatch.setattr(planning, "FIRST_TIMEOUT", 0.0)
    with pytest.raises(KinesisUnavailableError):
        scripted(Scripted(AWAY)).latest(KinesisOffsets(), once=False)


def test_a_bounded_query_does_not_end_because_kinesis_is_away() -> None:
    service = Scripted(AWAY, None, Found(12, 42))
    planner = scripted(service)
    planner.prepare()
    assert planner.latest(BEGUN, once=False) == KinesisOffsets("arn@1", {FIRST: ShardOffsets(12, 42)})
    assert {each.until for _, each in service.asked} == {42}


def test_a_bounded_query_goes_on_through_answers_without_records_as_long_as_some_follow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(planning, "FIRST_TIMEOUT", 0.0)
    service = Scripted(*[None] * 50, Found(12, 42))
    service.following = True
    planner = scripted(service)
    planner.prepare()
    assert planner.latest(BEGUN, once=False) == KinesisOffsets("arn@1", {FIRST: ShardOffsets(12, 42)})


def test_so_does_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "FIRST_TIMEOUT", 0.0)
    service = Scripted(*[None] * 50, Found(12, 13))
    service.following = True
    planner = scripted(service, startingOffsets="earliest")
    assert planner.between() == KinesisOffsets("arn@1", {FIRST: ShardOffsets(12, 42)})


def test_a_bounded_query_ends_where_nothing_follows_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "FIRST_TIMEOUT", 0.0)
    planner = scripted(Scripted(None))
    planner.prepare()
    assert planner.latest(BEGUN, once=False) is None


def test_a_refusal_ends_the_query() -> None:
    with pytest.raises(KinesisRefusedError, match="no right"):
        scripted(Scripted(KinesisRefusedError("no right"))).latest(BEGUN, once=False)


def test_shards_are_looked_at_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "LOOK_INTERVAL", 1.0)
    waits: list[float] = []
    planner = KinesisPlanner(
        read_options({"kinesis.stream": "orders", "kinesis.region": "r"}, batch=False), Scripted(None, None), lambda: 100.0
    )
    monkeypatch.setattr(planner._closed, "wait", waits.append)
    planner.latest(BEGUN, once=False)
    planner.latest(BEGUN, once=False)
    assert waits == [1.0]


def test_tasks_elsewhere_are_told_when_their_shards_may_be_asked_for() -> None:
    service = Scripted()
    service.due_at = 100.75
    options = read_options({"kinesis.stream": "orders", "kinesis.region": "r"}, batch=False)
    planner = KinesisPlanner(options, service, lambda: 100.0)
    assert planner.ranges(BEGUN) == [ShardRecords(FIRST, 5, 10, (0, 1), wait=0.75)]


def test_hash_keys_are_those_of_the_listing() -> None:
    assert scripted(Scripted()).ranges(BEGUN) == [ShardRecords(FIRST, 5, 10, (0, 1))]
    assert scripted(Scripted()).ranges(KinesisOffsets("arn@1", {"gone": ShardOffsets(5, 10)})) == [
        ShardRecords("gone", 5, 10, None)
    ]


# --- as Spark calls it ---------------------------------------------------------------------------------------------------


def travelled(thing: Any) -> Any:
    """As it arrives in another process of Spark."""
    return cloudpickle.loads(cloudpickle.dumps(thing))  # type: ignore[no-untyped-call]


def test_spark_plans_logs_and_reads_and_the_reader_travels(kinesis: PlayedKinesis) -> None:
    with stream(kinesis, "orders", 3) as client:
        put(client, "orders", [(f"k{number}", b'{"n": %d}' % number) for number in range(30)])
        options = {
            "kinesis.stream": "orders",
            "kinesis.region": REGION,
            "kinesis.endpoint": kinesis.url,
            "startingOffsets": "earliest",
            "valueFormat": "json",
            "valueSchema": "n BIGINT",
        }
        source = ShardherdSource(options)
        reader = travelled(source.streamReader(source.schema()))
        reader._slots = 2
        assert reader.getDefaultReadLimit() == ReadMaxRows(2**31 - 1)
        start = reader.initialOffset()
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        tasks = reader.partitions(start, end)
        assert len(tasks) == 2
        rows = [row for task in tasks for batch in reader.read(travelled(task)) for row in batch.to_pylist()]
        assert sorted(row["value"]["n"] for row in rows) == list(range(30))
        assert reader.partitions(end, end) == []
        assert reader.latestOffset(end, ReadAllAvailable()) == end
        reader.commit(end)
        reader.prepareForTriggerAvailableNow()
        reader.stop()
        batch = travelled(source.reader(source.schema()))
        assert sum(each.num_rows for task in batch.partitions() for each in batch.read(task)) == 30
