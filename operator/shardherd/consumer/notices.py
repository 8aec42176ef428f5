"""The notices that a session sends to its owner; the ledger already reflects them.

Sent by `session`, each to the owner's `hear`. Nothing here has behaviour.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from shardherd.core.model.nouns import ShardId

OK = "ok"
"""The result of a heartbeat that was answered."""

FAILED = "error"
"""The result of a request for checkpoints that was refused or not answered."""


@dataclass(frozen=True, slots=True)
class HeartbeatEnded:
    """A heartbeat was answered (`OK`), or failed with the code of an error."""

    result: str


@dataclass(frozen=True, slots=True)
class CheckpointEnded:
    """A request for checkpoints was answered, with a result for each shard, or failed as a whole (`FAILED`)."""

    results: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Assigned:
    """The answer to a heartbeat was taken in: these shards may be read from now on, those must be given up; with epochs."""

    gained: Mapping[ShardId, int]
    revoked: Mapping[ShardId, int]


@dataclass(frozen=True, slots=True)
class Released:
    """These shards were given up: the next heartbeat does not name them any more."""

    shards: tuple[ShardId, ...]


@dataclass(frozen=True, slots=True)
class Changed:
    """The ledger changed, in whatever way: who waits for something looks again."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The run is over, for this reason: nothing may be read any more."""

    reason: str


Notice: TypeAlias = HeartbeatEnded | CheckpointEnded | Assigned | Released | Changed | Ended
