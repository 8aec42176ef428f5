"""What holds for workers whose records become trees of tuples, on the world of `test_worker`: none is done before its tree."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardherd.core.model.nouns import Offset, ShardId
from shardherd.worker import Out, Record, TreeProcessor, Tuple
from shardherd.worker.trees import _Forest
from tests.harness.long import LONG, long
from tests.property.planted import Bug, noticed
from tests.property.test_worker import BrokenError, Event, Run, happenings, plays_one_by_one

EXAMPLES = 300 if LONG else 6

FAULTS = ("none", "none", "none", "no tuples", "raises", "a stage raises", "acks late", "acks late", "fails late", "forgets")


class _Tree:
    """One attempt of a record: which of its tuples are not processed."""

    def __init__(self, offset: Offset, leaves: int, fault: str) -> None:
        self.offset, self.fault = offset, fault
        self.left = set(range(leaves))


class _Grows(TreeProcessor):
    """A record has one tuple, and that as many as is drawn by its offset. What the last of them does is drawn, too."""

    manual = frozenset({"leaf"})

    def __init__(self, run: Run, *, in_order: bool) -> None:
        self.run = run
        self.in_order = in_order
        self.shard = ShardId("")

    def initialize(self, shard: ShardId) -> None:
        self.shard = shard

    def root(self, record: Record, out: Out) -> None:
        self._alive()
        tree = _Tree(record.offset, 1 + record.offset % 3, next(self.run.faults, "none"))
        if tree.fault == "raises":
            raise BrokenError
        if tree.fault == "no tuples":
            self.run.world.finish(self.shard, record.offset, in_order=self.in_order)
        else:
            out.emit("branch", tree)

    def branch(self, tuple_: Tuple, out: Out) -> None:
        tree: _Tree = tuple_.value
        for leaf in tree.left:
            out.emit("leaf", (tree, leaf))

    def leaf(self, tuple_: Tuple, out: Out) -> None:
        tree, leaf = tuple_.value
        last = leaf == max(tree.left)
        if last and tree.fault == "a stage raises":
            raise BrokenError
        if last and tree.fault == "forgets":
            return
        late = last and tree.fault in ("acks late", "fails late")
        if late:
            asyncio.get_running_loop().call_later(3.0, self._ends, tuple_, out)
        else:
            self._ends(tuple_, out)

    def _ends(self, tuple_: Tuple, out: Out) -> None:
        if self.run.dead.is_set():
            return
        tree, leaf = tuple_.value
        if tree.fault == "fails late" and leaf == max(tree.left):
            out.fail(tuple_, "it was drawn")
            return
        tree.left.discard(leaf)
        if not tree.left:
            self.run.world.finish(self.shard, tree.offset, in_order=self.in_order)
        out.ack(tuple_)

    def _alive(self) -> None:
        if self.run.dead.is_set():
            raise BrokenError


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    ordered=st.booleans(),
    serial=st.booleans(),
    in_order=st.booleans(),
    events=happenings(8),
    faults=st.lists(st.sampled_from(FAULTS), max_size=60),
)
def test_every_tree_is_processed_and_no_position_passes_a_record_whose_tree_is_not(
    ordered: bool, serial: bool, in_order: bool, events: list[Event], faults: list[str]
) -> None:
    """With one record pending at a time they are finished in order, too."""
    plays_one_by_one(
        lambda run: _Grows(run, in_order=serial), events, faults, ordered=ordered, serial=serial, in_order=in_order
    )


def _acknowledged(_: Any, me: _Forest, tuple_: Tuple, reason: object) -> None:
    me.ack(tuple_)


def _not_anchored(right: Any, me: _Forest, stage: str, value: object, anchors: object) -> None:
    right(me, stage, value, anchors if stage == "branch" else ())


BUGS = (
    Bug("a tuple that failed is acknowledged", _Forest, "fail", _acknowledged),
    Bug("what a stage emits is not anchored", _Forest, "emit", _not_anchored),
)


@long
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_noticed(bug: Bug) -> None:
    assert noticed(bug, test_every_tree_is_processed_and_no_position_passes_a_record_whose_tree_is_not, 600)
