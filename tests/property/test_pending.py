"""Whatever fails, every record is processed, in order where that is promised, and no position passes one that is not.

Of the ledger of records that are acknowledged one by one. A run may end at any step, as by kill -9: the next one begins at the
position that was committed last.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from shardherd.core.consumer.pending import Emitted, Pending
from shardherd.core.model.nouns import Place
from tests.harness.long import LONG
from tests.property.planted import Bug, noticed

EXAMPLES = 2000 if LONG else 100

PLACES = ((0, 0), (0, 1), (0, 2), (1, 0), (2, 0), (5, 0), (6, 0), (6, 1), (10, 0), (15, 0), (16, 0), (16, 1))
"""Those of the shard's records: there are gaps, and offsets with several records, as Kinesis has them."""

END = 20

TIMEOUT = 10.0

STEPS = ("hand out", "finish", "fail", "fail and ack", "lose", "ack too late", "wait", "commit", "kill")

Step = tuple[str, int, float]


class Shard:
    """A shard, its program, and who watches both. What the program processed is in `processed`, whatever came of the ack."""

    def __init__(self, *, in_order: bool, most: int) -> None:
        self.in_order, self.most = in_order, most
        self.processed: set[Place] = set()
        self.committed = 0
        self.now = 0.0
        self.begin()

    def begin(self) -> None:
        """A run, from the committed position on."""
        self.ledger: Pending[Place] = Pending(
            self.committed, most=self.most, in_order=self.in_order, timeout=TIMEOUT, now=self.now
        )
        self.left = [each for each in PLACES if each[0] >= self.committed]
        self.out: list[tuple[Place, int]] = []
        self.late: list[tuple[Place, int]] = []
        self.failed: set[Place] = set()

    def step(self, step: Step) -> None:
        what, which, seconds = step
        self.now += 0.01
        out = self.out.pop(which % len(self.out)) if self.out and what in ("finish", "fail", "fail and ack", "lose") else None
        if what == "hand out":
            self.hand_out()
        elif what == "wait":
            self.now += seconds
            for each in self.ledger.expire(self.now):
                self.failed.add(each.place)
                if (attempt := (each.place, each.tries)) in self.out:
                    self.out.remove(attempt)
                    self.late.append(attempt)
        elif what == "ack too late" and self.late:
            assert not self.ack(self.late.pop(which % len(self.late)))
        elif what == "commit":
            self.commit()
        elif what == "kill":
            self.begin()
        elif out is not None and what == "finish":
            self.finish(out)
        elif out is not None and what != "lose":
            place, tries = out
            assert self.ledger.fail(place, tries, "it was drawn", self.now)
            self.failed.add(place)
            if what == "fail and ack":
                assert not self.ack(out)

    def ack(self, out: tuple[Place, int]) -> bool:
        place, attempt = out
        return self.ledger.ack(place, attempt, self.now)

    def finish(self, out: tuple[Place, int]) -> None:
        self.processed.add(out[0])
        if self.ack(out):
            self.failed.discard(out[0])

    def hand_out(self) -> None:
        emitted: Emitted[Place] | None = self.ledger.again(self.now)
        if emitted is None and self.ledger.room:
            if not self.left:
                self.ledger.reach(END)
                return
            assert not (self.in_order and self.failed), "a new record before one that failed"
            place = offset, number = self.left.pop(0)
            emitted = self.ledger.emit(place, place, self.now, more=(offset, number + 1) in PLACES)
        if emitted is None:
            return
        if emitted.tries > 1 and self.in_order:
            assert emitted.place == min(self.failed), "what failed comes again out of order"
        self.out.append((emitted.place, emitted.tries))
        assert len(self.ledger) <= self.most, "too many are pending"

    def commit(self) -> None:
        position = self.ledger.position
        passed = {each for each in PLACES if each[0] < position} - self.processed
        assert not passed, f"{position} is committed, and {sorted(passed)} are not processed"
        assert position >= self.committed
        self.committed = position

    def heal(self) -> None:
        """Nothing fails any more: all is processed and committed, in bounded time."""
        for _ in range(100):
            while self.out:
                self.finish(self.out.pop())
            self.step(("wait", 0, (self.ledger.due_in(self.now) or 0.0) + 0.01))
            self.step(("hand out", 0, 0.0))
            self.commit()
        assert (self.committed, sorted(self.processed)) == (END, list(PLACES))


@settings(max_examples=EXAMPLES, phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink), database=None)
@given(
    in_order=st.booleans(),
    most=st.integers(1, 5),
    steps=st.lists(
        st.tuples(st.sampled_from((*STEPS, "hand out", "hand out", "fail", "wait")), st.integers(0, 5), st.floats(0.0, 12.0)),
        min_size=10,
        max_size=60,
    ),
)
def test_every_record_is_processed_and_no_position_passes_one_that_is_not(in_order: bool, most: int, steps: list[Step]) -> None:
    shard = Shard(in_order=in_order, most=most)
    for step in steps:
        shard.step(step)
    shard.heal()


def _any_attempt(_: Any, ledger: Any, place: Place, attempt: int) -> Any:
    return ledger._all.get(place)


def _settles_and_forgets(right: Any, ledger: Any, *arguments: Any, **named: Any) -> bool:
    before = ledger._failed
    counts: bool = right(ledger, *arguments, **named)
    ledger._failed = before[:-1]
    return counts


BUGS = (
    Bug("the highest finished offset is committed", Pending, "position", lambda _right, me: me._next[0]),
    Bug("an ack of an attempt that failed counts", Pending, "_under_way", _any_attempt),
    Bug("a record that failed is not emitted again", Pending, "again", lambda _right, _me, _now: None),
    Bug("a lost acknowledgement is waited for for ever", Pending, "expire", lambda _right, _me, _now: []),
    Bug("what failed is forgotten", Pending, "fail", _settles_and_forgets),
    Bug("pending records have no bound", Pending, "room", lambda _right, me: not (me._in_order and me._failed)),
    Bug("new records pass those that failed", Pending, "room", lambda _right, me: len(me._all) < me._most),
    Bug(
        "the shard goes on while a record that failed is tried again",
        Pending,
        "room",
        lambda _right, me: len(me._all) < me._most and not (me._in_order and me._failed),
    ),
    Bug(
        "an offset is passed before the last of its records is handed out",
        Pending,
        "position",
        lambda right, me: right(me) if me._all else me._next[0] + bool(me._next[1]),
    ),
    Bug("a position counts the record after it", Pending, "position", lambda right, me: right(me) + bool(me._all)),
)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_noticed(bug: Bug) -> None:
    assert noticed(bug, test_every_record_is_processed_and_no_position_passes_one_that_is_not)
