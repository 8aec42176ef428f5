"""How Kafka is reached, from environment variables that the controller sets in a group's pods; and how any of them has JSON.

Read by a Spark driver (`spark.pod`) and by a worker (`worker.place`). It opens no connection and reads no file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardherd.core.model.security import Security, SecurityError
from shardherd.source.security.kafka_settings import ISOLATION_LEVELS

BOOTSTRAP = "SHARDHERD_KAFKA_BOOTSTRAP_SERVERS"
SECURITY = "SHARDHERD_KAFKA_SECURITY"
ISOLATION = "SHARDHERD_KAFKA_ISOLATION_LEVEL"


class VariableError(ValueError):
    """A variable cannot be used. Names it."""


@dataclass(frozen=True, slots=True)
class KafkaAccess:
    """Which Kafka, as whom, and which of its records. `read_committed` is None where nobody has said it."""

    bootstrap_servers: str
    security: Security
    read_committed: bool | None


def read_access(environment: Mapping[str, str]) -> KafkaAccess:
    """What the variables say; without brokers if they name none. Raises VariableError."""
    return KafkaAccess(environment.get(BOOTSTRAP, ""), _security(environment), _read_committed(environment))


def json_object(environment: Mapping[str, str], name: str) -> dict[str, Any]:
    """The JSON object in a variable; an empty one if it is not set. Raises VariableError."""
    try:
        found = json.loads(environment.get(name) or "{}")
    except ValueError as error:
        raise VariableError(f"{name} must be a JSON object: {error}") from error
    if not isinstance(found, dict):
        raise VariableError(f"{name} must be a JSON object, not {type(found).__name__}")
    return found


def _security(environment: Mapping[str, str]) -> Security:
    try:
        return Security.from_dict(json_object(environment, SECURITY))
    except SecurityError as error:
        raise VariableError(f"{SECURITY} is wrong: {error}") from error


def _read_committed(environment: Mapping[str, str]) -> bool | None:
    level = environment.get(ISOLATION)
    if level and level not in ISOLATION_LEVELS:
        raise VariableError(f"{ISOLATION} must be {' or '.join(ISOLATION_LEVELS)}, not {level!r}")
    return ISOLATION_LEVELS[level] if level else None
