"""Builds observations of a group as a user reads them from a cluster."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from shardherd.core.group.records import ConsumerRecord, GroupRecord, Ownership, PositionCopies, ShardRecord
from shardherd.core.model.messages import Seconds
from shardherd.core.model.nouns import (
    ConsumerId,
    ConsumerView,
    GroupView,
    Incarnation,
    Phase,
    ShardId,
    ShardState,
    ShardView,
)
from shardherd.core.model.verdicts import Verdict
from shardherd.inspect.observed import Happened, Observed
from tests.unit.local.manifests import Json, group

UID = "6a1f2c34-0000-4000-8000-000000000001"
WALL = 1_700_000_000.0
SINCE = "2023-11-14T22:10:00Z"

MESSAGES: Mapping[str, tuple[str, str, str]] = {
    "Ready": ("True", "Consuming", "2 consumers read 4 shards."),
    "Reconciling": ("False", "Settled", "2 consumers as declared."),
    "Stalled": ("False", "NotStalled", "Nothing is in the way."),
    "SourceReachable": ("True", "Discovered", "4 shards found."),
    "ConsumersReady": ("True", "AllReady", "2 of 2 consumers are ready."),
    "Balanced": ("True", "Balanced", "2 consumers with 2 shards each."),
    "ScalingActive": ("True", "FollowingShards", "4 shards, 2 for each consumer."),
    "ScalingLimited": ("False", "WithinLimits", "No limit is in the way."),
}


def condition(kind: str, status: str, reason: str, message: str) -> Json:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": SINCE}


def resource(name: str = "clicks", *, conditions: Mapping[str, tuple[str, str, str]] | None = None, **fields: Any) -> Json:
    """A ConsumerGroup that is well, but for these conditions; `spec` and `status` are merged over an ordinary one."""
    made = group(name, **fields.get("spec", {}))
    made["metadata"] |= {"uid": UID, "generation": 1, "namespace": "shop"}
    status: Json = {
        "observedGeneration": 1,
        "replicas": 2,
        "readyReplicas": 2,
        "desiredReplicas": 2,
        "groupEpoch": 3,
        "scaling": {"desired": 2, "reason": "FollowingShards", "message": "4 shards, 2 for each consumer.", "time": SINCE},
        "shards": {"total": 4, "wait": 0, "notAlloc": 0, "alreadyAlloc": 4, "transfer": 0, "over": 0},
        "lag": {"records": 70, "seconds": 3, "producedPerSecond": 10, "consumedPerSecond": 20, "consumerPerSecond": 10},
        "conditions": [condition(kind, *said) for kind, said in {**MESSAGES, **(conditions or {})}.items()],
    }
    made["status"] = status | fields.get("status", {})
    return made


def pod(name: str, *, ready: bool = True, **metadata: Any) -> Json:
    """A driver's pod. `waiting` is what its container waits for."""
    labels = {"shardherd.dev/consumergroup": "clicks", "shardherd.dev/role": "driver", **metadata.pop("labels", {})}
    waiting = metadata.pop("waiting", None)
    state: Json = {"waiting": waiting} if waiting else {"running": {}}
    return {
        "metadata": {"name": name, "namespace": "shop", "uid": f"uid-{name}", "labels": labels, **metadata},
        "spec": {"containers": [{"name": "driver", "image": "example/clicks:1", "env": [{"name": "DB", "value": "hunter2"}]}]},
        "status": {
            "conditions": [{"type": "Ready", "status": str(ready)}],
            "containerStatuses": [{"name": "driver", "ready": ready, "state": state}],
        },
    }


def run(name: str) -> Incarnation:
    return Incarnation(f"uid-{name}", 1)


def record(number: int, holder: str | None, state: str = "", to: str | None = None) -> ShardRecord:
    """A shard as it is stored: held, moving, or free."""
    usual = ShardState.TRANSFER if to else ShardState.ALREADY_ALLOC if holder else ShardState.NOT_ALLOC
    return ShardRecord(
        shard=ShardId(f"clicks/{number}"),
        state=ShardState(state) if state else usual,
        start=0,
        started=True,
        holder=None if holder is None else ConsumerId(holder),
        incarnation=None if holder is None else run(holder),
        next_consumer=None if to is None else ConsumerId(to),
        owner_epoch=number + 1,
        held_since_epoch=number + 1,
    )


HELD = (record(0, "clicks-0"), record(1, "clicks-0"), record(2, "clicks-1"), record(10, "clicks-1"))


def stored(records: Sequence[ShardRecord] = HELD, consumers: Sequence[str] = ("clicks-0", "clicks-1")) -> Ownership:
    known = {ConsumerId(name): ConsumerRecord(ConsumerId(name), run(name)) for name in consumers}
    return Ownership(
        GroupRecord(UID, leader_epoch=1, group_epoch=3, revision=7, discovered=True),
        {each.shard: each for each in records},
        known,
    )


def observed(records: Sequence[ShardRecord] = HELD, **fields: Any) -> Observed:
    """Two consumers with two shards each, as a user without the coordinator sees them."""
    made = resource(**{name: fields.pop(name) for name in ("conditions", "spec", "status") if name in fields})
    values: dict[str, Any] = {
        "stored": stored(records, fields.pop("consumers", ("clicks-0", "clicks-1"))),
        "copies": PositionCopies({each.shard: 100 + at for at, each in enumerate(records)}),
        "pods": (pod("clicks-0"), pod("clicks-1")),
        "events": (Happened(SINCE, "ConsumerJoined", "clicks-1 came", 2),),
    }
    return Observed(copy.deepcopy(made), WALL, **(values | fields))


def live(*shards: ShardView, **fields: Any) -> GroupView:
    """What the coordinator shows: two consumers that read."""
    consumers = tuple(
        ConsumerView(
            ConsumerId(name),
            run(name),
            ready=True,
            draining=False,
            shards=sum(shard.holder == name for shard in shards),
            heartbeat_age=Seconds(1.0),
            phase=Phase.READING,
            phase_age=Seconds(4.0),
        )
        for name in ("clicks-0", "clicks-1")
    )
    values: dict[str, Any] = {"source_reachable": True, "discovered": True, "verdict": Verdict.OK, **fields}
    return GroupView(3, 7, shards, consumers, **values)


def seen(number: int, holder: str | None, *, lag: int = 0, age: float = 60.0, **fields: Any) -> ShardView:
    """A shard as the coordinator shows it."""
    usual = ShardState.ALREADY_ALLOC if holder else ShardState.NOT_ALLOC
    values: dict[str, Any] = {"state": usual, "checkpoint": 100, "begin": 0, "end": 100 + lag, "lag_records": lag, **fields}
    who = None if holder is None else ConsumerId(holder)
    return ShardView(ShardId(f"clicks/{number}"), holder=who, owner_epoch=number + 1, state_age=Seconds(age), **values)
