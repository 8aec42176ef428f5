"""What a message of the protocol is made of: the base of its classes, and plain values with the limits that they have in JSON.

`nouns` and `requests` make the messages of these. `protocol` reads and writes them, and the coordinator's OpenAPI document is
made from them, so whatever limits a field stands here or at the field. Decides nothing.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

MAX_INTEGER = 2**63 - 1
"""Epochs and counts are signed 64-bit numbers everywhere else; so are Kafka's offsets, but not every position is one."""

MAX_NAME = 512
"""Longest name that is accepted: a topic has at most 249 characters, a pod at most 253."""

Natural = Annotated[int, Meta(ge=0, le=MAX_INTEGER, extra_json_schema={"format": "int64"})]
"""Every integer of a message that is no position."""

Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]
"""Of printable characters: `protocol` sees to that."""


class Seconds(float):
    """A duration, or a time since 1970, in seconds. In JSON it is whole milliseconds, in a field whose name ends in Ms."""


class Message(Struct, frozen=True, rename="camel", gc=False):
    """An object of the protocol's JSON, with its fields in camelCase. It refers to nothing that refers to it: hence `gc`.

    What consumers send forbids unknown fields. An answer may have fields that an older consumer does not know.
    """
