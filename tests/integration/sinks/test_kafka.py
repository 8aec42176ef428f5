"""The Kafka sink over three real brokers; tasks are called as Spark calls them: killed at every step, refused, too late."""

from __future__ import annotations

import random
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import kafka.errors as errors
import pyarrow as pa
import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.structs import OffsetAndMetadata
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import DateType, IntegerType, LongType, StringType, StructField, StructType

from dev.cluster.kafka import LIMITED
from shardherd.core.model.nouns import ShardId
from shardherd.core.model.security import Security
from shardherd.source.encoding.record_encoding import COMPRESSIONS, Encoder, Producer
from shardherd.spark.running_batch import BatchRange, BatchRanges
from shardherd.spark.sinks import kafka as make
from shardherd.spark.sinks import kafka_rows
from shardherd.spark.sinks.exactly_once import Writings
from shardherd.spark.sinks.frames import ColumnsError
from shardherd.spark.sinks.kafka_rows import WriteJob, _Writing, write_records
from shardherd.spark.sinks.kafka_topic import KafkaSink
from shardherd.spark.sinks.positions import GapError, StaleWriterError
from shardherd.spark.sinks.rows import StrangeRowsError
from shardherd.transactions.kafka_transactions import Output, Transactions, UnreachableError, WriteRefusedError
from shardherd.transactions.outcomes import SinkError, Stored, TableError
from shardherd.transactions.topics import connection
from tests.harness.kafka import KafkaLab
from tests.harness.long import LONG
from tests.harness.micro_batches import records

SCHEMA = StructType([StructField("shard", StringType()), StructField("offset", LongType()), StructField("value", StringType())])
Ranges = Mapping[str, tuple[int, int, int]]


class KilledError(Exception):
    """Driver or task are gone."""


class Site:
    """A source's topic of two partitions, which nobody reads, and an output topic of three."""

    def __init__(self, lab: KafkaLab) -> None:
        self.lab = lab
        self.bootstrap = lab.trio.bootstrap()
        self.group = str(uuid.uuid4())
        self.source = lab.create(2)
        self.topic = lab.create(3, min_insync_replicas="2")
        self.a, self.b = f"{self.source}/0", f"{self.source}/1"
        self.first = {self.a: (0, 20, 1), self.b: (100, 115, 1)}

    def sink(self, topic: str = "", **options: Any) -> KafkaSink:
        """As in a process of its own."""
        made = make(topic or self.topic, options={"kafka.bootstrap.servers": self.bootstrap}, **options)
        made.writings = Writings()
        return made

    def of(self, ranges: Ranges, *, run: str = "run-1", topic_id: str = "") -> BatchRanges:
        found = {ShardId(shard): BatchRange(*each) for shard, each in ranges.items()}
        ids = dict.fromkeys(found, topic_id) if topic_id else {}
        return BatchRanges(found, group=self.group, batch_id=1, run=run, topic_ids=ids)

    def read(self, topic: str = "", *, committed: bool = True) -> list[Any]:
        """All records of the topic, as a consumer reads them."""
        level = "read_committed" if committed else "read_uncommitted"
        consumer = KafkaConsumer(bootstrap_servers=self.bootstrap, isolation_level=level, enable_auto_commit=False)
        try:
            parts = [TopicPartition(topic or self.topic, number) for number in range(3)]
            consumer.assign(parts)
            consumer.seek_to_beginning(*parts)
            ends = consumer.end_offsets(parts)
            found: list[Any] = []
            while any(consumer.position(part) < ends[part] for part in parts):
                for batch in consumer.poll(timeout_ms=200).values():
                    found += batch
            return found
        finally:
            consumer.close()

    def rows(self) -> Counter[tuple[str, int]]:
        """The records that are there, by the shard and offset that their values name."""
        texts = (each.value.decode().rpartition(":") for each in self.read())
        return Counter((shard, int(offset)) for shard, _, offset in texts)

    def positions(self, topic_id: str = "") -> dict[str, Stored]:
        """As who knows the topic by this id sees them."""
        sink = self.sink()
        kafka = connection(self.bootstrap, Security())
        ids = dict.fromkeys((self.a, self.b), topic_id) if topic_id else {}
        output = Output(self.topic, sink.output_group(self.of({})), 60, ids)
        deadline = time.monotonic() + 30
        while True:
            found, moving = kafka.look(output, [ShardId(self.a), ShardId(self.b)])
            if not moving:
                break
            # A broker answers that a transaction is over before it has marked the positions in it.
            assert time.monotonic() < deadline, moving
        return {str(shard): each for shard, each in found.items()}


