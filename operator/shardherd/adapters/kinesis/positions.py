"""Durable positions of one group whose source keeps none: one table of all of them, written by compare-and-swap.

Called by the coordinator through `OffsetStore`. Whoever takes over writes a mark of its own into the table. A writer whose mark
is not there any more is fenced, and one that is late is refused by the version that it read. Where the table lies is for a
`PositionTable` to say. At most one commit is made in a second, whatever asks for it: what comes meanwhile is in the next one.
Decides nothing about who may commit.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import uuid
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from shardherd.clock import boot_time
from shardherd.core.model.nouns import GroupIdentity, Offset, ShardId
from shardherd.core.model.positions import from_json
from shardherd.ports import (
    CommitFencedError,
    OutcomeUnknownError,
    OwnershipConflictError,
    OwnershipUnavailableError,
    SourceUnavailableError,
)

FORMAT = 1

COMMIT_INTERVAL = 1.0
"""Seconds between two writes of a group's table: an API server takes them beside all that it has to do."""

ATTEMPTS = 5
"""Times that a table is read again which somebody else has written meanwhile."""


class PositionTable(Protocol):
    """Keeps the bytes of groups' positions. Both raise OwnershipUnavailableError."""

    async def load(self, group: GroupIdentity) -> tuple[bytes, str] | None:
        """What was written last, with its version; None if there is nothing of this very group."""
        ...

    async def save(self, group: GroupIdentity, data: bytes, expected: str | None) -> str:
        """Write if the version is `expected` (None: there must be nothing). Returns the new version.

        Raises OwnershipConflictError if it is another, OutcomeUnknownError if it may have happened.
        """
        ...


@dataclass(frozen=True, slots=True)
class _Positions:
    """The table: who may write it, and each shard's position with its note."""

    writer: str = ""
    offsets: Mapping[ShardId, Offset] = field(default_factory=dict)
    notes: Mapping[ShardId, str] = field(default_factory=dict)

    def with_these(self, offsets: Mapping[ShardId, Offset], notes: Mapping[ShardId, str]) -> _Positions:
        """The same with these; one that comes without a note has none."""
        others = {shard: note for shard, note in self.notes.items() if shard not in offsets}
        return replace(self, offsets={**self.offsets, **offsets}, notes={**others, **notes})

    def without(self, shards: Sequence[ShardId]) -> _Positions:
        gone = frozenset(shards)
        offsets = {shard: offset for shard, offset in self.offsets.items() if shard not in gone}
        return replace(self, offsets=offsets, notes={shard: note for shard, note in self.notes.items() if shard in offsets})


