"""What PostgreSQL is sent by COPY: times and days before the year 1, which it knows by their era."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from psycopg.conninfo import conninfo_to_dict

from shardherd.spark.sinks.postgresql_rows import TextRefusedError, csv_of, settings

FIRST_SECOND = -62_135_596_800_000_000
"""Microseconds from 0001-01-01 00:00:00 to 1970."""

FIRST_DAY = -719_162


@pytest.mark.parametrize(
    ("values", "written"),
    [
        (
            pa.array([FIRST_SECOND, None, 0]).cast(pa.timestamp("us")),
            ["0001-01-01 00:00:00.000000", "", "1970-01-01 00:00:00.000000"],
        ),
        (pa.array([FIRST_SECOND - 1, None]).cast(pa.timestamp("us")), ["0001-12-31 23:59:59.999999 BC", ""]),
        (
            pa.array([FIRST_SECOND - 3_208_000_000, 0]).cast(pa.timestamp("us", "Europe/Berlin")),
            ["0001-12-31 23:06:32.000000Z BC", "1970-01-01 00:00:00.000000Z"],
        ),
        (pa.array([FIRST_DAY, None], pa.int32()).cast(pa.date32()), ["0001-01-01", ""]),
        (
            pa.array([FIRST_DAY - 1, -1_000_000, 0], pa.int32()).cast(pa.date32()),
            ["0001-12-31 BC", "0769-02-04 BC", "1970-01-01"],
        ),
        (pa.array([None, None], pa.date32()), ["", ""]),
    ],
)
def test_times_and_days_before_the_year_1_have_their_era(values: pa.Array[Any], written: list[str]) -> None:
    found = csv_of(pa.record_batch({"at": values}), ("at",)).decode().splitlines()
    assert [line.strip('"') for line in found] == written


def test_a_text_with_a_character_that_postgresql_has_not_is_refused_with_its_column_and_record() -> None:
    batch = pa.record_batch(
        {"shard": ["clicks/0"] * 2, "offset": [7, 8], "key": [b"\0", b""], "page": ["/a", "/b"], "said": [None, "a\0b"]}
    )
    with pytest.raises(TextRefusedError) as refused:
        csv_of(batch, ("key", "page", "said"))
    assert str(refused.value) == (
        "the column 'said' has a text with the character U+0000 (shard 'clicks/0', offset 8), which no text of PostgreSQL may "
        "have: take it out (replace(said, char(0), '')), or write the column as binary into a bytea"
    )
    assert csv_of(batch, ("key", "page")) == b'"\\x00","/a"\n"\\x","/b"\n'


def test_a_result_of_a_cell_has_no_record_that_could_be_named() -> None:
    with pytest.raises(TextRefusedError, match=r"has a text with the character U\+0000, which no text"):
        csv_of(pa.record_batch({"key": ["\0"]}), ("key",))


def test_a_server_that_has_vanished_is_noticed_within_a_minute_unless_the_user_wants_it_otherwise() -> None:
    assert conninfo_to_dict(settings("postgresql://ann:p%40ss@one:5432,two:5433/clicks?target_session_attrs=read-write")) == {
        "user": "ann",
        "password": "p@ss",
        "host": "one,two",
        "port": "5432,5433",
        "dbname": "clicks",
        "target_session_attrs": "read-write",
        "application_name": "shardherd",
        "keepalives_idle": "30",
        "keepalives_interval": "10",
        "keepalives_count": "3",
    }
    assert conninfo_to_dict(settings("host=db keepalives_idle=600")) == {
        "host": "db",
        "application_name": "shardherd",
        "keepalives_idle": "600",
        "keepalives_interval": "10",
        "keepalives_count": "3",
    }
