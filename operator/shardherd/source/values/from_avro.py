"""Reads one Avro value by a program of steps, exactly as Java's decoder and Spark's `from_avro` do it. Slow, and complete.

`avro_column` calls it for the values that the compiled reader does not read: nearly always malformed ones.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from shardherd.source.values import avro_schema as steps
from shardherd.source.values.avro_schema import Program

_MAX_ELEMENTS = 10_000_000
"""Elements of an array or a map that take no byte each, after which a value is malformed. Java has room for 2^31."""

_TOO_MANY = f"more than {_MAX_ELEMENTS} elements that take no byte"

_OF_STEPS = (steps.RECORD, steps.ARRAY, steps.MAP)
"""Codes of what others are inside of."""


class MalformedAvroError(ValueError):
    """The bytes are not a value of the schema that wrote them, or it cannot be read into the other one."""


class _MisfitError(ValueError):
    """What Avro has read does not fit Spark's type."""


@dataclass(frozen=True, slots=True)
class _Misfit:
    """In its place. Spark converts what Avro has read whole, so what a later entry of a map replaces is no fault."""

    reason: str


@dataclass(slots=True)
class FromAvro:
    """Reads values by a program into the layout's nodes, whose nodes below are `children`."""

    program: Program
    children: Sequence[Sequence[int]]
    symbols: dict[int, tuple[str, ...]]

    def value(self, raw: bytes, root: int) -> Any:
        """The value that starts with step `root`; see `decoded_values.Row` for how values look. Raises MalformedAvroError."""
        reader = _Reader(raw, self)
        found: dict[int, Any] = {}
        reader.read(root, found)
        value = found.get(0)
        if reader.misfits:
            for each in _leaves(value):
                if isinstance(each, _Misfit):
                    raise MalformedAvroError(each.reason)
        return value


