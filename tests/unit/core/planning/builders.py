"""Builders of what planning reads: views of the coordinator, declarations, and observations.

Every builder makes something ordinary; a test names only what matters to it. Ids and times are fixed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import structs

from shardherd.core.model.messages import Seconds
from shardherd.core.model.nouns import (
    ConsumerId,
    ConsumerView,
    GroupIdentity,
    GroupSettings,
    GroupView,
    Incarnation,
    KafkaSource,
    ShardId,
    ShardState,
    ShardView,
)
from shardherd.core.planning.conditions import findings
from shardherd.core.planning.course import Course
from shardherd.core.planning.observed import ConsumerPod, Declared, Observation, Owned, OwnedSet, Scaling
from shardherd.core.planning.rollout import rolling
from shardherd.core.planning.scaling import Scale
from shardherd.core.planning.status import status

UID = "11111111-0000-0000-0000-000000000000"
NOW = 1000.0
WALL = 1_700_000_000.0
"""2023-11-14T22:13:20Z"""

IDENTITY = GroupIdentity("shop", "clicks", UID)


def shards(count: int, state: ShardState = ShardState.ALREADY_ALLOC, **fields: Any) -> tuple[ShardView, ...]:
    """`clicks/0`, `clicks/1`, ... in one state; held by clicks-0 where that state has a holder."""
    held = state in (ShardState.ALREADY_ALLOC, ShardState.TRANSFER)
    values = {"holder": ConsumerId("clicks-0") if held else None, "lag_records": 10, **fields}
    return tuple(ShardView(ShardId(f"clicks/{number}"), state, **values) for number in range(count))


def consumers(*held: int) -> tuple[ConsumerView, ...]:
    """One consumer for each number of shards that it holds."""
    return tuple(
        ConsumerView(ConsumerId(f"clicks-{index}"), Incarnation(f"uid-{index}", 1), True, False, count, Seconds(0.1))
        for index, count in enumerate(held)
    )


def view(held: Sequence[ShardView] = (), **fields: Any) -> GroupView:
    """A picture of a group whose source was read."""
    values: dict[str, Any] = {"consumers": (), "discovered": True, "source_reachable": True, **fields}
    return GroupView(group_epoch=3, revision=7, shards=tuple(held), **values)


def declared(**fields: Any) -> Declared:
    """What a resource declares; `settings` and `scaling` take the fields of GroupSettings and Scaling."""
    values: dict[str, Any] = {
        "identity": IDENTITY,
        "generation": 1,
        "source": KafkaSource("kafka:9092", ("clicks",), "", "shop.clicks"),
        "settings": GroupSettings(),
        "scaling": Scaling(),
        "replicas": 1,
        "drain_timeout": 60.0,
        "executors": 0,
        "service_account": "shardherd-spark",
        "template_hash": "now",
    }
    return Declared(**{**values, **fields})


def pods(*ordinals: int, ready: bool = True, **fields: Any) -> tuple[ConsumerPod, ...]:
    """Drivers as they are observed, by their ordinals."""
    return tuple(
        ConsumerPod(ConsumerId(f"clicks-{ordinal}"), f"uid-{ordinal}", ordinal, ready=ready, **fields) for ordinal in ordinals
    )


def observation(**fields: Any) -> Observation:
    """A group of two consumers that runs as declared: eight shards, four each."""
    held = (
        *shards(4),
        *(
            structs.replace(shard, shard=ShardId(f"clicks/{4 + n}"), holder=ConsumerId("clicks-1"))
            for n, shard in enumerate(shards(4))
        ),
    )
    values: dict[str, Any] = {
        "declared": declared(),
        "now": NOW,
        "wall": WALL,
        "stateful_set": OwnedSet(replicas=2),
        "service": Owned(),
        "budget": Owned(),
        "consumers": pods(0, 1),
        "view": view(held, consumers=consumers(4, 4)),
    }
    return Observation(**{**values, **fields})


def status_of(observation: Observation, scaled: Scale | None = None) -> dict[str, Any]:
    """The status for this observation, with this decision on the number of consumers in the place of its own."""
    course = course_of(observation, scaled)
    return status(observation, course, findings(observation, course))


def course_of(observation: Observation, scaled: Scale | None = None) -> Course:
    """What is decided for this observation, or follows from this decision on the number of consumers."""
    return Course.of(observation) if scaled is None else Course(scaled, rolling(observation, scaled))
