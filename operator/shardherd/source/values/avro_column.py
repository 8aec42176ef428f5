"""Decodes a column of Avro values, with or without Confluent's header, equal to Spark's `from_avro` in every row.

`value_format` makes it; `typed_values` calls `decode` in Spark's Python workers. The compiled reader takes what is well formed,
`from_avro` the rest. Schemas of a registry are asked for once a process and id.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import types as sql

from shardherd.source.values import arrow_columns, avro_schema, compiled_values
from shardherd.source.values import value_layout as layout
from shardherd.source.values.avro_schema import Program, Resolver
from shardherd.source.values.avro_types import Avro
from shardherd.source.values.decoded_values import FAIL_FAST, Decoded, Row
from shardherd.source.values.from_avro import FromAvro, MalformedAvroError
from shardherd.source.values.json_column import buffers_of
from shardherd.source.values.schema_registry import Registry, UnknownSchemaError
from shardherd.source.values.value_layout import Layout, Planes

HEADER = 5
"""Bytes before a value in Confluent's format: a zero, and the schema's id in four bytes, most significant first."""


class AvroColumn:
    """Decodes values into `schema`; with a registry each value names the schema that wrote it, without one it is `schema`."""

    def __init__(self, schema: str, *, mode: str, registry_url: str | None) -> None:
        self._mode = mode
        self._reader = avro_schema.parse(schema)
        self._kind = avro_schema.type_of(self._reader, mode != FAIL_FAST)
        self._layout = Layout(self._kind)
        self._symbols: dict[int, tuple[str, ...]] = {}
        _mark_enums(self._reader, self._layout, 0, self._symbols)
        children = [part.children for part in self._layout.parts]
        self._program = Program()
        self._resolver = Resolver(self._program, children)
        self._slow = FromAvro(self._program, children, self._symbols)
        self._registry = None if registry_url is None else Registry(registry_url)
        self._roots: dict[int, int | str] = {}
        self._own = self._resolver.program_of(self._reader, self._reader) if registry_url is None else -1

    def decode(self, values: pa.Array[Any]) -> Decoded:
        """A binary array as the typed column. Raises MalformedValueError in mode FAILFAST, and RegistryError in any mode."""
        data, offsets, present = buffers_of(values)
        roots = self._roots_of(data, offsets, present)
        status, planes = self._read(data, offsets, present, roots)
        column = arrow_columns.column(self._layout, planes, data, symbols=self._symbols)
        return arrow_columns.completed(
            column, self._kind, status, data, offsets, self._mode, lambda raw, row: self._row(raw, int(roots[row]))
        )[0]

    def _row(self, raw: bytes, root: int) -> Row:
        try:
            return Row(self._one(raw, root))
        except MalformedAvroError as error:
            nothing = [None] * len(self._kind.fields) if isinstance(self._kind, sql.StructType) else None
            return Row(nothing, str(error))

    def _one(self, raw: bytes, root: int) -> Any:
        if self._registry is None:
            return self._slow.value(raw, root)
        if len(raw) < HEADER or raw[0]:
            raise MalformedAvroError("it does not start with a zero and a schema's id, as option schemaRegistryUrl says")
        reason = self._roots[int.from_bytes(raw[1:HEADER], "big")]
        if isinstance(reason, str):
            raise MalformedAvroError(reason)
        return self._slow.value(raw[HEADER:], root)

    def _roots_of(
        self, data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int32], present: npt.NDArray[np.uint8]
    ) -> npt.NDArray[np.int64]:
        """The first step of every value, -1 where there is none to be had."""
        rows = len(offsets) - 1
        if self._registry is None:
            return np.full(rows, self._own, np.int64)
        roots = np.full(rows, -1, np.int64)
        starts = offsets[:-1].astype(np.int64)
        usable = offsets[1:] - starts >= HEADER
        if len(present):
            usable &= present.astype(bool)
        at = np.flatnonzero(usable)
        at = at[data[starts[at]] == 0]
        ids = np.zeros(len(at), np.int64)
        for place in range(1, HEADER):
            ids = ids << 8 | data[starts[at] + place]
        unique, which = np.unique(ids, return_inverse=True)
        steps = np.array([self._root_of(int(each)) for each in unique], np.int64)
        if len(at):
            roots[at] = steps[which]
        return roots

    def _root_of(self, schema_id: int) -> int:
        if schema_id not in self._roots:
            assert self._registry is not None
            try:
                writer: Avro = self._registry.schema(schema_id)
                self._roots[schema_id] = self._resolver.program_of(writer, self._reader)
            except UnknownSchemaError as error:
                self._roots[schema_id] = str(error)
        root = self._roots[schema_id]
        return -1 if isinstance(root, str) else root

    def _read(
        self,
        data: npt.NDArray[np.uint8],
        offsets: npt.NDArray[np.int32],
        present: npt.NDArray[np.uint8],
        roots: npt.NDArray[np.int64],
    ) -> tuple[npt.NDArray[np.uint8], Planes]:
        rows = len(offsets) - 1
        tables = self._layout
        planes = Planes(tables, rows)
        longest = int((offsets[1:] - offsets[:-1]).max()) if rows else 0
        if tables.domains > 1:
            planes.reserve(max(4 * rows, longest))
        status = np.empty(rows, np.uint8)
        stack = np.zeros((layout.MAX_DEPTH + 4, 4), np.int64)
        before = np.zeros(tables.domains, np.int64)
        steps = np.array(self._program.steps or [[avro_schema.ERROR, -1, 0, 0]], np.int64)
        lists = np.array(self._program.lists or [0], np.int64)
        header = 0 if self._registry is None else HEADER
        row = 0
        while True:
            row = compiled_values.avro_records(
                data, offsets, header, present, roots, row, steps, lists, tables.nodes, planes.bases, planes.values,
                planes.valid, planes.counts, planes.capacities, stack, status, before,
            )  # fmt: skip
            if row >= rows:
                return status, planes
            planes.reserve(longest)


def _mark_enums(schema: Avro, tables: Layout, node: int, symbols: dict[int, tuple[str, ...]]) -> None:
    """Note the symbols of every node that an enum is read into: its plane holds ordinals."""
    children = tables.parts[node].children
    match schema.kind:
        case "enum":
            symbols[node] = schema.symbols
            tables.parts[node].row[layout.KIND] = layout.SYMBOL
        case "record":
            for each, child in zip(schema.fields, children, strict=True):
                _mark_enums(each.schema, tables, child, symbols)
        case "array" | "map":
            _mark_enums(schema.parts[0], tables, children[-1], symbols)
        case "union":
            branches = avro_schema.branches_of(schema)
            below = children if avro_schema.is_choice(schema) else [node] * len(branches)
            for branch, child in zip(branches, below, strict=True):
                _mark_enums(branch, tables, child, symbols)
