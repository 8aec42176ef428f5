"""Writes core's requests and replies as JSON, and reads those that are right, in bulk: by a library that is written in C.

Called by the package only. A body that it does not read is for `reading`, which knows why. For each type a structure is made
that the library knows how to read and write; its fields have the names of JSON and the limits that `reading` has.
"""

from __future__ import annotations

import functools
import itertools
import operator
import types
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any, NewType, TypeVar, Union, cast, get_args, get_origin

import msgspec
from msgspec.structs import astuple

from shardherd.protocol.reading import MAX_INTEGER, MAX_NAME
from shardherd.protocol.records import Field, fields_of, is_named_tuple, is_record

T = TypeVar("T")

Convert = Callable[[Any], Any]

_NAME = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME)]
_NATURAL = Annotated[int, msgspec.Meta(ge=0, le=MAX_INTEGER)]
_ENCODER = msgspec.json.Encoder()


def write(value: object) -> bytes:
    """The UTF-8 JSON text of a record, of a tuple of records, or of a plain value. Raises TypeError for any other."""
    return _ENCODER.encode(_outward(value))


def read(kind: type[T], body: bytes, *, strict: bool) -> T | None:
    """The record, None if `reading` must read it. With `strict` False unknown fields are ignored."""
    # Only then is every string printable: escapes, and what is not ASCII, take the careful way.
    if not body.isascii() or b"\\" in body or b"\x7f" in body:
        return None
    decode, inward = _reader(cast("Any", kind), strict)
    try:
        return cast("T", inward(decode(body)))
    except (msgspec.MsgspecError, RecursionError):
        return None


def _outward(value: Any) -> Any:
    kind = type(value)
    if is_record(kind):
        return _writer(kind)(value)
    if isinstance(value, tuple):
        return [_outward(item) for item in value]
    if value is None or isinstance(value, bool | int | str):
        return value
    raise TypeError(f"{kind.__name__} has no JSON in this protocol")


@functools.cache
def _reader(kind: Any, strict: bool) -> tuple[Convert, Convert]:
    return msgspec.json.Decoder(_wire(kind, strict)).decode, _inward_of(kind, strict) or _as_it_is


# The library's side: one structure for each record.


@functools.cache
def _wire(kind: Any, strict: bool) -> Any:
    """The type that the library reads in the place of this one."""
    if isinstance(kind, NewType):
        return _NAME
    if is_record(kind):
        return _structure(kind, strict)
    if get_origin(kind) is tuple:
        members = get_args(kind)
        if members[-1] is Ellipsis:
            return list[_wire(members[0], strict)]  # type: ignore[misc]
        return tuple[tuple(_wire(member, strict) for member in members)]  # type: ignore[misc]
    if get_origin(kind) in (Union, types.UnionType):
        return Union[_wire(_present(kind), strict), None]  # noqa: UP007
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return kind
    return {str: str, bool: bool, int: _NATURAL}[kind]


@functools.cache
def _structure(kind: Any, strict: bool) -> Any:
    fields = [
        (each.attribute, _NATURAL if each.milliseconds else _wire(each.kind, strict), *_default(kind, each))
        for each in fields_of(kind)
    ]
    names = {each.attribute: each.key for each in fields_of(kind)}
    # There can be no cycles, so Python's collector need not look at them.
    return msgspec.defstruct(kind.__name__, fields, rename=names, forbid_unknown_fields=strict, gc=False)


def _default(kind: Any, field: Field) -> tuple[Any, ...]:
    if field.required:
        return ()
    found = (
        kind._field_defaults[field.attribute] if is_named_tuple(kind) else kind.__dataclass_fields__[field.attribute].default
    )
    return (_milliseconds(found),) if field.milliseconds else (found,)


# From our side to the library's, and back. None stands for "as it is".


def _writer(kind: Any) -> Convert:
    return _outward_of(kind) or _as_it_is


