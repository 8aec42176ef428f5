"""Rows and position in one transaction of a database: each record is there once, whatever fails, and whoever writes too."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from shardherd.core.model.errors import FencedEpochError
from shardherd.core.model.nouns import Offset
from shardherd.testing.group import PlayedGroup
from shardherd.worker import DatabaseOutput, Outputs, OutputsError, Record, ShardGrant
from shardherd.worker.output import MovedPositionError
from tests.unit.worker.scene import A, B, Logs
from tests.unit.worker.test_worker import running, worker_of

GRANT = ShardGrant("group-uid", A, 3)


def database(path: Path) -> type[DatabaseOutput]:
    class Rows(DatabaseOutput):
        placeholder = "?"
        insert_failures = 0

        def connect(self) -> sqlite3.Connection:
            connection = sqlite3.connect(path, check_same_thread=False, timeout=10)
            connection.execute("CREATE TABLE IF NOT EXISTS rows (shard_offset INTEGER, value BLOB)")
            return connection

        def insert(self, cursor: Any, records: Sequence[Record]) -> None:
            cursor.executemany("INSERT INTO rows VALUES (?, ?)", [(each.offset, each.value) for each in records])
            if type(self).insert_failures:
                type(self).insert_failures -= 1
                raise ConnectionError("lost after the rows were sent")

    return Rows


def rows(path: Path) -> list[int]:
    with sqlite3.connect(path) as connection:
        return [row[0] for row in connection.execute("SELECT shard_offset FROM rows ORDER BY 1")]


def records(*offsets: Offset) -> list[Record]:
    return [Record(offset, None, str(offset).encode(), 0, ()) for offset in offsets]


def opened(path: Path) -> DatabaseOutput:
    output = database(path)()
    output.open(A)
    return output


def test_rows_and_position_are_there_together(tmp_path: Path) -> None:
    output = opened(tmp_path / "db")
    assert output.position(GRANT) is None
    output.write_once(records(0, 1), GRANT, None, 2)
    output.write_once(records(2), GRANT, 2, 3)
    output.close()
    again = opened(tmp_path / "db")
    assert (again.position(GRANT), again.position(GRANT._replace(group="other")), rows(tmp_path / "db")) == (3, None, [0, 1, 2])


def test_a_batch_that_fails_leaves_neither_rows_nor_position_and_the_output_connects_again(tmp_path: Path) -> None:
    output = opened(tmp_path / "db")
    output.write_once(records(0), GRANT, None, 1)
    type(output).insert_failures = 1  # type: ignore[attr-defined]
    with pytest.raises(ConnectionError):
        output.write_once(records(1), GRANT, 1, 2)
    assert (output.position(GRANT), rows(tmp_path / "db")) == (1, [0])
    output.write_once(records(1), GRANT, 1, 2)
    assert rows(tmp_path / "db") == [0, 1]


def test_of_two_writers_from_one_position_one_writes(tmp_path: Path) -> None:
    first, second = opened(tmp_path / "db"), opened(tmp_path / "db")
    first.write_once(records(0), GRANT, None, 1)
    with pytest.raises(sqlite3.IntegrityError):
        second.write_once(records(0), GRANT, None, 1)
    second.write_once(records(1, 2), GRANT, 1, 3)
    with pytest.raises(MovedPositionError, match="the position of shard t/0 is not 1 any more"):
        first.write_once(records(1), GRANT, 1, 2)
    assert (first.position(GRANT), rows(tmp_path / "db")) == (3, [0, 1, 2])


def test_who_had_the_shard_before_is_fenced_once_the_new_holder_has_written(tmp_path: Path) -> None:
    late, now = opened(tmp_path / "db"), opened(tmp_path / "db")
    late.write_once(records(0), GRANT, None, 1)
    now.write_once(records(1), GRANT._replace(epoch=4), 1, 2)
    with pytest.raises(MovedPositionError):
        late.write_once(records(2), GRANT, 2, 3)
    with pytest.raises(FencedEpochError, match="was written under epoch 4 already, and this consumer was given it under 3"):
        late.position(GRANT)
    assert rows(tmp_path / "db") == [0, 1]


def test_a_topic_that_was_made_anew_is_written_from_where_its_group_begins_and_the_one_before_is_written_no_more(
    tmp_path: Path,
) -> None:
    first, second = GRANT._replace(topic_id="before"), GRANT._replace(topic_id="after", epoch=4, start=0)
    late, now = opened(tmp_path / "db"), opened(tmp_path / "db")
    late.write_once(records(0, 1), first, None, 2)
    assert now.position(second) == 0
    with pytest.raises(MovedPositionError):
        late.write_once(records(2), first, 2, 3)
    with pytest.raises(FencedEpochError):
        late.position(first)
    now.write_once(records(0), second, 0, 1)
    assert (now.position(second), now.position(second._replace(epoch=5)), rows(tmp_path / "db")) == (1, 1, [0, 0, 1])


def test_whose_topic_id_is_not_known_means_the_topic_that_there_is(tmp_path: Path) -> None:
    output = opened(tmp_path / "db")
    output.write_once(records(0), GRANT, None, 1)
    named = GRANT._replace(topic_id="now", epoch=4)
    assert output.position(named) == 1
    output.write_once(records(1), named, 1, 2)
    assert output.position(GRANT._replace(epoch=5)) == 2
    output.write_once(records(2), GRANT._replace(epoch=5), 2, 3)
    assert output.position(GRANT._replace(topic_id="another", epoch=6, start=7)) == 7


def test_who_was_given_a_topic_made_anew_and_has_not_written_yet_is_asked_again_without_harm(tmp_path: Path) -> None:
    output, anew = opened(tmp_path / "db"), GRANT._replace(topic_id="after", epoch=4, start=5)
    output.write_once(records(0, 1), GRANT._replace(topic_id="before"), None, 2)
    assert [output.position(anew), opened(tmp_path / "db").position(anew)] == [5, 5]
    with pytest.raises(FencedEpochError):
        output.position(GRANT._replace(topic_id="before"))


def test_who_may_create_nothing_uses_the_table_of_positions_that_is_there(tmp_path: Path) -> None:
    """As in a database that asks for the right to create before it looks whether there is anything to create."""
    opened(tmp_path / "db").write_once(records(0), GRANT, None, 1)

    class WithoutRights(database(tmp_path / "db")):  # type: ignore[misc]
        def connect(self) -> sqlite3.Connection:
            connection: sqlite3.Connection = super().connect()
            connection.set_authorizer(
                lambda action, *_: sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_CREATE_TABLE else sqlite3.SQLITE_OK
            )
            return connection

    output: DatabaseOutput = WithoutRights()
    output.open(A)
    output.write_once(records(1), GRANT, output.position(GRANT), 2)
    output.positions = "of_another_name"
    with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
        output.open(A)
    assert rows(tmp_path / "db") == [0, 1]


@pytest.mark.parametrize("method", ["connect", "insert"])
def test_a_coroutine_can_neither_connect_nor_insert(method: str) -> None:
    async def waits(*_: Any) -> None: ...

    waits.__name__ = method
    with pytest.raises(OutputsError, match=f"{method} of Wrong must be a function, not a coroutine"):
        type("Wrong", (DatabaseOutput,), {method: waits})


def test_an_insert_that_is_still_to_be_awaited_leaves_neither_rows_nor_position(tmp_path: Path) -> None:
    class Late(database(tmp_path / "db")):  # type: ignore[misc]
        def insert(self, cursor: Any, records: Sequence[Record]) -> Any:
            super().insert(cursor, records)

            async def rest() -> None: ...

            return rest()

    output = Late()
    output.open(A)
    with pytest.raises(
        TypeError, match="what insert returned is a coroutine, which nobody awaits or iterates: make it a plain"
    ):
        output.write_once(records(0), GRANT, None, 1)
    assert (output.position(GRANT), rows(tmp_path / "db")) == (None, [])


class _SaysByAttribute:
    """As psycopg's connection."""

    def __init__(self, autocommit: bool) -> None:
        self.autocommit = autocommit
        self.isolation_level = None
        self.closed = False

    def close(self) -> None:
        self.closed = True


