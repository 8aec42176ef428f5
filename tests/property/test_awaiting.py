"""Of asynchronous calls each has one output, in the order that is promised."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardherd.core.consumer.awaiting import Awaiting, Call, Watermark
from tests.harness.long import LONG
from tests.property.planted import Bug, noticed

EXAMPLES = 2000 if LONG else 100

Step = tuple[str, int]


@settings(max_examples=EXAMPLES, database=None)
@given(
    ordered=st.booleans(),
    capacity=st.integers(1, 6),
    steps=st.lists(
        st.tuples(
            st.sampled_from(
                ("begin", "begin", "watermark", "finish", "finish", "finish twice", "fail", "late", "again", "emit")
            ),
            st.integers(0, 9),
        ),
        min_size=5,
        max_size=60,
    ),
)
def test_every_call_has_one_output_in_the_order_that_is_promised(ordered: bool, capacity: int, steps: list[Step]) -> None:
    queue: Awaiting[int, int] = Awaiting(capacity, ordered=ordered)
    under_way: list[Call[int, int]] = []
    finished: dict[int, Call[int, int]] = {}
    segment_of: dict[int, int] = {}
    marks, dropped = 0, set[int]()
    failed: list[Call[int, int]] = []
    made_again = set[int]()
    emitted: list[int] = []
    passed = 0

    def emit() -> bool:
        nonlocal passed
        found = queue.emit()
        if found is None:
            return False
        if isinstance(found, Watermark):
            assert found.time >= passed
            passed = found.time
            before = {each for each, segment in segment_of.items() if segment <= passed} - dropped
            assert not before & {call.element for call in failed}, "a watermark passes what is to be called for again"
            assert before <= set(emitted), "a watermark passes a result before it"
            passed += 1
            return True
        assert found.results == (found.element,), "not the first results"
        assert found.element in finished, "a result of a call that failed, or that was told already"
        assert segment_of[found.element] == passed, "a result passes a watermark"
        emitted.append(found.element)
        del finished[found.element]
        return True

    for what, which in steps:
        if what == "begin" and queue.room:
            number = len(segment_of)
            segment_of[number] = marks
            under_way.append(queue.begin(number))
        elif what == "watermark" and queue.room:
            queue.watermark(Watermark(marks))
            marks += 1
        elif what == "emit":
            emit()
        elif what in ("finish", "finish twice", "fail") and under_way:
            call = under_way.pop(which % len(under_way))
            if what == "fail" and which % 2:
                queue.fail(call)
                failed.append(call)
            elif what == "fail":
                queue.drop(call)
                dropped.add(call.element)
            else:
                assert queue.finish(call, [call.element])
                finished[call.element] = call
            if what == "finish twice":
                assert not queue.finish(call, [-1])
        elif what == "late" and finished:
            call = finished.pop(sorted(finished)[which % len(finished)])
            queue.fail(call)
            failed.append(call)
        elif what == "again" and failed and queue.room:
            call = failed.pop(which % len(failed))
            under_way.append(queue.begin(call.element, after=call))
            made_again.add(call.element)
        assert len(queue) <= capacity
    for call in failed:
        queue.drop(call)
        dropped.add(call.element)
    failed.clear()
    for call in under_way:
        assert queue.finish(call, [call.element])
        finished[call.element] = call
    while emit():
        pass
    assert (sorted(emitted), passed, len(queue)) == (sorted(segment_of.keys() - dropped), marks, 0)
    in_turn = [each for each in emitted if each not in made_again]
    assert not ordered or in_turn == sorted(in_turn)


def _in_any_segment(right: Any, queue: Any, call: Any, results: Any) -> bool:
    finished: bool = right(queue, call, results)
    for segment in list(queue._segments)[1:]:
        while segment.done:
            queue._segments[0].done.append(segment.done.popleft())
    return finished


def _again(right: Any, queue: Any, call: Any, results: Any) -> bool:
    call.results, call.finished = tuple(results), True
    counts: bool = right(queue, call, results)
    return counts


def _newest_first(right: Any, queue: Any) -> Any:
    queue._segments[0].waiting = dict(reversed(queue._segments[0].waiting.items()))
    return right(queue)


def _passes_calls(right: Any, queue: Any) -> Any:
    first = queue._segments[0]
    if first.watermark is not None and not first.done:
        queue._segments.popleft()
        queue._segments[0].waiting = {**first.waiting, **queue._segments[0].waiting}
        queue._count -= 1
        return first.watermark
    return right(queue)


def _calls_last(right: Any, queue: Any, element: Any, after: Any = None) -> Any:
    call = right(queue, element, after)
    if after is not None:
        for segment in queue._segments:
            segment.waiting.pop(id(call), None)
        queue._segments[-1].waiting[id(call)] = call
    return call


def _forgets(right: Any, queue: Any, call: Any) -> None:
    right(queue, call)
    for segment in queue._segments:
        segment.failed.clear()


BUGS = (
    Bug("a future is lost", Awaiting, "finish", lambda _right, _queue, _call, _results: True),
    Bug("a result passes a watermark", Awaiting, "finish", _in_any_segment),
    Bug("a result after that of a timeout is emitted", Awaiting, "finish", _again),
    Bug("a call that failed keeps its place", Awaiting, "drop", lambda _right, _queue, _call: None),
    Bug("the newest finished call is emitted first", Awaiting, "emit", _newest_first),
    Bug("a watermark passes what was called before it", Awaiting, "emit", _passes_calls),
    Bug("a call that is made again comes after its watermark", Awaiting, "begin", _calls_last),
    Bug("a watermark does not wait for a call that failed", Awaiting, "fail", _forgets),
    Bug("a call takes two places", Awaiting, "_take", lambda _right, queue: setattr(queue, "_count", queue._count + 2)),
)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_noticed(bug: Bug) -> None:
    assert noticed(bug, test_every_call_has_one_output_in_the_order_that_is_promised)
