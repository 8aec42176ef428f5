"""Reads JSON into core's requests and replies, one field after the other, and says exactly what is wrong with it.

Called where `wire` does not read a body: it is wrong, or has other than plain ASCII text in it. Both take the same bodies for
right and make the same values of them.
"""

from __future__ import annotations

import functools
import json
import types
from collections.abc import Callable
from enum import StrEnum
from typing import Any, NewType, TypeVar, Union, cast, get_args, get_origin

from shardherd.core.model.errors import InvalidRequestError
from shardherd.protocol.records import fields_of, is_record

T = TypeVar("T")

MAX_INTEGER = 2**63 - 1
"""Offsets and epochs are signed 64-bit numbers everywhere else."""

MAX_NAME = 512
"""Longest name that is accepted: a topic has at most 249 characters, a pod at most 253."""

Path = str | tuple["Path", str | int]
"""Where in a body something is: a name, or the path around it and a field or an index. Written out only in messages."""

Decoder = Callable[[Any, Path], Any]


def read(kind: type[T], body: bytes, *, strict: bool) -> T:
    """Raises InvalidRequestError that names the field, its value and what is expected."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"the body is not JSON ({error}); send the JSON object of a {kind.__name__}") from error
    return cast("T", _decoder(cast("Any", kind), strict)(value, kind.__name__))


@functools.cache
def _decoder(kind: Any, strict: bool) -> Decoder:
    """The function that reads JSON into `kind`; its second argument is the path for messages."""
    if isinstance(kind, NewType):
        return _read_name
    if get_origin(kind) is tuple:
        members = get_args(kind)
        if members[-1] is Ellipsis:
            return _read_tuple(_decoder(members[0], strict))
        return _read_row(tuple(_decoder(member, strict) for member in members))
    if get_origin(kind) in (Union, types.UnionType):
        (inner,) = (argument for argument in get_args(kind) if argument is not type(None))
        present = _decoder(inner, strict)
        return lambda value, path: None if value is None else present(value, path)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return _read_enum(kind)
    if is_record(kind):
        return _read_record(kind, strict)
    return {str: _read_text, bool: _read_bool, int: _read_integer}[kind]


def _read_record(kind: Any, strict: bool) -> Decoder:
    fields = fields_of(kind)
    readers = {
        each.key: (each.attribute, _read_milliseconds if each.milliseconds else _decoder(each.kind, strict)) for each in fields
    }
    required = [each.key for each in fields if each.required]

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
        return kind(**arguments)

    return read


def _read_tuple(reader: Decoder) -> Decoder:
    def read(value: Any, path: Path) -> Any:
        if not isinstance(value, list):
            raise _wrong(path, value, "a list")
        return tuple([reader(item, (path, index)) for index, item in enumerate(value)])

    return read


def _read_row(readers: tuple[Decoder, ...]) -> Decoder:
    def read(value: Any, path: Path) -> Any:
        if not isinstance(value, list) or len(value) != len(readers):
            raise _wrong(path, value, f"a list of {len(readers)}")
        return tuple(reader(item, (path, index)) for index, (reader, item) in enumerate(zip(readers, value, strict=True)))

    return read


def _read_enum(kind: type[StrEnum]) -> Decoder:
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


def _read_bool(value: Any, path: Path) -> Any:
    if not isinstance(value, bool):
        raise _wrong(path, value, "true or false")
    return value


def _read_integer(value: Any, path: Path) -> Any:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_INTEGER:
        raise _wrong(path, value, f"an integer from 0 to {MAX_INTEGER}")
    return value


def _read_milliseconds(value: Any, path: Path) -> Any:
    return _read_integer(value, path) / 1000


def _shown(path: Path) -> str:
    if isinstance(path, str):
        return path
    around, inside = path
    return f"{_shown(around)}[{inside}]" if isinstance(inside, int) else f"{_shown(around)}.{inside}"


def _wrong(path: Path, value: object, expected: str) -> InvalidRequestError:
    shown = json.dumps(value)
    return InvalidRequestError(f"field {_shown(path)} is {shown[:80]}; it must be {expected}")
