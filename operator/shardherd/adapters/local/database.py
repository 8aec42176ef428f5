"""The SQLite file of a state folder: what is to outlive the local operator. Used by every adapter of this package.

Decides how it is opened and written: write-ahead log, every commit on the disk before it counts, one writer at a time. The
command line writes to it beside the operator, so every change is one transaction that reads what it changes. A file of another
format is refused by name.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

FORMAT = 1
"""What `PRAGMA user_version` says."""

BUSY = 10.0
"""Seconds to wait for another process's transaction."""

_TABLES = """
CREATE TABLE versions (last INTEGER NOT NULL);
INSERT INTO versions VALUES (0);
CREATE TABLE objects (
    kind TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL, version INTEGER NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (kind, namespace, name)
);
CREATE TABLE ownership (
    namespace TEXT NOT NULL, name TEXT NOT NULL, uid TEXT NOT NULL, version INTEGER NOT NULL, data BLOB NOT NULL,
    PRIMARY KEY (namespace, name)
);
CREATE TABLE copies (uid TEXT PRIMARY KEY, version INTEGER NOT NULL, data BLOB NOT NULL);
CREATE TABLE events (
    uid TEXT NOT NULL, reason TEXT NOT NULL, message TEXT NOT NULL, warning INTEGER NOT NULL,
    namespace TEXT NOT NULL, name TEXT NOT NULL, count INTEGER NOT NULL, first REAL NOT NULL, last REAL NOT NULL,
    PRIMARY KEY (uid, reason, message, warning)
);
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""


class DatabaseError(Exception):
    """The file cannot be used. The message names it and the remedy."""


class NotCommittedError(sqlite3.OperationalError):
    """The commit itself failed: what was to be written may or may not be there."""


def unusable(path: Path, error: sqlite3.Error) -> str:
    """Why the file cannot be used, and the remedy."""
    if isinstance(error, sqlite3.OperationalError):
        # Nothing is wrong with the file itself, and volumes are beside it: nobody should remove them for this.
        return (
            f"{path} cannot be used now ({error}): see that its disk has room, that you may write there, and that no other"
            " process keeps it locked; then do this again"
        )
    return f"{path} cannot be used ({error}): remove the state folder, or give another by --state"


class Database:
    """One open file. `read` and `write` may be called from any thread; `aread` and `awrite` from an event loop."""

    def __init__(self, path: Path) -> None:
        """Open it, and make it if it is not there. Raises DatabaseError."""
        self.path = path
        self._lock = threading.Lock()
        try:
            self._connection = sqlite3.connect(path, timeout=BUSY, isolation_level=None, check_same_thread=False)
            self._prepare()
        except sqlite3.Error as error:
            raise DatabaseError(unusable(path, error)) from error
        path.chmod(0o600)

    def _prepare(self) -> None:
        connection = self._connection
        connection.execute("PRAGMA journal_mode = WAL")
        # Who holds what must not be older than what Kafka has of it, also after the machine lost its power.
        connection.execute("PRAGMA synchronous = FULL")
        if _format(connection) == 0:
            connection.execute("BEGIN IMMEDIATE")
            if _format(connection) == 0:  # nobody else has made them meanwhile
                for statement in _TABLES.split(";\n"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {FORMAT}")
            connection.execute("COMMIT")
        found = _format(connection)
        if found != FORMAT:
            connection.close()
            raise DatabaseError(
                f"{self.path} has format {found}, this version of shardherd reads {FORMAT}: use the version that wrote it, or"
                " give another folder by --state"
            )

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """What `work` finds, all of it at one moment. Raises sqlite3.Error."""
        return self._transaction("BEGIN", work)

    def write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Let `work` read and change; all of it is kept or nothing. Raises sqlite3.Error, and what `work` raises."""
        return self._transaction("BEGIN IMMEDIATE", work)

    async def aread(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """`read`, without keeping the event loop."""
        return await asyncio.to_thread(self.read, work)

    async def awrite(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """`write`, without keeping the event loop."""
        return await asyncio.to_thread(self.write, work)

    def data_version(self) -> int:
        """A number that changes when another process has written."""
        with self._lock:
            return int(self._connection.execute("PRAGMA data_version").fetchone()[0])

    def fact(self, name: str) -> str | None:
        """A single value that is kept under this name."""
        found = self.read(lambda sql: sql.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone())
        return None if found is None else str(found[0])

    def note(self, name: str, value: str) -> None:
        """Keep a single value."""
        self.write(lambda sql: sql.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value)))

    def _transaction(self, begin: str, work: Callable[[sqlite3.Connection], T]) -> T:
        with self._lock:
            connection = self._connection
            connection.execute(begin)
            try:
                result = work(connection)
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            try:
                connection.execute("COMMIT")
            except sqlite3.Error as error:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise NotCommittedError(str(error)) from error
            return result


def _format(sql: sqlite3.Connection) -> int:
    return int(sql.execute("PRAGMA user_version").fetchone()[0])


def next_version(sql: sqlite3.Connection) -> int:
    """A version that nothing has had before, also nothing that was deleted."""
    return int(sql.execute("UPDATE versions SET last = last + 1 RETURNING last").fetchone()[0])
