"""Bugs that are planted into what is real of Kinesis in a simulated world. The table of `bugs` has these, too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from shardherd.adapters.kinesis import positions
from shardherd.adapters.kinesis.positions import TableOffsetStore
from shardherd.adapters.kinesis.source import KinesisShardSource
from shardherd.core.model.positions import from_json
from shardherd.source.kinesis.pacing import Pace

Patch = tuple[Any, str, Any]


def _sequence_number_is_truncated() -> list[Patch]:
    """Positions are read as many JSON readers read a number, which keep 53 bits of it."""
    real = from_json
    return [(positions, "from_json", lambda value: int(float(real(value))))]


def _child_is_read_from_its_latest_record() -> list[Patch]:
    """A shard that came from others begins where its next record will be."""
    real = KinesisShardSource.discover

    async def discover(self: Any, *, sizes: bool = False, ends: bool = False) -> Any:
        found = await real(self, sizes=sizes, ends=True)
        return replace(found, shards=tuple(each._replace(begin=each.end) if each.parents else each for each in found.shards))

    return [(KinesisShardSource, "discover", discover)]


def _throttle_starves_shards() -> list[Patch]:
    """Not the shard that has waited longest is asked for, but always the first one that there is."""
    return [(Pace, "next_of", lambda _, shards: min(shards))]


def _parents_are_not_told() -> list[Patch]:
    real = KinesisShardSource._info
    return [(KinesisShardSource, "_info", lambda self, look, listed: real(self, look, listed._replace(parents=())))]


def _fenced_writer_goes_on() -> list[Patch]:
    """Whose mark is in the table nobody looks at."""
    real = TableOffsetStore._load

    async def load(self: Any) -> Any:
        table, version = await real(self)
        return (replace(table, writer=self._writer) if self._writer else table), version

    return [(TableOffsetStore, "_load", load)]


def _own_memory_is_written_over_the_table() -> list[Patch]:
    """After a conflict the new version is asked for, and what was there before written again."""
    real = TableOffsetStore._load
    known: dict[int, Any] = {}

    async def load(self: Any) -> Any:
        table, version = await real(self)
        return known.setdefault(id(self), table), version

    return [(TableOffsetStore, "_load", load)]


def _stream_of_before_is_read_on() -> list[Patch]:
    """Which stream bears the name is not told."""
    real = KinesisShardSource._info

    def info(self: Any, look: Any, listed: Any) -> Any:
        return real(self, look, listed)._replace(source_id="id-1")

    return [(KinesisShardSource, "_info", info)]


BUGS: dict[str, Callable[[], list[Patch]]] = {
    "a sequence number truncated": _sequence_number_is_truncated,
    "a child read from latest": _child_is_read_from_its_latest_record,
    "a throttle that starves shards": _throttle_starves_shards,
    "the parents of a shard not told": _parents_are_not_told,
    "a fenced writer of positions goes on": _fenced_writer_goes_on,
    "positions of others written over": _own_memory_is_written_over_the_table,
    "a stream that was made anew read on": _stream_of_before_is_read_on,
}
