"""The records of a played group. Decides nothing."""

from __future__ import annotations

from typing import NamedTuple


class Record(NamedTuple):
    """One record, with the source's columns of these names."""

    key: bytes | None
    value: bytes
    shard: str
    offset: int


SCHEMA = "key BINARY, value BINARY, shard STRING, offset LONG"
"""The columns of a `Record`, as Spark writes them."""
