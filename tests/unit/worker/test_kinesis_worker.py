"""Workers of a group that reads Kinesis, which is played, against the real coordinator: splits, merges, ends, kills."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from shardherd.core.model.nouns import ShardId
from shardherd.source.kinesis.client import KinesisRefusedError
from shardherd.worker import (
    Ack,
    AsyncOperator,
    Checkpoint,
    DatabaseOutput,
    KafkaOutput,
    Out,
    Output,
    Outputs,
    Processor,
    Record,
    RecordProcessor,
    Records,
    TreeProcessor,
    Tuple,
    Worker,
    WorkerOptionError,
    kinesis_fetching,
)
from shardherd.worker.metrics import WorkerMetrics
from tests.harness.kinesis import PlayedKinesis, open_shards, put, stream
from tests.harness.kinesis_group import KinesisGroup
from tests.harness.kinesis_load import KEYS, Sink, Writer, worker_of
from tests.unit.source.test_kinesis_aggregation import aggregated
from tests.unit.worker.test_worker import running

OF_KINESIS = "SHARDHERD_KINESIS_"


@pytest.fixture
def orders(kinesis: PlayedKinesis, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(kinesis_fetching, "LOOK_INTERVAL", 0.2)
    monkeypatch.setattr("shardherd.adapters.kinesis.stream.LIST_INTERVAL", 0.05)
    with stream(kinesis, "orders", 2) as client:
        yield client


def test_a_worker_that_is_killed_loses_nothing_and_repeats_whole_records_at_most(kinesis: PlayedKinesis, orders: Any) -> None:
    dead, sink, writer = threading.Event(), Sink(), Writer(orders)
    before = Sink()

    class Dies(Processor):
        def process(self, records: Records, checkpoint: Checkpoint) -> None:
            for record in records:
                if dead.is_set():
                    return
                before.write(records.shard, record)

    with KinesisGroup(kinesis, "orders") as group, running(worker_of(group, "played-0", Dies, save_interval=60.0)):
        writer.write()
        group.until("all is processed", lambda: len(before) == len(writer))
        dead.set()
        group.kill("played-0")
        with running(worker_of(group, "played-0", sink)):
            writer.write(2)
            group.until("what was not saved is read again", lambda: len(sink) == len(writer), within=30)
    assert (sink.rows, before.rows) == (writer.written, {key: list(range(10)) for key in KEYS})


def test_a_worker_without_a_pod_is_told_which_stream_its_group_reads(kinesis: PlayedKinesis, orders: Any) -> None:
    sink, writer = Sink(), Writer(orders)
    writer.write()
    with KinesisGroup(kinesis, "orders") as group:
        whole = group.environment("played-0")
        names = [name for name in whole if name.startswith(OF_KINESIS)]
        said: dict[str, Any] = {name.removeprefix(OF_KINESIS).lower(): whole.pop(name) for name in names}
        assert said.keys() == {"stream", "region", "endpoint", "credentials"}
        with running(Worker(sink, environment=whole, **said)):
            group.until("all is processed", lambda: len(sink) == len(writer))
    assert sink.rows == writer.written


def test_a_save_inside_an_aggregated_record_goes_not_beyond_it_so_that_none_of_its_records_is_lost(
    kinesis: PlayedKinesis, orders: Any
) -> None:
    saved, go_on, sink = threading.Event(), threading.Event(), Sink()
    pack = aggregated(*(("ann", str(number).encode(), None) for number in (1, 2)))

    class Saves(Processor):
        def process(self, records: Records, checkpoint: Checkpoint) -> None:
            for record in records:
                if not saved.is_set() and record.value == b"1":
                    checkpoint.save(record.offset + 1, now=True)
                    saved.set()
                    assert go_on.wait(20)

    with KinesisGroup(kinesis, "orders") as group:
        (shard,) = {f"orders/{each}" for each in put(orders, "orders", [("ann", b"0"), ("ann", pack)])}
        plain, aggregate = kinesis.numbers("orders", shard.rpartition("/")[2])
        with running(worker_of(group, "played-0", Saves)):
            group.until("it has saved", saved.is_set)
            assert plain < group.checkpoints()[shard] <= aggregate
            group.kill("played-0")
            go_on.set()
            with running(worker_of(group, "played-0", sink)):
                group.until("the aggregated record is read again", lambda: len(sink) >= 2)
    assert sink.rows == {"ann": [1, 2]}


def test_what_is_shown_to_who_scrapes_counts_records_and_seconds_and_no_positions(
    kinesis: PlayedKinesis, orders: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, made = Sink(), list[WorkerMetrics]()
    original = WorkerMetrics.__init__

    def noted(self: WorkerMetrics, *arguments: Any) -> None:
        original(self, *arguments)
        made.append(self)

    def page() -> list[str]:
        return made[0].page()[0].decode().splitlines() if made else []

    monkeypatch.setattr(WorkerMetrics, "__init__", noted)
    put(orders, "orders", [("a", aggregated(("a", b"1", None), ("a", b"2", None))), ("b", b"3")])
    consumer = 'consumer="played-0",consumergroup="played",namespace="test"'
    with KinesisGroup(kinesis, "orders") as group, running(worker_of(group, "played-0", sink)):
        group.until("all is counted", lambda: f"shardherd_source_records_total{{{consumer}}} 3.0" in page())
        shown = page()
    assert f"shardherd_worker_behind_seconds{{{consumer}}} 0.0" in shown
    assert [line for line in shown if line.startswith(("shardherd_source_position{", "shardherd_worker_lag_records{"))] == []


PACK = aggregated(*(("ann", str(number).encode(), None) for number in (1, 2, 3)))
"""One record of Kinesis, which is three of the program."""


class One(RecordProcessor):
    """Each record is done when it is written; those of `fails` fail once before."""

    def __init__(self, sink: Sink, fails: set[bytes] = frozenset()) -> None:  # type: ignore[assignment]
        self.sink, self.fails = sink, fails

    def initialize(self, shard: ShardId) -> None:
        self.shard = shard

    def process(self, record: Record, ack: Ack) -> None:
        if ack.tries == 1 and record.value in self.fails:
            raise ValueError(record.value)
        self.sink.write(self.shard, record)
        ack()


class Calls(AsyncOperator):
    """Looks each record up, and writes what it has found."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink

    def initialize(self, shard: ShardId) -> None:
        self.shard = shard

    async def invoke(self, record: Record) -> list[Record]:
        return [record]

    async def emit(self, result: Record) -> None:
        self.sink.write(self.shard, result)


