"""The calls of the coordinator's API as a table, and the OpenAPI document that follows from it.

The table is the source: `api` makes its routes from it, and the document is made from the table and from the classes of
`core.model`, by the library that reads and writes JSON by them. So neither can say what the other does not. Decides nothing.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from msgspec.json import schema_components

from shardherd import protocol
from shardherd.core.model import errors
from shardherd.core.model.errors import ShardherdError
from shardherd.core.model.nouns import (
    CheckpointReply,
    CheckpointRequest,
    GroupView,
    Heartbeat,
    HeartbeatReply,
    Leave,
    ResetReport,
    ShardView,
)
from shardherd.core.model.requests import ForceCheckpointReply

BASE = "/v1/namespaces/{namespace}/consumergroups/{name}"
SHARD = BASE + "/shards/{topic}/{partition}"

MAX_WAIT = 30.0
"""Seconds that a heartbeat may be parked; intervals are a few seconds."""

ITSELF = "the pod that is the consumer, for itself"
LOOKS = "every pod of the group; who may `get` consumergroups/checkpoints of it"
FORCES = "who may `update` consumergroups/checkpoints of the group; no consumer by itself"

_ALWAYS = (
    errors.UnauthenticatedError,
    errors.ForbiddenError,
    errors.UnknownGroupError,
    errors.ProtocolVersionError,
    errors.TooManyRequestsError,
    errors.NotLeadingError,
    errors.CoordinatorUnavailableError,
)


_REFUSALS = (errors.InvalidRequestError, errors.StaleIncarnationError, errors.GroupReplacedError)
"""What every request of a consumer may be refused with."""


@dataclasses.dataclass(frozen=True, slots=True)
class Operation:
    """One call. `name` is its operationId and its handler's name; `who` says whose right it is.

    `request` and `reply` are the classes of the bodies (a tuple type for a list), None where there is none. `refusals` are
    the errors that it may be answered with besides those that every call may be.
    """

    name: str
    method: str
    path: str
    summary: str
    who: str
    request: type | None = None
    reply: Any = None
    waits: bool = False
    refusals: tuple[type[ShardherdError], ...] = ()


OPERATIONS = (
    Operation(
        "heartbeat",
        "POST",
        BASE + "/heartbeat",
        "Report what is held; learn what may be read.",
        ITSELF,
        Heartbeat,
        HeartbeatReply,
        waits=True,
        refusals=_REFUSALS,
    ),
    Operation(
        "checkpoints",
        "POST",
        BASE + "/checkpoints",
        "Make positions of held shards durable; each shard has its own outcome.",
        ITSELF,
        CheckpointRequest,
        CheckpointReply,
        refusals=_REFUSALS,
    ),
    Operation(
        "leave",
        "POST",
        BASE + "/leave",
        "Say that this run goes, and whether all of it has ended.",
        ITSELF,
        Leave,
        refusals=_REFUSALS,
    ),
    Operation("view", "GET", BASE, "The whole group as it is now.", LOOKS, reply=GroupView),
    Operation("shards", "GET", BASE + "/shards", "All shards, with their checkpoints.", LOOKS, reply=tuple[ShardView, ...]),
    Operation(
        "shard",
        "GET",
        SHARD,
        "One shard, with its checkpoint.",
        LOOKS,
        reply=ShardView,
        refusals=(errors.UnknownShardError,),
    ),
    Operation(
        "reset",
        "GET",
        BASE + "/reset",
        "The declared reset with all of its rows; once it is made, with the first. null if none is declared.",
        LOOKS,
        reply=ResetReport | None,
    ),
    Operation(
        "force",
        "PUT",
        SHARD + "/checkpoint",
        "Set the checkpoint of a shard, whoever holds it; the holder is fenced and reads on from there.",
        FORCES,
        protocol.ForcedCheckpoint,
        ForceCheckpointReply,
        refusals=(errors.InvalidRequestError, errors.UnknownShardError),
    ),
)
"""Every call of a version of the protocol."""


def document() -> dict[str, Any]:
    """The OpenAPI document of this API."""
    bodies = [protocol.Error, *(body for each in OPERATIONS for body in (each.request, each.reply) if body is not None)]
    found = schema_components(bodies, schema_hook=_seconds, ref_template="#/components/schemas/{name}")
    # As JSON has it: an empty tuple is no list yet.
    made, components = json.loads(json.dumps(found))
    for schema in components.values():
        schema["description"] = inspect.cleandoc(schema["description"])
    schemas = dict(zip(bodies, made, strict=True))
    paths: dict[str, Any] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "shardherd coordinator",
            "version": version("shardherd"),
            "summary": "Who reads which shard of a stream.",
            "description": f"Every request names the version of the protocol in the header {protocol.PROTOCOL_HEADER}; "
            f"served: {', '.join(map(str, protocol.served_versions()))}. Any other is answered with status 426.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": dict(sorted(components.items())),
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A token of a Kubernetes service account with the operator's audience.",
                }
            },
        },
    }


def _operation(operation: Operation, schemas: Mapping[Any, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "description": f"Who may: {operation.who}.",
        "parameters": _parameters(operation),
        "responses": _responses(operation, schemas),
    }
    if operation.request is not None:
        made["requestBody"] = {"required": True, "content": {"application/json": {"schema": schemas[operation.request]}}}
    return made


def _parameters(operation: Operation) -> list[dict[str, Any]]:
    named = [part[1:-1] for part in operation.path.split("/") if part.startswith("{")]
    found: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}} for name in named
    ]
    found.append(
        {
            "name": protocol.PROTOCOL_HEADER,
            "in": "header",
            "required": True,
            "schema": {"type": "integer", "enum": list(protocol.served_versions())},
        }
    )
    if operation.waits:
        found.append(
            {
                "name": "waitMs",
                "in": "query",
                "description": "For how long the answer may wait for news; at once if there is some. In milliseconds, of which"
                f" {MAX_WAIT * 1000:.0f} are waited at most.",
                "schema": {"type": "integer", "minimum": 0, "default": 0},
            }
        )
    return found


def _responses(operation: Operation, schemas: Mapping[Any, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if operation.reply is None:
        made["204"] = {"description": "Done."}
    else:
        content = {"application/json": {"schema": schemas[operation.reply]}}
        made["200"] = {"description": "The answer.", "content": content}
    by_status: dict[int, list[type[ShardherdError]]] = {}
    for error in (*operation.refusals, *_ALWAYS):
        by_status.setdefault(protocol.error_status(error("")), []).append(error)
    if operation.request is not None:
        by_status[408] = [errors.CoordinatorUnavailableError]
        by_status[413] = [errors.InvalidRequestError]
        by_status[415] = [errors.InvalidRequestError]
    for status, kinds in sorted(by_status.items()):
        description = " ".join(f"`{kind.code}`: {_first_line(kind)}" for kind in dict.fromkeys(kinds))
        made[str(status)] = {"description": description, "content": {"application/json": {"schema": schemas[protocol.Error]}}}
    return made


def _seconds(_kind: type) -> dict[str, Any]:
    """The schema of the one type that msgspec does not know."""
    return {"type": "integer", "minimum": 0, "description": "Milliseconds."}


def _first_line(kind: type) -> str:
    return inspect.cleandoc(kind.__doc__ or "").partition("\n")[0]
