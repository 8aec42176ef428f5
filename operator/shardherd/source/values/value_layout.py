"""Lays a schema out as tables of numbers, for compiled code that fills its columns: nodes, their names, and where values go.

`json_column` and `avro_column` call it. Every part of a schema is a node. Nodes that have one value for each slot of the same
thing share a domain: the rows are domain 0, the elements of each array and the entries of each map are one more. A struct's
fields are in its own domain, at its own slot. A node's values are a plane of 64-bit words, its validity one byte a slot; a
domain that grows makes its planes anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from pyspark.sql import types as sql

# Kinds of nodes.
STRING, BOOLEAN, INTEGER, DOUBLE, FLOAT, DECIMAL, DATE, TIMESTAMP, STRUCT, ARRAY, MAP, BINARY, SYMBOL = range(13)

# Columns of a node's row.
KIND, DOMAIN, FIRST, SECOND, CHILD, CHILDREN, NAME_AT, NAME_SIZE, HASH_AT, HASH_MASK = range(10)
"""FIRST is an integer's lowest value or a decimal's scale, SECOND its highest value or a decimal's precision; the CHILDREN of a
struct are the nodes from CHILD on; an array's or map's elements have the domain of their node CHILD; a map's key is CHILD and
its value CHILD + 1."""
NODE_FIELDS = 10

ESCAPED = 1 << 31
"""In a string's word: there are escapes in its bytes. The word is start << 32 | ESCAPED | length."""

HASH_FACTOR = 31
HASH_BITS = 0x7FFFFFFF

# What became of a value: read, only white space, to be read the slow way, or not there.
FAST, EMPTY, SLOW, ABSENT = 0, 1, 2, 3

MAX_DEPTH = 60
"""Levels that the compiled readers go down; deeper values take the slow path."""

BITS: dict[type[sql.DataType], int] = {sql.ByteType: 8, sql.ShortType: 16, sql.IntegerType: 32, sql.LongType: 64}
"""How many an integer has."""

_SIMPLE = {
    sql.StringType: STRING, sql.BooleanType: BOOLEAN, sql.DoubleType: DOUBLE, sql.FloatType: FLOAT, sql.DateType: DATE,
    sql.TimestampType: TIMESTAMP, sql.TimestampNTZType: TIMESTAMP, sql.BinaryType: BINARY,
}  # fmt: skip


@dataclass(slots=True)
class Node:
    """One part of the schema."""

    kind: sql.DataType
    row: list[int]
    children: list[int] = field(default_factory=list)


class Layout:
    """The tables of a schema: `nodes` (count, NODE_FIELDS), `names` their bytes, `hashes` what they are found by."""

    def __init__(self, schema: sql.DataType) -> None:
        self._parts: list[Node] = []
        self._domains = 1
        names, hashes = bytearray(), list[int]()
        self._add([("", schema)], 0)
        at = 0
        while at < len(self._parts):
            self._expand(at, names, hashes)
            at += 1
        self.parts: Sequence[Node] = tuple(self._parts)
        self.domains = self._domains
        self.nodes = np.array([part.row for part in self._parts], np.int64)
        self.names = np.frombuffer(bytes(names) or b"\0", np.uint8)
        self.hashes = np.array(hashes or [-1], np.int64)

    def _add(self, fields: list[tuple[str, sql.DataType]], domain: int) -> list[int]:
        first = len(self._parts)
        for _, kind in fields:
            row = [0] * NODE_FIELDS
            row[KIND], row[DOMAIN] = _kind_of(kind), domain
            if type(kind) in BITS:
                bits = BITS[type(kind)]
                row[FIRST], row[SECOND] = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
            elif isinstance(kind, sql.DecimalType):
                row[FIRST], row[SECOND] = kind.scale, kind.precision
            self._parts.append(Node(kind, row))
        return list(range(first, first + len(fields)))

    def _expand(self, at: int, names: bytearray, hashes: list[int]) -> None:
        part = self._parts[at]
        kind, domain = part.kind, part.row[DOMAIN]
        if isinstance(kind, sql.StructType):
            part.children = self._add([(each.name, each.dataType) for each in kind.fields], domain)
            self._name(part, [each.name.encode() for each in kind.fields], names, hashes)
        elif isinstance(kind, sql.ArrayType):
            part.children = self._add([("element", kind.elementType)], self._domains)
            self._domains += 1
        elif isinstance(kind, sql.MapType):
            part.children = self._add([("key", kind.keyType), ("value", kind.valueType)], self._domains)
            self._domains += 1
        if part.children:
            part.row[CHILD], part.row[CHILDREN] = part.children[0], len(part.children)

    def _name(self, part: Node, fields: list[bytes], names: bytearray, hashes: list[int]) -> None:
        size = 1 << (2 * len(fields)).bit_length()
        table = [-1] * size
        for node, name in zip(part.children, fields, strict=True):
            row = self._parts[node].row
            row[NAME_AT], row[NAME_SIZE] = len(names), len(name)
            names += name
            at = hash_of(name) & (size - 1)
            while table[at] >= 0:
                at = (at + 1) & (size - 1)
            table[at] = node
        part.row[HASH_AT], part.row[HASH_MASK] = len(hashes), size - 1
        hashes += table