@functools.cache
def _outward_of(kind: Any) -> Convert | None:
    if is_record(kind):
        return _record_outward(kind)
    if get_origin(kind) is tuple:
        members = get_args(kind)
        one = _outward_of(members[0])
        if members[-1] is Ellipsis:
            if is_named_tuple(members[0]) and not _special_outward(members[0]):
                structure = _structure(members[0], False)
                return lambda value: list(itertools.starmap(structure, value))
            return None if one is None else lambda value: [one(item) for item in value]
        each = tuple(_outward_of(member) or _as_it_is for member in members)
        return lambda value: [write(item) for write, item in zip(each, value, strict=True)]
    if get_origin(kind) in (Union, types.UnionType):
        present = _outward_of(_present(kind))
        return None if present is None else lambda value: None if value is None else present(value)
    return None


def _record_outward(kind: Any) -> Convert:
    structure = _structure(kind, False)
    fields = fields_of(kind)
    special = _special_outward(kind)
    values: Convert = _as_it_is if is_named_tuple(kind) else _attributes(fields)

    def plain(value: Any) -> Any:
        return structure(*values(value))

    def converted(value: Any) -> Any:
        row = list(values(value))
        for at, convert in special:
            if row[at] is not None:
                row[at] = convert(row[at])
        return structure(*row)

    return converted if special else plain


def _special_outward(kind: Any) -> list[tuple[int, Convert]]:
    """The places of the fields that are not written as they are, and how they are."""
    fields = enumerate(fields_of(kind))
    found = ((at, _milliseconds if each.milliseconds else _outward_of(each.kind)) for at, each in fields)
    return [(at, convert) for at, convert in found if convert is not None]


def _attributes(fields: tuple[Field, ...]) -> Convert:
    names = [each.attribute for each in fields]
    one = operator.attrgetter(*names)
    return one if len(names) > 1 else lambda value: (one(value),)


@functools.cache
def _inward_of(kind: Any, strict: bool) -> Convert | None:
    if is_record(kind):
        return _record_inward(kind, strict)
    if get_origin(kind) is tuple:
        members = get_args(kind)
        if members[-1] is Ellipsis:
            one = _inward_of(members[0], strict)
            if is_named_tuple(members[0]) and not _special_inward(members[0], strict):
                make = members[0]._make
                return lambda value: tuple(map(make, map(astuple, value)))
            return tuple if one is None else lambda value: tuple([one(item) for item in value])
        each = tuple(_inward_of(member, strict) or _as_it_is for member in members)
        return lambda value: tuple([read(item) for read, item in zip(each, value, strict=True)])
    if get_origin(kind) in (Union, types.UnionType):
        present = _inward_of(_present(kind), strict)
        return None if present is None else lambda value: None if value is None else present(value)
    return None


def _record_inward(kind: Any, strict: bool) -> Convert:
    special = _special_inward(kind, strict)
    named_tuple = is_named_tuple(kind)

    def plain(value: Any) -> Any:
        return kind._make(astuple(value)) if named_tuple else kind(*astuple(value))

    def converted(value: Any) -> Any:
        row = list(astuple(value))
        for at, convert in special:
            row[at] = convert(row[at])
        return kind(*row)

    return converted if special else plain


def _special_inward(kind: Any, strict: bool) -> list[tuple[int, Convert]]:
    """The places of the fields that are not read as they are, and how they are."""
    fields = enumerate(fields_of(kind))
    found = ((at, _seconds if each.milliseconds else _inward_of(each.kind, strict)) for at, each in fields)
    return [(at, convert) for at, convert in found if convert is not None]


def _present(kind: Any) -> Any:
    """The type without None."""
    (inner,) = (argument for argument in get_args(kind) if argument is not type(None))
    return inner


def _as_it_is(value: Any) -> Any:
    return value


def _milliseconds(value: float) -> int:
    return round(value * 1000)


def _seconds(value: int) -> float:
    return value / 1000
