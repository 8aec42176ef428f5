"""Damages real batches in every way that a seed chooses, and says what the decoder made of them.

`python -m tests.property.record_damage FIRST LAST` runs those seeds; with NUMBA_BOUNDSCHECK=1 a read or write outside of an
array ends it. What it must find: whole valid Arrow columns with rising offsets, or a CorruptRecordsError.
"""

from __future__ import annotations

import random
import struct
from collections import Counter

from kafka.record.util import encode_varint

from shardherd.core.model.nouns import ShardId
from shardherd.source.decoding import record_batches
from shardherd.source.decoding.record_columns import SCHEMA
from shardherd.source.decoding.transactions import Aborted
from tests.property.seeds import run
from tests.unit.source.kafka_bytes import CODECS, Record, batch_of, control_batch, legacy_batch, sealed, transactional

SHARD = ShardId("clicks/3")
ALL = tuple(SCHEMA.names)


def outcome(data: bytes, *, checksums: bool, aborted: tuple[Aborted, ...] = ()) -> str:
    """Decode all of it: "rows", or the reason why it was refused."""
    try:
        scanned = record_batches.scan(SHARD, data, 0, aborted=aborted, checksums=checksums)
        batches = list(record_batches.decode(SHARD, scanned, 0, 1 << 62, ALL))
    except record_batches.CorruptRecordsError as error:
        place, _, reason = str(error).rpartition(": ")
        return reason if place.startswith("shard clicks/3, batch at offset ") else f"no place is named: {error}"
    last = -1
    for batch in batches:
        batch.validate(full=True)
        offsets = batch.column("offset").to_numpy()
        assert last < offsets[0], (last, offsets)
        assert (offsets[1:] > offsets[:-1]).all(), offsets
        last = int(offsets[-1])
    return "rows"


def whole(chance: random.Random) -> bytes:
    """A few real batches of any format and codec."""
    data, at = b"", chance.randrange(100)
    for _ in range(chance.randrange(1, 4)):
        made = []
        for _ in range(chance.randrange(1, 30)):
            headers = tuple((f"h{i}", chance.choice([None, b"", b"x" * 9])) for i in range(chance.choice([0, 0, 1, 3])))
            keys, values = [None, b"", chance.randbytes(3)], [None, b"", chance.randbytes(chance.randrange(200))]
            made.append(Record(at, chance.randrange(1 << 40), chance.choice(keys), chance.choice(values), headers))
            at += chance.choice([1, 1, 1, 5])
        kind = chance.randrange(8)
        if kind == 0:
            data += control_batch(at, producer=3, abort=True)
            at += 1
        elif kind == 1:
            plain = [Record(each.offset, each.timestamp, each.key, each.value) for each in made]
            data += legacy_batch(plain, magic=chance.randrange(2), codec=chance.choice(["none", "gzip", "snappy", "lz4"]))
        else:
            batch = batch_of(made, codec=chance.choice(sorted(CODECS)))
            data += transactional(batch, 3) if kind == 2 else batch
    return data


def damaged(chance: random.Random, data: bytes) -> bytes:
    """The same bytes, changed in one of many ways."""
    out = bytearray(data)
    for _ in range(chance.choice([1, 1, 2, 8])):
        at = chance.randrange(len(out))
        kind = chance.randrange(7)
        if kind == 0:
            out[at] = chance.randrange(256)
        elif kind == 1:
            out[at] ^= 1 << chance.randrange(8)
        elif kind == 2:
            out[at : at + 4] = struct.pack(">i", chance.choice([-(1 << 31), -1, 0, 1, 0x7F, 0x7FFFFFFF]))
        elif kind == 3:
            out[at : at + 10] = b"\xff" * chance.randrange(1, 11)
        elif kind == 4:
            del out[at : at + chance.randrange(1, 20)]
        elif kind == 5:
            out[at:at] = chance.randbytes(chance.randrange(1, 20))
        else:
            other = chance.randrange(len(out))
            out[at : at + 16] = out[other : other + 16]
        if not out:
            return b""
    return bytes(out)


def lying(chance: random.Random) -> bytes:
    """Records one by one, whose every number may be a lie; they end where the bytes end."""
    body = bytearray()

    def number(true: int, into: bytearray) -> None:
        lies = [
            -1,
            -2,
            true - 1,
            true + 1,
            2 * true + 1,
            0,
            63,
            64,
            300,
            8191,
            1 << 20,
            (1 << 31) - 1,
            1 << 31,
            1 << 62,
            -(1 << 62),
        ]
        encode_varint(chance.choice(lies) if chance.random() < 0.02 else true, into.append)

    for at in range(20):
        record = bytearray(b"\x00")
        number(at, record)
        number(at, record)
        for field in (chance.randbytes(3), chance.randbytes(20)):
            number(len(field), record)
            record += field
        headers = chance.randrange(3)
        number(headers, record)
        for _ in range(headers):
            number(1, record)
            record += b"h"
            number(4, record)
            record += b"abcd"
        if chance.random() < 0.01:
            del record[chance.randrange(len(record)) :]
        number(len(record), body)
        body += record
    return bytes(body)


def damage(seed: int) -> tuple[bytes, bool, tuple[Aborted, ...]]:
    """What this seed is about: bytes, whether checksums are looked at, and which transactions were aborted."""
    chance = random.Random(seed)
    way = chance.randrange(6)
    if way == 0:
        data = chance.randbytes(chance.randrange(400))
    elif way == 1:
        # A header that is in order, with a right length and checksum, before records that are not.
        plain = batch_of([Record(at, value=chance.randbytes(30), headers=(("h", b"v"),)) for at in range(20)])
        body = damaged(chance, plain[61:]) if chance.randrange(8) else plain[61:] + chance.randbytes(5)
        data = sealed(plain[:61] + body, base=0, last_delta=19, attributes=chance.choice([0, 0, 0, 1, 2, 3, 4, 7, 0x30]))
    elif way < 4:
        head = batch_of([Record(at) for at in range(20)])[:61]
        data = sealed(head + lying(chance), base=0, last_delta=19, attributes=0)
    else:
        data = damaged(chance, whole(chance))
    return data, chance.random() < 0.2, (Aborted(3, 0),) if chance.random() < 0.3 else ()


def one(seed: int) -> str:
    """Damage of this seed, and what came of it."""
    data, checksums, aborted = damage(seed)
    return outcome(data, checksums=checksums, aborted=aborted)


if __name__ == "__main__":
    run(lambda seed: Counter([one(seed)]))
