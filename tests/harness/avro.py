"""Random Avro schemas and the bytes of random values of them: what a fuzz of `values` feeds to Spark and to ours."""

from __future__ import annotations

import random
import struct
from typing import Any

PRIMITIVES: tuple[Any, ...] = (
    "boolean",
    "int",
    "long",
    "float",
    "double",
    "bytes",
    "string",
    "string",
    {"type": "int", "logicalType": "date"},
    {"type": "long", "logicalType": "timestamp-millis"},
    {"type": "long", "logicalType": "timestamp-micros"},
    {"type": "long", "logicalType": "local-timestamp-micros"},
    {"type": "string", "logicalType": "uuid"},
    {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
    {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 10},
)


class Schemas:
    """Makes schemas; named types get names of their own."""

    def __init__(self, rng: random.Random) -> None:
        self._rng, self._names = rng, 0

    def _name(self) -> str:
        self._names += 1
        return f"n{self._names}"

    def record(self, depth: int = 0) -> dict[str, Any]:
        fields = [{"name": f"f{at}", "type": self.any(depth + 1)} for at in range(self._rng.randint(1, 6))]
        return {"type": "record", "name": self._name(), "fields": fields}

    def any(self, depth: int) -> Any:
        choice = self._rng.random()
        if depth > 3 or choice < 0.5:
            return self._leaf()
        if choice < 0.7:
            inner = self.plain(depth)
            return ["null", inner] if self._rng.random() < 0.7 else [inner, "null"]
        if choice < 0.74:
            return self._rng.choice(
                (["int", "long"], ["null", "double", "float"], ["int", "string"], ["null", "boolean", "long", "bytes"])
            )
        if choice < 0.77:
            return ["null", self.record(depth), "string", self.record(depth)]
        return self.plain(depth)

    def plain(self, depth: int) -> Any:
        choice = self._rng.random()
        if depth > 3 or choice < 0.4:
            return self._leaf()
        if choice < 0.6:
            return self.record(depth)
        if choice < 0.8:
            return {"type": "array", "items": self.any(depth + 1)}
        return {"type": "map", "values": self.any(depth + 1)}

    def _leaf(self) -> Any:
        choice = self._rng.random()
        if choice < 0.1:
            return {"type": "enum", "name": self._name(), "symbols": ["RED", "GREEN", "BLUE"]}
        if choice < 0.15:
            return {"type": "fixed", "name": self._name(), "size": 3}
        if choice < 0.2:
            return {"type": "fixed", "name": self._name(), "size": 6, "logicalType": "decimal", "precision": 12, "scale": 3}
        return self._rng.choice(PRIMITIVES)


def integer(number: int) -> bytes:
    """A zigzag integer."""
    number = (number << 1) ^ (number >> 63)
    out = bytearray()
    while True:
        byte = number & 0x7F
        number >>= 7
        if not number:
            return bytes([*out, byte])
        out.append(byte | 0x80)


def sized(raw: bytes) -> bytes:
    """Bytes or a string."""
    return integer(len(raw)) + raw


def encoded(rng: random.Random, schema: Any) -> bytes:
    """The bytes of a random value."""
    if isinstance(schema, list):
        chosen = rng.randrange(len(schema))
        return integer(chosen) + encoded(rng, schema[chosen])
    kind, logical = (schema, None) if isinstance(schema, str) else (schema["type"], schema.get("logicalType"))
    match kind:
        case "null":
            return b""
        case "boolean":
            return bytes([rng.randint(0, 1)])
        case "int":
            return integer(rng.choice((0, 1, -1, 2**31 - 1, -(2**31), rng.randint(-100000, 100000))))
        case "long":
            small = logical in ("timestamp-millis", "local-timestamp-millis")
            extremes = (2**62, -(2**62), 9223372036854776) if rng.random() < 0.1 else (2**40, -(2**40))
            return integer(rng.choice((0, -5, rng.randint(-(10**12), 10**12), *(extremes if not small else extremes[:2]))))
        case "float":
            return struct.pack("<f", rng.choice((0.0, -1.5, float("inf"), rng.uniform(-10, 10))))
        case "double":
            return struct.pack("<d", rng.choice((0.0, float("nan"), 1e300, rng.uniform(-10, 10))))
        case "bytes":
            if logical == "decimal":
                limit = 10 ** (schema["precision"] + (rng.random() < 0.03))
                number = rng.randint(-limit + 1, limit - 1)
                return sized(number.to_bytes(max(1, (number.bit_length() + 8) // 8) + rng.randint(0, 1), "big", signed=True))
            return sized(rng.randbytes(rng.randint(0, 5)))
        case "string":
            return sized(rng.choice(("", "a", "hello world", "naïve", "😀", "x" * 40)).encode())
        case "fixed":
            if logical == "decimal":
                return rng.randint(-(10**12) + 1, 10**12 - 1).to_bytes(schema["size"], "big", signed=True)
            return rng.randbytes(schema["size"])
        case "enum":
            return integer(rng.randrange(len(schema["symbols"])))
        case "record":
            return b"".join(encoded(rng, each["type"]) for each in schema["fields"])
        case "array":
            return _blocks(rng, [encoded(rng, schema["items"]) for _ in range(rng.randint(0, 4))])
        case "map":
            keys = [f"k{at}" if rng.random() < 0.97 else "k0" for at in range(rng.randint(0, 4))]
            return _blocks(rng, [sized(key.encode()) + encoded(rng, schema["values"]) for key in keys])
    raise AssertionError(schema)


def _blocks(rng: random.Random, items: list[bytes]) -> bytes:
    out = b""
    while items:
        count = rng.randint(1, len(items))
        block, items = b"".join(items[:count]), items[count:]
        out += integer(count) + block if rng.random() < 0.7 else integer(-count) + integer(len(block)) + block
    return out + integer(0)


def values(rng: random.Random, schema: Any, count: int) -> list[bytes | None]:
    """Values, some of them cut, changed or followed by bytes that are none of theirs."""
    found: list[bytes | None] = []
    for _ in range(count):
        raw = encoded(rng, schema)
        luck = rng.random()
        if luck < 0.02:
            found.append(None)
            continue
        if luck < 0.12 and raw:
            raw = raw[: rng.randrange(len(raw))]
        elif luck < 0.22 and raw:
            at = rng.randrange(len(raw))
            raw = raw[:at] + bytes([rng.randrange(256)]) + raw[at + 1 :]
        elif luck < 0.27:
            raw += rng.randbytes(3)
        found.append(raw)
    return found