@pytest.fixture
def site(kafka: KafkaLab) -> Site:
    return Site(kafka)


def nothing() -> None:
    """Happens."""


def tasks(
    ranges: Ranges, then: Callable[[], None] = nothing, *, attempts: int = 1, within: Callable[[], None] = nothing
) -> Callable[[WriteJob], Iterable[Sequence[Any]]]:
    """What Spark would do: a task a shard, whose last attempt counts. `within` happens in each one, `then` afterwards."""

    def run(job: WriteJob) -> Iterable[Sequence[Any]]:
        found: list[Sequence[Any]] = []
        for shard, each in ranges.items():
            for attempt in range(attempts):

                def batches(shard: str = shard, each: tuple[int, int, int] = each) -> Iterator[pa.RecordBatch]:
                    yield from records({shard: each})
                    within()

                told = [tuple(row.values()) for answer in write_records(batches(), job) for row in answer.to_pylist()]
                if attempt == attempts - 1:
                    found += told
        then()
        return found

    return run


def once(ranges: Ranges) -> Counter[tuple[str, int]]:
    return Counter((shard, at) for shard, (start, stop, _) in ranges.items() for at in range(start, stop))


def one_task(rows: pa.RecordBatch) -> Callable[[WriteJob], Iterable[Sequence[Any]]]:
    return lambda job: [tuple(row.values()) for answer in write_records([rows], job) for row in answer.to_pylist()]


def die() -> None:
    raise KilledError


def at_the_end(do: Callable[[], None], monkeypatch: pytest.MonkeyPatch, *, answered: bool = True) -> list[str]:
    """Do something once, right before a transaction that has records is committed, or when its answer comes."""
    end = Transactions._end
    done: list[str] = []

    async def stops(self: Transactions, wire: Any, transaction: Any, *, committed: bool) -> None:
        ours = committed and transaction.added and not done
        if ours:
            done.append(transaction.shard)
            if answered:
                await end(self, wire, transaction, committed=committed)
            do()
        if not (ours and answered):
            await end(self, wire, transaction, committed=committed)

    monkeypatch.setattr(Transactions, "_end", stops)
    return done


def test_records_and_positions_are_there_together(site: Site) -> None:
    site.sink().write_by(tasks(site.first), SCHEMA, site.of(site.first))

    assert site.rows() == once(site.first)
    assert site.positions() == {site.a: Stored(20, 1), site.b: Stored(115, 1)}


def test_a_micro_batch_that_is_run_again_adds_nothing_and_asks_no_task(site: Site) -> None:
    site.sink().write_by(tasks(site.first), SCHEMA, site.of(site.first))

    def never(_job: WriteJob) -> Iterable[Sequence[Any]]:
        raise AssertionError("there is nothing to write")

    site.sink().write_by(never, SCHEMA, site.of(site.first, run="run-2"))
    assert site.rows() == once(site.first)


def test_the_sinks_position_wins_over_where_the_micro_batch_begins(site: Site) -> None:
    site.sink().write_by(tasks(site.first), SCHEMA, site.of(site.first))
    more = {site.a: (5, 30, 2), site.b: (100, 115, 2)}
    site.sink().write_by(tasks(more), SCHEMA, site.of(more))

    assert site.rows() == once({site.a: (0, 30, 1), site.b: (100, 115, 1)})


