"""A worker's `DatabaseOutput` over a real PostgreSQL server: rows and position in one transaction, whoever writes too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
import pytest

from dev.cluster.postgresql import PostgreSQL
from shardherd.core.model.errors import FencedEpochError
from shardherd.core.model.nouns import ShardId
from shardherd.worker import DatabaseOutput, Record, ShardGrant
from shardherd.worker.output import MovedPositionError

GRANT = ShardGrant("group-uid", ShardId("t/0"), 3, topic_id="before")


def output_on(server: PostgreSQL) -> DatabaseOutput:
    """An output that has opened its table, as a worker's thread does."""

    class Rows(DatabaseOutput):
        positions = "positions_of_outputs"

        def connect(self) -> psycopg.Connection[tuple[Any, ...]]:
            return psycopg.connect(server.conninfo)

        def insert(self, cursor: Any, records: Sequence[Record]) -> None:
            cursor.executemany("INSERT INTO rows_of_outputs VALUES (%s)", [(each.offset,) for each in records])

    made = Rows()
    made.open(GRANT.shard)
    return made


def records(*offsets: int) -> list[Record]:
    return [Record(offset, None, b"", 0, ()) for offset in offsets]


def test_a_shard_is_written_once_by_its_holders_and_anew_when_its_topic_was_made_anew(postgresql: PostgreSQL) -> None:
    with psycopg.connect(postgresql.conninfo, autocommit=True) as connection:
        connection.execute("CREATE TABLE rows_of_outputs (position bigint)")
    late, now = output_on(postgresql), output_on(postgresql)

    assert late.position(GRANT) is None
    late.write_once(records(0, 1), GRANT, None, 2)
    with pytest.raises(psycopg.IntegrityError):
        now.write_once(records(0), GRANT, None, 1)
    now.write_once(records(2), GRANT._replace(epoch=4), 2, 3)
    with pytest.raises(MovedPositionError, match="the position of shard t/0 is not 2 any more"):
        late.write_once(records(2), GRANT, 2, 3)
    with pytest.raises(FencedEpochError, match="was written under epoch 4 already"):
        late.position(GRANT)

    anew = GRANT._replace(epoch=5, topic_id="after")
    assert now.position(anew) == 0
    with pytest.raises(MovedPositionError):
        late.write_once(records(3), GRANT._replace(epoch=4), 3, 4)
    now.write_once(records(0), anew, 0, 1)
    assert now.position(anew._replace(topic_id="")) == 1

    late.close()
    now.close()
    with psycopg.connect(postgresql.conninfo) as connection:
        assert connection.execute("SELECT position FROM rows_of_outputs ORDER BY position").fetchall() == [
            (0,),
            (0,),
            (1,),
            (2,),
        ]