class Words(TreeProcessor):
    """A tree of two tuples for each record."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink

    def initialize(self, shard: ShardId) -> None:
        self.shard = shard

    def root(self, record: Record, out: Out) -> None:
        out.emit("word", record)

    def word(self, tuple_: Tuple, out: Out) -> None:
        self.sink.write(self.shard, tuple_.value)


@pytest.mark.parametrize("processor", [One, Calls, Words])
def test_records_that_are_acknowledged_one_by_one_are_each_done_once_and_in_order_also_of_aggregated_ones(
    kinesis: PlayedKinesis, orders: Any, processor: Any
) -> None:
    sink, writer = Sink(), Writer(orders)
    (shard,) = {f"orders/{each}" for each in put(orders, "orders", [("ann", b"0"), ("ann", PACK), ("ann", b"4")])}
    with KinesisGroup(kinesis, "orders") as group, running(worker_of(group, "played-0", lambda: processor(sink))) as raised:
        writer.write(3)
        group.until("all is done", lambda: len(sink) == len(writer) + 5)
        ends = {f"orders/{each}": kinesis.numbers("orders", each)[-1] + 1 for each in open_shards(orders, "orders")}
        group.until("all is saved", lambda: group.checkpoints() == ends)
    assert (sink.rows, raised) == ({**writer.written, "ann": [0, 1, 2, 3, 4]}, [])
    assert shard in ends


def test_the_position_stays_before_an_aggregated_record_until_all_of_its_records_are_acknowledged(
    kinesis: PlayedKinesis, orders: Any
) -> None:
    acks = dict[bytes, Ack]()
    sink = Sink()

    class Keeps(RecordProcessor):
        def process(self, record: Record, ack: Ack) -> None:
            acks[record.value or b""] = ack

    with KinesisGroup(kinesis, "orders") as group:
        (shard,) = {f"orders/{each}" for each in put(orders, "orders", [("ann", b"0"), ("ann", PACK), ("ann", b"4")])}
        _, pack, last = kinesis.numbers("orders", shard.rpartition("/")[2])
        with running(worker_of(group, "played-0", Keeps)):
            group.until("all are handed out", lambda: len(acks) == 5)
            assert [acks[each]() for each in (b"0", b"1", b"3", b"4")] == [True] * 4
            group.until("the first one is saved, and no more", lambda: group.checkpoints()[shard] == pack)
            group.kill("played-0")
            with running(worker_of(group, "played-0", lambda: One(sink, {b"2"}))):
                group.until("the rest is saved", lambda: group.checkpoints()[shard] == last + 1)
    # All of the aggregated record again, and the one that failed before what had not been handed out by then.
    assert sorted(sink.rows["ann"]) == [1, 2, 3, 4]
    assert sink.rows["ann"][0] == 1


def test_outputs_get_each_record_of_an_aggregated_one_and_again_what_they_refused(kinesis: PlayedKinesis, orders: Any) -> None:
    sink, refused = Sink(), list[bytes | None]()
    told = list[bytes | None]()

    class Refuses(Output):
        def write(self, records: Sequence[Record]) -> list[Record]:
            again = [record for record in records if record.value == b"2" and not refused]
            refused.extend(record.value for record in again)
            for record in records:
                if record not in again:
                    sink.write(ShardId("any"), record)
            return again

    class Sends(Outputs):
        outputs = (Refuses,)
        batch_wait = 0.1

        def acknowledged(self, records: Sequence[Record]) -> None:
            told.extend(record.value for record in records)

    (shard,) = {f"orders/{each}" for each in put(orders, "orders", [("ann", b"0"), ("ann", PACK), ("ann", b"4")])}
    last = kinesis.numbers("orders", shard.rpartition("/")[2])[-1]
    with KinesisGroup(kinesis, "orders") as group, running(worker_of(group, "played-0", Sends)) as raised:
        group.until("all is saved", lambda: group.checkpoints().get(shard) == last + 1)
    assert (sorted(sink.rows["ann"]), sink.rows["ann"].index(2) > sink.rows["ann"].index(3)) == ([0, 1, 2, 3, 4], True)
    assert (told, refused, raised) == ([b"0", b"1", b"2", b"3", b"4"], [b"2"], [])


DOZEN = aggregated(*(("ann", str(number).encode(), None) for number in range(1, 13)))


@pytest.mark.parametrize("kind", ["records", "calls", "outputs"])
def test_a_shard_that_is_handed_over_in_the_middle_of_an_aggregated_record_hands_out_the_rest_of_it(
    kinesis: PlayedKinesis, orders: Any, kind: str
) -> None:
    seen, halfway, go_on = list[bytes](), threading.Event(), threading.Event()

    def write(record: Record) -> None:
        seen.append(record.value or b"")
        if record.value == b"5":
            halfway.set()
            assert go_on.wait(20)

    class Single(RecordProcessor):
        def process(self, record: Record, ack: Ack) -> None:
            write(record)
            ack()

    class Coroutines(RecordProcessor):
        async def process(self, record: Record, ack: Ack) -> None:
            await asyncio.to_thread(write, record)
            ack()

    class Writes(Output):
        def write(self, records: Sequence[Record]) -> None:
            for record in records:
                write(record)

    class Sends(Outputs):
        outputs = (Writes,)
        batch_size = 1

    factory: Any = {"records": Single, "calls": Coroutines, "outputs": Sends}[kind]
    (shard,) = {f"orders/{each}" for each in put(orders, "orders", [("ann", DOZEN), *(("ann", b"x") for _ in range(200))])}
    first, *rest = kinesis.numbers("orders", shard.rpartition("/")[2])
    with KinesisGroup(kinesis, "orders") as group:
        worker = worker_of(group, "played-0", factory, max_pending=3)
        with running(worker) as raised:
            group.until("it is in the middle", halfway.is_set)
            worker.shutdown(0.0)
            group.until("it has heard of it", lambda: group.draining("played-0"))
            go_on.set()
            group.until("it has left", lambda: group.checkpoints()[shard] > first)
        assert (sorted(each for each in seen if each != b"x"), raised) == (sorted(b"%d" % each for each in range(1, 13)), [])
        assert len(seen) < 12 + len(rest), "nothing after it was handed out"


def test_an_output_that_returns_a_record_made_anew_without_its_place_is_told_so_and_none_is_lost(
    kinesis: PlayedKinesis, orders: Any, caplog: pytest.LogCaptureFixture
) -> None:
    taken = list[bytes | None]()

    class Remakes(Output):
        def write(self, records: Sequence[Record]) -> list[Record]:
            again = [each for each in records if each.value == b"2" and not caplog.records]
            if again:
                return [Record(each.offset, each.key, each.value, each.timestamp, each.headers) for each in again]
            taken.extend(each.value for each in records)
            return []

    class Sends(Outputs):
        outputs = (Remakes,)
        batch_wait = 0.1

    (shard,) = {f"orders/{each}" for each in put(orders, "orders", [("ann", PACK)])}
    (pack,) = kinesis.numbers("orders", shard.rpartition("/")[2])
    with KinesisGroup(kinesis, "orders") as group, running(worker_of(group, "played-0", Sends)):
        group.until("all is saved", lambda: group.checkpoints().get(shard) == pack + 1)
    assert taken == [b"1", b"2", b"3"]
    assert "write returned records that it was not given, of the offsets" in caplog.text


@pytest.mark.parametrize("output", [KafkaOutput, DatabaseOutput])
def test_outputs_that_keep_positions_of_kafka_are_refused(kinesis: PlayedKinesis, orders: Any, output: Any) -> None:
    sends = type("Sends", (Outputs,), {"outputs": (output,), "guarantee": "exactly-once"})
    with KinesisGroup(kinesis, "orders") as group, running(worker_of(group, "played-0", sends)) as raised:
        group.until("it has ended", lambda: bool(raised))
    assert f"output {output.__name__} of Sends keeps positions of Kafka, and shard orders/" in str(raised[0])


def test_an_output_that_keeps_positions_of_kafka_is_refused_also_where_a_function_makes_it(
    kinesis: PlayedKinesis, orders: Any
) -> None:
    class Rows(DatabaseOutput):
        def connect(self) -> Any:
            raise AssertionError("nothing is written")

    sends = type("Sends", (Outputs,), {"outputs": (lambda: Rows(),), "guarantee": "at-least-once"})
    with KinesisGroup(kinesis, "orders") as group, running(worker_of(group, "played-0", sends)) as raised:
        group.until("it has ended", lambda: bool(raised))
    assert "output Rows of Sends keeps positions of Kafka, and shard orders/" in str(raised[0])


@pytest.mark.parametrize("kafka", [{}, {"bootstrap.servers": "127.0.0.1:1"}], ids=["of the group", "of its own"])
@pytest.mark.parametrize("made", [False, True], ids=["by its class", "by a function"])
def test_a_kafka_output_is_refused_also_where_it_has_a_write_of_its_own(
    kinesis: PlayedKinesis, orders: Any, kafka: dict[str, str], made: bool
) -> None:
    def write(_: KafkaOutput, __: Sequence[Record]) -> None:
        raise AssertionError("it is given no record")

    copies = type("Copies", (KafkaOutput,), {"topic": "copies", "kafka": kafka, "write": write})
    sends = type("Sends", (Outputs,), {"outputs": ((lambda: copies()) if made else copies,)})
    with KinesisGroup(kinesis, "orders") as group, running(worker_of(group, "played-0", sends)) as raised:
        group.until("it has ended", lambda: bool(raised))
    (error,) = raised
    assert isinstance(error, WorkerOptionError)
    assert re.fullmatch(
        r"output Copies is a KafkaOutput, which keeps positions of Kafka, and shard orders/\S+ is of Kinesis: derive it from"
        " Output, and connect to Kafka in its `open`",
        str(error),
    )


def test_what_is_set_when_outputs_are_made_is_refused_too(kinesis: PlayedKinesis, orders: Any) -> None:
    class Sends(Outputs):
        outputs = (Output,)

        def __init__(self) -> None:
            self.queue_directory = "/tmp/queue"

    with KinesisGroup(kinesis, "orders") as group, running(worker_of(group, "played-0", Sends)) as raised:
        group.until("it has ended", lambda: bool(raised))
    assert "queue_directory of Sends is '/tmp/queue', and shard orders/" in str(raised[0])


@pytest.mark.parametrize(
    ("attributes", "why"),
    [
        ({"guarantee": "at-most-once"}, "guarantee of Sends is 'at-most-once', and shard orders/.* is of Kinesis"),
        ({"queue_directory": "/tmp/queue"}, "queue_directory of Sends is '/tmp/queue', and shard orders/.* is of Kinesis"),
    ],
)
def test_what_outputs_cannot_do_with_kinesis_is_refused_with_the_remedy(
    kinesis: PlayedKinesis, orders: Any, attributes: dict[str, Any], why: str
) -> None:
    sends = type("Sends", (Outputs,), {"outputs": (Output,), **attributes})
    with KinesisGroup(kinesis, "orders") as group, running(worker_of(group, "played-0", sends)) as raised:
        group.until("it has ended", lambda: bool(raised))
    (error,) = raised
    assert isinstance(error, WorkerOptionError)
    assert re.match(why, str(error))


def test_a_topic_for_bad_records_is_refused(kinesis: PlayedKinesis, orders: Any) -> None:
    with KinesisGroup(kinesis, "orders") as group:
        worker = worker_of(group, "played-0", Sink(), tries=3, bad_records="dead-letter", dead_letters="bad")
        with pytest.raises(
            WorkerOptionError, match="dead_letters is 'bad', a topic of Kafka, and this worker reads stream orders"
        ):
            worker.run()


def test_a_bound_of_values_is_refused_as_nothing_could_flag_them(kinesis: PlayedKinesis, orders: Any) -> None:
    with KinesisGroup(kinesis, "orders") as group:
        worker = worker_of(group, "played-0", Sink(), max_value_bytes=10)
        with pytest.raises(WorkerOptionError, match="max_value_bytes is 10, and what is cut is flagged by a header"):
            worker.run()


def test_a_stream_that_is_deleted_ends_the_worker_with_its_name(kinesis: PlayedKinesis) -> None:
    with stream(kinesis, "orders", 1) as client:
        with KinesisGroup(kinesis, "orders") as group:
            environment = group.environment("played-0") | {"SHARDHERD_KINESIS_STREAM": "other"}
            with pytest.raises(KinesisRefusedError, match="stream other cannot be read"):
                Worker(Sink(), environment=environment).run()
        assert client.list_shards(StreamName="orders")["Shards"]