class _SaysByMethod(_SaysByAttribute):
    """As PyMySQL's."""

    def __init__(self, autocommit: bool) -> None:
        super().__init__(autocommit)
        self._says = autocommit
        self.autocommit: Any = self.get_autocommit  # which it is not: it sets it

    def get_autocommit(self) -> bool:
        return self._says


@pytest.mark.parametrize("kind", [_SaysByAttribute, _SaysByMethod])
def test_a_connection_in_autocommit_is_refused_and_closed(kind: type[_SaysByAttribute]) -> None:
    connection = kind(autocommit=True)
    output: DatabaseOutput = type("Rows", (DatabaseOutput,), {"connect": lambda _: connection})()
    with pytest.raises(OutputsError, match="connect of Rows returned a connection in autocommit, in which the position moves"):
        output.open(A)
    assert connection.closed

    output = type("Rows", (DatabaseOutput,), {"connect": lambda _: kind(autocommit=False)})()
    with pytest.raises(AttributeError, match="cursor"):  # it is asked for one: it is taken
        output.open(A)


def test_a_connection_to_sqlite_that_commits_each_statement_is_refused(tmp_path: Path) -> None:
    class Commits(database(tmp_path / "db")):  # type: ignore[misc]
        def connect(self) -> sqlite3.Connection:
            connection: sqlite3.Connection = super().connect()
            connection.isolation_level = None
            return connection

    with pytest.raises(OutputsError, match="connect of Commits returned a connection in autocommit"):
        Commits().open(A)


def test_a_connection_that_another_output_has_is_refused_until_that_is_closed(tmp_path: Path) -> None:
    rows_class = database(tmp_path / "db")
    connections: list[sqlite3.Connection] = [rows_class().connect()]

    class Shares(rows_class):  # type: ignore[misc, valid-type]
        def connect(self) -> sqlite3.Connection:
            return connections[-1]

    first, second = Shares(), Shares()
    first.open(A)
    with pytest.raises(OutputsError, match="connect of Shares returned a connection that the output of another shard has"):
        second.open(B)
    first.write_once(records(0), GRANT, None, 1)
    assert (first.position(GRANT), rows(tmp_path / "db")) == (1, [0]), "it is not closed for who has it"
    first.close()
    connections.append(rows_class().connect())
    second.open(B)
    assert second.position(GRANT) == 1


def test_a_worker_writes_each_record_once_though_its_batches_fail(tmp_path: Path) -> None:
    """With real threads, and a database in a file: the end is as if nothing had failed."""
    path, rows_class = tmp_path / "db", database(tmp_path / "db")
    rows_class.insert_failures = 2  # type: ignore[attr-defined]

    class Clicks(Outputs):
        outputs = (rows_class,)
        guarantee = "exactly-once"
        batch_size = 10
        batch_wait = 0.05

    with PlayedGroup(shards=1) as group:
        logs = Logs()
        logs.append(group.shards[0], 35)
        with running(worker_of(group, "played-0", Clicks, logs)):
            group.until("all is durable", lambda: group.checkpoints() == {group.shards[0]: 35})
    assert rows(path) == list(range(35))