def test_records_that_would_be_missing_are_refused_unless_that_is_wanted(site: Site) -> None:
    site.sink().write_by(tasks(site.first), SCHEMA, site.of(site.first))
    ahead = {site.a: (25, 30, 1)}
    with pytest.raises(GapError, match="5 offsets are missing"):
        site.sink().write_by(tasks(ahead), SCHEMA, site.of(ahead))
    site.sink(accept_gaps=True).write_by(tasks(ahead), SCHEMA, site.of(ahead))

    assert site.rows() == once(site.first) + once(ahead)


@pytest.mark.parametrize("step", ["before the tasks", "in the first task", "between two tasks", "after the tasks"])
def test_a_driver_that_is_killed_at_any_step_leaves_each_record_once(site: Site, step: str) -> None:
    def never(_job: WriteJob) -> Iterable[Sequence[Any]]:
        raise KilledError

    writer = {
        "before the tasks": never,
        "in the first task": tasks(site.first, within=die),
        "between two tasks": tasks({site.a: site.first[site.a]}, die),
        "after the tasks": tasks(site.first, die),
    }[step]
    with pytest.raises(KilledError):
        site.sink().write_by(writer, SCHEMA, site.of(site.first))
    site.sink().write_by(tasks(site.first), SCHEMA, site.of(site.first, run="run-2"))

    assert site.rows() == once(site.first)
    assert site.positions() == {site.a: Stored(20, 1), site.b: Stored(115, 1)}


