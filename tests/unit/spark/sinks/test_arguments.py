"""What the sinks are given and cannot be is named when they are made, before anything is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardherd.spark.sinks import delta, kafka, postgresql
from shardherd.transactions.outcomes import SinkError


@pytest.mark.parametrize(
    ("make", "arguments", "says"),
    [
        (delta, {"table": ""}, "table must be the path or the URI of a Delta table, not ''"),
        (delta, {"table": Path("clicks")}, "table must be the path or the URI of a Delta table, not .*Path"),
        (
            delta,
            {"partition_by": "ab"},
            r"partition_by must be a list of names, not the text 'ab': write partition_by=\['ab'\]",
        ),
        (delta, {"partition_by": None}, "partition_by must be a list of names of columns, not None"),
        (delta, {"partition_by": ["day", "day"]}, "partition_by names the column 'day' twice: name it once"),
        (delta, {"leave_out": [3]}, r"leave_out must be a list of names of columns, not \[3\]"),
        (delta, {"storage_options": {"timeout": 5}}, "storage_options must be texts, and 'timeout' has a value of type int"),
        (delta, {"storage_options": "timeout=5"}, "storage_options must be a mapping of texts.*, not str"),
        (delta, {"name": None}, "name must be a text, not None"),
        (delta, {"accept_gaps": "false"}, "accept_gaps must be True or False, not 'false'"),
        (delta, {"cell": 0}, "cell must be what build\\(cell\\) was called with, not 0: write cell=cell"),
        (kafka, {"name": 3}, "name must be a text, not 3"),
        (kafka, {"accept_gaps": 1}, "accept_gaps must be True or False, not 1"),
        (kafka, {"cell": "uid/1/0"}, "cell must be what build\\(cell\\) was called with, not 'uid/1/0': write cell=cell"),
        (kafka, {"group_id": None}, "group_id must be the id of a Kafka group, not None"),
        (kafka, {"topic": None}, "topic must be the name of a topic, not None"),
        (kafka, {"compression": ["gzip"]}, r"compression must be one of none, gzip, snappy, lz4, zstd, not \['gzip'\]"),
        (kafka, {"transaction_timeout": "60"}, "transaction_timeout must be a number of seconds above 0, up to .*, not '60'"),
        (kafka, {"transaction_timeout": 1e10}, "transaction_timeout must be a number of seconds above 0, up to 2147483, not 1"),
        (kafka, {"options": {"kafka.bootstrap.servers": 9092}}, "options must be texts, and 'kafka.bootstrap.servers' has a"),
        (kafka, {"options": {1: "x"}}, "options must be texts, and 1 has a value of type str"),
        (postgresql, {"name": 3}, "name must be a text, not 3"),
        (postgresql, {"accept_gaps": "no"}, "accept_gaps must be True or False, not 'no'"),
        (postgresql, {"cell": 0}, "cell must be what build\\(cell\\) was called with, not 0: write cell=cell"),
        (postgresql, {"conninfo": {"password": "x"}}, "conninfo must be a text, as psycopg takes it, not dict$"),
        (postgresql, {"positions": ""}, "positions must be the name of a table, not ''"),
        (postgresql, {"table": ""}, "table must be the name of a table, not ''"),
        (postgresql, {"leave_out": "ab"}, r"leave_out must be a list of names, not the text 'ab': write leave_out=\['ab'\]"),
    ],
)
def test_what_a_sink_cannot_be_given_is_named(make: Callable[..., Any], arguments: dict[str, Any], says: str) -> None:
    needed = {delta: {"table": "t"}, kafka: {"topic": "t"}, postgresql: {"conninfo": "host=db", "table": "t"}}[make]
    with pytest.raises(SinkError, match=f"^{says}"):
        make(**needed | arguments)