class TableOffsetStore:
    """OffsetStore on a PositionTable, for the shards of one stream. `interval` is in seconds, `now` monotonic seconds."""

    def __init__(
        self,
        table: PositionTable,
        group: GroupIdentity,
        stream: str,
        *,
        interval: float = COMMIT_INTERVAL,
        now: Callable[[], float] = boot_time,
    ) -> None:
        self._table = table
        self._group = group
        self._prefix = f"{stream}/"
        self._interval = interval
        self._now = now
        self._writer = ""
        self._known: tuple[_Positions, str] | None = None
        """The table as we wrote it last, and its version; None if it has to be read."""
        self._written_at = float("-inf")
        self._turn = asyncio.Lock()

    async def take_over(self) -> None:
        """Write our mark. Raises SourceUnavailableError."""
        async with self._turn:
            self._writer, writer = "", uuid.uuid4().hex
            for _ in range(ATTEMPTS):
                await self._pause()
                positions, version = await self._load()
                mine = replace(positions, writer=writer)
                try:
                    self._known = mine, await self._save(mine, version)
                except OwnershipConflictError:
                    continue
                except OutcomeUnknownError as error:
                    raise SourceUnavailableError(str(error)) from error
                self._writer = writer
                return
            raise SourceUnavailableError(f"the positions of group {self._group} are written by others all the time")

    async def read(self, shards: Sequence[ShardId]) -> Mapping[ShardId, Offset]:
        """As the table has them now. Raises SourceUnavailableError."""
        offsets = (await self._load())[0].offsets if shards else {}
        return {shard: offsets[shard] for shard in shards if shard in offsets}

    async def notes(self, shards: Sequence[ShardId]) -> Mapping[ShardId, str]:
        """As the table has them now. Raises SourceUnavailableError."""
        notes = (await self._load())[0].notes if shards else {}
        return {shard: notes[shard] for shard in shards if notes.get(shard)}

    async def commit(self, offsets: Mapping[ShardId, Offset], notes: Mapping[ShardId, str]) -> None:
        """One write. Raises CommitFencedError, OutcomeUnknownError, SourceUnavailableError (surely not written)."""
        foreign = [shard for shard in offsets if not shard.startswith(self._prefix)]
        if foreign:
            raise SourceUnavailableError(f"cannot commit {foreign[0]}: it is no shard of stream {self._prefix[:-1]!r}")
        async with self._turn:
            if not self._writer:
                raise CommitFencedError(f"the positions of group {self._group} were not taken over yet")
            for _ in range(ATTEMPTS):
                await self._pause()
                positions, version = self._known or await self._load()
                self._known = None  # unless this succeeds
                if positions.writer != self._writer:
                    raise CommitFencedError(f"another coordinator has taken over the positions of group {self._group}")
                made = positions.with_these(offsets, notes)
                try:
                    self._known = made, await self._save(made, version)
                except OwnershipConflictError:
                    continue
                return
            raise SourceUnavailableError(f"the positions of group {self._group} are written by others all the time")

    async def forget(self, shards: Sequence[ShardId]) -> None:
        """Write the table without them, whoever may write it. Raises SourceUnavailableError."""
        async with self._turn:
            self._known = None
            for _ in range(ATTEMPTS):
                await self._pause()
                positions, version = await self._load()
                made = positions.without(shards)
                if made.offsets == positions.offsets:
                    return
                try:
                    await self._save(made, version)
                except OwnershipConflictError:
                    continue
                except OutcomeUnknownError as error:
                    raise SourceUnavailableError(str(error)) from error
                return
            raise SourceUnavailableError(f"the positions of group {self._group} are written by others all the time")

    async def close(self) -> None:
        """Nothing to close: whoever made the table closes it."""

    async def _pause(self) -> None:
        wait = self._written_at + self._interval - self._now()
        if wait > 0:
            await asyncio.sleep(wait)

    async def _load(self) -> tuple[_Positions, str | None]:
        try:
            found = await self._table.load(self._group)
        except OwnershipUnavailableError as error:
            raise SourceUnavailableError(str(error)) from error
        return (_Positions(), None) if found is None else (self._read(found[0]), found[1])

    def _read(self, data: bytes) -> _Positions:
        try:
            stored = json.loads(gzip.decompress(data))
            if stored["format"] != FORMAT:
                raise ValueError(f"format {stored['format']!r}, this version reads {FORMAT}")
            shards = [ShardId(shard) for shard in stored["shards"]]
            offsets = dict(zip(shards, map(from_json, stored["offsets"]), strict=True))
            notes = {shard: str(note) for shard, note in zip(shards, stored["notes"], strict=True) if note}
            return _Positions(str(stored["writer"]), offsets, notes)
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError, EOFError, OSError, zlib.error) as error:
            raise SourceUnavailableError(
                f"the stored positions of group {self._group} cannot be read: {error}; restore them, or delete them and say by"
                " spec.reset where to read on"
            ) from error

    async def _save(self, positions: _Positions, version: str | None) -> str:
        shards = sorted(positions.offsets)
        stored = {
            "format": FORMAT,
            "writer": positions.writer,
            "shards": shards,
            "offsets": [str(positions.offsets[shard]) for shard in shards],
            "notes": [positions.notes.get(shard, "") for shard in shards],
        }
        data = gzip.compress(json.dumps(stored, separators=(",", ":")).encode(), compresslevel=6, mtime=0)
        self._written_at = self._now()
        try:
            return await self._table.save(self._group, data, version)
        except OwnershipUnavailableError as error:
            raise SourceUnavailableError(str(error)) from error
