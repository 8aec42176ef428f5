"""Reads messages of formats 0 and 1, which brokers before Kafka 0.11 wrote and old segments still hold.

Called by `record_batches`, one entry of a message set at a time. It is slow, one record after the other in Python: such records
are rare, and every newer broker writes format 2.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from shardherd.source.decoding.codecs import NONE, Arena, decompress

NO_TIMESTAMP_TYPE, CREATE_TIME, LOG_APPEND_TIME = -1, 0, 1
"""As Kafka numbers them; format 0 has no timestamp."""

_CODEC_MASK, _APPEND_TIME = 0x07, 0x08
_ENTRY = struct.Struct(">qiIbb")  # offset, size, checksum, format, attributes


class LegacyError(ValueError):
    """A message that contradicts itself."""


@dataclass(frozen=True, slots=True)
class Message:
    """One record. `timestamp` is in milliseconds, -1 for none."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None


def checksum(entry: memoryview) -> int:
    """What an entry's checksum must be."""
    return zlib.crc32(entry[_ENTRY.size - 2 :])


def messages(entry: memoryview, arena: Arena) -> list[Message]:
    """The records of one entry: the message itself, or those that it holds compressed. Raises LegacyError, CodecError."""
    wrapper, codec, _ = _parsed(entry)
    if codec == NONE:
        return [wrapper]
    if wrapper.value is None:
        raise LegacyError("a compressed message without a value")
    arena.clear()
    begin, end = decompress(codec, memoryview(wrapper.value), arena)
    found = list(_inner(memoryview(arena.data[begin:end].tobytes())))
    if not found:
        raise LegacyError("a compressed message without a record")
    # Format 1 numbers the inner records from 0, and the wrapper has the offset of the last; format 0 gives real offsets.
    first = wrapper.offset - found[-1].offset if entry[16] == 1 else 0
    offsets = [first + each.offset for each in found]
    if offsets != sorted(set(offsets)) or offsets[0] < 0 or offsets[-1] > wrapper.offset:
        raise LegacyError("the offsets of a compressed message contradict each other")
    append_time = wrapper.timestamp_type == LOG_APPEND_TIME
    return [
        Message(
            offset,
            wrapper.timestamp if append_time else each.timestamp,
            wrapper.timestamp_type,
            each.key,
            each.value,
        )
        for offset, each in zip(offsets, found, strict=True)
    ]


def _inner(data: memoryview) -> Iterator[Message]:
    while data:
        message, codec, size = _parsed(data)
        if codec != NONE:
            raise LegacyError("a compressed message inside of a compressed one")
        yield message
        data = data[size:]


def _parsed(data: memoryview) -> tuple[Message, int, int]:
    """The message that `data` begins with, its codec, and how many bytes the whole entry takes."""
    if len(data) < _ENTRY.size:
        raise LegacyError("a message is cut off")
    offset, size, announced, magic, attributes = _ENTRY.unpack_from(data)
    end = 12 + size
    if magic not in (0, 1) or size < 14 or end > len(data):
        raise LegacyError(f"a message of format {magic} and {size} bytes among {len(data)}")
    if announced != zlib.crc32(data[16:end]):
        raise LegacyError("a checksum does not match")
    body, position = data[:end], _ENTRY.size
    timestamp, kind = -1, NO_TIMESTAMP_TYPE
    if magic == 1:
        if end < position + 8:
            raise LegacyError("a message is cut off")
        (timestamp,) = struct.unpack_from(">q", body, position)
        kind = LOG_APPEND_TIME if attributes & _APPEND_TIME else CREATE_TIME
        position += 8
    key, position = _field(body, position)
    value, position = _field(body, position)
    if position != end:
        raise LegacyError("bytes are left over after a message")
    return Message(offset, timestamp, kind, key, value), attributes & _CODEC_MASK, end


def _field(data: memoryview, position: int) -> tuple[bytes | None, int]:
    if position + 4 > len(data):
        raise LegacyError("a message is cut off")
    (size,) = struct.unpack_from(">i", data, position)
    position += 4
    if size < 0:
        return None, position
    if size > len(data) - position:
        raise LegacyError("a message is cut off")
    return bytes(data[position : position + size]), position + size
