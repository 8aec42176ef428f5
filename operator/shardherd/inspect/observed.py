"""What was read of one group, and the picture of it that every answer is made from.

Built by `cluster` and `folder`, read by everything else here. Who may look at a namespace has the group's resource, its pods,
its events, and the ConfigMaps with the stored ownership and the copied positions; the coordinator's own view only who may call
it. The picture is the view where there is one. Else it is made of the rest, and what nobody stores is not in it: ends, lags,
ages. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shardherd.controller import pods
from shardherd.core.group.records import Ownership, PositionCopies
from shardherd.core.model import reasons
from shardherd.core.model.messages import Seconds
from shardherd.core.model.naming import consumer_key, shard_key
from shardherd.core.model.nouns import (
    Condition,
    ConsumerId,
    ConsumerView,
    GroupIdentity,
    GroupView,
    KafkaSource,
    KinesisSource,
    ShardId,
    ShardState,
    ShardView,
)
from shardherd.core.planning.diagnosis import STOPPED_FOR_ALL
from shardherd.core.planning.listing import condition, identity_of, reads_kinesis
from shardherd.core.planning.observed import ConsumerPod

Json = dict[str, Any]

WITHHOLDING = STOPPED_FOR_ALL | {reasons.SOURCE_RECREATED, reasons.UNKNOWN_ASSIGNOR, reasons.OWNERSHIP_UNREADABLE}
"""Reasons of a group that is not Ready for which nothing of it is granted."""


class InspectError(Exception):
    """A command cannot do what it is asked for. The message names what, why and the remedy; `code` is the exit code."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


class ConflictError(InspectError):
    """What was looked at is another by now, and nothing was written."""


@dataclass(frozen=True, slots=True)
class Happened:
    """One Event: when last (as the API server writes it), its reason and message, and how often."""

    last: str
    reason: str
    message: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class Observed:
    """One group. `view` is the coordinator's, None if it was not asked. `unseen`: what could not be read, and why."""

    resource: Mapping[str, Any]
    wall: float
    stored: Ownership | None = None
    copies: PositionCopies = field(default_factory=PositionCopies)
    view: GroupView | None = None
    pods: tuple[Json, ...] = ()
    events: tuple[Happened, ...] = ()
    unseen: tuple[str, ...] = ()

    @property
    def identity(self) -> GroupIdentity:
        """Which group it is."""
        return identity_of(self.resource)

    @property
    def spec(self) -> Mapping[str, Any]:
        """What is declared."""
        found: Mapping[str, Any] = self.resource["spec"]
        return found

    @property
    def status(self) -> Mapping[str, Any]:
        """What the operator wrote last."""
        found: Mapping[str, Any] = self.resource.get("status", {})
        return found

    def drivers(self) -> list[ConsumerPod]:
        """The consumers' pods, by ordinal."""
        found = (pods.driver(pod, "") for pod in self.pods)
        return sorted((pod for pod in found if pod is not None), key=lambda pod: pod.ordinal)

    def picture(self) -> GroupView:
        """The coordinator's view, or what is stored of it."""
        return self.view if self.view is not None else _picture(self)

    def shard(self, name: str) -> ShardView | None:
        """One shard of the picture."""
        return next((shard for shard in self.picture().shards if shard.shard == name), None)


def _picture(observed: Observed) -> GroupView:
    stored, status = observed.stored, observed.status
    source = condition(observed.resource, reasons.ConditionType.SOURCE_REACHABLE)
    ready = condition(observed.resource, reasons.ConditionType.READY)
    kind = KinesisSource if reads_kinesis(observed.resource) else KafkaSource
    withheld = ready.get("status") == "False" and ready.get("reason") in WITHHOLDING
    return GroupView(
        group_epoch=stored.group.group_epoch if stored else 0,
        revision=stored.group.revision if stored else 0,
        shards=_shards(stored, observed.copies) if stored else (),
        consumers=_consumers(observed, stored) if stored else (),
        source_reachable=source.get("status") == "True",
        source_error=source.get("message", "the operator has not said anything of it yet"),
        withheld=(Condition(ready["reason"], ready["message"]),) if withheld else (),
        discovered=stored.group.discovered if stored else False,
        source=kind.kind,
        counts_records=kind.counts_records,
        last_reset=stored.group.last_reset if stored else None,
        lag_seconds=status.get("lag", {}).get("seconds"),
    )


def _shards(stored: Ownership, copies: PositionCopies) -> tuple[ShardView, ...]:
    return tuple(
        ShardView(
            shard=name,
            state=record.state,
            holder=record.holder,
            next_consumer=record.next_consumer,
            owner_epoch=record.owner_epoch,
            checkpoint=copies.offsets.get(name),
        )
        for name, record in sorted(stored.shards.items(), key=lambda item: shard_key(item[0]))
    )


def _consumers(observed: Observed, stored: Ownership) -> tuple[ConsumerView, ...]:
    """Those that the group counts; whether one is ready its pod says."""
    drivers = {pod.name: pod for pod in observed.drivers()}
    wanted = observed.status.get("desiredReplicas")
    held = held_by(stored)
    found = []
    for name in sorted((each.consumer for each in stored.consumers.values() if each.present), key=consumer_key):
        record, pod = stored.consumers[name], drivers.get(name)
        # Nothing is known of pods that may not be read, and a consumer that the group counts was ready once.
        ready = pod.ready if pod is not None else not observed.pods
        goes = wanted is not None and pod is not None and pod.ordinal >= wanted
        found.append(
            ConsumerView(
                consumer=name,
                incarnation=record.incarnation,
                ready=ready,
                draining=goes or (pod is not None and pod.deleting),
                shards=len(held.get(name, ())),
                heartbeat_age=Seconds(0.0),
                cordoned=pod is not None and pod.cordoned,
                zone=record.zone,
                capacity=record.capacity,
            )
        )
    return tuple(found)


def held_by(stored: Ownership) -> dict[ConsumerId, list[ShardId]]:
    """The shards that each consumer holds, also those that it is to give up."""
    found: dict[ConsumerId, list[ShardId]] = {}
    for record in stored.shards.values():
        if record.holder is not None and record.state in (ShardState.ALREADY_ALLOC, ShardState.TRANSFER):
            found.setdefault(record.holder, []).append(record.shard)
    return found
