"""What holds for workers whose records go to outputs, on the world of `test_worker`, whatever fails.

Every output gets every record, and no position passes one that an output did not take; with a queue on the disk, which is
damaged between two runs, too. What is exactly once is there once and in order; at most once, never twice.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardherd.client.consumer import AsyncConsumer
from shardherd.core.consumer.output_queue import OutputQueue
from shardherd.core.model.nouns import Offset, ShardId
from shardherd.worker import Output, Outputs, Record, ShardGrant, TransactionalOutput
from shardherd.worker import queue_file as queue_files
from shardherd.worker.queue_file import QueueFile
from shardherd.worker.sending import Sending
from tests.harness.long import LONG, long
from tests.property.planted import Bug, noticed
from tests.property.test_worker import EVENTS, BrokenError, Event, Run, Story, World
from tests.unit.spark.simulated import simulate

EXAMPLES = 300 if LONG else 5

FAULTS = ("none", "none", "none", "raises", "takes and raises", "refuses one", "refuses all but one", "is slow", "hangs")

NAMES = ("a", "b")


@dataclass
class Taken:
    """What each output has, of all runs together, in the order in which it came. `beside`: writes of who has no such shard."""

    world: World
    by: dict[tuple[str, ShardId], list[Offset]] = field(default_factory=lambda: defaultdict(list))
    stands: dict[tuple[str, ShardId], Offset] = field(default_factory=dict)
    beside: list[str] = field(default_factory=list)

    def take(self, name: str, shard: ShardId, offsets: Sequence[Offset]) -> None:
        self.by[name, shard] += offsets
        for offset in offsets:
            if all(offset in self.by[other, shard] for other in NAMES):
                self.world.finish(shard, offset, in_order=False)

    def out_of_order_or_twice(self) -> dict[tuple[str, ShardId], list[Offset]]:
        return {key: each for key, each in self.by.items() if each != sorted(set(each))}


async def goes_wrong(run: Run, fault: str) -> None:
    await asyncio.sleep({"is slow": 3.0, "hangs": 40.0}.get(fault, 0.3))
    await run.alive()
    if fault == "raises":
        raise BrokenError


def plain(run: Run, taken: Taken, name: str) -> Any:
    class Plain(Output):
        def __init__(self) -> None:
            self.name = name
            self.writing = False

        async def open(self, shard: ShardId) -> None:
            self.shard = shard

        async def write(self, records: Sequence[Record]) -> list[Record]:
            assert not self.writing, "two batches of one output"
            self.writing = True
            try:
                fault = next(run.faults, "none")
                await goes_wrong(run, fault)
                refused = {"refuses one": records[:1], "refuses all but one": records[1:]}.get(fault, [])
                taken.take(name, self.shard, [each.offset for each in records if each not in refused])
                if fault == "takes and raises":
                    raise BrokenError
                return list(refused)
            finally:
                self.writing = False

    return Plain


def blocking(run: Run, taken: Taken, name: str) -> Any:
    """Its methods are functions: they do what they do when their time is over, as a thread that hung does."""

    class Blocks(Output):
        def __init__(self) -> None:
            self.name = name

        def open(self, shard: ShardId) -> None:
            self.shard = shard

        def write(self, records: Sequence[Record]) -> list[Record]:
            ordered = run.world.ordered
            if run.dead.is_set() or (ordered and run.consumer.stopped):
                raise BrokenError  # the process is gone, or has ended itself
            if ordered:
                holder = run.world.play.holders()[self.shard.removeprefix("t/")]
                if holder not in (run.name, None):
                    taken.beside.append(f"{run.name} writes {self.shard}, which {holder} has")
            fault = next(run.faults, "none")
            if fault == "raises":
                raise BrokenError
            refused = {"refuses one": records[:1], "refuses all but one": records[1:]}.get(fault, [])
            taken.take(name, self.shard, [each.offset for each in records if each not in refused])
            if fault == "takes and raises":
                raise BrokenError
            return list(refused)

    return Blocks


def transactional(run: Run, taken: Taken, name: str) -> Any:
    class Keeps(TransactionalOutput):
        def __init__(self) -> None:
            self.name = name

        async def position(self, grant: ShardGrant) -> Offset | None:
            await goes_wrong(run, next(run.faults, "none"))
            return taken.stands.get((name, grant.shard))

        async def write_once(
            self, records: Sequence[Record], grant: ShardGrant, before: Offset | None, position: Offset
        ) -> None:
            fault = next(run.faults, "none")
            await goes_wrong(run, fault)
            if taken.stands.get((name, grant.shard)) != before or fault.startswith("refuses"):
                raise BrokenError
            taken.stands[name, grant.shard] = position
            taken.take(name, grant.shard, [each.offset for each in records])
            if fault == "takes and raises":
                raise BrokenError

    return Keeps


def made(taken: Taken, make: Any = None, **attributes: Any) -> Any:
    """What makes the processors of a run."""
    make = make or (transactional if attributes.get("guarantee") == "exactly-once" else plain)

    def of_run(run: Run) -> Outputs:
        outputs = tuple(make(run, taken, name) for name in NAMES)
        one: type[Outputs] = type("Drawn", (Outputs,), {"outputs": outputs, "batch_wait": 0.5, **attributes})
        return one()

    return of_run


async def played(
    events: Sequence[Event],
    faults: Sequence[str],
    *,
    ordered: bool,
    in_order: bool = True,
    takes: Mapping[str, float] | None = None,
    **attributes: Any,
) -> Taken:
    world = World(ordered)
    taken = Taken(world)
    story = Story(world, faults, made(taken, **attributes), max_pending=7, in_order=in_order, takes=takes)
    async with story:
        await story.goes(events)
    return taken


@st.composite
def _happens(draw: st.DrawFn) -> list[Event]:
    """Close together, as a queue is empty soon; and mostly to the worker that begins."""
    events = (*EVENTS, "restarts", "restarts", "restarts")
    pauses = st.sampled_from((0.0, 0.3, 0.7, 1.5, 3.0, 12.0))
    one = st.tuples(st.sampled_from(events), st.sampled_from("aab"), pauses)
    return [("begins", "a", draw(pauses)), *draw(st.lists(one, max_size=8))]


HAPPENS = _happens()
GOES_WRONG = st.lists(st.sampled_from(FAULTS), max_size=60)


@settings(max_examples=EXAMPLES, deadline=None)
@given(ordered=st.booleans(), in_order=st.booleans(), size=st.integers(1, 5), events=HAPPENS, faults=GOES_WRONG)
def test_every_output_takes_every_record_and_no_position_passes_one_that_it_did_not(
    ordered: bool, in_order: bool, size: int, events: list[Event], faults: list[str]
) -> None:
    simulate(lambda: played(events, faults, ordered=ordered, in_order=in_order, batch_size=size))


@settings(max_examples=60 if LONG else 3, deadline=None)
@given(
    ordered=st.booleans(),
    size=st.integers(3, 7),
    seconds=st.sampled_from([0.3, 4.0, 14.0]),
    first=st.sampled_from([0.3, 3.0, 12.0]),
    events=HAPPENS,
    faults=GOES_WRONG,
)
def test_functions_that_hang_lose_nothing_and_write_beside_nobody_in_an_ordered_group(
    ordered: bool, size: int, seconds: float, first: float, events: list[Event], faults: list[str]
) -> None:
    """A write takes so long: less than the time that a shard may be kept, or more than that and the drain's together."""
    takes = {".write": seconds}
    events = [("begins", "a", first), ("joins", "b", first), *events]
    found: list[Taken] = []

    async def plays() -> None:
        found.append(await played(events, faults, ordered=ordered, batch_size=size, make=blocking, takes=takes))

    simulate(plays)
    assert found[0].beside == []


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    size=st.integers(1, 5),
    events=HAPPENS,
    faults=GOES_WRONG,
    most=st.sampled_from([400, 2000, 100_000]),
    damage=st.lists(st.floats(0.0, 1.0), max_size=6),
    breaks=st.booleans(),
)
def test_a_queue_on_the_disk_loses_nothing_however_it_is_damaged(
    size: int, events: list[Event], faults: list[str], most: int, damage: list[float], breaks: bool
) -> None:
    """Each file that is opened may have lost its end, or have a byte that is another one. What is in none is read again."""
    left = iter(damage)
    right = QueueFile._read

    def damaged(me: QueueFile, held_since: int) -> Any:
        at = next(left, None)
        if at is not None and me.path.exists():
            data = bytearray(me.path.read_bytes())
            if breaks and data:
                data[int(at * (len(data) - 1))] ^= 0xFF
            me.path.write_bytes(data if breaks else data[: int(at * len(data))])
        return right(me, held_since)

    folder = tempfile.mkdtemp()
    try:
        with mock.patch.object(QueueFile, "_read", damaged), mock.patch.object(queue_files, "log"):
            given_: dict[str, Any] = {"batch_size": size, "queue_directory": folder, "queue_file_bytes": most}
            simulate(lambda: played(events, faults, ordered=False, **given_))
    finally:
        shutil.rmtree(folder)


