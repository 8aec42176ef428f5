"""Reads Avro schemas, gives the Spark type of one as `from_avro` does, and resolves a writer's schema into a program of steps.

`value_format` asks for the type, `avro_column` for the program. A program says how the bytes of a value that one schema wrote
become slots of the layout of the schema that is read: `avro_kernels` and `from_avro` both follow it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import types as sql

from shardherd.source.values.avro_matching import PROMOTIONS, alike, branch_of, renamed, same_name
from shardherd.source.values.avro_types import PRIMITIVES, Avro, Field
from shardherd.source.values.value_schema import SchemaError, nullable

# Codes of steps.
(
    NULL, BOOLEAN, INT, LONG, FLOAT, DOUBLE, BYTES, FIXED, ENUM, RECORD, ARRAY, MAP, UNION, MEMBER, DECIMAL_BYTES,
    DECIMAL_FIXED, DEFAULT, ERROR,
) = range(18)  # fmt: skip

# Columns of a step's row.
CODE, NODE, FIRST, SECOND = range(4)
STEP_FIELDS = 4
"""NODE is the layout's node that the step fills, -1 if nobody wants the value. FIRST and SECOND are, by code:

INT, LONG: a factor, and what the plane holds (PLAIN, AS_DOUBLE, AS_FLOAT). FIXED: a size. ENUM: where the reader's ordinals
begin in the program's `lists`, and how many there are. RECORD, UNION: where their steps begin in `lists`, and how many. ARRAY,
MAP: the step of the elements or values. MEMBER, which reads nothing itself: the step of the member. DECIMAL_BYTES: a precision.
DECIMAL_FIXED: a size and a precision. DEFAULT: whether the word is proven, and the word."""
PLAIN, AS_DOUBLE, AS_FLOAT = range(3)

_SIMPLE: dict[str, type[sql.DataType]] = {
    "null": sql.NullType, "boolean": sql.BooleanType, "int": sql.IntegerType, "long": sql.LongType, "float": sql.FloatType,
    "double": sql.DoubleType, "bytes": sql.BinaryType, "string": sql.StringType, "enum": sql.StringType,
    "fixed": sql.BinaryType,
}  # fmt: skip


def parse(text: str, what: str = "option valueSchema", *, recursive: bool = False) -> Avro:
    """An Avro schema from its JSON; records of a `recursive` one may contain themselves. Raises SchemaError."""
    try:
        found = json.loads(text)
    except RecursionError as error:
        raise SchemaError(f"{what} is nested too deep: take a schema of fewer levels") from error
    except TypeError as error:
        raise SchemaError(f"{what}: {repr(text)[:200]} is no Avro schema: {error}") from error
    except ValueError as error:
        # A primitive may be given by its name alone.
        if text.strip() not in PRIMITIVES:
            raise SchemaError(f"{what}: {text[:200]!r} is no JSON: {error}") from error
        found = text.strip()
    try:
        return _avro(found, "", {}, None if recursive else ())
    except SchemaError as error:
        raise SchemaError(f"{what}: {error}") from error
    except RecursionError as error:
        raise SchemaError(f"{what} is nested too deep: take a schema of fewer levels") from error
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise SchemaError(f"{what}: {text[:200]!r} is no Avro schema: {error!r}") from error


def _avro(found: Any, space: str, known: dict[str, Avro], open_: tuple[str, ...] | None) -> Avro:
    """`open_` are the records that this is inside of, None if it may be one of them."""
    if isinstance(found, str):
        if found in PRIMITIVES:
            return Avro(found)
        name = found if "." in found or not space else f"{space}.{found}"
        name = name if name in known else found
        if name not in known:
            raise SchemaError(f"type {found!r} is unknown")
        if open_ is not None and name in open_:
            raise SchemaError(f"record {found!r} contains itself, which a table cannot")
        return known[name]
    if isinstance(found, list):
        return Avro("union", parts=[_avro(each, space, known, open_) for each in found])
    kind = found["type"]
    if isinstance(kind, dict | list):
        return _avro(kind, space, known, open_)
    if kind == "array":
        return Avro(kind, parts=[_avro(found["items"], space, known, open_)])
    if kind == "map":
        return Avro(kind, parts=[_avro(found["values"], space, known, open_)])
    if kind in ("record", "error", "enum", "fixed"):
        return _named(found, "record" if kind == "error" else kind, space, known, open_)
    made = _avro(kind, space, known, open_)
    if made.kind in PRIMITIVES:
        made = Avro(made.kind, logical=found.get("logicalType"))
        _decimal(made, found)
    return made


def _named(found: Mapping[str, Any], kind: str, space: str, known: dict[str, Avro], open_: tuple[str, ...] | None) -> Avro:
    name = str(found["name"])
    space = name.rpartition(".")[0] if "." in name else str(found.get("namespace", space) or "")
    full = name if "." in name or not space else f"{space}.{name}"
    aliases = tuple(each if "." in each or not space else f"{space}.{each}" for each in found.get("aliases", ()))
    made = Avro(kind, name=full, logical=found.get("logicalType"), aliases=aliases)
    known[full] = made
    if kind == "enum":
        made.symbols, made.default_symbol = tuple(found["symbols"]), found.get("default")
    elif kind == "fixed":
        made.size = int(found["size"])
        if made.size < 0:
            raise SchemaError(f"fixed {name!r} has a size of {made.size}")
        _decimal(made, found)
    else:
        for each in found["fields"]:
            made.fields.append(
                Field(
                    str(each["name"]),
                    _avro(each["type"], space, known, None if open_ is None else (*open_, full)),
                    tuple(each.get("aliases", ())),
                    "default" in each,
                    each.get("default"),
                )
            )
            if open_ is not None and made.fields[-1].optional and not fits(made.fields[-1].schema, each["default"]):
                raise SchemaError(f"the default of field {each['name']!r}, {json.dumps(each['default'])}, is not of its type")
    return made


def fits(schema: Avro, given: Any) -> bool:
    """Whether this is a value of the schema as defaults are written. Of a union it may be one of any branch, as for Java."""
    match schema.kind:
        case "union":
            return any(fits(each, given) for each in schema.parts)
        case "null":
            return given is None
        case "boolean":
            return isinstance(given, bool)
        case "int" | "long":
            most: int = 2**31 if schema.kind == "int" else 2**63
            return isinstance(given, int) and not isinstance(given, bool) and -most <= given < most
        case "float" | "double":
            return _is_number(given)
        case "array":
            return isinstance(given, list) and all(fits(schema.parts[0], each) for each in given)
        case "map":
            return isinstance(given, dict) and all(fits(schema.parts[0], each) for each in given.values())
        case "record":
            return isinstance(given, dict) and all(
                (each.name in given or each.optional) and fits(each.schema, given.get(each.name, each.default))
                for each in schema.fields
            )
    return isinstance(given, str)


def _is_number(given: Any) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool)


def _decimal(made: Avro, found: Mapping[str, Any]) -> None:
    """A decimal's numbers. As in Java, one that cannot be is no decimal."""
    if made.logical != "decimal":
        return
    made.logical = None
    precision, scale = found.get("precision", 0), found.get("scale", 0)
    most = 38 if made.kind == "bytes" else len(str(2 ** (8 * made.size - 1) - 1)) - 1 if made.size else 0
    if made.kind in ("bytes", "fixed") and 0 < precision <= most and 0 <= scale <= precision:
        made.logical, made.precision, made.scale = "decimal", precision, scale


