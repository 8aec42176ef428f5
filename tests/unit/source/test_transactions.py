"""Which records of transactions are seen: those that Kafka's own consumer shows under read_committed."""

from __future__ import annotations

from collections.abc import Collection

from shardherd.core.model.nouns import ShardId
from shardherd.source.decoding import record_batches
from shardherd.source.decoding.transactions import Aborted, Batch, hidden
from tests.unit.source.kafka_bytes import Record, batch_of, control_batch, empty_batch, sealed, transactional

SHARD = ShardId("clicks/3")


def offsets(data: bytes, aborted: Collection[Aborted], start: int = 0) -> list[int]:
    scanned = record_batches.scan(SHARD, data, start, aborted=aborted)
    batches = record_batches.decode(SHARD, scanned, start, 1 << 40, ("offset",))
    return [row["offset"] for batch in batches for row in batch.to_pylist()]


def sent(producer: int, *at: int, codec: str = "none") -> bytes:
    return transactional(batch_of([Record(offset) for offset in at], codec=codec), producer)


def test_aborted_records_are_left_out_and_passed() -> None:
    data = sent(5, 0, 1) + sent(5, 2, codec="lz4") + control_batch(3, producer=5, abort=True) + batch_of([Record(4)])

    assert offsets(data, [Aborted(5, 0)]) == [4]
    assert record_batches.scan(SHARD, data, 0, aborted=[Aborted(5, 0)]).next_offset == 5


def test_only_the_markers_of_producers_with_an_aborted_transaction_are_looked_into() -> None:
    looked_at: list[int] = []

    def aborts(position: int) -> bool:
        looked_at.append(position)
        return position == 3

    ends = {"transactional": True, "control": True}
    batches = [
        Batch(0, 5, transactional=True, control=False),
        Batch(1, 6, **ends),
        Batch(2, 5, **ends),
        Batch(3, 5, **ends),
        Batch(4, 5, **ends),
        Batch(5, 5, transactional=True, control=False),
    ]
    assert (hidden(batches, [Aborted(5, 0)], aborts), looked_at) == ([0], [2, 3])


def test_without_a_list_of_aborted_transactions_every_record_is_seen() -> None:
    data = sent(5, 0, 1) + control_batch(2, producer=5, abort=True)

    assert offsets(data, ()) == [0, 1]


def test_a_producers_next_transaction_is_seen_after_the_marker_of_the_aborted_one() -> None:
    data = (
        sent(5, 0)
        + control_batch(1, producer=5, abort=True)
        + sent(5, 2)
        + control_batch(3, producer=5)
        + sent(5, 4)
        + control_batch(5, producer=5, abort=True)
        + sent(5, 6)
    )

    assert offsets(data, [Aborted(5, 4), Aborted(5, 0)]) == [2, 6]


def test_transactions_of_several_producers_are_told_apart() -> None:
    data = (
        sent(5, 0)
        + sent(6, 1)
        + batch_of([Record(2)])
        + sent(5, 3)
        + control_batch(4, producer=6)
        + control_batch(5, producer=5, abort=True)
    )

    assert offsets(data, [Aborted(5, 0)]) == [1, 2]


def test_a_transaction_that_began_before_this_answer_is_known_by_its_first_offset() -> None:
    data = sent(5, 100) + control_batch(101, producer=5, abort=True) + sent(5, 102)

    assert offsets(data, [Aborted(5, 3)], start=100) == [102]


def test_records_before_an_aborted_transaction_of_the_same_producer_are_seen() -> None:
    data = sent(5, 0) + control_batch(1, producer=5) + sent(5, 2) + control_batch(3, producer=5, abort=True)

    assert offsets(data, [Aborted(5, 2)]) == [0]


def test_an_idempotent_producers_plain_records_are_seen_even_while_it_has_an_aborted_transaction() -> None:
    plain = sealed(batch_of([Record(1)]), base=1, last_delta=0, attributes=0, producer=5)
    data = sent(5, 0) + plain + control_batch(2, producer=5, abort=True)

    assert offsets(data, [Aborted(5, 0)]) == [1]


def test_a_marker_whose_record_was_compacted_away_ends_nothing() -> None:
    emptied = sealed(empty_batch(1, 1), base=1, last_delta=0, attributes=0x30, producer=5)
    data = sent(5, 0) + emptied + sent(5, 2) + sent(6, 3)

    assert offsets(data, [Aborted(5, 0)]) == [3]
