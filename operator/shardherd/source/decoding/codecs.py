"""Undoes the compression of batches, into one buffer that is used again and again, and never beyond a stated size.

Called by `record_batches` and `legacy_formats`. It decides nothing about what the bytes mean. A few hundred bytes can announce
gigabytes: what does not fit BATCH_LIMIT is an error before the memory is touched.
"""

from __future__ import annotations

import cramjam
import numpy as np
import numpy.typing as npt
import zstandard

Bytes = npt.NDArray[np.uint8]

BATCH_LIMIT = 256 * 1024 * 1024
"""Most uncompressed bytes of one batch. A producer's batch is a few megabytes at the most, however well it compresses."""

SMALL_BYTES = 128 * 1024
"""Compressed bytes up to which zstd is undone at one go: what is larger does not notice how it is begun."""

ZSTD_WINDOW = 8 * 1024 * 1024
"""Most bytes that a kept zstd decompressor may hold on to. Only levels above 19 use more, and go another way."""

KEPT_BYTES = 32 * 1024 * 1024
"""A buffer that has grown beyond this is given back once it is empty."""

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
NAMES = ("none", "gzip", "snappy", "lz4", "zstd")

_XERIAL = b"\x82SNAPPY\x00"
_XERIAL_HEADER = 16
_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_VERSION, _LZ4_INDEPENDENT, _LZ4_BLOCK_CHECKSUM, _LZ4_SIZE, _LZ4_DICTIONARY = 0xC0, 0x20, 0x10, 0x08, 0x01
_LZ4_BLOCK_SIZES = {4: 64 << 10, 5: 256 << 10, 6: 1 << 20, 7: 4 << 20}
_LZ4_STORED = 0x80000000


class CodecError(ValueError):
    """Compressed bytes that are damaged, of an unknown codec, or larger than they may be. Says which."""


class Arena:
    """One growing buffer of uncompressed bytes. data[:used] is filled; whatever grows it may move it."""

    def __init__(self, limit: int = BATCH_LIMIT) -> None:
        self.data: Bytes = np.empty(1 << 20, np.uint8)
        self.used = 0
        self.limit = limit
        self.zstd = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW)

    def clear(self) -> None:
        """Forget what is in it."""
        self.used = 0
        if len(self.data) > KEPT_BYTES:
            self.data = np.empty(1 << 20, np.uint8)

    def room(self, size: int) -> memoryview:
        """The next `size` unused bytes, to write into."""
        if len(self.data) - self.used < size:
            larger = np.empty(max(2 * len(self.data), self.used + size), np.uint8)
            larger[: self.used] = self.data[: self.used]
            self.data = larger
        return self.data.data[self.used : self.used + size]


def decompress(codec: int, data: memoryview, arena: Arena) -> tuple[int, int]:
    """Append the uncompressed bytes to the arena; where they begin and end in it. Raises CodecError."""
    begin = arena.used
    try:
        if codec == LZ4:
            _lz4(data, arena, begin)
        elif codec == SNAPPY:
            _snappy(data, arena, begin)
        elif codec == ZSTD:
            _zstd(data, arena)
        elif codec == GZIP:
            _stream(codec, data, arena)
        else:
            raise CodecError(f"unknown compression codec {codec}")
    except cramjam.DecompressionError as error:
        arena.used = begin
        raise CodecError(f"{NAMES[codec]} cannot be decompressed within {arena.limit} bytes: {error}") from error
    except CodecError:
        arena.used = begin
        raise
    return begin, arena.used


def _zstd(data: memoryview, arena: Arena) -> None:
    """One frame, by a decompressor that is kept: making one costs as much as the 16 KB of a usual batch do.

    What it does not take (larger, several frames, more than is likely, damaged) goes the other way, which says what is wrong.
    """
    plain = _small_frame(data, arena) if len(data) <= SMALL_BYTES else None
    if plain is None or len(plain) > arena.limit:
        _stream(ZSTD, data, arena)
        return
    arena.room(len(plain))[:] = plain
    arena.used += len(plain)


def _small_frame(data: memoryview, arena: Arena) -> bytes | None:
    likely = max(8 * len(data), 64 << 10)
    try:
        if zstandard.frame_content_size(data) > likely:  # the library would make room for whatever is claimed
            return None
        # Of an empty frame the library does not look at what follows.
        return arena.zstd.decompress(data, max_output_size=likely, allow_extra_data=False) or None
    except zstandard.ZstdError:
        return None


def _stream(codec: int, data: memoryview, arena: Arena) -> None:
    """A format that does not say how much there is: larger and larger room is tried, up to the limit."""
    into = {GZIP: cramjam.gzip.decompress_into, LZ4: cramjam.lz4.decompress_into, ZSTD: cramjam.zstd.decompress_into}[codec]
    size = min(max(8 * len(data), 64 << 10, len(arena.data) - arena.used), arena.limit)
    while True:
        try:
            arena.used += into(data, arena.room(size))
        except cramjam.DecompressionError:
            if size >= arena.limit:
                raise
            size = min(8 * size, arena.limit)
        else:
            return


def _snappy(data: memoryview, arena: Arena, begin: int) -> None:
    """Snappy as Kafka's clients write it: raw, or in the blocks of the Java library's stream."""
    if data[: len(_XERIAL)] != _XERIAL:
        _snappy_block(data, arena, begin)
        return
    position = _XERIAL_HEADER
    while position < len(data):
        size = int.from_bytes(data[position : position + 4], "big")
        position += 4
        if not 0 < size <= len(data) - position:
            raise CodecError("snappy: a block is cut off")
        _snappy_block(data[position : position + size], arena, begin)
        position += size


def _snappy_block(data: memoryview, arena: Arena, begin: int) -> None:
    size = cramjam.snappy.decompress_raw_len(data)
    _check_limit("snappy", arena.used - begin + size, arena)
    if size:
        arena.used += cramjam.snappy.decompress_raw_into(data, arena.room(size))


def _lz4(data: memoryview, arena: Arena, begin: int) -> None:
    """An LZ4 frame of independent blocks, which is what Kafka's clients write; any other goes through the library.

    The frame's own checksums are not looked at: the batch has one, and those of formats 0 and 1 are known to be wrong.
    """
    if len(data) < 7 or data[:4] != _LZ4_MAGIC or data[4] & _LZ4_VERSION != 0x40:
        raise CodecError("lz4: not a frame of version 1")
    flags, block_size = data[4], _LZ4_BLOCK_SIZES.get(data[5] >> 4 & 7)
    if not flags & _LZ4_INDEPENDENT or flags & _LZ4_DICTIONARY or block_size is None:
        _stream(LZ4, data, arena)
        return
    position = 7 + (8 if flags & _LZ4_SIZE else 0)
    while True:
        if position + 4 > len(data):
            raise CodecError("lz4: the frame is cut off")
        announced = int.from_bytes(data[position : position + 4], "little")
        position += 4
        if not announced:
            return
        size = announced & ~_LZ4_STORED
        if size > len(data) - position or size > block_size:
            raise CodecError("lz4: a block is cut off or too large")
        _check_limit("lz4", arena.used - begin, arena)
        room, block = arena.room(block_size), data[position : position + size]
        if announced & _LZ4_STORED:
            room[:size] = block
            arena.used += size
        else:
            arena.used += cramjam.lz4.decompress_block_into(block, room)
        position += size + (4 if flags & _LZ4_BLOCK_CHECKSUM else 0)


def _check_limit(name: str, size: int, arena: Arena) -> None:
    if size > arena.limit:
        raise CodecError(f"{name}: more than {arena.limit} bytes when decompressed")
