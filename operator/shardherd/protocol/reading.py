"""Reads JSON into core's messages, one field after the other, and says exactly what is wrong with it.

Called where `wire` does not read a body: it is wrong, or may have what is not printable in it. Both take the same bodies for
right and make the same values of them, by the same classes: here by what msgspec tells of them.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any, TypeVar, cast

from msgspec import inspect

from shardherd.core.model.errors import InvalidRequestError
from shardherd.core.model.messages import MAX_INTEGER, MAX_NAME, Seconds

T = TypeVar("T")

Path = str | tuple["Path", str | int]
"""Where in a body something is: a name, or the path around it and a field or an index. Written out only in messages."""


def read(kind: type[T], body: bytes) -> T:
    """Raises InvalidRequestError that names the field, its value and what is expected."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"the body is not JSON ({error}); send the JSON object of a {kind.__name__}") from error
    shape = _shape(cast("Any", kind))
    return cast("T", _read(shape, value, kind.__name__, isinstance(shape, inspect.StructType) and shape.forbid_unknown_fields))


_shape = functools.cache(inspect.type_info)


@functools.cache
def _fields(kind: Any) -> Mapping[str, inspect.Field]:
    """The fields of a message by their names in JSON."""
    return {each.encode_name: each for each in cast("inspect.StructType", _shape(kind)).fields}


def _read(shape: inspect.Type, value: Any, path: Path, strict: bool) -> Any:
    """With `strict` unknown fields are refused, however deep they are; else they are ignored."""
    match shape:
        case inspect.StructType():
            return _read_object(shape, value, path, strict)
        case inspect.VarTupleType(item_type=item):
            if not isinstance(value, list):
                raise _wrong(path, value, "a list")
            return tuple([_read(item, each, (path, index), strict) for index, each in enumerate(value)])
        case inspect.TupleType(item_types=items):
            if not isinstance(value, list) or len(value) != len(items):
                raise _wrong(path, value, f"a list of {len(items)}")
            pairs = zip(items, value, strict=True)
            return tuple([_read(item, each, (path, index), strict) for index, (item, each) in enumerate(pairs)])
        case inspect.UnionType(types=types):
            (present,) = (each for each in types if not isinstance(each, inspect.NoneType))
            return None if value is None else _read(present, value, path, strict)
        case inspect.Metadata(type=inner):
            return _read(inner, value, path, strict)
        case inspect.EnumType(cls=kind):
            try:
                return kind(value)
            except ValueError as error:
                raise _wrong(path, value, f"one of {', '.join(kind)}") from error
        case _:
            expected = _expected(shape, value)
            if expected:
                raise _wrong(path, value, expected)
            return Seconds(value / 1000) if isinstance(shape, inspect.CustomType) else value


def _read_object(shape: inspect.StructType, value: Any, path: Path, strict: bool) -> Any:
    if not isinstance(value, dict):
        raise _wrong(path, value, "an object")
    fields = _fields(shape.cls)
    arguments = {}
    for key, item in value.items():
        if key in fields:
            arguments[fields[key].name] = _read(fields[key].type, item, (path, key), strict)
        elif strict:
            raise InvalidRequestError(f"unknown field {_shown((path, key[:80]))}; remove it (known: {', '.join(fields)})")
    for key, each in fields.items():
        if each.required and key not in value:
            raise InvalidRequestError(f"field {_shown((path, key))} is missing; send it")
    return shape.cls(**arguments)


def _expected(shape: inspect.Type, value: Any) -> str:
    """What a plain value must be, empty if it is."""
    match shape:
        case inspect.StrType(max_length=None):
            return "" if isinstance(value, str) else "a string"
        case inspect.StrType():
            named = isinstance(value, str) and 0 < len(value) <= MAX_NAME and value.isprintable()
            return "" if named else f"a name of 1 to {MAX_NAME} printable characters"
        case inspect.BoolType():
            return "" if isinstance(value, bool) else "true or false"
        case _:
            natural = type(value) is int and 0 <= value <= MAX_INTEGER
            return "" if natural else f"an integer from 0 to {MAX_INTEGER}"


def _shown(path: Path) -> str:
    if isinstance(path, str):
        return path
    around, inside = path
    return f"{_shown(around)}[{inside}]" if isinstance(inside, int) else f"{_shown(around)}.{inside}"


def _wrong(path: Path, value: object, expected: str) -> InvalidRequestError:
    shown = json.dumps(value)
    return InvalidRequestError(f"field {_shown(path)} is {shown[:80]}; it must be {expected}")