@pytest.mark.parametrize("step", ["_open", "_send", "_commit", "_end"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_task_that_vanishes_at_any_request_leaves_each_record_once(
    site: Site, step: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is gone says nothing to the brokers any more: no request of it follows, and nothing is aborted."""
    work = getattr(Transactions, step)
    gone: list[bool] = []

    async def vanishes(self: Transactions, *arguments: Any, **more: Any) -> Any:
        if armed:
            gone.append(True)
            if when == "after":
                await work(self, *arguments, **more)
            raise KilledError
        return await work(self, *arguments, **more)

    armed: list[bool] = []
    monkeypatch.setattr(Transactions, step, vanishes)
    monkeypatch.setattr(Transactions, "abort", lambda *_: None)
    whole = tasks(site.first)

    def within(job: WriteJob) -> Iterable[Sequence[Any]]:
        armed.append(True)
        try:
            return whole(job)
        finally:
            armed.clear()

    with pytest.raises(KilledError):
        site.sink().write_by(within, SCHEMA, site.of(site.first))
    assert gone
    again = {shard: (start, stop, 2) for shard, (start, stop, _) in site.first.items()}
    site.sink().write_by(tasks(again), SCHEMA, site.of(again))

    assert site.rows() == once(site.first)
    assert site.positions() == {site.a: Stored(20, 2), site.b: Stored(115, 2)}


def test_hundred_records_all_or_none(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer dies when the brokers have all of its records, and have not been told that the transaction ends."""
    hundred = {site.a: (0, 100, 1)}
    done = at_the_end(die, monkeypatch, answered=False)
    with monkeypatch.context() as dead:
        dead.setattr(Transactions, "abort", lambda *_: None)
        with pytest.raises(KilledError):
            site.sink().write_by(tasks(hundred), SCHEMA, site.of(hundred))

    assert done == [site.a]
    assert {each.value for each in site.read(committed=False)} == {f"{site.a}:{at}".encode() for at in range(100)}
    assert site.rows() == Counter()

    site.sink().write_by(tasks(hundred), SCHEMA, site.of(hundred, run="run-2"))
    assert site.rows() == once(hundred)
    assert site.rows().total() == 100


def test_a_task_that_is_run_twice_writes_once(site: Site) -> None:
    site.sink().write_by(tasks(site.first, attempts=2), SCHEMA, site.of(site.first))
    assert site.rows() == once(site.first)


@pytest.mark.parametrize("happened", [True, False])
def test_a_commit_of_which_nobody_knows_is_looked_up_by_the_positions(
    site: Site, happened: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost() -> None:
        raise errors.KafkaConnectionError("the connection broke")

    monkeypatch.setattr(Transactions, "_again", lambda _self, _wire, work: work())
    done = at_the_end(lost, monkeypatch, answered=happened)
    site.sink().write_by(tasks(site.first), SCHEMA, site.of(site.first))

    assert done
    assert site.rows() == once(site.first)


def test_a_commit_whose_answer_is_lost_is_asked_for_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost() -> None:
        raise errors.KafkaConnectionError("the connection broke")

    done = at_the_end(lost, monkeypatch)
    site.sink().write_by(tasks(site.first), SCHEMA, site.of(site.first))

    assert done
    assert site.rows() == once(site.first)


def test_a_broker_that_is_killed_in_the_middle_leaves_each_record_once(site: Site, trio: Any) -> None:
    killed: list[bool] = []

    def down() -> None:
        if not killed:
            killed.append(True)
            trio.kill(1)

    site.sink().write_by(tasks(site.first, within=down), SCHEMA, site.of(site.first))

    assert killed
    assert site.rows() == once(site.first)


def test_brokers_that_do_not_answer_in_time_are_named(site: Site) -> None:
    nobody = Transactions("127.0.0.1:1", Security(), timeout=0.2)
    try:
        with pytest.raises(UnreachableError, match=r"Kafka at 127.0.0.1:1: cannot look up the topic 'x' within 0.2 s: "):
            nobody.partitions("x")
    finally:
        nobody.close()


def test_a_holder_that_comes_back_after_its_shards_have_moved_writes_nothing_of_them(site: Site) -> None:
    site.sink().write_by(tasks(site.first), SCHEMA, site.of(site.first))
    old, new = {site.a: (20, 40, 1)}, {site.a: (20, 33, 2)}
    moved: list[bool] = []

    def meanwhile() -> None:
        """While the old holder stands still in the middle of its task, the next one writes its first micro-batch."""
        if not moved:
            moved.append(True)
            site.sink().write_by(tasks(new), SCHEMA, site.of(new))

    with pytest.raises(StaleWriterError, match="was written under epoch 2 already"):
        site.sink().write_by(tasks(old, within=meanwhile), SCHEMA, site.of(old))
    assert site.rows() == once({site.a: (0, 33, 1), site.b: site.first[site.b]})

    further = {site.a: (33, 50, 2)}
    site.sink().write_by(tasks(further), SCHEMA, site.of(further))
    assert site.rows() == once({site.a: (0, 50, 1), site.b: site.first[site.b]})


def test_a_holder_that_stood_still_before_its_commit_is_fenced(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of its records are acknowledged; the next holder ends its transaction without them."""
    old, new = {site.a: (0, 40, 1)}, {site.a: (0, 33, 2)}
    moved: list[bool] = []
    commit = _Writing.commit

    def stands_still(self: _Writing) -> None:
        for shard, each in self._shards.items():
            self._send(shard, each)
            kafka_rows._wait(each)
        if not moved:
            moved.append(True)
            assert {each.value for each in site.read(committed=False)} >= {f"{site.a}:{at}".encode() for at in range(40)}
            site.sink().write_by(tasks(new), SCHEMA, site.of(new))
        commit(self)

    monkeypatch.setattr(_Writing, "commit", stands_still)
    with pytest.raises(StaleWriterError):
        site.sink().write_by(tasks(old), SCHEMA, site.of(old))
    assert site.rows() == once(new)
    assert site.positions() == {site.a: Stored(33, 2)}


def test_a_new_holder_keeps_the_old_one_out_before_it_has_written_anything(site: Site) -> None:
    site.sink().write_by(tasks(site.first), SCHEMA, site.of(site.first))
    old, new = {site.a: (20, 40, 1)}, {site.a: (20, 33, 2)}

    def asks() -> None:
        if site.positions()[site.a] == Stored(20, 1):
            with pytest.raises(KilledError):
                site.sink().write_by(tasks({}, die), SCHEMA, site.of(new))

    with pytest.raises(StaleWriterError):
        site.sink().write_by(tasks(old, within=asks), SCHEMA, site.of(old))
    assert site.rows() == once(site.first)


def test_an_old_task_that_begins_late_only_makes_the_new_holder_try_again(site: Site) -> None:
    site.sink().write_by(tasks(site.first), SCHEMA, site.of(site.first))
    old, new = {site.a: (20, 40, 1)}, {site.a: (20, 33, 2)}
    late: list[WriteJob] = []
    told: list[Any] = []

    def keep(job: WriteJob) -> Iterable[Sequence[Any]]:
        late.append(job)
        raise KilledError

    with pytest.raises(KilledError):
        site.sink().write_by(keep, SCHEMA, site.of(old))

    def begins() -> None:
        if not told:
            told.extend(row for answer in write_records(records(old), late[0]) for row in answer.to_pylist())

    site.sink().write_by(tasks(new, within=begins), SCHEMA, site.of(new))
    assert told[0]["shard"] is None
    assert "was thought to be" in told[0]["conflict"]
    assert site.rows() == once({site.a: (0, 33, 1), site.b: site.first[site.b]})


def test_a_topic_that_was_made_again_is_written_from_its_beginning_and_once(site: Site) -> None:
    first, again = {site.a: (0, 20, 1)}, {site.a: (0, 8, 3)}
    site.sink().write_by(tasks(first), SCHEMA, site.of(first, topic_id="id-1"))
    for run in ("run-2", "run-3"):
        site.sink().write_by(tasks(again), SCHEMA, site.of(again, run=run, topic_id="id-2"))
    with pytest.raises(StaleWriterError):  # the holder of before comes back
        site.sink().write_by(tasks({site.a: (20, 30, 2)}), SCHEMA, site.of({site.a: (20, 30, 2)}, topic_id="id-1"))
    site.sink().write_by(tasks({}), SCHEMA, site.of({site.a: (8, 9, 3)}, run="run-4", topic_id="id-2"))

    assert site.rows() == once(first) + once(again)
    assert site.positions("id-1") == {site.a: Stored(9, 3, "id-2")}


def test_a_position_without_a_topics_id_is_of_the_topic_that_there_is(site: Site) -> None:
    site.sink().write_by(tasks(site.first), SCHEMA, site.of(site.first))
    more = {site.a: (5, 30, 1), site.b: (100, 120, 2)}
    site.sink().write_by(tasks(more), SCHEMA, site.of(more, topic_id="id-1"))

    assert site.rows() == once({site.a: (0, 30, 1), site.b: (100, 120, 1)})
    assert site.positions() == {site.a: Stored(30, 1), site.b: Stored(120, 2)}


def test_ranges_without_a_row_move_their_positions_too(site: Site) -> None:
    site.sink().write_by(tasks({site.a: site.first[site.a]}), SCHEMA, site.of(site.first))

    assert site.rows() == once({site.a: site.first[site.a]})
    assert site.positions() == {site.a: Stored(20, 1), site.b: Stored(115, 1)}


@pytest.mark.parametrize("seed", range(40 if LONG else 2))
def test_moves_and_kills_in_any_order_leave_each_record_once(site: Site, seed: int) -> None:
    draw = random.Random(seed)
    durable, epochs = {site.a: 0, site.b: 0}, {site.a: 1, site.b: 1}
    for _ in range(8):
        batch = {shard: (durable[shard], durable[shard] + draw.randint(1, 20), epochs[shard]) for shard in durable}
        kind = draw.choice(["", "", "killed", "killed later", "rival"])
        writer = tasks(batch)
        if kind == "killed":
            writer = tasks(batch, within=die)
        if kind == "killed later":
            writer = tasks(batch, die)
        if kind == "rival":
            part = {site.a: (durable[site.a], durable[site.a] + draw.randint(1, 25), epochs[site.a] + 1)}
            taken: list[bool] = []

            def steal(part: Ranges = part, taken: list[bool] = taken) -> None:
                if not taken:
                    taken.append(True)
                    site.sink().write_by(tasks(part), SCHEMA, site.of(part))

            writer = tasks(batch, within=steal)
            epochs[site.a] += 2
        try:
            site.sink().write_by(writer, SCHEMA, site.of(batch))
        except (KilledError, StaleWriterError):
            continue
        if draw.random() < 0.6:
            durable = {shard: batch[shard][1] for shard in durable}
    final = {shard: (durable[shard], durable[shard] + 30, 99) for shard in durable}
    site.sink().write_by(tasks(final), SCHEMA, site.of(final))
    found = site.positions()
    assert site.rows() == once({shard: (0, found[shard].position, 1) for shard in durable})


def test_two_sinks_of_one_topic_need_names_of_their_own(site: Site) -> None:
    shared = Writings()
    good, twice, late = site.sink(), site.sink(), site.sink(name="late")
    for each in (good, twice, late):
        each.writings = shared
    good.write_by(tasks(site.first), SCHEMA, site.of(site.first))
    with pytest.raises(SinkError, match="was written in micro-batch 1 already"):
        twice.write_by(tasks(site.first), SCHEMA, site.of(site.first))
    late.write_by(tasks(site.first), SCHEMA, site.of(site.first))

    assert site.rows() == once(site.first) + once(site.first)


def test_what_is_aborted_keeps_no_reader_waiting(site: Site) -> None:
    with pytest.raises(StrangeRowsError, match="and offset 20, which is no record of this"):
        site.sink().write_by(tasks({site.a: (0, 21, 1)}), SCHEMA, site.of(site.first))
    last = {site.b: site.first[site.b]}
    site.sink().write_by(tasks(last), SCHEMA, site.of(last))

    assert site.rows() == once(last)


def test_a_position_that_was_set_by_hand_is_gone_by(site: Site) -> None:
    site.sink().write_by(tasks(site.first), SCHEMA, site.of(site.first))
    group = site.sink().output_group(site.of({}))
    site.lab.admin.alter_group_offsets(group, {TopicPartition(site.source, 0): _offset(10)})
    more = {site.a: (0, 20, 1)}
    site.sink().write_by(tasks(more), SCHEMA, site.of(more))

    assert site.rows() == once(site.first) + once({site.a: (10, 20, 1)})


def _offset(number: int) -> Any:
    return OffsetAndMetadata(number, "", -1)


def test_all_that_a_record_has_is_read_back(site: Site) -> None:
    body = {
        "shard": pa.array([site.a] * 4),
        "offset": pa.array(range(4), pa.int64()),
        "key": pa.array([b"k", b"", None, b"k"], pa.binary()),
        "value": pa.array([b"v", None, b"", b"x" * 2_000_000], pa.binary()),
        "partition": pa.array([None, 2, 1, 0], pa.int32()),
        "headers": pa.array(
            [[{"key": "a", "value": b"1"}, {"key": "b", "value": None}], None, [], [{"key": "ü" * 100, "value": b""}]],
            pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])),
        ),
        "timestamp": pa.array([1_700_000_000_123_456, 0, None, 1_700_000_000_000_000], pa.timestamp("us", "UTC")),
    }
    rows = pa.record_batch(body)
    large = site.lab.create(3, max_message_bytes="3000000", compression_type="producer")
    for compression in COMPRESSIONS:
        sink = site.sink(large, name=compression, compression=compression)
        sink.write_by(one_task(rows), from_arrow_schema(rows.schema), site.of({site.a: (0, 4, 1)}))
    found = site.read(large)
    assert len(found) == 4 * len(COMPRESSIONS)
    by_value: dict[Any, list[Any]] = {}
    for each in found:
        by_value.setdefault(each.value, []).append(each)
    for each in by_value[b"v"]:
        assert (each.key, each.timestamp, each.headers) == (b"k", 1_700_000_000_123, [("a", b"1"), ("b", None)])
        assert each.partition == by_value[b"v"][0].partition
    assert {(each.key, each.partition, each.timestamp) for each in by_value[None]} == {(b"", 2, 0)}
    assert {(each.key, each.partition, tuple(each.headers)) for each in by_value[b""]} == {(None, 1, ())}
    assert {(each.key, each.partition, each.headers[0][0]) for each in by_value[b"x" * 2_000_000]} == {(b"k", 0, "ü" * 100)}


def test_a_key_goes_where_kafkas_own_producer_puts_it(site: Site) -> None:
    keys = [str(number).encode() * (number % 5) for number in range(200)]
    producer = KafkaProducer(bootstrap_servers=site.bootstrap)
    wanted = [producer.send(site.topic, key=key, value=b"").get().partition for key in keys]
    producer.close()
    rows = pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array([str(each).encode() for each in range(200)])})
    counted = Counter({batch.partition: batch.records for batch in Encoder(Producer(1, 1)).encode(rows, 3, 0, 0)})
    assert counted == Counter(wanted)


def test_the_security_of_the_cluster_is_used(site: Site, tmp_path: Any) -> None:
    security = site.lab.files(tmp_path, "SASL_SSL", "SCRAM-SHA-512")
    sink = make(
        site.topic,
        options={
            "kafka.bootstrap.servers": site.lab.trio.bootstrap("SASL_SSL"),
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "SCRAM-SHA-512",
            "kafka.sasl.username.file": security.username_file,
            "kafka.sasl.password.file": security.password_file,
            "kafka.ssl.truststore.location": security.ca_file,
        },
    )
    sink.write_by(tasks(site.first), SCHEMA, site.of(site.first))

    assert site.rows() == once(site.first)


def test_a_user_without_rights_is_told_which_are_missing(site: Site, tmp_path: Any) -> None:
    security = site.lab.files(tmp_path, "SASL_PLAINTEXT", "PLAIN", user=LIMITED)
    sink = make(
        site.topic,
        options={
            "kafka.bootstrap.servers": site.lab.trio.bootstrap("SASL_PLAINTEXT"),
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.username.file": security.username_file,
            "kafka.sasl.password.file": security.password_file,
        },
    )
    with pytest.raises(WriteRefusedError, match="allow the application's user WRITE on the output topic"):
        sink.write_by(tasks(site.first), SCHEMA, site.of(site.first))


def test_what_cannot_be_written_is_refused_with_the_remedy(site: Site) -> None:
    other = BatchRanges({ShardId("elsewhere/0"): BatchRange(0, 1, 1)}, group=site.group, batch_id=1, run="run-1")
    for schema, topic, ranges, error, says in (
        (StructType(SCHEMA.fields[1:]), "", None, ColumnsError, "has no column 'shard', by which this sink knows"),
        (StructType(SCHEMA.fields[:2]), "", None, ColumnsError, r"has no column 'value', which .* to_json\(struct"),
        (
            StructType([*SCHEMA.fields, StructField("day", DateType())]),
            "",
            None,
            ColumnsError,
            r"'day' has no place in a record of Kafka, which has key, value, partition, headers, timestamp: put it into",
        ),
        (
            StructType([*SCHEMA.fields, StructField("key", IntegerType())]),
            "",
            None,
            ColumnsError,
            "'key' is int, and must be string or binary: cast it",
        ),
        (SCHEMA, "klicks", None, TableError, "has no topic 'klicks': create it"),
        (SCHEMA, "", other, TableError, "has no topic 'elsewhere' with 1 partitions, as the source has it"),
    ):
        with pytest.raises(error, match=says):
            site.sink(topic).write_by(tasks(site.first), schema, ranges or site.of(site.first))
    with pytest.raises(SinkError, match="compression must be one of none, gzip, snappy, lz4, zstd, not 'brotli'"):
        site.sink(compression="brotli")


def test_a_topic_that_cannot_be_written_by_an_idempotent_producer_is_refused_at_the_start(site: Site) -> None:
    narrow = site.lab.create(3, on=(1,), min_insync_replicas="2")
    with pytest.raises(TableError, match=r"min.insync.replicas is 2, and there are 1: .*; lower min.insync.replicas"):
        site.sink(narrow).write_by(tasks(site.first), SCHEMA, site.of(site.first))


def test_a_record_that_the_topic_does_not_take_is_an_error_with_the_remedy(site: Site) -> None:
    small = site.lab.create(3, max_message_bytes="1000")
    rows = pa.record_batch({"shard": [site.a], "offset": pa.array([0], pa.int64()), "value": ["x" * 5000]})
    with pytest.raises(WriteRefusedError, match=r"raise max.message.bytes of the topic"):
        site.sink(small).write_by(one_task(rows), SCHEMA, site.of({site.a: (0, 1, 1)}))
