"""A batch of records: what is iterated, where it ends early, and what is left of it."""

from __future__ import annotations

from shardherd.worker.fetched import batches
from shardherd.worker.records import Records
from tests.unit.worker.scene import A, part, table


def records_of(*offsets: int, next_: int) -> Records:
    return Records(A, table(offsets), offsets[0], next_)


def test_records_are_made_one_by_one_and_as_often_as_they_are_asked_for() -> None:
    records = records_of(3, 5, 9, next_=12)
    assert len(records) == 3
    for _ in range(2):
        assert [(each.offset, each.value, each.timestamp) for each in records] == [(3, b"3", 3), (5, b"5", 5), (9, b"9", 9)]
    assert (records.done, repr(records)) == (12, "<3 records of t/0 from 3 up to 12>")


def test_who_iterates_gets_no_further_record_once_the_shard_has_to_be_given_up() -> None:
    records = records_of(3, 5, 9, next_=12)
    got = []
    for record in records:
        got.append(record.offset)
        records.stop()
    assert (got, records.done) == ([3], 5)


def test_a_batch_that_was_stopped_before_it_began_has_nothing_done() -> None:
    records = records_of(3, 5, next_=6)
    records.stop()
    assert (list(records), records.done) == ([], 3)


def test_of_two_iterations_the_one_that_ended_first_counts() -> None:
    records = records_of(3, 5, 9, next_=12)
    assert len(list(records)) == 3
    records.stop()
    assert (list(records), records.done) == ([], 3)


def test_the_last_record_in_hand_when_it_is_stopped_is_the_end_of_the_batch() -> None:
    records = records_of(3, 5, next_=12)
    got = []
    for record in records:
        got.append(record.offset)
        if record.offset == 5:
            records.stop()
    assert (got, records.done) == ([3, 5], 12)


def test_the_rest_from_a_position_on_has_the_same_end() -> None:
    rest = records_of(3, 5, 9, next_=12).since(6)
    assert ([each.offset for each in rest], rest.position, rest.next) == ([9], 6, 12)


def test_a_part_is_cut_into_batches_that_meet() -> None:
    cut = batches(part(A, 2, [3, 4, 7, 8, 9], 15, 20), 2)
    assert [(each.position, each.next, len(each)) for each in cut] == [(2, 5, 2), (5, 9, 2), (9, 15, 1)]


def test_in_a_loop_what_is_before_the_record_in_hand_is_finished_and_after_it_all() -> None:
    records = records_of(3, 5, 9, next_=12)
    assert [records.finished for _ in records] == [3, 5, 9]
    assert records.finished == 12
