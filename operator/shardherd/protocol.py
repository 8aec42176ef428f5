"""The JSON of the coordinator's API: core's requests and replies, error codes, and the version of the protocol.

Called by the coordinator's API and by the client; nothing else may read or write this JSON. Names are camelCase; durations and
times are integers of milliseconds with the suffix Ms. Requests are read strictly. Replies may carry fields that an older client
does not know, so that the operator can be upgraded under running consumers. Decides nothing about groups.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import operator
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NewType, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from shardherd.core import errors
from shardherd.core.errors import InvalidRequestError, ProtocolVersionError, ShardherdError
from shardherd.core.model import ConsumerId, Offset, ShardId

PROTOCOL_VERSION = 2
"""Grows with a change that a coordinator of the version before could not read. A change that only adds fields to replies, or
calls, is none. Requests of the version before must be served: see `check_version`. What each version brought:

1. The first.
2. Every request of a consumer names the UID of its group; a heartbeat may tell `zone` and `capacity`.
"""

_GROUP_UID_SINCE = 2

PROTOCOL_HEADER = "Shardherd-Protocol"

MAX_INTEGER = 2**63 - 1
"""Offsets and epochs are signed 64-bit numbers everywhere else."""

MAX_NAME = 512
"""Longest name that is accepted: a topic has at most 249 characters, a pod at most 253."""

_MILLISECONDS = frozenset({"heartbeat_interval", "session_timeout", "heartbeat_age", "state_age", "time"})

_STATUS: Mapping[type[ShardherdError], int] = {
    errors.InvalidRequestError: 400,
    errors.UnauthenticatedError: 401,
    errors.ForbiddenError: 403,
    errors.UnknownGroupError: 404,
    errors.UnknownShardError: 404,
    errors.StaleIncarnationError: 410,
    errors.GroupReplacedError: 410,
    errors.ProtocolVersionError: 426,
    errors.NotLeadingError: 503,
    errors.CoordinatorUnavailableError: 503,
}
_ERRORS: Mapping[str, type[ShardherdError]] = {error.code: error for error in _STATUS}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ForcedCheckpoint:
    """The position that a shard is set to, whoever holds it. The shard is in the path."""

    offset: Offset


def encode(value: object) -> Any:
    """The JSON value of a dataclass of `core.model` or `core.requests`, of a tuple of them, or of a plain value."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _encoder(type(value))(value)
    if isinstance(value, tuple):
        return [encode(item) for item in value]
    if value is None or isinstance(value, bool | int | str):
        return value
    raise TypeError(f"{type(value).__name__} has no JSON in this protocol")


def dumps(value: object) -> bytes:
    """The UTF-8 JSON text of `encode(value)`."""
    return json.dumps(encode(value), separators=(",", ":"), ensure_ascii=False).encode()


def loads(kind: type[T], body: bytes, *, strict: bool = True) -> T:
    """A dataclass of `core.model` from its JSON text.

    Raises InvalidRequestError that names the field, its value and what is expected. With `strict` False unknown fields are
    ignored.
    """
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"the body is not JSON ({error}); send the JSON object of a {kind.__name__}") from error
    return cast("T", _decoder(cast("Any", kind), strict)(value, kind.__name__))


def read_request(kind: type[T], body: bytes, version: int) -> T:
    """What a consumer that speaks this version sent.

    Raises InvalidRequestError as `loads` does, and if the group's UID is missing.
    """
    request = loads(kind, body)
    if version >= _GROUP_UID_SINCE and not getattr(request, "group_uid", ""):
        raise InvalidRequestError(f"field {kind.__name__}.groupUid is missing; send the UID of the ConsumerGroup")
    return request


def error_status(error: ShardherdError) -> int:
    """The HTTP status of an error; 500 for one that is our own fault."""
    return _STATUS.get(type(error), 500)


def dump_error(error: ShardherdError) -> bytes:
    """The body of an error's response."""
    details = {
        "code": error.code,
        "message": error.message,
        "group": error.group,
        "shard": error.shard,
        "consumer": error.consumer,
        "expectedEpoch": error.expected_epoch,
        "actualEpoch": error.actual_epoch,
    }
    return json.dumps({"error": {key: value for key, value in details.items() if value is not None}}).encode()


def load_error(status: int, body: bytes) -> ShardherdError:
    """The error that a response with this status means. An unknown code or body is CoordinatorUnavailable when it is 5xx."""
    try:
        details = json.loads(body)["error"]
        code, message = str(details["code"]), str(details["message"])
    except (ValueError, KeyError, TypeError):
        details, code = {}, ""
        message = f"the coordinator answered status {status}: {body[:200].decode(errors='replace')}"
    fallback = errors.CoordinatorUnavailableError if status >= 500 or status == 429 else InvalidRequestError
    return _ERRORS.get(code, fallback)(
        message,
        group=details.get("group"),
        shard=_optional(ShardId, details.get("shard")),
        consumer=_optional(ConsumerId, details.get("consumer")),
        expected_epoch=details.get("expectedEpoch"),
        actual_epoch=details.get("actualEpoch"),
    )


