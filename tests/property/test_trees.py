"""A record is done once every tuple of its tree is, in whatever order it is told; after a failure never."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardherd.core.consumer.trees import Acker, Verdict
from shardherd.worker import Ack, Out, Record, TreeProcessor, Tuple
from shardherd.worker.trees import _Forest
from tests.harness.long import LONG
from tests.property.planted import Bug, noticed

EXAMPLES = 2000 if LONG else 100


@settings(max_examples=EXAMPLES, database=None)
@given(parents=st.lists(st.integers(0, 8), max_size=8), seed=st.integers(0, 2**32), failing=st.integers(0, 20))
def test_the_messages_of_a_tree_in_any_order_end_it_with_the_last_one_or_with_a_failure(
    parents: list[int], seed: int, failing: int
) -> None:
    draw = random.Random(seed)
    acker = Acker(4)
    gone = acker.root(draw.getrandbits(64))
    acker.start(gone, 0)
    acker.forget(gone)
    root = acker.root(draw.getrandbits(64))
    ids = [root, *(draw.getrandbits(64) for _ in parents)]
    values = list(ids)
    for child, parent in enumerate(parents, 1):
        values[parent % child] ^= ids[child]
    messages: list[tuple[str, int]] = [("start", 0), *(("ack", value) for value in values)]
    draw.shuffle(messages)
    if failing < len(messages):
        messages.insert(failing, ("fail", 0))
    verdicts: list[Verdict | None] = []
    for what, value in messages:
        # What is left of an earlier tree in the same place comes in between.
        assert (acker.ack(gone, gone), acker.fail(gone)) == (None, None)
        if what == "start":
            verdicts.append(acker.start(root, 3))
        else:
            verdicts.append(acker.ack(root, value) if what == "ack" else acker.fail(root))
    kinds = [what for what, _ in messages]
    if "fail" in kinds:
        at = max(kinds.index("fail"), kinds.index("start"))
        expected = [None] * at + [Verdict.FAILED] + [None] * (len(messages) - at - 1)
    else:
        expected = [None] * (len(messages) - 1) + [Verdict.DONE]
    assert (verdicts, len(acker)) == (expected, 0)


class _Drawn(TreeProcessor):
    """Each tuple has as many children as is drawn; some are kept, and acknowledged in a drawn order."""

    manual = frozenset({"kept"})

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.kept_: list[tuple[Out, Tuple]] = []
        self.open = 0

    def root(self, record: Record, out: Out) -> None:
        self.grow(3, out)

    def done(self, tuple_: Tuple, out: Out) -> None:
        self.grow(tuple_.value, out)
        self.open -= 1

    def kept(self, tuple_: Tuple, out: Out) -> None:
        self.grow(tuple_.value, out)
        self.kept_.append((out, tuple_))

    def grow(self, depth: int, out: Out) -> None:
        for _ in range(self.draw.randrange(3) if depth else 0):
            self.open += 1
            out.emit(self.draw.choice(("done", "kept")), depth - 1)


@settings(max_examples=EXAMPLES, database=None)
@given(seed=st.integers(0, 2**32), fails=st.booleans())
def test_a_record_is_acknowledged_once_all_of_its_tuples_are_and_fails_with_any(seed: int, fails: bool) -> None:
    told: list[str | None] = []
    processor = _Drawn(random.Random(seed))

    def settle(record: Record, tries: int, reason: str | None, bad: bool) -> bool:
        assert reason is not None or processor.open == 0, f"{processor.open} tuples are not processed"
        told.append(reason)
        return True

    record = Record(1, None, None, 0, ())
    processor.process(record, Ack(record, 1, settle))
    processor.draw.shuffle(processor.kept_)
    kept = list(processor.kept_)
    if fails and kept:
        out, tuple_ = kept.pop()
        out.fail(tuple_, "drawn")
        assert told == ["drawn"], "at once"
    for out, tuple_ in kept:
        processor.open -= 1
        out.ack(tuple_)
        out.ack(tuple_)
    assert told == (["drawn"] if fails and processor.kept_ else [None])


def _done_at_zero(right: Any, acker: Acker, root: int, task: int) -> Verdict | None:
    if acker.knows(root) and not acker._values[acker._place(root)]:
        return acker._end(root, Verdict.DONE)
    verdict: Verdict | None = right(acker, root, task)
    return verdict


def _starts_from_zero(right: Any, acker: Acker, root: int, task: int) -> Verdict | None:
    acker._values[acker._place(root)] ^= root
    verdict: Verdict | None = right(acker, root, task)
    return verdict


def _without_edges(right: Any, forest: Any, stage: str, value: Any, anchors: Any) -> None:
    right(forest, stage, value, anchors)
    for anchor in anchors:
        anchor.emitted = 0


def _acks_first(right: Any, forest: Any, tuple_: Tuple, work: Any, *, manual: bool) -> None:
    right(forest, tuple_, work, manual=False)


IN_MESSAGES = (
    Bug("zero before the root is done", Acker, "start", _done_at_zero),
    Bug("the acker starts from zero", Acker, "start", _starts_from_zero),
    Bug("an ack of a child of a failed tree counts", Acker, "fail", lambda _right, _me, _root: None),
    Bug(
        "a message of an earlier tree is taken for one of the tree in its place",
        Acker,
        "knows",
        lambda _right, _me, _root: True,
    ),
)

IN_FORESTS = (
    Bug("the record is acknowledged without its children", _Forest, "emit", _without_edges),
    Bug("a tuple that is kept is acknowledged when its stage returns", _Forest, "_run", _acks_first),
    Bug(
        "a failed child is taken for one that is acknowledged", _Forest, "fail", lambda _right, me, tuple_, _why: me.ack(tuple_)
    ),
)


@pytest.mark.parametrize("bug", IN_MESSAGES, ids=lambda bug: bug.name)
def test_a_planted_bug_of_the_acker_is_noticed(bug: Bug) -> None:
    assert noticed(bug, test_the_messages_of_a_tree_in_any_order_end_it_with_the_last_one_or_with_a_failure)


@pytest.mark.parametrize("bug", IN_FORESTS, ids=lambda bug: bug.name)
def test_a_planted_bug_of_the_trees_is_noticed(bug: Bug) -> None:
    assert noticed(bug, test_a_record_is_acknowledged_once_all_of_its_tuples_are_and_fails_with_any)