@settings(max_examples=EXAMPLES, deadline=None)
@given(ordered=st.booleans(), disk=st.booleans(), size=st.integers(1, 5), events=HAPPENS, faults=GOES_WRONG)
def test_what_is_exactly_once_is_there_once_and_in_order(
    ordered: bool, disk: bool, size: int, events: list[Event], faults: list[str]
) -> None:
    folder = tempfile.mkdtemp()
    found: list[Taken] = []

    async def plays() -> None:
        directory = folder if disk else ""
        given_: dict[str, Any] = {"batch_size": size, "guarantee": "exactly-once", "queue_directory": directory}
        found.append(await played(events, faults, ordered=ordered, **given_))

    try:
        simulate(plays)
    finally:
        shutil.rmtree(folder)
    assert found[0].out_of_order_or_twice() == {}


@settings(max_examples=EXAMPLES, deadline=None)
@given(size=st.integers(1, 5), events=HAPPENS, faults=GOES_WRONG)
def test_what_is_at_most_once_is_never_there_twice(size: int, events: list[Event], faults: list[str]) -> None:
    """What is lost is not known to anybody, so that the world asks only that the workers get to the end."""
    found: list[Taken] = []

    async def plays() -> None:
        world = World(ordered=False)
        world.finished |= {(shard, offset) for shard, offsets in world.logs.offsets.items() for offset in offsets}
        found.append(Taken(world))
        make = made(found[0], guarantee="at-most-once", batch_size=size)
        async with Story(world, faults, make, max_pending=7) as story:
            await story.goes(events)

    simulate(plays)
    assert found[0].out_of_order_or_twice() == {}


