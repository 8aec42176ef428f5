"""Storm's acker: when a tree of tuples is done, and what may come in any order."""

from __future__ import annotations

import sys

import pytest

from shardherd.core.consumer.trees import Acker, Verdict


def test_xor_of_id0_id1_reaches_zero() -> None:
    acker = Acker(4)
    id0, id1 = acker.root(0x1234567890ABCDEF), 0xFEDCBA0987654321
    assert acker.start(id0, task=7) is None
    assert acker.task(id0) == 7
    # The first bolt has processed id0 and emitted id1; the second one has processed that.
    assert acker.ack(id0, id0 ^ id1) is None
    assert (acker.ack(id0, id1), acker.knows(id0), len(acker)) == (Verdict.DONE, False, 0)


def test_what_a_bolt_sends_before_the_start_message_waits_for_it() -> None:
    acker = Acker(4)
    id0 = acker.root(99)
    assert [acker.ack(id0, id0 ^ 5), acker.ack(id0, 5)] == [None, None], "all has come but the start"
    assert acker.start(id0, 0) is Verdict.DONE


def test_zero_before_the_start_message_is_not_done() -> None:
    acker = Acker(4)
    id0 = acker.root(99)
    assert [acker.ack(id0, 5), acker.ack(id0, 5), acker.knows(id0)] == [None, None, True]
    assert acker.start(id0, 0) is None
    assert acker.ack(id0, id0) is Verdict.DONE


def test_a_failure_of_any_tuple_fails_the_tree_at_once_and_what_comes_later_changes_nothing() -> None:
    acker = Acker(4)
    id0 = acker.root(99)
    acker.start(id0, 0)
    acker.ack(id0, id0 ^ 5 ^ 6)
    assert acker.fail(id0) is Verdict.FAILED
    assert [acker.ack(id0, 5), acker.ack(id0, 6), acker.fail(id0), acker.start(id0, 0)] == [None] * 4


def test_a_failure_before_the_start_message_fails_the_tree_with_it() -> None:
    acker = Acker(4)
    id0 = acker.root(99)
    assert (acker.fail(id0), acker.ack(id0, id0), acker.start(id0, 0), len(acker)) == (None, None, Verdict.FAILED, 0)


def test_a_tree_whose_place_was_taken_by_another_does_not_touch_it() -> None:
    acker = Acker(2)
    first = acker.root(1000)
    acker.start(first, 0)
    acker.forget(first)
    second = acker.root(2000)
    assert second % 2 == first % 2
    acker.start(second, 0)
    assert (acker.ack(first, first), acker.fail(first), acker.ack(second, second)) == (None, None, Verdict.DONE)


def test_a_tree_takes_twenty_bytes_however_many_tuples_it_has() -> None:
    acker, most = Acker(2**16), 2**16
    roots = [acker.root(0) for _ in range(most)]
    for root in roots:
        acker.start(root, 0)
        for tuple_ in range(1, 21):
            acker.ack(root, tuple_ << 40)
    assert (acker.bytes_per_tree, len(acker), len(set(roots))) == (20, most, most)
    kept = sum(sys.getsizeof(each) for each in (acker._roots, acker._values, acker._tasks))
    assert 20.0 <= kept / most < 20.1


def test_an_acker_that_is_full_says_so() -> None:
    acker = Acker(2)
    acker.root(1), acker.root(2)
    with pytest.raises(ValueError, match="2 trees are not finished: this acker has no place for another"):
        acker.root(3)


def test_a_task_has_32_bits() -> None:
    acker = Acker(2)
    with pytest.raises(ValueError, match="a task is a number from 0 to 4294967293, not -1"):
        acker.start(acker.root(1), -1)
    with pytest.raises(ValueError, match="an acker is for 1 tree or more, not 0"):
        Acker(0)


def test_no_tree_is_named_zero() -> None:
    acker = Acker(2)
    assert [acker.root(0), acker.root(0), acker.knows(0)] == [2, 1, False]