def reader_type(text: str, *, nullable: bool) -> sql.DataType:
    """The Spark type of values that are read into this schema; `nullable` makes every part so (mode PERMISSIVE)."""
    return type_of(parse(text), nullable)


def type_of(schema: Avro, all_nullable: bool) -> sql.DataType:
    """The Spark type of a parsed schema."""
    kind = _type(schema, "value")[0]
    if all_nullable:
        made: sql.DataType = nullable(kind)
        return made
    return kind


def _type(schema: Avro, path: str) -> tuple[sql.DataType, bool]:
    """A schema's Spark type and whether it may be null."""
    match schema.kind, schema.logical:
        case "record", _:
            parts = [(each.name, *_type(each.schema, f"{path}.{each.name}")) for each in schema.fields]
            return sql.StructType([sql.StructField(*each) for each in parts]), False
        case "array", _:
            element, empty = _type(schema.parts[0], f"{path}[]")
            return sql.ArrayType(element, empty), False
        case "map", _:
            value, empty = _type(schema.parts[0], f"{path}{{}}")
            return sql.MapType(sql.StringType(), value, empty), False
        case "union", _:
            return _union_type(schema, path)
        case _, "decimal":
            return sql.DecimalType(schema.precision, schema.scale), False
        case "int", "date":
            return sql.DateType(), False
        case "long", "timestamp-millis" | "timestamp-micros":
            return sql.TimestampType(), False
        case "long", "local-timestamp-millis" | "local-timestamp-micros":
            return sql.TimestampNTZType(), False
        case ("long", "time-micros") | ("null", _):
            raise SchemaError(f"{path} is {schema.logical or 'null'} in the Avro schema, which this source does not read")
    return _SIMPLE[schema.kind](), False


