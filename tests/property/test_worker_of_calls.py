"""What holds for workers that make asynchronous calls, on the world of `test_worker`: none is done before it is emitted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardherd.core.consumer.awaiting import Awaiting
from shardherd.core.model.nouns import Offset, ShardId
from shardherd.worker import AsyncOperator, Record
from tests.harness.long import LONG, long
from tests.property.planted import Bug, noticed
from tests.property.test_worker import BrokenError, Event, Run, Story, World, happenings, plays

EXAMPLES = 300 if LONG else 6

FAILS = ("raises", "raises once", "is never answered", "is not emitted")

FAULTS = ("none", "none", "none", "is slow", "is slow", *FAILS)


class _Asks(AsyncOperator):
    """Each call takes its own time and has up to two results. What goes wrong with it is drawn."""

    retries = 1
    timeout = 8.0

    def __init__(self, run: Run, *, ordered: bool, in_order: bool) -> None:
        self.run = run
        self.ordered = ordered
        self.in_order = in_order
        self.shard = ShardId("")
        self.failed_once: set[Offset] = set()

    async def initialize(self, shard: ShardId) -> None:
        self.shard = shard

    async def invoke(self, record: Record) -> list[tuple[Offset, bool, bool]]:
        fault = next(self.run.faults, "none")
        await asyncio.sleep({"is slow": 3.0, "is never answered": 100.0}.get(fault, 0.1 * (1 + record.offset % 4)))
        await self.run.alive()
        if fault == "raises" or (fault == "raises once" and record.offset not in self.failed_once):
            self.failed_once.add(record.offset)
            raise BrokenError
        results = 1 + record.offset % 2
        return [(record.offset, at == results - 1, fault == "is not emitted") for at in range(results)]

    async def emit(self, result: tuple[Offset, bool, bool]) -> None:
        offset, last, fails = result
        await asyncio.sleep(0.05)
        await self.run.alive()
        if fails:
            raise BrokenError
        if last:
            self.run.world.finish(self.shard, offset, in_order=self.in_order)


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    in_group_order=st.booleans(),
    ordered=st.booleans(),
    serial=st.booleans(),
    events=happenings(8),
    faults=st.lists(st.sampled_from(FAULTS), max_size=60) | st.lists(st.sampled_from(("none", "is slow")), max_size=60),
)
def test_every_result_is_emitted_and_no_position_passes_a_record_whose_are_not(
    in_group_order: bool, ordered: bool, serial: bool, events: list[Event], faults: list[str]
) -> None:
    """They are emitted in order where that was asked for and no call fails, or with one call at a time."""
    in_order = serial or (ordered and not set(faults) & set(FAILS))

    plays(
        lambda: Story(
            World(in_group_order),
            faults,
            lambda run: _Asks(run, ordered=ordered, in_order=in_order),
            max_pending=1 if serial else 6,
        ),
        events,
    )


def _as_they_come(right: Any, me: Awaiting[Any, Any], call: Any, results: Any) -> Any:
    me._ordered = False
    return right(me, call, results)


async def _before_it_is_emitted(right: Any, me: _Asks, queue: Any, ready: Any) -> None:
    ready.element[1]()
    await right(me, queue, ready)


BUGS = (
    Bug("results are emitted as they come", Awaiting, "finish", _as_they_come),
    Bug("a record is done before its results are emitted", AsyncOperator, "_emit", _before_it_is_emitted),
)


@long
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_noticed(bug: Bug) -> None:
    assert noticed(bug, test_every_result_is_emitted_and_no_position_passes_a_record_whose_are_not, 600)
