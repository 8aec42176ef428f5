"""The positions of groups whose source keeps none, in SQLite: a `PositionTable` of one machine.

It keeps bytes, and knows nothing of what they mean. What a deleted group of the same name left counts as none.
"""

from __future__ import annotations

import sqlite3

from shardherd.adapters.local.database import Database, next_version
from shardherd.adapters.local.ownership import refusing
from shardherd.core.model.nouns import GroupIdentity
from shardherd.ports import OwnershipConflictError, OwnershipUnavailableError

_TABLE = "CREATE TABLE IF NOT EXISTS positions (uid TEXT PRIMARY KEY, version INTEGER NOT NULL, data BLOB NOT NULL)"
"""Not among those that a state folder is made with: one of an earlier version lacks it."""


class SqlitePositions:
    """PositionTable in a state folder's database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._database.write(lambda sql: sql.execute(_TABLE))

    async def load(self, group: GroupIdentity) -> tuple[bytes, str] | None:
        """See PositionTable."""
        try:
            found = await self._database.aread(lambda sql: _found(sql, group))
        except sqlite3.Error as error:
            raise OwnershipUnavailableError(f"cannot read the positions of group {group}: {error}") from error
        return None if found is None else (bytes(found[1]), str(found[0]))

    async def save(self, group: GroupIdentity, data: bytes, expected: str | None) -> str:
        """See PositionTable."""

        def write(sql: sqlite3.Connection) -> int:
            stored = _found(sql, group)
            current = None if stored is None else str(stored[0])
            if current != expected:
                raise OwnershipConflictError(f"the positions of group {group} are at version {current}, not {expected}")
            version = next_version(sql)
            sql.execute("INSERT OR REPLACE INTO positions VALUES (?, ?, ?)", (group.uid, version, data))
            return version

        what = f"the positions of group {group}"
        with refusing(f"{what} may or may not be written", f"cannot write {what}"):
            return str(await self._database.awrite(write))

    def forget(self, uid: str) -> None:
        """The group with this UID was deleted. Raises sqlite3.Error."""
        self._database.write(lambda sql: sql.execute("DELETE FROM positions WHERE uid = ?", (uid,)))


def _found(sql: sqlite3.Connection, group: GroupIdentity) -> tuple[int, bytes] | None:
    query = "SELECT version, data FROM positions WHERE uid = ?"
    found: tuple[int, bytes] | None = sql.execute(query, (group.uid,)).fetchone()
    return found