def _union_type(schema: Avro, path: str) -> tuple[sql.DataType, bool]:
    branches = branches_of(schema)
    empty = len(branches) < len(schema.parts)
    if len(branches) == 1:
        kind, inner = _type(branches[0], path)
        return kind, empty or inner
    if (pair := wide(branches)) is not None:
        return (sql.LongType() if pair == "long" else sql.DoubleType()), empty
    members = [sql.StructField(f"member{at}", _type(each, f"{path}.member{at}")[0], True) for at, each in enumerate(branches)]
    if not members:
        raise SchemaError(f"{path} is a union of nothing but null in the Avro schema")
    return sql.StructType(members), empty


def branches_of(schema: Avro) -> list[Avro]:
    """A union's branches that are not null."""
    return [each for each in schema.parts if each.kind != "null"]


def wide(branches: Sequence[Avro]) -> str | None:
    """The one type that takes both branches, for int with long and float with double."""
    kinds = sorted(each.kind for each in branches)
    return "long" if kinds == ["int", "long"] else "double" if kinds == ["double", "float"] else None


# --- resolution --------------------------------------------------------------------------------------------------------------


class Program:
    """Steps from a writer's schema to the layout's nodes. `defaults` has what a DEFAULT step gives, for the slow path."""

    def __init__(self) -> None:
        self.steps: list[list[int]] = []
        self.lists: list[int] = []
        self.defaults: dict[int, Any] = {}

    def add(self, code: int, node: int = -1, first: int = 0, second: int = 0) -> int:
        """Append a step; returns its number."""
        self.steps.append([code, node, first, second])
        return len(self.steps) - 1


