"""Records that are acknowledged one by one: what comes again, when, and what may be committed."""

from __future__ import annotations

import pytest

from shardherd.core.consumer.pending import Pending


def ledger(*, most: int = 10, in_order: bool = True, timeout: float = 0.0, emitted: int = 0) -> Pending[str]:
    found: Pending[str] = Pending(0, most=most, in_order=in_order, timeout=timeout)
    for offset in range(emitted):
        found.emit((offset, 0), f"record {offset}", 0.0)
    return found


def next_again(pending: Pending[str], now: float) -> int | None:
    found = pending.again(now)
    return None if found is None else found.offset


def test_the_smallest_pending_offset_is_committed_and_with_nothing_pending_the_next_one_to_read() -> None:
    pending = ledger(emitted=4)
    positions = [pending.position]
    for offset in (2, 0, 1, 3):
        assert pending.ack((offset, 0), 1, 1.0)
        positions.append(pending.position)
    assert positions == [0, 0, 1, 3, 4]
    pending.reach(9)
    assert pending.position == 9


def test_an_offset_of_several_records_is_passed_once_all_of_them_are_handed_out_and_done() -> None:
    pending = ledger()
    pending.emit((7, 0), "7.0", 0.0, more=True)
    pending.emit((7, 1), "7.1", 0.0, more=True)
    assert pending.ack((7, 1), 1, 1.0)
    assert pending.fail((7, 0), 1, "broken", 1.0)
    again = pending.again(9.0)
    assert again is not None
    assert (again.record, again.place) == ("7.0", (7, 0))
    assert pending.ack((7, 0), 2, 9.0)
    assert (len(pending), pending.position) == (0, 7), "one of them was not handed out"
    with pytest.raises(ValueError, match="offset 7 was read before"):
        pending.emit((7, 1), "7.1", 9.0)
    pending.emit((7, 2), "7.2", 9.0)
    assert pending.position == 7
    assert pending.ack((7, 2), 1, 9.0)
    assert pending.position == 8


def test_it_is_halfway_while_further_records_of_an_offset_follow_and_none_has_failed() -> None:
    pending = ledger()
    seen = [pending.halfway]
    for number, more in ((0, True), (1, True), (2, False)):
        pending.emit((7, number), f"7.{number}", 0.0, more=more)
        seen.append(pending.halfway)
    assert seen == [False, True, True, False]
    pending.emit((8, 0), "8.0", 0.0, more=True)
    pending.fail((7, 1), 1, "broken", 0.0)
    assert not pending.halfway
    assert pending.again(9.0) is not None
    assert not pending.halfway, "the shard waits for it"
    pending.ack((7, 1), 2, 9.0)
    assert pending.halfway


def test_a_position_that_stays_at_an_offset_of_several_records_is_stuck_there() -> None:
    pending = ledger()
    for number in range(3):
        pending.emit((7, number), f"7.{number}", 10.0 * number, more=True)
        assert pending.ack((7, number), 1, 10.0 * number + 5.0)
    pending.emit((7, 3), "7.3", 30.0)
    found = pending.stuck(100.0)
    assert found is not None
    assert (found[0].record, found[1]) == ("7.3", 100.0)


def test_failed_records_are_emitted_again_in_stream_order_before_any_new_one() -> None:
    pending = ledger(emitted=5)
    for offset in (3, 1):
        assert pending.fail((offset, 0), 1, "broken", 0.0)
    assert (pending.room, next_again(pending, 0.4), next_again(pending, 0.5)) == (False, None, 1)
    assert next_again(pending, 9.0) is None, "the shard waits for it"
    pending.ack((1, 0), 2, 9.0)
    assert (pending.room, next_again(pending, 9.0)) == (False, 3)
    pending.ack((3, 0), 2, 9.0)
    assert (pending.room, pending.position) == (True, 0)


def test_a_record_that_fails_does_not_wait_for_a_later_one_that_was_given_again_before_it() -> None:
    pending = ledger(emitted=4)
    pending.fail((2, 0), 1, "broken", 1.0)
    assert next_again(pending, 9.0) == 2
    pending.fail((3, 0), 1, "broken", 9.0)
    assert (next_again(pending, 19.0), pending.due_in(19.0)) == (None, None), "a later one does"
    pending.fail((0, 0), 1, "broken", 19.0)
    assert (pending.due_in(19.0), next_again(pending, 29.0), next_again(pending, 29.0)) == (0.5, 0, None)
    assert pending.ack((0, 0), 2, 29.0)
    assert (next_again(pending, 29.0), pending.room) == (None, False), "2 is still under way"
    assert pending.ack((2, 0), 2, 29.0)
    assert (next_again(pending, 29.0), pending.room) == (3, False)
    assert pending.ack((3, 0), 2, 29.0)
    assert pending.room


def test_out_of_order_they_come_when_their_pause_is_over_and_new_ones_go_on() -> None:
    pending = ledger(emitted=5, in_order=False)
    pending.fail((1, 0), 1, "broken", 3.0)
    pending.fail((3, 0), 1, "broken", 0.0)
    assert (pending.room, next_again(pending, 0.5), next_again(pending, 0.5), next_again(pending, 3.5)) == (True, 3, None, 1)


