from __future__ import annotations

import random
import struct
from typing import Any

import cramjam
import lz4.frame
import pytest
import zstandard
from kafka import codec as kafka_codecs

from shardherd.source.decoding import codecs
from shardherd.source.decoding.codecs import Arena, CodecError, decompress

PLAIN = b"".join(b'{"user": %d, "page": "/%d"}' % (i % 97, i * 7919 % 1000) for i in range(20_000))
MOST = {
    "gzip": (codecs.GZIP, lambda data: cramjam.gzip.compress(data)),
    "snappy": (codecs.SNAPPY, lambda data: cramjam.snappy.compress_raw(data)),
    "snappy in blocks": (codecs.SNAPPY, kafka_codecs.snappy_encode),
    "lz4": (codecs.LZ4, kafka_codecs.lz4_encode),
    "lz4 with linked blocks": (codecs.LZ4, lambda data: lz4.frame.compress(data, block_linked=True)),
    "lz4 with its size and checksums": (
        codecs.LZ4,
        lambda data: lz4.frame.compress(
            data, block_linked=False, block_checksum=True, content_checksum=True, store_size=True, block_size=5
        ),
    ),
    "zstd": (codecs.ZSTD, kafka_codecs.zstd_encode),
}


def plain(codec: int, data: Any, arena: Arena | None = None) -> bytes:
    arena = arena or Arena()
    begin, end = decompress(codec, memoryview(bytes(data)), arena)
    return arena.data[begin:end].tobytes()


@pytest.mark.parametrize("name", MOST)
@pytest.mark.parametrize("size", [0, 1, 5000, len(PLAIN)])
def test_what_was_compressed_comes_back(name: str, size: int) -> None:
    codec, compress = MOST[name]

    assert plain(codec, compress(PLAIN[:size])) == PLAIN[:size]


def test_bytes_that_do_not_compress_come_back() -> None:
    noise = random.Random(1).randbytes(300_000)

    assert {name: plain(codec, compress(noise)) == noise for name, (codec, compress) in MOST.items()} == dict.fromkeys(
        MOST, True
    )


def test_batches_follow_each_other_in_the_arena() -> None:
    arena = Arena()
    places = []
    for codec, compress in MOST.values():
        places.append(decompress(codec, memoryview(bytes(compress(PLAIN))), arena))

    assert [begin for begin, _ in places] == [at * len(PLAIN) for at in range(len(MOST))]
    assert [arena.data[begin:end].tobytes() == PLAIN for begin, end in places] == [True] * len(MOST)


@pytest.mark.parametrize("name", MOST)
def test_a_batch_beyond_the_limit_is_refused_and_leaves_no_trace(name: str) -> None:
    codec, compress = MOST[name]
    arena = Arena(limit=200_000)
    decompress(codec, memoryview(bytes(compress(PLAIN[:1000]))), arena)

    with pytest.raises(CodecError, match="200000 bytes"):
        plain(codec, compress(PLAIN), arena)
    assert arena.used == 1000
    assert plain(codec, compress(PLAIN[:150_000]), arena) == PLAIN[:150_000]


@pytest.mark.parametrize("name", ["gzip", "zstd", "lz4"])
def test_a_bomb_takes_no_more_memory_than_the_limit(name: str) -> None:
    codec, compress = MOST[name]
    bomb = compress(bytes(64 << 20))
    arena = Arena(limit=1 << 20)

    with pytest.raises(CodecError, match="1048576 bytes"):
        plain(codec, bomb, arena)
    assert len(bomb) < 1 << 20
    assert len(arena.data) <= 16 << 20


def test_a_snappy_block_that_only_claims_to_be_large_is_refused_before_room_is_made() -> None:
    claim = b"\xff\xff\xff\xff\x0f" + bytes(cramjam.snappy.compress_raw(PLAIN))[3:]
    arena = Arena()

    with pytest.raises(CodecError, match="snappy: more than 268435456 bytes"):
        plain(codecs.SNAPPY, claim, arena)
    assert len(arena.data) == 1 << 20


def test_no_room_is_made_for_what_a_zstd_frame_only_claims_to_hold() -> None:
    claim = b"\x28\xb5\x2f\xfd\xc0\x38" + (1 << 60).to_bytes(8, "little") + b"\x01\x00\x00"
    arena = Arena(limit=1 << 20)

    assert plain(codecs.ZSTD, claim, arena) == b""
    assert len(arena.data) == 1 << 20


@pytest.mark.parametrize(
    "frames",
    [
        pytest.param([(3, PLAIN)], id="one"),
        pytest.param([(3, PLAIN), (3, PLAIN[:100])], id="several"),
        pytest.param([(3, bytes(2_000_000))], id="that expand a thousandfold"),
        pytest.param([(3, random.Random(1).randbytes(300_000))], id="that are large"),
        pytest.param([(22, random.Random(2).randbytes(20_000) * 600)], id="with a large window"),
        pytest.param([(3, b"")], id="that are empty"),
        pytest.param([(3, b""), (3, PLAIN[:100])], id="the first of which is empty"),
    ],
)
@pytest.mark.parametrize("sized", [True, False])
def test_zstd_frames_of_every_kind_are_read(frames: list[tuple[int, bytes]], sized: bool) -> None:
    data = b""
    for level, content in frames:
        data += zstandard.ZstdCompressor(level=level, write_content_size=sized).compress(content)

    assert plain(codecs.ZSTD, data) == b"".join(content for _, content in frames)


def test_an_arena_gives_a_large_buffer_back() -> None:
    arena = Arena()
    arena.room(codecs.KEPT_BYTES + 1)
    arena.clear()

    assert (arena.used, len(arena.data)) == (0, 1 << 20)


@pytest.mark.parametrize(
    ("codec", "data", "reason"),
    [
        (5, b"", "unknown compression codec 5"),
        (codecs.LZ4, b"", "lz4: not a frame of version 1"),
        (codecs.LZ4, kafka_codecs.lz4_encode(PLAIN)[:-4], "lz4: the frame is cut off"),
        (codecs.LZ4, kafka_codecs.lz4_encode(PLAIN)[:5000], "lz4: a block is cut off or too large"),
        (codecs.LZ4, b"\x04\x22\x4d\x18\x60\x40\x00" + struct.pack("<I", 70_000) + bytes(80_000), "cut off or too large"),
        (codecs.LZ4, b"\x04\x22\x4d\x18\x60\x40\x00" + struct.pack("<I", 9) + b"\xff" * 9, "lz4 cannot be decompressed"),
        (codecs.SNAPPY, b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00\x09abc", "snappy: a block is cut off"),
        (codecs.SNAPPY, b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00\x00", "snappy: a block is cut off"),
        (codecs.SNAPPY, b"\x05abc", "snappy cannot be decompressed"),
        (codecs.GZIP, b"not gzip", "gzip cannot be decompressed"),
        (codecs.ZSTD, kafka_codecs.zstd_encode(PLAIN)[:-9], "zstd cannot be decompressed"),
        (codecs.ZSTD, kafka_codecs.zstd_encode(b"") + b"more", "zstd cannot be decompressed"),
    ],
)
def test_damaged_bytes_are_named(codec: int, data: bytes, reason: str) -> None:
    with pytest.raises(CodecError, match=reason):
        plain(codec, data)