@dataclass(slots=True)
class Resolver:
    """Adds programs to one table. `children[node]` are the layout's nodes below a node."""

    program: Program
    children: Sequence[Sequence[int]]
    _skipped: dict[int, int] = field(default_factory=dict)
    """The step that skips a record of the writer, by the identity of its schema."""

    def program_of(self, writer: Avro, reader: Avro) -> int:
        """The first step for values that `writer` wrote and `reader` reads into the layout's first node.

        Only the writer's records may contain themselves. What is read of them ends with the reader's, and the rest is skipped.
        """
        self._skipped.clear()
        return self._resolve(renamed(writer, reader), reader, 0)

    def _resolve(self, writer: Avro, reader: Avro | None, node: int) -> int:
        """The first step for values that `writer` wrote and `reader` reads into `node`; without a reader they are skipped."""
        add = self.program.add
        if writer.kind == "union":
            return self._out_of_union(writer, reader, node)
        if reader is not None and reader.kind == "union":
            return self._into_union(writer, reader, branch_of(writer, reader), node)
        if reader is None:
            node = -1
        elif reader.kind != writer.kind and reader.kind not in PROMOTIONS.get(writer.kind, ()):
            return add(ERROR)
        match writer.kind:
            case "null":
                return add(NULL)
            case "boolean":
                return add(BOOLEAN, node)
            case "int" | "long":
                form = {"double": AS_DOUBLE, "float": AS_FLOAT}.get("" if reader is None else reader.kind, PLAIN)
                millis = reader is not None and reader.logical in ("timestamp-millis", "local-timestamp-millis")
                return add(INT if writer.kind == "int" else LONG, node, 1000 if millis else 1, form)
            case "float":
                return add(FLOAT, node)
            case "double":
                return add(DOUBLE, node)
            case "bytes" | "string":
                decimal = reader is not None and reader.logical == "decimal"
                return add(DECIMAL_BYTES, node, reader.precision) if reader is not None and decimal else add(BYTES, node)
            case "fixed":
                if reader is not None and (reader.size != writer.size or not same_name(reader, writer)):
                    return add(ERROR)
                decimal = reader is not None and reader.logical == "decimal"
                return (
                    add(DECIMAL_FIXED, node, writer.size, reader.precision)
                    if reader and decimal
                    else add(FIXED, node, writer.size)
                )
            case "enum":
                return self._enum(writer, reader, node)
            case "array":
                return self._container(ARRAY, writer, reader, node, 0)
            case "map":
                return self._container(MAP, writer, reader, node, 1)
        return self._skipped_record(writer) if reader is None else self._record(writer, reader, node)

    def _listed(self, code: int, node: int, steps: list[int]) -> int:
        at = len(self.program.lists)
        self.program.lists += steps
        return self.program.add(code, node, at, len(steps))

    def _out_of_union(self, writer: Avro, reader: Avro | None, node: int) -> int:
        if reader is not None and alike(writer, reader):
            steps = [self._into_union(each, reader, at, node) for at, each in enumerate(writer.parts)]
        else:
            steps = [self._resolve(each, reader, node) for each in writer.parts]
        return self._listed(UNION, -1, steps)

    def _into_union(self, writer: Avro, reader: Avro, chosen: int | None, node: int) -> int:
        """Into the part `chosen` of the reader's union."""
        if chosen is None:
            return self.program.add(ERROR)
        branch = reader.parts[chosen]
        if branch.kind == "null" or not is_choice(reader):
            return self._resolve(writer, branch, node)
        member = sum(each.kind != "null" for each in reader.parts[:chosen])
        return self.program.add(MEMBER, node, self._resolve(writer, branch, self.children[node][member]))

    def _enum(self, writer: Avro, reader: Avro | None, node: int) -> int:
        ordinals = list(range(len(writer.symbols)))
        if reader is not None:
            if not same_name(reader, writer):
                return self.program.add(ERROR)
            fallback = reader.symbols.index(reader.default_symbol) if reader.default_symbol in reader.symbols else -1
            ordinals = [reader.symbols.index(each) if each in reader.symbols else fallback for each in writer.symbols]
        return self._listed(ENUM, node, ordinals)

    def _container(self, code: int, writer: Avro, reader: Avro | None, node: int, child: int) -> int:
        inner = None if reader is None else reader.parts[0]
        below = -1 if reader is None else self.children[node][child]
        return self.program.add(code, node, self._resolve(writer.parts[0], inner, below))

    def _skipped_record(self, writer: Avro) -> int:
        """Its step is there before those of its fields, which may lead back to it."""
        step = self._skipped.get(id(writer))
        if step is None:
            step = self._skipped[id(writer)] = self.program.add(RECORD)
            steps = [self._resolve(each.schema, None, -1) for each in writer.fields]
            self.program.steps[step][FIRST:] = len(self.program.lists), len(steps)
            self.program.lists += steps
        return step

    def _record(self, writer: Avro, reader: Avro, node: int) -> int:
        wanted = reader.fields
        steps: list[int] = []
        found: set[str] = set()
        for each in writer.fields:
            at = next((at for at, want in enumerate(wanted) if each.name == want.name), None)
            if at is None or wanted[at].name in found:
                steps.append(self._resolve(each.schema, None, -1))
                continue
            found.add(wanted[at].name)
            steps.append(self._resolve(each.schema, wanted[at].schema, self.children[node][at]))
        for at, want in enumerate(wanted):
            if want.name in found:
                continue
            if not want.optional:
                return self.program.add(ERROR)
            try:
                steps.append(self._default(want, self.children[node][at]))
            except DefaultError:
                return self.program.add(ERROR)
        return self._listed(RECORD, node, steps)

    def _default(self, wanted: Field, node: int) -> int:
        value, kind = default_value(wanted.schema, wanted.default)
        if value is None:
            return self.program.add(NULL)
        proven = kind in ("int", "long", "boolean") or (kind == "string" and value == b"")
        step = self.program.add(DEFAULT, node, int(proven), int(value) if proven and kind != "string" else 0)
        self.program.defaults[step] = value
        return step


