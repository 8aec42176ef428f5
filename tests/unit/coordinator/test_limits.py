"""The largest group: 100,000 shards are served and reset, and a thousand consumers with all their replaced pods are stored."""

from __future__ import annotations

import random
import uuid
from dataclasses import replace
from typing import cast

import pytest

from shardherd import protocol
from shardherd.adapters.kubernetes.api import KubernetesApi
from shardherd.adapters.kubernetes.ownership import ConfigMapOwnership
from shardherd.coordinator.api import MAX_BODY
from shardherd.core.group.liveness import KEPT_UIDS
from shardherd.core.group.ownership import dumps, loads
from shardherd.core.group.records import ConsumerRecord, GroupRecord, Ownership, ShardRecord
from shardherd.core.model.nouns import (
    ConsumerId,
    Incarnation,
    Reset,
    ResetReport,
    ResetRow,
    ResetState,
    ResetTo,
    ShardId,
    ShardState,
)
from shardherd.ports import GROWTH_LIMIT
from tests.harness.config_maps import PlayedConfigMaps
from tests.unit.coordinator.rig import IDENTITY, Rig, spec_of

LARGEST = 100_000


async def test_a_group_of_a_hundred_thousand_shards_is_served_and_reset_and_its_requests_fit(rig: Rig) -> None:
    rig.kafka.create_topic("large", LARGEST)
    spec = spec_of()
    topics = replace(spec.kafka, topics=("large",))
    rig.runtime.apply(replace(spec, source=topics))
    consumer = rig.consumer()
    await rig.becomes(lambda: (view := rig.runtime.view(IDENTITY)) is not None and len(view.shards) == LARGEST, within=60)

    async def holds_all() -> bool:
        return len((await consumer.heartbeat()).confirmed) == LARGEST

    await rig.comes_true(holds_all, within=60)

    assert len(protocol.dumps(consumer.beat())) < MAX_BODY
    assert rig.reasons() == []
    assert {row.holder for row in rig.view.shards} == {consumer.name}

    rig.runtime.apply(
        replace(spec, source=topics, settings=replace(spec.settings, paused=True), reset=Reset("r1", ResetTo.LATEST))
    )
    await rig.becomes(lambda: (made := rig.view.reset) is not None and made.state is ResetState.DONE, within=60)
    assert "SnapshotTooLarge" not in rig.events.reasons()


@pytest.mark.parametrize(("uids", "reset", "kibibytes"), [(KEPT_UIDS, False, 1200), (64, True, 4000)])
async def test_the_largest_group_with_its_replaced_pods_and_a_reset_is_stored(uids: int, reset: bool, kibibytes: int) -> None:
    """A thousand consumers, each with so many pods before, hold the shards without any order, under epochs of their own."""
    ownership = largest(random.Random(1), uids, reset)
    server = PlayedConfigMaps()
    store = ConfigMapOwnership(cast(KubernetesApi, server))

    version = await store.save(IDENTITY, dumps(ownership), None, grows=True)

    stored = await store.load(IDENTITY)
    assert stored is not None
    assert (loads(stored.data), stored.version) == (ownership, version)
    assert server.bytes < kibibytes * 1024 < GROWTH_LIMIT


def largest(rng: random.Random, uids: int, reset: bool) -> Ownership:
    """100,000 shards of 100 topics."""

    def uid() -> str:
        return str(uuid.UUID(int=rng.getrandbits(128), version=4))

    names = [ConsumerId(f"clicks-{number}") for number in range(1000)]
    runs = {name: Incarnation(uid(), rng.randint(1, 3)) for name in names}
    consumers = {name: ConsumerRecord(name, runs[name], superseded=tuple(uid() for _ in range(uids))) for name in names}
    shards: dict[ShardId, ShardRecord] = {}
    for number in range(LARGEST):
        shard, holder = ShardId(f"clicks-{number // 1000}/{number % 1000}"), rng.choice(names)
        epoch, revision = rng.randint(1, 20), rng.randint(1, 3000)
        source, held = f"id-{number // 1000}", ShardState.ALREADY_ALLOC
        shards[shard] = ShardRecord(
            shard, held, 0, True, holder, runs[holder], None, holder, epoch, 1, revision, source_id=source
        )
    rows = tuple(ResetRow(shard, rng.randrange(10**10), rng.randrange(10**10)) for shard in shards)
    report = ResetReport("r1", ResetTo.TIMESTAMP, ResetState.APPLYING, "it is being made", shards=LARGEST, rows=rows)
    return Ownership(GroupRecord(IDENTITY.uid, 1, 1, 3000, True, reset=report if reset else None), shards, consumers)
