"""How positions are written for programs that are not ours, and how large they get.

A position may be a Kafka offset, of at most 63 bits, or come from a sequence number of Kinesis, of up to 56 digits, so nothing
that holds one has so many bits. Python reads and writes JSON integers of any size; other programs take them for floating-point
numbers beyond 53 bits, and a Kubernetes API server for errors beyond 64. So what others read has large ones as strings of
digits. Called wherever a resource, a document or an answer of a command holds a position. Decides nothing.
"""

from __future__ import annotations

import operator
import re
from typing import Annotated, Any

from msgspec import Meta

MAX_OFFSET = 2**63 - 1
"""The largest position in Kafka."""

MAX_POSITION = 10**56 - 1
"""The largest position of any source."""

_MEANING = (
    "The next record to read: in Kafka an offset, of at most 63 bits; in Kinesis a sequence number and one, of up to 56 digits."
    " Read it with all of them."
)

Position = Annotated[int, Meta(ge=0, extra_json_schema={"maximum": MAX_POSITION, "description": _MEANING})]
"""Of any size, in messages: how large it may be is a matter of the source. `protocol.reading` knows it by having no limit."""

LARGEST_EXACT = 2**53
"""Up to this every program reads a JSON integer as what it is."""

_DIGITS = re.compile(r"0|[1-9][0-9]{0,55}")


def to_json(position: int) -> int | str:
    """An integer that every program reads right, or the digits of one that is larger."""
    return position if position <= LARGEST_EXACT else str(position)


def exact(value: Any) -> Any:
    """A JSON value whose integers every program reads right: larger ones are strings of digits."""
    if isinstance(value, dict):
        return {name: exact(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [exact(item) for item in value]
    return to_json(value) if type(value) is int else value


def from_json(value: object) -> int:
    """The position that was written either way. Raises ValueError for anything else."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_POSITION:
        return value
    if isinstance(value, str) and _DIGITS.fullmatch(value):
        return int(value)
    raise ValueError(f"{str(value)[:80]!r} is no position: it must be an integer from 0 on with at most 56 digits")


def whole_number(given: object, must: str) -> int:
    """A position that a program gave, also where it is a number of numpy's. `must` begins the TypeError for what is none."""
    try:
        if not isinstance(given, bool):
            return operator.index(given)  # type: ignore[arg-type]  # that is what is asked
    except TypeError:
        pass
    raise TypeError(f"{must} a position, which is an int, not {given!r}")
