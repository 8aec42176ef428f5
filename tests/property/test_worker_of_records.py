"""What holds for workers whose records are acknowledged one by one, on the world of `test_worker`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardherd.worker.delivery import Delivery
from shardherd.worker.record_processor import Ack, RecordProcessor
from shardherd.worker.records import Record
from tests.harness.long import LONG
from tests.property.planted import Bug, noticed
from tests.property.test_worker import BrokenError, Event, Run, happenings, plays_one_by_one

EXAMPLES = 500 if LONG else 8

FAULTS = ("none", "none", "none", "raises", "fails", "fails and acks", "forgets", "acks twice", "is slow")


class _Acknowledges(RecordProcessor):
    """Its coroutines finish at their own pace, and do what is drawn."""

    def __init__(self, run: Run, *, in_order: bool) -> None:
        self.run = run
        self.in_order = in_order
        self.shard: Any = None

    async def initialize(self, shard: Any) -> None:
        self.shard = shard

    async def process(self, record: Record, ack: Ack) -> None:
        fault = next(self.run.faults, "none")
        await asyncio.sleep(3.0 if fault == "is slow" else 0.1 * (1 + record.offset % 3))
        await self.run.alive()
        if fault == "raises":
            raise BrokenError
        if fault.startswith("fails"):
            ack.fail("it was drawn")
            if fault == "fails and acks":
                ack()
            return
        self.run.world.finish(self.shard, record.offset, in_order=self.in_order)
        if fault != "forgets":
            ack()
        if fault == "acks twice":
            assert not ack()


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    ordered=st.booleans(),
    serial=st.booleans(),
    in_order=st.booleans(),
    events=happenings(8),
    faults=st.lists(st.sampled_from(FAULTS), max_size=60),
)
def test_every_record_is_processed_and_no_position_passes_one_that_is_not(
    ordered: bool, serial: bool, in_order: bool, events: list[Event], faults: list[str]
) -> None:
    """With one record pending at a time they are finished in order, too."""
    plays_one_by_one(
        lambda run: _Acknowledges(run, in_order=serial), events, faults, ordered=ordered, serial=serial, in_order=in_order
    )


async def _as_soon_as_handed_out(right: Any, me: Any) -> None:
    if (position := me._ledger._next[0]) > me._hands.shard.done:
        await me._hands.shard.save_checkpoint(position, now=False)


BUGS = (Bug("what was handed out is committed", Delivery, "_save", _as_soon_as_handed_out),)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_noticed(bug: Bug) -> None:
    assert noticed(bug, test_every_record_is_processed_and_no_position_passes_one_that_is_not, 600)
