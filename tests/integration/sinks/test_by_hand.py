"""The sink that docs/sinks.md makes by hand, as it stands there, over a real server."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import psycopg
import pytest

import shardherd.spark
from dev.cluster.postgresql import PostgreSQL
from tests.harness.micro_batches import A, B, of, records

PAGE = Path(__file__).resolve().parents[3] / "docs" / "sinks.md"


class Batch:
    """A DataFrame of these records, as far as the page uses one: Spark's JDBC writer fills the table in between."""

    def __init__(self, conninfo: str, ranges: dict[str, tuple[int, int, int]]) -> None:
        self._conninfo = conninfo
        self._rows = [tuple(row.values()) for batch in records(ranges) for row in batch.to_pylist()]
        self.write = self

    def select(self, *columns: str) -> Batch:
        assert columns == ("shard", "offset", "value")
        return self

    def jdbc(self, _url: str, table: str, mode: str) -> None:
        assert mode == "overwrite"
        with psycopg.connect(self._conninfo) as connection, connection.cursor() as cursor:
            cursor.execute(
                f'DROP TABLE IF EXISTS {table}; CREATE TABLE {table} (shard text, "offset" bigint, value text)'.encode()
            )
            cursor.executemany(f"INSERT INTO {table} VALUES (%s, %s, %s)".encode(), self._rows)


def test_the_sink_of_the_page_writes_each_record_once(postgresql: PostgreSQL, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = [each for each in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "STAGING" in each]
    with psycopg.connect(postgresql.conninfo, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA by_hand")
    conninfo = f"{postgresql.conninfo} options='-c search_path=by_hand'"
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute('CREATE TABLE clicks (shard text, "offset" bigint, value text)')
        connection.execute("CREATE TABLE positions (key text PRIMARY KEY, position bigint, epoch bigint)")
    names: dict[str, Any] = {}
    exec(block, names)
    names["DATABASE"] = conninfo

    def write(ranges: dict[str, tuple[int, int, int]]) -> None:
        monkeypatch.setitem(names, "ranges", lambda _: of(ranges))
        names["write"](Batch(conninfo, ranges), 1)

    write({A: (0, 10, 1), B: (5, 9, 1)})
    write({A: (0, 10, 1), B: (5, 9, 1)})
    write({A: (4, 20, 2)})
    with pytest.raises(RuntimeError, match="clicks/0 is at 20 under epoch 2: not writing 20 to 30 under 1"):
        write({A: (20, 30, 1)})
    with pytest.raises(RuntimeError, match="clicks/1 is at 9 under epoch 1: not writing 11 to 12 under 1"):
        write({B: (11, 12, 1)})

    with psycopg.connect(conninfo) as connection:
        found = connection.execute('SELECT shard, "offset" FROM clicks ORDER BY 1, 2').fetchall()
    assert found == [(A, at) for at in range(20)] + [(B, at) for at in range(5, 9)]
    assert shardherd.spark.ranges is not None, "what the page imports is there"
