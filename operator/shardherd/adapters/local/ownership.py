"""Who holds what and the copies of positions, in SQLite. Called by the coordinator through `OwnershipStore`.

The bytes are kept as they are; what they mean is the core's matter. What a deleted group of the same name left counts as none.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from shardherd.adapters.local.database import Database, NotCommittedError, next_version
from shardherd.core.group.records import PositionCopies
from shardherd.core.model.nouns import GroupIdentity, ShardId
from shardherd.core.model.positions import from_json
from shardherd.ports import (
    GROWTH_LIMIT,
    OutcomeUnknownError,
    OwnershipConflictError,
    OwnershipGoneError,
    OwnershipTooLargeError,
    OwnershipUnavailableError,
    StoredCopies,
    StoredOwnership,
)

log = logging.getLogger(__name__)

FORMAT = 1
"""Of the copies."""


class SqliteOwnership:
    """OwnershipStore in a state folder's database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def load(self, group: GroupIdentity) -> StoredOwnership | None:
        """See OwnershipStore."""
        try:
            found = await self._database.aread(lambda sql: _found(sql, group))
        except sqlite3.Error as error:
            raise OwnershipUnavailableError(f"cannot read the ownership of group {group}: {error}") from error
        return None if found is None else StoredOwnership(bytes(found[1]), str(found[0]))

    async def save(self, group: GroupIdentity, data: bytes, expected: str | None, *, grows: bool = False) -> str:
        """See OwnershipStore. The limit is that of a cluster: what runs here must run there."""
        if grows and len(data) > GROWTH_LIMIT:
            packed = len(await asyncio.to_thread(gzip.compress, data, 6, mtime=0))
            if packed > GROWTH_LIMIT:
                raise OwnershipTooLargeError(
                    f"the ownership of group {group} would take {packed} bytes compressed, over the limit of {GROWTH_LIMIT}"
                )

        def write(sql: sqlite3.Connection) -> int:
            stored = _found(sql, group)
            if stored is None and expected is not None:
                raise OwnershipGoneError(f"the ownership of group {group} was deleted")
            current = None if stored is None else str(stored[0])
            if current != expected:
                raise OwnershipConflictError(f"the ownership of group {group} is at version {current}, not {expected}")
            version = next_version(sql)
            sql.execute(
                "INSERT OR REPLACE INTO ownership VALUES (?, ?, ?, ?, ?)",
                (group.namespace, group.name, group.uid, version, data),
            )
            return version

        what = f"the ownership of group {group}"
        with refusing(f"{what} may or may not be written", f"cannot write {what}"):
            return str(await self._database.awrite(write))

    async def load_copies(self, group: GroupIdentity) -> StoredCopies:
        """See OwnershipStore."""
        try:
            found = await self._database.aread(lambda sql: _copies(sql, group))
        except sqlite3.Error as error:
            raise OwnershipUnavailableError(f"cannot read the copied positions of group {group}: {error}") from error
        return StoredCopies(PositionCopies(), "") if found is None else StoredCopies(_unpack(found[1], group), str(found[0]))

    async def save_copies(self, group: GroupIdentity, copies: PositionCopies, expected: str) -> str:
        """See OwnershipStore. They are written as a whole, or not at all."""
        packed = _pack(copies)

        def write(sql: sqlite3.Connection) -> int:
            stored = _copies(sql, group)
            current = "" if stored is None else str(stored[0])
            if current != expected:
                raise OwnershipConflictError(
                    f"the copied positions of group {group} are at version {current!r}, not {expected!r}"
                )
            version = next_version(sql)
            sql.execute("INSERT OR REPLACE INTO copies VALUES (?, ?, ?)", (group.uid, version, packed))
            return version

        what = f"the positions of group {group}"
        with refusing(f"{what} may or may not be copied", f"cannot copy {what}"):
            return str(await self._database.awrite(write))

    def forget(self, uid: str) -> None:
        """The group with this UID was deleted. Raises sqlite3.Error."""

        def remove(sql: sqlite3.Connection) -> None:
            for table in ("ownership", "copies", "events"):
                sql.execute(f"DELETE FROM {table} WHERE uid = ?", (uid,))

        self._database.write(remove)


@contextmanager
def refusing(unknown: str, failed: str) -> Iterator[None]:
    """The errors of the database as those of an OwnershipStore; `unknown` says that a write may have happened."""
    try:
        yield
    except NotCommittedError as error:
        raise OutcomeUnknownError(f"{unknown}: {error}") from error
    except sqlite3.Error as error:
        raise OwnershipUnavailableError(f"{failed}: {error}") from error


def _found(sql: sqlite3.Connection, group: GroupIdentity) -> tuple[int, bytes] | None:
    query = "SELECT version, data FROM ownership WHERE namespace = ? AND name = ? AND uid = ?"
    found: tuple[int, bytes] | None = sql.execute(query, (group.namespace, group.name, group.uid)).fetchone()
    return found


def _copies(sql: sqlite3.Connection, group: GroupIdentity) -> tuple[int, bytes] | None:
    query = "SELECT version, data FROM copies WHERE uid = ?"
    found: tuple[int, bytes] | None = sql.execute(query, (group.uid,)).fetchone()
    return found


def _pack(copies: PositionCopies) -> bytes:
    shards = sorted(copies.offsets)
    stored = {
        "format": FORMAT,
        "shards": shards,
        "offsets": [copies.offsets[shard] for shard in shards],
        "leaderEpoch": copies.leader_epoch,
        "revision": copies.revision,
        "refreshed": copies.refreshed,
    }
    return gzip.compress(json.dumps(stored, separators=(",", ":")).encode(), compresslevel=1, mtime=0)


def _unpack(data: bytes, group: GroupIdentity) -> PositionCopies:
    """The copies; none if they are damaged. Raises OwnershipUnavailableError for those of another version."""
    try:
        stored = json.loads(gzip.decompress(data))
        if stored["format"] != FORMAT:
            raise OwnershipUnavailableError(
                f"the copied positions have format {stored['format']!r}, this version of shardherd reads {FORMAT}"
            )
        offsets = dict(zip(map(ShardId, stored["shards"]), map(from_json, stored["offsets"]), strict=True))
        return PositionCopies(offsets, stored["leaderEpoch"], stored["revision"], stored["refreshed"])
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError, EOFError, OSError, zlib.error) as error:
        log.warning(
            "the copied positions of group %s cannot be read and are left aside until the next copy replaces them: %r",
            group,
            error,
        )
        return PositionCopies()
