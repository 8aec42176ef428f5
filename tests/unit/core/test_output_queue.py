"""When a batch is sent to an output, what is sent again, and when a record is finished by all."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from shardherd.core.consumer.output_queue import OutputQueue, Queued

FIRST, SECOND = 0, 1


def queue(outputs: int = 1, **given: object) -> OutputQueue[str]:
    settings = {"most": 10, "most_bytes": 1000, "batch_size": 3, "batch_wait": 5.0, **given}
    return OutputQueue(outputs, **settings)  # type: ignore[arg-type]


def added(queue: OutputQueue[str], *offsets: int, now: float = 0.0) -> list[bool]:
    return [queue.add((offset, 0), f"r{offset}", 10, now) for offset in offsets]


def offsets(batch: Sequence[Queued[str]] | None) -> list[int] | None:
    return None if batch is None else [each.offset for each in batch]


def test_a_batch_is_sent_once_it_is_full_and_one_at_a_time() -> None:
    sent = queue()
    assert added(sent, 0, 1) == [True, False], "the first one sets a timer"
    assert (sent.batch(FIRST, 1.0), sent.due_in(FIRST, 1.0)) == (None, 4.0)
    assert added(sent, 2, 3) == [True, False]
    assert offsets(sent.batch(FIRST, 1.0)) == [0, 1, 2]
    assert (sent.batch(FIRST, 100.0), sent.due_in(FIRST, 100.0)) == (None, None), "one at a time"
    assert sent.settle(FIRST, (), 100.0) == []
    assert offsets(sent.finished()) == [0, 1, 2]
    assert offsets(sent.batch(FIRST, 100.0)) == [3]


def test_a_batch_that_is_not_full_is_sent_when_its_first_record_has_waited() -> None:
    sent = queue()
    added(sent, 0, now=10.0)
    added(sent, 1, now=14.0)
    assert sent.batch(FIRST, 14.9) is None
    assert offsets(sent.batch(FIRST, 15.0)) == [0, 1]


@pytest.mark.parametrize("bound", [{"most": 2}, {"most_bytes": 20}])
def test_a_queue_that_is_full_is_sent_at_once_and_has_room_when_all_outputs_have_it(bound: dict[str, int]) -> None:
    sent = queue(2, **bound)
    assert (added(sent, 0), sent.full) == ([True], False)
    assert (added(sent, 1), sent.full) == ([True], True)
    for output in (FIRST, SECOND):
        assert sent.full
        assert offsets(sent.batch(output, 0.0)) == [0, 1]
        sent.settle(output, (), 0.0)
        assert offsets(sent.finished()) == ([] if output == FIRST else [0, 1])
    assert (sent.full, len(sent), sent.size) == (False, 0, 0)


def test_one_record_is_taken_however_large_it_is() -> None:
    sent = queue(most_bytes=5)
    assert not sent.full
    added(sent, 0)
    assert sent.full


def test_what_was_not_taken_is_sent_again_alone_after_a_pause_before_anything_new() -> None:
    sent = queue()
    added(sent, 0, 1, 2, 3, 4, 5)
    assert offsets(sent.batch(FIRST, 0.0)) == [0, 1, 2]
    sent.settle(FIRST, {(1, 0)}, 0.0)
    assert offsets(sent.finished()) == [0], "2 waits for 1"
    assert sent.batch(FIRST, 0.4) is None
    assert sent.due_in(FIRST, 0.4) == pytest.approx(0.1)
    assert (offsets(sent.batch(FIRST, 0.5)), sent.retried) == ([1], 1)
    sent.settle(FIRST, (), 0.5)
    assert offsets(sent.finished()) == [1, 2]
    assert offsets(sent.batch(FIRST, 0.5)) == [3, 4, 5]


def test_out_of_order_new_records_are_sent_while_the_rest_waits() -> None:
    sent = queue(in_order=False)
    added(sent, 0, 1, 2, 3, 4, 5)
    sent.batch(FIRST, 0.0)
    sent.settle(FIRST, {(0, 0)}, 0.0)
    assert offsets(sent.batch(FIRST, 0.1)) == [3, 4, 5]
    sent.settle(FIRST, (), 0.1)
    assert offsets(sent.finished()) == []
    assert offsets(sent.batch(FIRST, 0.5)) == [0]


def test_pauses_double_up_to_thirty_seconds_and_begin_anew_once_all_is_taken() -> None:
    sent = queue()
    added(sent, 0, 1, 2)
    now, pauses = 0.0, []
    for _ in range(8):
        assert sent.batch(FIRST, now) is not None
        pauses.append(sent.fail(FIRST, now))
        now += pauses[-1]
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    sent.batch(FIRST, now)
    sent.settle(FIRST, (), now)
    added(sent, 3, 4, 5)
    sent.batch(FIRST, now)
    assert sent.fail(FIRST, now) == 0.5


def test_an_output_that_took_nothing_gets_nothing_new_either_even_out_of_order() -> None:
    sent = queue(in_order=False)
    added(sent, 0, 1, 2, 3, 4, 5)
    sent.batch(FIRST, 0.0)
    sent.fail(FIRST, 0.0)
    assert sent.batch(FIRST, 0.4) is None
    assert sent.due_in(FIRST, 0.4) == pytest.approx(0.1)


def test_of_a_batch_that_failed_what_was_taken_all_the_same_is_not_sent_again() -> None:
    sent = queue()
    added(sent, 0, 1, 2)
    sent.batch(FIRST, 0.0)
    assert sent.fail(FIRST, 0.0, {(0, 0)}) == 0.5
    assert (offsets(sent.finished()), offsets(sent.batch(FIRST, 0.5))) == ([0], [1, 2])


def test_an_output_that_is_away_does_not_keep_the_others_from_their_batches() -> None:
    sent = queue(2)
    added(sent, 0, 1, 2, 3, 4, 5)
    sent.batch(FIRST, 0.0)
    sent.fail(FIRST, 0.0)
    for batch in ([0, 1, 2], [3, 4, 5]):
        assert offsets(sent.batch(SECOND, 0.0)) == batch
        sent.settle(SECOND, (), 0.0)
    assert (sent.finished(), len(sent)) == ([], 6)


def test_a_record_that_was_refused_too_often_is_bad_and_waits_for_the_decision() -> None:
    sent = queue(2)
    added(sent, 0, 1, 2)
    sent.batch(FIRST, 0.0)
    assert sent.settle(FIRST, {(1, 0)}, 0.0, limit=2) == []
    sent.batch(FIRST, 1.0)
    assert offsets(sent.settle(FIRST, {(1, 0)}, 1.0, limit=2)) == [1]
    assert sent.due_in(FIRST, 1.0) is None
    assert offsets(sent.batch(SECOND, 1.0)) == [0, 2], "nobody gets it any more"
    sent.settle(SECOND, (), 1.0)
    assert offsets(sent.finished()) == [0]
    sent.drop((1, 0))
    assert [(each.offset, each.lost) for each in sent.finished()] == [(1, True), (2, False)]


def test_what_two_outputs_refuse_is_not_bad_before_one_of_them_has_refused_it_so_often() -> None:
    sent = queue(2)
    added(sent, 0, 1)
    bad = []
    for now, output in ((5.0, FIRST), (5.0, SECOND), (6.0, FIRST), (6.0, SECOND), (8.0, SECOND)):
        assert sent.batch(output, now)
        bad += [(now, output, each.offset) for each in sent.settle(output, {(1, 0)}, now, limit=3)]

    assert bad == [(8.0, SECOND, 1)]
    assert sent.batch(FIRST, 9.0) is None


def test_a_record_that_one_output_made_bad_stays_so_when_another_refuses_it_that_had_it_on_its_way() -> None:
    sent = queue(2)
    added(sent, 0)
    for output in (FIRST, SECOND):
        sent.batch(output, 5.0)
    sent.settle(FIRST, {(0, 0)}, 5.0, limit=1)

    sent.settle(SECOND, {(0, 0)}, 6.0, limit=2)

    assert (sent.held_by, sent.batch(FIRST, 9.0), sent.batch(SECOND, 9.0)) == ((0, 0), None, None)


def test_a_bad_record_that_is_given_again_is_sent_to_those_that_have_not_taken_it() -> None:
    sent = queue(2)
    added(sent, 0, 1, 2)
    for output, refused in ((SECOND, set()), (FIRST, {(1, 0)})):
        sent.batch(output, 0.0)
        sent.settle(output, refused, 0.0, limit=1)
    sent.again((1, 0))
    assert (offsets(sent.batch(FIRST, 0.0)), sent.batch(SECOND, 0.0)) == ([1], None)


def test_what_is_behind_a_bad_record_is_held_by_it_until_it_is_dropped_or_given_again() -> None:
    sent = queue()
    added(sent, 0, 1, 2)
    held = [sent.held_by]
    for now in (0.0, 1.0):
        sent.batch(FIRST, now)
        sent.settle(FIRST, [(1, 0)], now, limit=1)
        held.append(sent.held_by)
        if not now:
            sent.again((1, 0))
            held.append(sent.held_by)
    assert offsets(sent.finished()) == [0]

    sent.drop((1, 0))

    assert [*held, sent.held_by] == [None, (1, 0), None, (1, 0), None]
    assert offsets(sent.finished()) == [1, 2]


def test_a_batch_cannot_be_settled_twice() -> None:
    sent = queue()
    added(sent, 0, 1, 2)
    sent.batch(FIRST, 0.0)
    sent.settle(FIRST, (), 0.0)
    for settles_again in (lambda: sent.settle(FIRST, (), 0.0), lambda: sent.fail(FIRST, 0.0)):
        with pytest.raises(ValueError, match="the batch of output 0 was settled before"):
            settles_again()


def test_what_an_output_has_already_is_not_sent_to_it() -> None:
    sent = queue(2, batch_size=2)
    sent.add((0, 0), "r0", 10, 0.0, taken=[FIRST])
    assert sent.add((1, 0), "r1", 10, 0.0, taken=[FIRST, SECOND])
    added(sent, 2, 3)
    sent.reach(SECOND, 3)
    assert (offsets(sent.batch(FIRST, 0.0)), offsets(sent.batch(SECOND, 9.0))) == ([2, 3], [3])
    assert offsets(sent.finished()) == [0, 1]


def test_a_position_that_was_reached_counts_for_what_is_to_be_sent_again_and_for_what_comes() -> None:
    sent = queue()
    added(sent, 0, 1, 2)
    sent.batch(FIRST, 0.0)
    sent.fail(FIRST, 0.0)
    sent.reach(FIRST, 5)
    assert added(sent, 4) == [True]
    assert (offsets(sent.finished()), sent.batch(FIRST, 9.0)) == ([0, 1, 2, 4], None)


def test_while_flushing_nothing_waits_to_fill_a_batch() -> None:
    sent = queue()
    added(sent, 0)
    sent.flushing = True
    assert (added(sent, 1), offsets(sent.batch(FIRST, 0.0))) == ([True], [0, 1])


def test_an_offset_is_in_the_queue_once() -> None:
    sent = queue()
    added(sent, 0)
    with pytest.raises(ValueError, match="offset 0 is in the queue already"):
        added(sent, 0)


def test_a_time_that_is_a_hair_ahead_has_come() -> None:
    """A timer of no length ends at once, with the hair still ahead."""
    sent = queue(batch_wait=0.1)
    added(sent, 0, now=0.2)
    now = 0.3 - 1e-12
    assert (sent.due_in(FIRST, now), offsets(sent.batch(FIRST, now))) == (0.0, [0])
    sent.fail(FIRST, now)
    assert offsets(sent.batch(FIRST, now + 0.5 - 1e-12)) == [0]


def test_records_of_one_offset_are_taken_refused_and_finished_each_for_itself() -> None:
    sent = queue(1)
    for number in range(3):
        sent.add((7, number), f"7.{number}", 1, 0.0)
    assert offsets(sent.batch(FIRST, 100.0)) == [7, 7, 7]
    assert [each.place for each in sent.settle(FIRST, {(7, 1)}, 100.0, limit=1)] == [(7, 1)]
    assert [each.record for each in sent.finished()] == ["7.0"]
    sent.drop((7, 1))
    assert [(each.record, each.lost) for each in sent.finished()] == [("7.1", True), ("7.2", False)]
    with pytest.raises(KeyError):
        sent.again((7, 1))