def _takes_all(right: Any, me: OutputQueue[Any], output: int, refused: Any, now: float, *, limit: int = 0) -> Any:
    return right(me, output, (), now, limit=limit)


def _after_the_first(right: Any, me: OutputQueue[Any]) -> Any:
    for each in me.unfinished():
        if each.left != 0b11:
            each.left = 0
    return right(me)


def _whether_it_failed_or_not(_: Any, me: Sending, batch: Any, error: Exception) -> None:
    me._settle(batch, {}, 0)


def _when_it_is_queued(right: Any, me: Outputs, record: Record, ack: Any, kept: Any) -> Any:
    ack()
    return right(me, record, ack, kept)


def _from_the_end(right: Any, me: OutputQueue[Any], output: int, position: Offset) -> None:
    right(me, output, position + 1)


def _all_is_taken(right: Any, me: QueueFile, held_since: int) -> Any:
    kept, told = right(me, held_since)
    return [each._replace(taken=frozenset(NAMES)) for each in kept], told


async def _after_it_was_sent(_: Any, me: Outputs, position: Offset) -> bool:
    return position > 0


def _not_at_all(_: Any, __: AsyncConsumer) -> bool:
    return False


LOSES = test_every_output_takes_every_record_and_no_position_passes_one_that_it_did_not
BUGS = (
    (Bug("the rest of a partial failure is forgotten", OutputQueue, "settle", _takes_all), LOSES),
    (Bug("a record is done once the first output has it", OutputQueue, "finished", _after_the_first), LOSES),
    (Bug("a batch is acknowledged whether sending failed or succeeded", Sending, "_fail", _whether_it_failed_or_not), LOSES),
    (Bug("a record is acknowledged when it is queued", Outputs, "_add", _when_it_is_queued), LOSES),
    (
        Bug("an output has one more than it says", OutputQueue, "reach", _from_the_end),
        test_what_is_exactly_once_is_there_once_and_in_order,
    ),
    (
        Bug("what is in a file was taken", QueueFile, "_read", _all_is_taken),
        test_a_queue_on_the_disk_loses_nothing_however_it_is_damaged,
    ),
    (
        Bug("a shard of an ordered group is given up as of any other", AsyncConsumer, "ordered", _not_at_all),
        test_functions_that_hang_lose_nothing_and_write_beside_nobody_in_an_ordered_group,
    ),
    (
        Bug("a batch is sent before its position is durable", Outputs, "_commit", _after_it_was_sent),
        test_what_is_at_most_once_is_never_there_twice,
    ),
)


@long
@pytest.mark.parametrize(("bug", "broken"), BUGS, ids=lambda each: each.name if isinstance(each, Bug) else "")
def test_a_planted_bug_is_noticed(bug: Bug, broken: Any) -> None:
    assert noticed(bug, broken, 600)