def hash_of(name: bytes) -> int:
    """The hash that the compiled readers compute while they scan a name."""
    value = 0
    for byte in name:
        value = (value * HASH_FACTOR + byte) & HASH_BITS
    return value


def _kind_of(kind: sql.DataType) -> int:
    if type(kind) in BITS:
        return INTEGER
    if isinstance(kind, sql.DecimalType):
        return DECIMAL
    if isinstance(kind, sql.StructType):
        return STRUCT
    if isinstance(kind, sql.ArrayType):
        return ARRAY
    if isinstance(kind, sql.MapType):
        return MAP
    return _SIMPLE[type(kind)]


class Planes:
    """Room for the values of a layout: `rows` slots in domain 0, and for the others as many as `reserve` was asked for."""

    def __init__(self, layout: Layout, rows: int) -> None:
        self._domain_of: list[int] = layout.nodes[:, DOMAIN].tolist()
        self.counts = np.zeros(layout.domains, np.int64)
        self.counts[0] = rows
        self.capacities = np.zeros(layout.domains, np.int64)
        self.capacities[0] = rows
        self.bases = np.zeros(len(layout.parts), np.int64)
        self.values = np.empty(0, np.int64)
        self.valid = np.zeros(0, np.uint8)
        self._lay(rows)

    @property
    def doubles(self) -> npt.NDArray[np.float64]:
        """The same words, for nodes that hold floating-point numbers."""
        return self.values.view(np.float64)

    def reserve(self, more: int) -> None:
        """Make room for `more` slots in every domain but the rows; it at least doubles what is there."""
        self._lay(int(self.capacities[0]), more)

    def _lay(self, rows: int, more: int = 0) -> None:
        old = (self.values, self.valid, self.bases)
        for domain in range(1, len(self.capacities)):
            wanted = int(self.counts[domain]) + more
            if wanted > self.capacities[domain]:
                self.capacities[domain] = max(wanted, 2 * int(self.capacities[domain]))
        sizes = [int(self.capacities[domain]) for domain in self._domain_of]
        self.bases = np.array([sum(sizes[:at]) for at in range(len(sizes))], np.int64)
        self.values = np.empty(sum(sizes), np.int64)
        self.valid = np.zeros(sum(sizes), np.uint8)
        if len(old[0]):
            for node, domain in enumerate(self._domain_of):
                count = rows if domain == 0 else int(self.counts[domain])
                to, at = int(self.bases[node]), int(old[2][node])
                self.values[to : to + count] = old[0][at : at + count]
                self.valid[to : to + count] = old[1][at : at + count]

    def of(self, node: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
        """A node's words and validity, as many as its domain has slots."""
        at, count = int(self.bases[node]), int(self.counts[self._domain_of[node]])
        return self.values[at : at + count], self.valid[at : at + count]


def integer_type(kind: sql.DataType) -> Any:
    """numpy's type of an integer of the schema."""
    return {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}[BITS[type(kind)]]
