"""Batches of records of Kinesis: they begin and end between records of Kinesis, also where a program leaves them early."""

from __future__ import annotations

from datetime import UTC, datetime

from shardherd.core.model.nouns import Offset, ShardId
from shardherd.source.kinesis import shard_reader as kinesis
from shardherd.worker.kinesis_records import KinesisRecords

SHARD = ShardId("orders/shardId-000000000000")
ARRIVED = datetime(2026, 1, 2, tzinfo=UTC)
N = 49590338271490256608559692538361571095921575989136588800
"""As Kinesis gives them: far above 63 bits."""


def batch() -> KinesisRecords:
    """A record, an aggregated one of three, and another record."""
    rows = [(N, 0), (N + 16, 0), (N + 16, 1), (N + 16, 2), (N + 32, 0)]
    made = [kinesis.Record(str(number), "k", f"{number - N}.{sub}".encode(), ARRIVED, sub) for number, sub in rows]
    return KinesisRecords(SHARD, made, N - 5, N + 33)


def test_what_was_given_out_when_the_shard_is_wanted_back_ends_after_a_whole_record_of_kinesis() -> None:
    given: dict[int, tuple[list[bytes | None], Offset]] = {}
    for stopped_after in range(1, 6):
        records, seen = batch(), []
        for record in records:
            seen.append(record.value)
            if len(seen) == stopped_after:
                records.stop()
        given[stopped_after] = (seen, records.done)
    pack = [b"16.0", b"16.1", b"16.2"]
    assert given == {
        1: ([b"0.0"], N + 16),
        2: ([b"0.0", *pack], N + 32),
        3: ([b"0.0", *pack], N + 32),
        4: ([b"0.0", *pack], N + 32),
        5: ([b"0.0", *pack, b"32.0"], N + 33),
    }


def test_one_that_is_stopped_before_it_begins_gives_nothing_out() -> None:
    records = batch()
    records.stop()
    assert (list(records), records.done) == ([], N)


def test_what_is_finished_while_it_runs_is_never_inside_an_aggregated_record() -> None:
    records = batch()
    finished, whole = [], []
    for record in records:
        finished.append(records.finished)
        whole.append(records.whole(record.offset + 1))
    assert finished == [N, N + 16, N + 16, N + 16, N + 32]
    assert whole == [N + 1, N + 16, N + 16, N + 17, N + 33]
    assert (records.finished, records.whole(N + 33)) == (N + 33, N + 33)


def test_a_batch_that_was_left_inside_an_aggregated_record_is_tried_again_from_its_begin() -> None:
    records = batch()
    for record in records:
        if record.sub == 1:
            break
    position = records.whole(record.offset + 1)
    rest = records.since(position)
    assert position == N + 16
    assert ([each.value for each in rest], rest.position, rest.next) == ([b"16.0", b"16.1", b"16.2", b"32.0"], N + 16, N + 33)
    records.begin()
    assert records.whole(N + 33) == N + 33


def test_its_table_has_the_columns_of_the_source_for_spark() -> None:
    table = batch().table
    assert table.column_names == ["key", "value", "sequenceNumber", "subSequenceNumber", "timestamp", "shard"]
    assert table.slice(2, 1).to_pylist() == [
        {
            "key": b"k",
            "value": b"16.1",
            "sequenceNumber": str(N + 16),
            "subSequenceNumber": 1,
            "timestamp": ARRIVED,
            "shard": SHARD,
        }
    ]
    assert repr(batch()) == f"<5 records of {SHARD} from {N - 5} up to {N + 33}>"


def test_who_looks_into_an_aggregated_record_and_then_reads_all_has_all() -> None:
    rows = [kinesis.Record(str(N), "k", b"%d" % sub, ARRIVED, sub) for sub in range(3)]
    records = KinesisRecords(SHARD, rows, N, N + 1)
    first = next(iter(records))
    assert records.whole(N + 1) == N, "nothing is given out wholly"
    seen = [each.sub for each in records]
    assert (first.sub, seen, records.whole(N + 1)) == (0, [0, 1, 2], N + 1)
    records.begin()
    next(iter(records))
    assert records.whole(N + 1) == N, "what an attempt before was given does not count"


def test_an_iteration_that_has_not_begun_has_nothing_finished() -> None:
    records = batch()
    loop = iter(records)
    assert records.finished == N - 5
    assert [each.offset for each in loop] == [N, N + 16, N + 16, N + 16, N + 32]
    assert records.finished == N + 33