def test_the_pause_before_a_record_comes_again_doubles_up_to_thirty_seconds() -> None:
    pending, now, pauses = ledger(emitted=1), 0.0, []
    for attempt in range(1, 9):
        pending.fail((0, 0), attempt, "broken", now)
        pauses.append(pending.due_in(now))
        now += 60.0
        assert pending.again(now) is not None
    assert pauses == [0.5, 1, 2, 4, 8, 16, 30, 30]


def test_a_record_that_failed_as_often_as_it_may_comes_at_once_for_the_last_time() -> None:
    pending = ledger(emitted=1)
    pending.fail((0, 0), 1, "broken", 0.0, limit=2)
    assert pending.again(0.5) is not None
    pending.fail((0, 0), 2, "broken", 0.5, limit=2)
    assert pending.due_in(0.5) == 0.0


def test_one_record_that_is_never_acknowledged_bounds_what_is_pending_and_so_what_is_repeated() -> None:
    pending = ledger(most=3, in_order=False, emitted=3)
    assert not pending.room
    for offset in (1, 2):
        pending.ack((offset, 0), 1, 0.0)
        pending.emit((offset + 2, 0), "more", 0.0)
    assert (pending.room, pending.position, len(pending)) == (False, 0, 3)


def test_an_attempt_that_failed_or_was_repeated_cannot_be_acknowledged() -> None:
    pending = ledger(emitted=1)
    pending.fail((0, 0), 1, "broken", 0.0)
    assert not pending.ack((0, 0), 1, 0.1)
    assert pending.again(1.0) is not None
    assert [pending.ack((0, 0), 1, 1.0), pending.fail((0, 0), 1, "again", 1.0), pending.position] == [False, False, 0]
    assert [pending.ack((0, 0), 2, 1.0), pending.ack((0, 0), 2, 1.0), pending.position] == [True, False, 1]


def test_what_is_not_acknowledged_in_time_has_failed() -> None:
    pending = ledger(timeout=30.0, emitted=1)
    pending.emit((1, 0), "later", 10.0)
    assert (pending.due_in(0.0), pending.expire(29.9)) == (30.0, [])
    assert [(each.offset, each.reason) for each in pending.expire(30.0)] == [(0, "not acknowledged within 30 s")]
    assert (pending.due_in(30.0), next_again(pending, 30.5), pending.due_in(31.0)) == (0.5, 0, 9.0)
    assert [each.offset for each in pending.expire(40.0)] == [1]


def test_what_holds_the_position_is_told_with_how_long() -> None:
    pending = ledger()
    assert pending.stuck(5.0) is None
    for offset in range(3):
        pending.emit((offset, 0), "record", 5.0 + offset)
    pending.ack((1, 0), 1, 20.0)
    first = pending.stuck(25.0)
    assert first is not None
    assert (first[0].offset, first[1]) == (0, 20.0)
    pending.ack((0, 0), 1, 30.0)
    first = pending.stuck(31.0)
    assert first is not None
    assert (first[0].offset, first[1]) == (2, 1.0)


def test_an_offset_that_was_read_is_not_emitted_anew() -> None:
    pending = ledger(emitted=2)
    with pytest.raises(ValueError, match="offset 1 was read before: the next one is 2"):
        pending.emit((1, 0), "again", 0.0)


def test_with_nothing_under_way_nothing_is_due() -> None:
    pending = ledger(timeout=1.0, emitted=1)
    pending.ack((0, 0), 1, 0.5)
    assert (pending.expire(1.0), pending.due_in(1.0), pending.out(), pending.again(2.0)) == ([], None, 0, None)


def test_a_record_that_is_bad_at_once_counts_as_one_that_failed_as_often_as_it_may() -> None:
    pending = ledger(emitted=2)
    pending.fail((0, 0), 1, "no JSON", 0.0, limit=3, bad=True)
    emitted = pending.again(0.0)
    assert emitted is not None
    assert (emitted.offset, emitted.failures) == (0, 3)
    pending.fail((0, 0), 2, "no room there", 0.0, limit=3)
    assert (emitted.failures, next_again(pending, 1.9), next_again(pending, 2.0)) == (4, None, None)


def test_a_record_that_is_found_bad_comes_again_at_once_also_after_it_was_late_more_often() -> None:
    pending = ledger(timeout=1.0, emitted=1)
    pending.expire(1.0)
    pending.again(10.0)
    pending.expire(11.0)
    pending.again(20.0)
    pending.fail((0, 0), 3, "refused", 20.5, limit=2, bad=True)
    assert next_again(pending, 20.5) == 0


def test_attempts_that_are_under_way_are_counted_also_up_to_a_record() -> None:
    pending = ledger(emitted=4)
    assert pending.fail((1, 0), 1, "broken", 0.0)
    assert pending.ack((2, 0), 1, 0.0)

    assert [pending.out(), pending.out(before=(1, 0)), pending.out(before=(0, 0)), pending.out(before=(9, 0))] == [2, 1, 0, 2]