class _Reader:
    def __init__(self, raw: bytes, plan: FromAvro) -> None:
        self._raw, self._at, self._plan = raw, 0, plan
        self.misfits = 0

    def read(self, step: int, into: dict[int, Any]) -> None:
        """Read by one step; `into` gets the value of its node."""
        program, plan = self._plan.program, self._plan
        code, node, first, second = program.steps[step]
        if node < 0 and code in _OF_STEPS:
            self._skip(step)
            return
        value: Any = None
        match code:
            case steps.NULL:
                return
            case steps.BOOLEAN:
                value = self._take(1) == b"\x01"
            case steps.INT | steps.LONG:
                value = self._fitting(_scaled, self._integer(code == steps.INT), first, second)
            case steps.FLOAT | steps.DOUBLE:
                value = struct.unpack("<f" if code == steps.FLOAT else "<d", self._take(4 if code == steps.FLOAT else 8))[0]
            case steps.BYTES:
                value = self._bytes()
            case steps.FIXED:
                value = self._take(first)
            case steps.DECIMAL_BYTES:
                value = self._fitting(_decimal, self._bytes(), first)
            case steps.DECIMAL_FIXED:
                value = self._fitting(_decimal, self._take(first), second)
            case steps.ENUM:
                ordinal = self._listed(first, second)
                if ordinal < 0:
                    raise MalformedAvroError("a symbol that the reader's enum does not have")
                value = plan.symbols[node][ordinal].encode() if node >= 0 else None
            case steps.UNION:
                self.read(self._listed(first, second), into)
                return
            case steps.MEMBER:
                self.read(first, into)
                value = [into.get(child) for child in plan.children[node]]
            case steps.RECORD:
                inner: dict[int, Any] = {}
                for each in program.lists[first : first + second]:
                    self.read(each, inner)
                value = [inner.get(child) for child in plan.children[node]]
            case steps.ARRAY | steps.MAP:
                value = self._elements(code, node, first)
            case steps.DEFAULT:
                value = program.defaults[step]
            case _:
                raise MalformedAvroError("the schema that wrote it cannot be read into valueSchema here")
        if node >= 0:
            into[node] = value

    def _elements(self, code: int, node: int, step: int) -> list[Any]:
        found: list[Any] = []
        keys: dict[bytes, Any] = {}
        empty = 0
        while count := self._integer():
            if count < 0:
                count = -count
                self._integer()
            for left in range(count, 0, -1):
                begin = self._at
                inner: dict[int, Any] = {}
                key = self._bytes() if code == steps.MAP else b""
                self.read(step, inner)
                value = inner.get(self._plan.children[node][-1])
                if self._at == begin:
                    # The schema says that an element takes no byte, so all that are left are the same.
                    empty += left
                    if empty > _MAX_ELEMENTS:
                        raise MalformedAvroError(_TOO_MANY)
                    found += [value] * left
                    break
                if code == steps.MAP:
                    keys[key] = value
                else:
                    found.append(value)
        return list(keys.items()) if code == steps.MAP else found

    def _skip(self, step: int) -> None:
        """Read past a value, however deep it is: a record that nobody wants may contain itself."""
        inside = [self._skipping(step)]
        at, depth = self._at, 1
        while inside:
            following = next(inside[-1], None)
            if following is None:
                inside.pop()
            else:
                inside.append(self._skipping(following))
            depth = len(inside) if self._at != at else min(depth, len(inside))
            at = self._at
            if len(inside) - depth > len(self._plan.program.steps):
                raise MalformedAvroError("a record that contains itself, without an end")

    def _skipping(self, step: int) -> Iterator[int]:
        """Read past a value. The steps of what is inside of it are given, to be read past before it goes on."""
        program = self._plan.program
        code, _, first, second = program.steps[step]
        if code == steps.RECORD:
            yield from program.lists[first : first + second]
        elif code == steps.UNION:
            yield self._listed(first, second)
        elif code in (steps.ARRAY, steps.MAP):
            empty = 0
            while count := self._integer():
                if count < 0:
                    count = -count
                    self._integer()
                for left in range(count, 0, -1):
                    begin = self._at
                    if code == steps.MAP:
                        self._bytes()
                    yield first
                    if self._at == begin:
                        empty += left
                        if empty > _MAX_ELEMENTS:
                            raise MalformedAvroError(_TOO_MANY)
                        break
        else:
            self.read(step, {})

    def _take(self, size: int) -> bytes:
        if size < 0:
            raise MalformedAvroError(f"a length of {size}")
        taken = self._raw[self._at : self._at + size]
        if len(taken) < size:
            raise MalformedAvroError("it ends too early")
        self._at += size
        return taken

    def _bytes(self) -> bytes:
        return self._take(self._integer())

    def _listed(self, first: int, count: int) -> int:
        ordinal = self._integer(short=True)
        if not 0 <= ordinal < count:
            raise MalformedAvroError(f"choice {ordinal} of {count}")
        return self._plan.program.lists[first + ordinal]

    def _integer(self, short: bool = False) -> int:
        """A zigzag integer; bits above its 32 or 64 are lost, as in Java."""
        value = 0
        for place in range(5 if short else 10):
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << (7 * place)
            if byte < 0x80:
                value &= 0xFFFFFFFF if short else 0xFFFFFFFFFFFFFFFF
                return (value >> 1) ^ -(value & 1)
        raise MalformedAvroError("an integer that does not end")

    def _fitting(self, convert: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return convert(*arguments)
        except _MisfitError as error:
            self.misfits += 1
            return _Misfit(str(error))


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for each in value:
            yield from _leaves(each)
    else:
        yield value


def _scaled(value: int, factor: int, form: int) -> int | float:
    if form == steps.AS_DOUBLE:
        return float(value)
    if form == steps.AS_FLOAT:
        import numpy as np

        return float(np.float32(np.int64(value)))
    if not -(2**63) <= value * factor < 2**63:
        raise _MisfitError(f"{value} ms are too many microseconds")
    return value * factor


def _decimal(raw: bytes, precision: int) -> int:
    if not raw:
        raise _MisfitError("a decimal of no byte")
    value = int.from_bytes(raw, "big", signed=True)
    if precision <= 18:
        # Java takes the lowest 64 bits here.
        value = (value + 2**63) % 2**64 - 2**63
    if abs(value) >= 10**precision:
        raise _MisfitError(f"{value} has more than {precision} digits")
    return value
