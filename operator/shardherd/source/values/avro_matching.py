"""What of a writer's Avro schema belongs to what of a reader's: by aliases, and which branch of a union a value is read into.

`avro_schema` asks when it makes a program. It follows the resolver of Avro for Java, which `from_avro` uses, also where that
reads the specification in a way of its own: a record that no branch is called like goes into the first that has its fields, and
two unions that are alike are read branch by branch. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from shardherd.source.values.avro_types import PRIMITIVES, Avro

PROMOTIONS = {
    "int": ("int", "long", "float", "double"), "long": ("long", "float", "double"), "float": ("float", "double"),
    "string": ("string", "bytes"), "bytes": ("bytes", "string"),
}  # fmt: skip

NAMED = ("record", "enum", "fixed")


def renamed(writer: Avro, reader: Avro) -> Avro:
    """The writer's schema with the names that the reader's has for its types and fields, by the aliases there."""
    if writer == reader:
        return writer
    types: dict[str, str] = {}
    fields: dict[str, dict[str, str]] = {}
    _note_aliases(reader, types, fields)
    return _renamed(writer, types, fields, {}) if types or fields else writer


def _note_aliases(schema: Avro, types: dict[str, str], fields: dict[str, dict[str, str]]) -> None:
    types |= dict.fromkeys(schema.aliases, schema.name)
    for each in schema.fields:
        if each.aliases:
            fields.setdefault(schema.name, {}).update(dict.fromkeys(each.aliases, each.name))
        _note_aliases(each.schema, types, fields)
    for part in schema.parts:
        _note_aliases(part, types, fields)


def _renamed(schema: Avro, types: Mapping[str, str], fields: Mapping[str, Mapping[str, str]], done: dict[int, Avro]) -> Avro:
    """`done` has the copies by the identities of the originals: a record may contain itself."""
    if id(schema) in done:
        return done[id(schema)]
    name = types.get(schema.name, schema.name)
    called = fields.get(name, {})
    made = done[id(schema)] = replace(schema, name=name, parts=[], fields=[])
    made.parts += [_renamed(each, types, fields, done) for each in schema.parts]
    made.fields += [
        replace(each, name=called.get(each.name, each.name), schema=_renamed(each.schema, types, fields, done))
        for each in schema.fields
    ]
    return made


def same_name(one: Avro, other: Avro) -> bool:
    """Whether two named schemas have the same name, leaving their name spaces out; records and those without always do."""
    return one.kind in ("record", *PRIMITIVES) or _short(one) == _short(other)


def _short(schema: Avro) -> str:
    return schema.name.rpartition(".")[2]


def alike(writer: Avro, reader: Avro) -> bool:
    """Whether both are the same in all that matters for the bytes of a value."""
    if writer.kind != reader.kind or (writer.kind in NAMED and _short(writer) != _short(reader)):
        return False
    if writer.size != reader.size or writer.symbols != reader.symbols:
        return False
    if [each.name for each in writer.fields] != [each.name for each in reader.fields]:
        return False
    inner = [(one.schema, other.schema) for one, other in zip(writer.fields, reader.fields, strict=True)]
    return len(writer.parts) == len(reader.parts) and all(
        alike(*pair) for pair in [*inner, *zip(writer.parts, reader.parts, strict=True)]
    )


def branch_of(writer: Avro, union: Avro) -> int | None:
    """Into which part of the reader's union a value that is none itself is read, None if there is none."""
    by_fields: int | None = None
    for at, each in enumerate(union.parts):
        if each.kind != writer.kind:
            continue
        if each.kind not in NAMED or each.name == writer.name:
            return at
        if each.kind == "record" and _reads_its_fields(writer, each) and (by_fields is None or _short(each) == _short(writer)):
            by_fields = at
    if by_fields is not None:
        return by_fields
    wider = PROMOTIONS.get(writer.kind, ())
    return next((at for at, each in enumerate(union.parts) if each.kind in wider), None)


def _reads_its_fields(writer: Avro, reader: Avro) -> bool:
    """Whether a record can be read as this one, as far as can be seen without looking into the types of fields."""
    if _refused(writer, reader):
        return False
    wanted = {each.name: each.schema for each in reader.fields}
    return not any(_refused(each.schema, wanted[each.name]) for each in writer.fields if each.name in wanted)


def _refused(writer: Avro, reader: Avro) -> bool:
    """Whether no value of the one can be read as the other. What is inside of them is not looked at."""
    if writer.kind == "union":
        return False
    if reader.kind == "union":
        return branch_of(writer, reader) is None
    if writer.kind != reader.kind:
        return reader.kind not in PROMOTIONS.get(writer.kind, ())
    if writer.kind == "record":
        written = {each.name for each in writer.fields}
        return any(each.name not in written and not each.optional for each in reader.fields)
    return writer.kind in NAMED and not (same_name(writer, reader) and writer.size == reader.size)
