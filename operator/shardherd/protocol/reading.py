"""Reads JSON into core's messages, one field after the other, and says exactly what is wrong with it.

Called where `wire` does not read a body: it is wrong, or may have what is not printable in it. Both take the same bodies for
right and make the same values of them, by the same classes: here by what msgspec tells of them.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from msgspec import inspect

from shardherd.core.model.errors import InvalidRequestError
from shardherd.core.model.messages import MAX_INTEGER, MAX_NAME, Seconds

T = TypeVar("T")

Path = str | tuple["Path", str | int]
"""Where in a body something is: a name, or the path around it and a field or an index. Written out only in messages."""

Decoder = Callable[[Any, Path], Any]


def read(kind: type[T], body: bytes) -> T:
    """Raises InvalidRequestError that names the field, its value and what is expected."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"the body is not JSON ({error}); send the JSON object of a {kind.__name__}") from error
    return cast("T", _decoder_of(cast("Any", kind))(value, kind.__name__))


@functools.cache
def _decoder_of(kind: Any) -> Decoder:
    shape = inspect.type_info(kind)
    return _decoder(shape, isinstance(shape, inspect.StructType) and shape.forbid_unknown_fields)


def _decoder(shape: inspect.Type, strict: bool) -> Decoder:
    """The function that reads JSON of this shape; its second argument is the path for messages.

    With `strict` unknown fields are refused, however deep they are, and what is not printable; else they are ignored, and it
    is read.
    """
    match shape:
        case inspect.StructType():
            return _read_object(shape, strict)
        case inspect.VarTupleType(item_type=item):
            return _read_list(_decoder(item, strict))
        case inspect.TupleType(item_types=items):
            return _read_row([_decoder(item, strict) for item in items])
        case inspect.UnionType(types=types):
            (present,) = (_decoder(each, strict) for each in types if not isinstance(each, inspect.NoneType))
            return lambda value, path: None if value is None else present(value, path)
        case inspect.Metadata(type=inner):
            return _decoder(inner, strict)
        case inspect.EnumType(cls=kind):
            return _read_enum(kind)
        case inspect.StrType(max_length=limit):
            # What an answer quotes may have several lines; what is sent is shown to others.
            return _read_name if limit is not None else _read_line if strict else _read_text
        case inspect.BoolType():
            return _read_bool
        case inspect.CustomType():
            return lambda value, path: Seconds(_read_integer(value, path) / 1000)
        case inspect.IntType(le=None):
            return _read_position
        case _:
            return _read_integer


def _read_object(shape: inspect.StructType, strict: bool) -> Decoder:
    readers = {each.encode_name: (each.name, _decoder(each.type, strict)) for each in shape.fields}
    required = [each.encode_name for each in shape.fields if each.required]

    def read(value: Any, path: Path) -> Any:
        if not isinstance(value, dict):
            raise _wrong(path, value, "an object")
        arguments = {}
        for key, item in value.items():
            if key in readers:
                name, reader = readers[key]
                arguments[name] = reader(item, (path, key))
            elif strict:
                raise InvalidRequestError(f"unknown field {_shown((path, key[:80]))}; remove it (known: {', '.join(readers)})")
        for key in required:
            if key not in value:
                raise InvalidRequestError(f"field {_shown((path, key))} is missing; send it")
        return shape.cls(**arguments)

    return read


def _read_list(reader: Decoder) -> Decoder:
    def read(value: Any, path: Path) -> Any:
        if not isinstance(value, list):
            raise _wrong(path, value, "a list")
        return tuple([reader(item, (path, index)) for index, item in enumerate(value)])

    return read


def _read_row(readers: Sequence[Decoder]) -> Decoder:
    def read(value: Any, path: Path) -> Any:
        if not isinstance(value, list) or len(value) != len(readers):
            raise _wrong(path, value, f"a list of {len(readers)}")
        return tuple(reader(item, (path, index)) for index, (reader, item) in enumerate(zip(readers, value, strict=True)))

    return read


def _read_enum(kind: Any) -> Decoder:
    def read(value: Any, path: Path) -> Any:
        try:
            return kind(value)
        except ValueError as error:
            raise _wrong(path, value, f"one of {', '.join(kind)}") from error

    return read


def _read_name(value: Any, path: Path) -> Any:
    if not isinstance(value, str) or not value or len(value) > MAX_NAME or not value.isprintable():
        raise _wrong(path, value, f"a name of 1 to {MAX_NAME} printable characters")
    return value


def _read_text(value: Any, path: Path) -> Any:
    if not isinstance(value, str):
        raise _wrong(path, value, "a string")
    return value


def _read_line(value: Any, path: Path) -> Any:
    if not isinstance(value, str) or not value.isprintable():
        raise _wrong(path, value, "a string of printable characters")
    return value


def _read_bool(value: Any, path: Path) -> Any:
    if not isinstance(value, bool):
        raise _wrong(path, value, "true or false")
    return value


def _read_integer(value: Any, path: Path) -> Any:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_INTEGER:
        raise _wrong(path, value, f"an integer from 0 to {MAX_INTEGER}")
    return value


def _read_position(value: Any, path: Path) -> Any:
    """How large it may be is for the core to say, which knows the source."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise _wrong(path, value, "an integer from 0 on")
    return value


def _shown(path: Path) -> str:
    if isinstance(path, str):
        return path
    around, inside = path
    return f"{_shown(around)}[{inside}]" if isinstance(inside, int) else f"{_shown(around)}.{inside}"


def _wrong(path: Path, value: object, expected: str) -> InvalidRequestError:
    try:
        shown = json.dumps(value)[:80]
    except RecursionError:
        shown = "nested too deep to be shown"  # to write it takes some levels more than to read it
    return InvalidRequestError(f"field {_shown(path)} is {shown}; it must be {expected}")