def served_versions() -> tuple[int, ...]:
    """The versions whose requests a coordinator answers: the one before, if there is one, and its own."""
    return tuple(range(max(1, PROTOCOL_VERSION - 1), PROTOCOL_VERSION + 1))


def check_version(header: str | None) -> int:
    """The version that the header names. Raises ProtocolVersionError unless it is served."""
    served = [str(version) for version in served_versions()]
    if header in served:
        return int(header)
    theirs = "no version" if header is None else f"version {header[:20]!r}"
    raise ProtocolVersionError(
        f"the header {PROTOCOL_HEADER} names {theirs}, this coordinator serves version {' and '.join(served)}; use an image of"
        " the application with the minor release of shardherd that the operator has, or the one before it"
    )


def json_fields(kind: type) -> tuple[tuple[str, str, bool], ...]:
    """(attribute, JSON name, whether it is a time in milliseconds) of every field of a dataclass, in order."""
    return tuple((name, key, name in _MILLISECONDS) for name, key in _names(kind))


Path = str | tuple["Path", str | int]
"""Where in a body something is: a name, or the path around it and a field or an index. Written out only in messages."""

Decoder = Callable[[Any, Path], Any]
Encoder = Callable[[Any], Any]


def _optional(kind: Callable[[str], T], value: object) -> T | None:
    return None if value is None else kind(str(value))


@functools.cache
def _encoder(kind: Any) -> Encoder:
    """The function that writes a value of this type as JSON. Made once a type: bodies have thousands of them."""
    if get_origin(kind) is tuple:
        return _write_tuple(get_args(kind))
    if get_origin(kind) in (Union, types.UnionType):
        (inner,) = (argument for argument in get_args(kind) if argument is not type(None))
        present = _encoder(inner)
        return lambda value: None if value is None else present(value)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return _write_dataclass(kind)
    return _plain


def _plain(value: Any) -> Any:
    return value


def _milliseconds(value: float) -> int:
    return round(value * 1000)


def _write_tuple(members: tuple[Any, ...]) -> Encoder:
    if members[-1] is Ellipsis:
        one = _encoder(members[0])
        return list if one is _plain else lambda value: [one(item) for item in value]
    writers = tuple(_encoder(member) for member in members)
    return lambda value: [write(item) for write, item in zip(writers, value, strict=True)]


def _write_dataclass(kind: type) -> Encoder:
    hints = get_type_hints(kind)
    names = _names(kind)
    keys = tuple(key for _, key in names)
    # A second name makes it a tuple where there is one field only.
    read = operator.attrgetter(*(name for name, _ in names), "__class__")
    special = [(key, _milliseconds if name in _MILLISECONDS else _encoder(_present(hints[name]))) for name, key in names]
    special = [(key, write) for key, write in special if write is not _plain]

    def write(value: Any) -> dict[str, Any]:
        made = dict(zip(keys, read(value), strict=False))
        for key, convert in special:
            if made[key] is not None:
                made[key] = convert(made[key])
        return made

    return write


def _present(kind: Any) -> Any:
    """The type without None."""
    if get_origin(kind) in (Union, types.UnionType):
        (inner,) = (argument for argument in get_args(kind) if argument is not type(None))
        return inner
    return kind


@functools.cache
def _names(kind: type) -> tuple[tuple[str, str], ...]:
    """(attribute, JSON name) of every field of a dataclass, in order."""
    names = []
    for field in dataclasses.fields(kind):
        head, *rest = field.name.split("_")
        name = head + "".join(part.capitalize() for part in rest)
        names.append((field.name, f"{name}Ms" if field.name in _MILLISECONDS else name))
    return tuple(names)


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
    if dataclasses.is_dataclass(kind):
        return _read_dataclass(cast("type", kind), strict)
    return {str: _read_text, bool: _read_bool, int: _read_integer}[kind]


def _read_dataclass(kind: type, strict: bool) -> Decoder:
    hints = get_type_hints(kind)
    json_names = dict(_names(kind))
    readers: dict[str, tuple[str, Decoder]] = {}
    required = []
    for field in dataclasses.fields(kind):
        key = json_names[field.name]
        reader = _read_milliseconds if field.name in _MILLISECONDS else _decoder(hints[field.name], strict)
        readers[key] = (field.name, reader)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            required.append(key)

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
