"""Where a store stands that keeps positions beside its records, and why it cannot be written to. Of the sinks and of outputs.

Raised and returned by what writes. Decides nothing.
"""

from __future__ import annotations

from numbers import Real
from typing import Any, NamedTuple

LONGEST_TRANSACTION = 2_147_483.0
"""Most seconds of a `transaction_timeout`: brokers are told it in milliseconds, of 32 bits."""


class SinkError(RuntimeError):
    """A micro-batch cannot be written so that each record stands there once. Says why and what to do."""


class TableError(SinkError):
    """A table, or a topic, that cannot be written to. Says why and what to do."""


class ConflictError(SinkError):
    """The positions are not what they were when they were read, or may not be: read them again."""


class Stored(NamedTuple):
    """What a sink has of a shard: all records below `position`. `epoch` is of who wrote last, 0 where a sink keeps none.

    `topic_id` is that of its topic, for a sink that keeps one position of a shard, whichever topic had its name.
    """

    position: int
    epoch: int = 0
    topic_id: str = ""


def no_timeout(value: Any) -> str:
    """What a `transaction_timeout` must be, and this is not: "must be ..., not ..."; empty if it is one."""
    # A bool is an int to Python, and a mistake here.
    is_one = isinstance(value, Real) and not isinstance(value, bool)
    if is_one and 0 < value <= LONGEST_TRANSACTION:
        return ""
    return f"must be a number of seconds above 0, up to {LONGEST_TRANSACTION:.0f}, not {value!r}"