def is_choice(schema: Avro) -> bool:
    """Whether Spark reads this union into a struct with one member for each branch."""
    branches = branches_of(schema)
    return schema.kind == "union" and len(branches) > 1 and wide(branches) is None


class DefaultError(ValueError):
    """A default of which Avro for Java makes no value."""


def default_value(schema: Avro, given: Any) -> tuple[Any, str]:
    """A field's default as the slow path gives values, and the Avro type that it has. Raises DefaultError."""
    match schema.kind:
        case "union":
            at = next((at for at, each in enumerate(schema.parts) if _may_be(each.kind, given)), None)
            if at is None:
                raise DefaultError(f"{given!r} is of no branch")
            value, kind = default_value(schema.parts[at], given)
            if value is None or not is_choice(schema):
                return value, kind
            chosen = sum(each.kind != "null" for each in schema.parts[:at])
            return [value if at == chosen else None for at in range(len(branches_of(schema)))], "record"
        case "null":
            return None, "null"
        case "string":
            return str(given).encode(), "string"
        case "enum":
            if given not in schema.symbols:
                raise DefaultError(f"{given!r} is no symbol")
            return str(given).encode(), "enum"
        case "bytes" | "fixed":
            raw = str(given).encode("latin-1", "replace")
            if schema.kind == "fixed":
                raw = raw[: schema.size].ljust(schema.size, b"\0")
            return (int.from_bytes(raw, "big", signed=True) if schema.logical == "decimal" else raw), "bytes"
        case "array":
            if not isinstance(given, list):
                raise DefaultError(f"{given!r} is no array")
            return [default_value(schema.parts[0], each)[0] for each in given], "array"
        case "map":
            if isinstance(given, list):
                raise DefaultError(f"{given!r} is no map")
            pairs = given.items() if isinstance(given, dict) else ()
            return [(key.encode(), default_value(schema.parts[0], each)[0]) for key, each in pairs], "map"
        case "record":
            return [_default_of(each, given) for each in schema.fields], "record"
        case "int" | "long":
            bits = 32 if schema.kind == "int" else 64
            number = (int(given) + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)
            number *= 1000 if schema.logical in ("timestamp-millis", "local-timestamp-millis") else 1
            if not -(2**63) <= number < 2**63:
                raise DefaultError(f"{given} ms are too many microseconds")
            return number, schema.kind
        case "boolean":
            return bool(given), "boolean"
        case "float":
            import numpy as np

            with np.errstate(over="ignore"):
                return float(np.float32(given)), "float"
    return float(given), schema.kind


def _default_of(wanted: Field, given: Any) -> Any:
    """The value of a field in the default of its record."""
    if isinstance(given, dict) and wanted.name in given:
        return default_value(wanted.schema, given[wanted.name])[0]
    if not wanted.optional:
        raise DefaultError(f"no value for {wanted.name}")
    return default_value(wanted.schema, wanted.default)[0]


def _may_be(kind: str, given: Any) -> bool:
    """Whether Avro for Java takes a union's default for one of such a branch: it takes the first of which that is so."""
    match kind:
        case "null":
            return given is None
        case "boolean":
            return isinstance(given, bool)
        case "int" | "long" | "float" | "double":
            return _is_number(given)
        case "bytes" | "string" | "fixed":
            return isinstance(given, str)
    return True
