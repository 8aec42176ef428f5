"""What happened to groups, and Secrets with Kafka credentials, in SQLite: `EventRecorder` and `SecretReader` of one machine.

The same event again raises the count of the first, as on a cluster. An event that cannot be written is logged and given up.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass

from shardherd.adapters.local.database import Database
from shardherd.adapters.local.objects import SECRET, Objects
from shardherd.core.model.nouns import GroupIdentity
from shardherd.ports import CREDENTIALS_LABEL, Clock, SecretRefusedError, SecretUnavailableError
from shardherd.telemetry.logs import fields

log = logging.getLogger(__name__)

KEPT = 200
"""Events of one group that are kept."""

_ADD = """INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, 1, ?, ?)
ON CONFLICT (uid, reason, message, warning) DO UPDATE SET count = count + 1, last = excluded.last"""
_PRUNE = """DELETE FROM events WHERE uid = ?1 AND last <
(SELECT last FROM events WHERE uid = ?1 ORDER BY last DESC LIMIT 1 OFFSET ?2)"""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a group, how often, and when last (seconds since 1970)."""

    group: str
    reason: str
    message: str
    warning: bool
    count: int
    last: float


class SqliteEvents:
    """EventRecorder. Every event is a line of the log, too."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._writing: set[asyncio.Task[None]] = set()

    def record(self, group: GroupIdentity, reason: str, message: str, *, warning: bool = False) -> None:
        """See EventRecorder. Must be called in an event loop."""
        log.log(logging.WARNING if warning else logging.INFO, "%s: %s", reason, message, extra=fields(group=group))
        now = self._clock.wall()
        row = (group.uid, reason, message, int(warning), group.namespace, group.name, now, now)
        task = asyncio.get_running_loop().create_task(self._write(row), name="event")
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def flush(self) -> None:
        """Wait until what was recorded is written."""
        await asyncio.gather(*self._writing)

    async def _write(self, row: tuple[object, ...]) -> None:
        def write(sql: sqlite3.Connection) -> None:
            sql.execute(_ADD, row)
            sql.execute(_PRUNE, (row[0], KEPT))

        try:
            await self._database.awrite(write)
        except sqlite3.Error as error:
            log.warning("the event %s was not written: %s", row[1], error)


def events(database: Database) -> list[Event]:
    """Every event that is kept, the oldest first. Raises sqlite3.Error."""
    query = "SELECT namespace || '/' || name, reason, message, warning, count, last FROM events ORDER BY last"
    rows = database.read(lambda sql: sql.execute(query).fetchall())
    return [Event(group, reason, message, bool(warning), count, last) for group, reason, message, warning, count, last in rows]


class LocalSecrets:
    """SecretReader over the Secrets that stood in the manifest beside the group."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    async def read(self, namespace: str, name: str) -> Mapping[str, bytes]:
        """See SecretReader."""
        try:
            found = await asyncio.to_thread(self._objects.get, (SECRET, namespace, name))
        except sqlite3.Error as error:
            raise SecretUnavailableError(f"Secret {name!r} in namespace {namespace!r} cannot be read now: {error}") from error
        if found is None:
            raise SecretRefusedError(
                f"there is no Secret {name!r} in namespace {namespace!r}: put it into the manifest file beside the group, with"
                f" the label {CREDENTIALS_LABEL}=true"
            )
        if (found["metadata"].get("labels") or {}).get(CREDENTIALS_LABEL) != "true":
            raise SecretRefusedError(
                f"Secret {name!r} in namespace {namespace!r} has no label {CREDENTIALS_LABEL}=true, without which it is not"
                " used"
            )
        return {key: base64.b64decode(value) for key, value in (found.get("data") or {}).items()}
