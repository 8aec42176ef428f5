"""An output that writes to a database by Python's DB-API: rows and position in one transaction, each record once.

A user derives from it; `sending` calls it. It decides whether what another writer did keeps this one from writing.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Sequence
from typing import Any

from shardherd.core.model.errors import FencedEpochError
from shardherd.core.model.nouns import Offset, ShardId
from shardherd.worker.crew import is_async
from shardherd.worker.guarantees import OutputsError
from shardherd.worker.output import MovedPositionError, ShardGrant, TransactionalOutput
from shardherd.worker.records import Record
from shardherd.worker.unfinished import check_done

_LOCK = threading.Lock()

_CONNECTED: weakref.WeakValueDictionary[int, DatabaseOutput] = weakref.WeakValueDictionary()
"""The outputs of this process that have connected, by their id."""


class DatabaseOutput(TransactionalOutput):
    """Say how to connect and how a batch is inserted. `placeholder` is what the module writes for a parameter: `%s`, or `?`.

    `positions` is the table of the positions, which is made if it is not there.
    """

    positions: str = "shardherd_worker_positions"
    placeholder: str = "%s"

    def connect(self) -> Any:
        """A connection of the DB-API, which begins transactions by itself: not in autocommit, and a new one in each call.
        It is used by one thread at a time, not always the same."""
        raise NotImplementedError

    def insert(self, cursor: Any, records: Sequence[Record]) -> Any:
        """Write a batch. Neither commit nor roll back here."""
        raise NotImplementedError

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        for method in (cls.connect, cls.insert):
            if is_async(method):
                raise OutputsError(f"{method.__name__} of {cls.__name__} must be a function, not a coroutine")

    def open(self, shard: ShardId) -> None:  # noqa: ARG002
        """See Output. Who overrides it calls it."""
        # PostgreSQL asks for the right to create before it looks whether the table is there.
        if self._has_positions():
            return
        with self._transaction() as cursor:
            cursor.execute(
                f"CREATE TABLE IF NOT EXISTS {self.positions} (sink varchar(200) NOT NULL, group_uid varchar(100) NOT NULL,"
                " shard varchar(300) NOT NULL, position bigint NOT NULL, epoch bigint NOT NULL, topic_id varchar(64) NOT NULL,"
                " PRIMARY KEY (sink, group_uid, shard))"
            )

    def close(self) -> None:
        """See Output. Who overrides it calls it."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def position(self, grant: ShardGrant) -> Offset | None:
        """See TransactionalOutput. Raises FencedEpochError where who has the shard now has written already."""
        with self._transaction() as cursor:
            self._run(cursor, f"SELECT position, epoch, topic_id FROM {self.positions} WHERE {_WHOSE}", *self._whose(grant))
            row = cursor.fetchone()
            if row is None:
                return None
            position, epoch, topic_id = int(row[0]), int(row[1]), str(row[2])
            if epoch > grant.epoch:
                raise FencedEpochError(
                    f"shard {grant.shard} was written under epoch {epoch} already, and this consumer was given it under"
                    f" {grant.epoch}: it is another one's now",
                    shard=grant.shard,
                )
            if not grant.topic_id or topic_id in ("", grant.topic_id):
                return position
            # The position of the topic that had this name before says nothing of this one, and its holders write no more.
            self._move(cursor, grant, position, grant.start)
            return grant.start

    def write_once(self, records: Sequence[Record], grant: ShardGrant, before: Offset | None, position: Offset) -> None:
        """See TransactionalOutput."""
        table, whose = self.positions, self._whose(grant)
        with self._transaction() as cursor:
            # The position first: who comes second waits here, or fails, before it has written a row.
            if before is None:
                columns, values = "(sink, group_uid, shard, position, epoch, topic_id)", (position, grant.epoch, grant.topic_id)
                self._run(cursor, f"INSERT INTO {table} {columns} VALUES (?, ?, ?, ?, ?, ?)", *whose, *values)
            else:
                self._move(cursor, grant, before, position)
            check_done("insert", self.insert(cursor, records))

    _connection: Any = None

    def _has_positions(self) -> bool:
        """Whether the table of positions can be read. Why it cannot be is said by whoever makes it."""
        with self._transaction() as cursor:
            try:
                cursor.execute(f"SELECT position FROM {self.positions} WHERE 1 = 0")
                cursor.fetchall()
            except Exception:  # noqa: BLE001 - each module has errors of its own
                self._connection.rollback()
                return False
            return True

    def _move(self, cursor: Any, grant: ShardGrant, before: Offset, position: Offset) -> None:
        """Change the position from `before`. Raises MovedPositionError if it is another one by now, or of a later grant."""
        # Who knows of no topic id means the topic that there is.
        named = {"topic_id": grant.topic_id} if grant.topic_id else {}
        changes: dict[str, Any] = {"position": position, "epoch": grant.epoch, **named}
        columns = ", ".join(f"{column} = ?" for column in changes)
        statement = f"UPDATE {self.positions} SET {columns} WHERE {_WHOSE} AND position = ? AND epoch <= ?"
        self._run(cursor, statement, *changes.values(), *self._whose(grant), before, grant.epoch)
        if cursor.rowcount != 1:
            raise MovedPositionError(f"the position of shard {grant.shard} is not {before} any more: it was moved by another")

    def _whose(self, grant: ShardGrant) -> tuple[str, str, str]:
        return (self.name or type(self).__name__, grant.group, grant.shard)

    def _run(self, cursor: Any, statement: str, *parameters: Any) -> None:
        cursor.execute(statement.replace("?", self.placeholder), parameters)

    def _connected(self) -> None:
        """Make a new connection. Raises OutputsError for one on which rows and position would not change together."""
        connection = self.connect()
        if _commits_each_statement(connection):
            connection.close()
            raise OutputsError(
                f"connect of {type(self).__name__} returned a connection in autocommit, in which the position moves though the"
                " rows fail: switch that off, in most modules by autocommit=False"
            )
        with _LOCK:
            if connection is not None and any(each._connection is connection for each in _CONNECTED.values()):
                raise OutputsError(
                    f"connect of {type(self).__name__} returned a connection that the output of another shard has, so that"
                    " each would commit what the other has begun: make a new one in each call"
                )
            _CONNECTED[id(self)] = self
            self._connection = connection

    @contextlib.contextmanager
    def _transaction(self) -> Any:
        """A cursor in a transaction that is committed at the end. After an error the connection is another one."""
        if self._connection is None:
            self._connected()
        connection = self._connection
        try:
            cursor = connection.cursor()
            yield cursor
            cursor.close()
            connection.commit()
        except BaseException:
            self._connection = None
            with contextlib.suppress(Exception):  # it may be over, which is why it is not used any more
                connection.rollback()
                connection.close()
            raise


def _commits_each_statement(connection: Any) -> bool:
    """Whether the connection is in autocommit, as far as it says so: the DB-API has no name for that."""
    says = getattr(connection, "autocommit", None)
    if any(each.__module__ == "sqlite3" for each in type(connection).__mro__):  # says so itself from Python 3.12 on
        return says is True or (says is not False and connection.isolation_level is None)
    if callable(says):  # where it is what sets it
        says = connection.get_autocommit() if hasattr(connection, "get_autocommit") else None
    return bool(says == 1)


_WHOSE = "sink = ? AND group_uid = ? AND shard = ?"
