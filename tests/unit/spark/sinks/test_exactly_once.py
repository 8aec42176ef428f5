"""The tries of a micro-batch over a store in memory: conflicts, lost commits, writers that interleave in every way."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pytest

from shardherd.spark.sinks.exactly_once import Writings, write_once
from shardherd.spark.sinks.positions import Pending, StaleWriterError, pending
from shardherd.transactions.outcomes import ConflictError, SinkError, Stored
from tests.harness.micro_batches import A, B, C, of


class KilledError(Exception):
    """The writer is gone in the middle of what it did."""


@dataclass
class Table:
    """What is there for all to see."""

    rows: Counter[tuple[str, int]] = field(default_factory=Counter)
    positions: dict[str, Stored] = field(default_factory=dict)

    def commit(self, wanted: Mapping[str, Pending]) -> None:
        """All rows and positions, if these are what they were."""
        for shard, each in wanted.items():
            has = self.positions.get(shard)
            if (None if has is None else has.position) != each.before or (has is not None and has.epoch > each.epoch):
                raise ConflictError(f"{shard} has moved")
        for shard, each in wanted.items():
            self.rows.update((shard, at) for at in range(each.start, each.stop))
            self.positions[shard] = Stored(each.stop, each.epoch)


@dataclass
class Store:
    """One writer's way to the table. Before each commit `meanwhile` happens, once; `dies` says when it is killed."""

    table: Table
    meanwhile: list[Mapping[str, Pending]] = field(default_factory=list)
    dies: str = ""
    loses: int = 0
    """So many answers to commits are lost: the writer does not learn that they have happened."""
    commits: int = 0

    def positions(self) -> Mapping[str, Stored]:
        return dict(self.table.positions)

    def write(self, wanted: Mapping[str, Pending]) -> None:
        if self.dies == "before":
            raise KilledError
        if self.meanwhile:
            self.table.commit(self.meanwhile.pop(0))
        self.commits += 1
        self.table.commit(wanted)
        if self.dies == "after":
            raise KilledError
        if self.loses:
            self.loses -= 1
            raise ConflictError("no answer came")


BATCH = {A: (0, 10, 1), B: (0, 10, 1)}


def once(ranges: Mapping[str, tuple[int, int, int]]) -> Counter[tuple[str, int]]:
    return Counter((shard, at) for shard, (start, stop, _) in ranges.items() for at in range(start, stop))


@pytest.mark.parametrize("dies", ["before", "after"])
def test_a_writer_that_is_killed_before_or_after_its_commit_leaves_the_rest_to_the_next(dies: str) -> None:
    table = Table()
    with pytest.raises(KilledError):
        write_once(Store(table, dies=dies), of(BATCH))
    write_once(Store(table), of(BATCH, run="run-2"))

    assert table.rows == once(BATCH)


def test_a_commit_whose_answer_is_lost_is_not_made_again() -> None:
    store = Store(Table(), loses=1)
    write_once(store, of(BATCH))

    assert store.table.rows == once(BATCH)
    assert store.commits == 1


def test_what_another_writer_has_committed_meanwhile_is_left_out() -> None:
    table = Table()
    store = Store(table, meanwhile=[{A: Pending(0, 4, 2, None)}])
    with pytest.raises(SinkError, match="written under epoch 2 already"):
        write_once(store, of(BATCH))
    assert table.rows == once({A: (0, 4, 2)}), "it is another consumer's shard, and B waits for the next run"

    table = Table()
    write_once(Store(table, meanwhile=[{A: Pending(0, 4, 1, None)}]), of(BATCH))
    assert table.rows == once(BATCH)


def test_it_gives_up_when_positions_never_stand_still() -> None:
    faster: list[Mapping[str, Pending]] = [{A: Pending(at, at + 1, 1, at or None)} for at in range(9)]
    with pytest.raises(ConflictError, match="clicks/0 has moved"):
        write_once(Store(Table(), meanwhile=faster), of(BATCH), tries=3)
    assert len(faster) == 6


def test_one_sink_is_written_once_in_a_micro_batch() -> None:
    writings, ranges = Writings(), of(BATCH)
    writings.check("the table t", ranges)
    writings.done("the table t", ranges)

    with pytest.raises(SinkError, match="the table t was written in micro-batch 1 already"):
        writings.check("the table t", ranges)
    writings.check("the table u", ranges)
    writings.check("the table t", of(BATCH, batch_id=2))
    writings.check("the table t", of(BATCH, run="run-2"))


def writer(table: Table, ranges: Mapping[str, tuple[int, int, int]], killed: float, draw: random.Random) -> Iterator[None]:
    """A writer that stops between its steps for as long as others like."""

    for _ in range(5):
        wanted = pending(of(ranges), dict(table.positions))
        yield
        if not wanted or draw.random() < killed:
            return
        try:
            Store(table).write(wanted)
        except ConflictError:
            yield
        else:
            return


@pytest.mark.parametrize("seed", range(300))
def test_writers_that_interleave_in_any_way_write_each_record_once(seed: int) -> None:
    """Shards move between holders that stand still at any step; each goes on at what was durable, as the coordinator has it."""
    draw = random.Random(seed)
    table = Table()
    durable = dict.fromkeys((A, B, C), 0)
    epochs = dict.fromkeys((A, B, C), 1)
    asleep: list[Iterator[None]] = []
    for _ in range(30):
        moved = draw.sample((A, B, C), draw.randint(1, 3))
        for shard in moved:
            epochs[shard] += draw.random() < 0.5
        ranges = {shard: (durable[shard], durable[shard] + draw.randint(1, 9), epochs[shard]) for shard in moved}
        one = writer(table, ranges, 0.2, draw)
        asleep.append(one)
        for each in draw.sample(asleep, draw.randint(0, len(asleep))):
            with_errors(each)
        # A checkpoint follows only what a sink has, and any time later.
        for shard in moved:
            has = table.positions.get(shard)
            if has is not None and draw.random() < 0.5:
                durable[shard] = draw.randint(durable[shard], max(durable[shard], has.position))
    assert set(table.rows.values()) <= {1}
    assert table.rows == once({shard: (0, each.position, 1) for shard, each in table.positions.items()})


def with_errors(each: Iterator[None]) -> None:
    """One more step of a writer; one that a newer grant keeps out is over."""
    with contextlib.suppress(StaleWriterError):
        next(each, None)
