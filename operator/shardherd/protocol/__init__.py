"""The JSON of the coordinator's API: core's requests and replies, error codes, and the version of the protocol.

Called by the coordinator's API and by the client; nothing else may read or write this JSON. Names are camelCase; durations and
times are integers of milliseconds with the suffix Ms. Requests are read strictly. Replies may carry fields that an older client
does not know, so that the operator can be upgraded under running consumers. Decides nothing about groups.

`wire` reads and writes what is right, as fast as it can; `reading` says what is wrong. Both go by the classes of `core.model`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

from msgspec import UNSET, Meta, UnsetType, to_builtins

from shardherd.core.model import errors
from shardherd.core.model.errors import InvalidRequestError, ProtocolVersionError, ShardherdError
from shardherd.core.model.messages import Message
from shardherd.core.model.nouns import ConsumerId, Offset, ShardId
from shardherd.protocol import reading, wire

__all__ = [
    "PROTOCOL_HEADER",
    "PROTOCOL_VERSION",
    "Error",
    "ErrorDetails",
    "ForcedCheckpoint",
    "check_knows_ends",
    "check_version",
    "dump_error",
    "dumps",
    "encode",
    "error_status",
    "load_error",
    "loads",
    "read_request",
    "served_versions",
]

PROTOCOL_VERSION = 4
"""Grows with a change that a coordinator of the version before could not read. A change that only adds fields to replies, or
calls, is none. Requests of the version before must be served: see `check_version`. What each version brought:

1. The first.
2. Every request of a consumer names the UID of its group; a heartbeat may tell `zone` and `capacity`, a leave `stopped`.
3. A heartbeat may tell what its consumer is about: `phase`, `phaseAgeMs` and `goesOnInMs`.
4. A heartbeat may name cells whose state is lost, `stateLost`, and tell how full its consumer is: `gauges`. A consumer reads no
   shard from its `end` on.
"""

KNOWS_ENDS = 4
"""The version from which on consumers read no shard from its end on: others are refused where shards have ends."""

PROTOCOL_HEADER = "Shardherd-Protocol"

_STATUS: Mapping[type[ShardherdError], int] = {
    errors.InvalidRequestError: 400,
    errors.UnauthenticatedError: 401,
    errors.ForbiddenError: 403,
    errors.UnknownGroupError: 404,
    errors.UnknownShardError: 404,
    errors.StaleIncarnationError: 410,
    errors.GroupReplacedError: 410,
    errors.ProtocolVersionError: 426,
    errors.TooManyRequestsError: 429,
    errors.NotLeadingError: 503,
    errors.CoordinatorUnavailableError: 503,
}
_ERRORS: Mapping[str, type[ShardherdError]] = {error.code: error for error in _STATUS}
_CODES = sorted({ShardherdError.code, *(error.code for error in ShardherdError.__subclasses__())})

T = TypeVar("T")


class ForcedCheckpoint(Message, frozen=True, forbid_unknown_fields=True):
    """The position that a shard is set to, whoever holds it. The shard is in the path."""

    offset: Offset


class ErrorDetails(Message, frozen=True):
    """What is wrong. What does not apply is left out."""

    code: Annotated[str, Meta(description="Never changes its meaning.", extra_json_schema={"enum": _CODES})]
    message: Annotated[str, Meta(description="Names the field, the value and the remedy.")]
    group: str | UnsetType = UNSET
    shard: str | UnsetType = UNSET
    consumer: str | UnsetType = UNSET
    expected_epoch: int | UnsetType = UNSET
    actual_epoch: int | UnsetType = UNSET


class Error(Message, frozen=True):
    """The body of every refusal."""

    error: ErrorDetails


def encode(value: object) -> Any:
    """The JSON value of a message of `core.model`, of a tuple of them, or of a plain value."""
    return json.loads(dumps(value))


def dumps(value: object) -> bytes:
    """The UTF-8 JSON text of such a value. Raises TypeError for any other."""
    return wire.write(value)


def loads(kind: type[T], body: bytes) -> T:
    """A message of `core.model` from its JSON text.

    Raises InvalidRequestError that names the field, its value and what is expected. Unknown fields of what consumers send are
    refused, those of answers are ignored.
    """
    found = wire.read(kind, body)
    return found if found is not None else reading.read(kind, body)


def read_request(kind: type[T], body: bytes) -> T:
    """What a consumer sent.

    Raises InvalidRequestError as `loads` does, and if the group's UID is missing.
    """
    request = loads(kind, body)
    if not getattr(request, "group_uid", ""):
        raise InvalidRequestError(f"field {kind.__name__}.groupUid is missing; send the UID of the ConsumerGroup")
    return request


def error_status(error: ShardherdError) -> int:
    """The HTTP status of an error; 500 for one that is our own fault."""
    return _STATUS.get(type(error), 500)


def dump_error(error: ShardherdError) -> bytes:
    """The body of an error's response."""
    details = {name: getattr(error, name) for name in ErrorDetails.__struct_fields__}
    body = Error(ErrorDetails(**{name: value for name, value in details.items() if value is not None}))
    # A message may quote what is no UTF-8; `json` escapes it.
    return json.dumps(to_builtins(body)).encode()


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


def check_knows_ends(header: str | None, group: str) -> None:
    """Raises ProtocolVersionError for a consumer that would read past the ends of a group's shards, or that is not served."""
    if (version := check_version(header)) < KNOWS_ENDS:
        raise ProtocolVersionError(
            f"the header {PROTOCOL_HEADER} names version '{version}', whose consumers read past the"
            f" spec.source.kafka.endingTimestamp of group {group}; use an image of the application with the release of"
            " shardherd that the operator has",
            group=group,
        )


def _optional(kind: Callable[[str], T], value: object) -> T | None:
    return None if value is None else kind(str(value))
