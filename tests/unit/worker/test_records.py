"""A batch of records: what is iterated, where it ends early, and what is left of it."""

from __future__ import annotations

import pytest

from shardherd.worker import fetched
from shardherd.worker.fetched import batches
from shardherd.worker.records import Records, Whole
from tests.unit.worker.scene import A, part, rows


def records_of(*offsets: int, next_: int) -> Records:
    return Records(A, Whole(rows(offsets)), offsets[0], next_)


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


@pytest.mark.parametrize("name", ["shard", "position", "next"])
def test_a_program_cannot_set_by_what_of_a_batch_it_is_known_where_to_go_on(name: str) -> None:
    with pytest.raises(AttributeError, match=f"property '{name}' of 'Records' object has no setter"):
        setattr(records_of(3, 5, next_=6), name, None)


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


def test_a_loop_that_was_left_before_it_was_stopped_has_not_ended_early() -> None:
    records = records_of(3, 5, 9, next_=12)
    for record in records:
        if record.offset == 5:
            break
    records.stop()
    assert (records.done, records.finished) == (12, 5)


def test_of_two_loops_at_once_each_has_its_own_record_in_hand_and_both_are_stopped() -> None:
    records = records_of(3, 5, 9, next_=12)
    first, second = iter(records), iter(records)
    assert [next(first).offset, next(first).offset, next(second).offset] == [3, 5, 3]
    assert records.finished == 3
    records.stop()
    assert ([*first], [*second], records.done) == ([], [], 5)


def test_what_an_attempt_before_has_left_open_does_not_count_but_is_stopped() -> None:
    records = records_of(3, 5, 9, next_=12)
    before = iter(records)
    assert next(before).offset == 3
    records.begin()
    assert records.finished == 12
    records.stop()
    assert ([*before], records.done) == ([], 5)


def test_batches_of_what_became_objects_together_are_cut_and_gone_back_in_as_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetched, "TOGETHER", 5)
    cut = list(batches(part(A, 0, [*range(0, 22, 2)], 25, 30), 2))

    assert [(each.position, each.next, [record.offset for record in each]) for each in cut] == [
        (0, 3, [0, 2]),
        (3, 7, [4, 6]),
        (7, 11, [8, 10]),
        (11, 15, [12, 14]),
        (15, 19, [16, 18]),
        (19, 25, [20]),
    ]
    assert [each.table.column("value").to_pylist() for each in cut[1:3]] == [[b"4", b"6"], [b"8", b"10"]]
    rest = cut[2].since(9)
    assert ([record.value for record in rest], rest.table.num_rows, rest.next) == ([b"10"], 1, 11)
    stopped = cut[3]
    assert next(iter(stopped)).offset == 12
    loop = iter(stopped)
    next(loop)
    stopped.stop()
    assert ([*loop], stopped.done) == ([], 14)
