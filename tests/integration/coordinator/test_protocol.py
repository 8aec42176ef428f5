"""The protocol over HTTP, with a real broker's offsets and a real API server's ConfigMaps."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from shardherd.core.model.errors import StaleIncarnationError
from shardherd.core.model.nouns import CheckpointOutcome, CheckpointResult, ShardState
from tests.integration.contract.labs import eventually
from tests.integration.coordinator.rig import Rig, becomes, settle, shards

SOON = 10.0
"""Seconds that the slowest machine needs for an answer that waits for nothing; what would come otherwise comes later still."""

PARKED = 30.0
"""Seconds that a heartbeat waits if there is no news: longer than SOON."""


async def test_two_consumers_share_the_shards_and_checkpoint_them(rig: Rig, name: str, topic: str) -> None:
    coordinator = await rig.coordinator()
    spec = await rig.group(name, (topic,))
    coordinator.server.coordination.apply(spec)
    first, second = await rig.consumer(coordinator, spec, 0), await rig.consumer(coordinator, spec, 1)

    await settle([first, second], lambda: len(first.held) == len(second.held) == 2)
    offsets = dict.fromkeys(first.held, 7)
    outcomes = await first.commit(offsets)

    assert sorted([*first.held, *second.held]) == shards(topic, 0, 1, 2, 3)
    assert [outcome.result for outcome in outcomes] == [CheckpointResult.OK, CheckpointResult.OK]
    store = rig.kafka.connector.offsets(spec)
    assert await store.read(shards(topic, 0, 1, 2, 3)) == {shard: offsets.get(shard, 0) for shard in shards(topic, 0, 1, 2, 3)}
    view = coordinator.view(spec.identity)
    assert {row.shard: row.holder for row in view.shards} == {
        **dict.fromkeys(first.held, first.name),
        **dict.fromkeys(second.held, second.name),
    }
    assert coordinator.counted("shardherd_checkpoints_total", namespace=rig.namespace, consumergroup=name, result="ok") == len(
        offsets
    )
    over_http = await first.client.group()
    assert [(row.shard, row.holder, row.checkpoint) for row in over_http.shards] == [
        (row.shard, row.holder, row.checkpoint) for row in view.shards
    ]


async def test_shards_are_given_to_the_consumer_in_the_rack_of_their_broker(rig: Rig, name: str, topic: str) -> None:
    coordinator = await rig.coordinator()
    spec = await rig.group(name, (topic,))
    # Both are there when shards are given out, however long one of them takes to join.
    spec = replace(spec, settings=replace(spec.settings, initial_assignment_delay=60.0))
    coordinator.server.coordination.apply(spec)
    first, second = await rig.consumer(coordinator, spec, 0), await rig.consumer(coordinator, spec, 1)
    first.zone, second.zone = "elsewhere", rig.kafka.rack

    await settle([first, second], lambda: len(first.held) == len(second.held) == 2)

    assert sorted(second.held) == shards(topic, 0, 1), "those that are given out first"
    seen = await second.client.group()
    assert [row.zone for row in seen.shards] == [rig.kafka.rack] * 4
    assert [(row.zone, row.capacity) for row in seen.consumers] == [("elsewhere", 1), (rig.kafka.rack, 1)]


async def test_a_parked_heartbeat_is_answered_when_shards_must_move(rig: Rig, name: str, topic: str) -> None:
    coordinator = await rig.coordinator()
    spec = await rig.group(name, (topic,))
    coordinator.server.coordination.apply(spec)
    first, second = await rig.consumer(coordinator, spec, 0), await rig.consumer(coordinator, spec, 1)
    await settle([first], lambda: len(first.held) == 4)

    await first.heartbeat()
    parked = asyncio.create_task(first.heartbeat(wait=PARKED))
    await becomes(lambda: coordinator.parked(spec.identity, first.name))
    await second.heartbeat()
    await asyncio.wait_for(parked, SOON)

    assert len(first.held) == 2
    waiting = asyncio.create_task(second.heartbeat(wait=PARKED))
    await becomes(lambda: coordinator.parked(spec.identity, second.name))
    await first.heartbeat()
    await asyncio.wait_for(waiting, SOON)
    assert len(second.held) == 2


async def test_a_parked_heartbeat_is_answered_when_its_interval_ends(rig: Rig, name: str, topic: str) -> None:
    coordinator = await rig.coordinator()
    spec = await rig.group(name, (topic,), consumers=1)
    coordinator.server.coordination.apply(spec)
    consumer = await rig.consumer(coordinator, spec, 0)
    await settle([consumer], lambda: len(consumer.held) == 4)
    await consumer.heartbeat()
    before = dict(consumer.held)

    started = time.monotonic()
    await asyncio.wait_for(consumer.heartbeat(wait=0.5), SOON)

    assert time.monotonic() - started > 0.4
    assert consumer.held == before


async def test_a_later_heartbeat_answers_the_parked_one(rig: Rig, name: str, topic: str) -> None:
    coordinator = await rig.coordinator()
    spec = await rig.group(name, (topic,), consumers=1)
    coordinator.server.coordination.apply(spec)
    consumer = await rig.consumer(coordinator, spec, 0)
    await settle([consumer], lambda: len(consumer.held) == 4)
    await consumer.heartbeat()

    parked = asyncio.create_task(consumer.heartbeat(wait=PARKED))
    await becomes(lambda: coordinator.parked(spec.identity, consumer.name))
    latest = await consumer.heartbeat()

    assert await asyncio.wait_for(parked, SOON) == latest


async def test_a_checkpoint_of_a_shard_that_is_not_held_is_fenced(rig: Rig, name: str, topic: str) -> None:
    coordinator = await rig.coordinator()
    spec = await rig.group(name, (topic,))
    coordinator.server.coordination.apply(spec)
    first, second = await rig.consumer(coordinator, spec, 0), await rig.consumer(coordinator, spec, 1)
    await settle([first, second], lambda: len(first.held) == len(second.held) == 2)
    foreign = next(iter(second.held))
    own = next(iter(first.held))

    assert await first.commit({foreign: 9}) == (
        CheckpointOutcome(
            foreign,
            CheckpointResult.FENCED,
            9,
            expected_epoch=1,
            actual_epoch=second.held[foreign],
            holder=second.name,
        ),
    )
    assert [each.result for each in await first.commit({own: 9}, epoch=99)] == [CheckpointResult.FENCED]
    assert await rig.kafka.connector.offsets(spec).read([foreign, own]) == {foreign: 0, own: 0}


async def test_a_restarted_container_takes_its_shards_over_and_its_former_run_is_refused(
    rig: Rig, name: str, topic: str
) -> None:
    coordinator = await rig.coordinator()
    spec = await rig.group(name, (topic,), consumers=1)
    coordinator.server.coordination.apply(spec)
    former = await rig.consumer(coordinator, spec, 0)
    await settle([former], lambda: len(former.held) == 4)
    await former.commit(dict.fromkeys(former.held, 5))

    latter = former.restarted()
    await settle([latter], lambda: len(latter.held) == 4)

    assert all(latter.held[shard] > epoch for shard, epoch in former.held.items())
    assert latter.positions == dict.fromkeys(latter.held, 5)
    with pytest.raises(StaleIncarnationError, match="end this process"):
        await former.heartbeat()


async def test_who_leaves_hands_its_shards_on_at_once(rig: Rig, name: str, topic: str) -> None:
    coordinator = await rig.coordinator()
    spec = await rig.group(name, (topic,))
    coordinator.server.coordination.apply(spec)
    first, second = await rig.consumer(coordinator, spec, 0), await rig.consumer(coordinator, spec, 1)
    await settle([first, second], lambda: len(first.held) == len(second.held) == 2)

    await first.leave()
    # Not by its session timeout, which is of 60 s.
    await settle([second], lambda: len(second.held) == 4, within=SOON)

    assert sorted(second.held) == shards(topic, 0, 1, 2, 3)


async def test_new_partitions_are_granted(rig: Rig, name: str, topic: str) -> None:
    coordinator = await rig.coordinator()
    spec = await rig.group(name, (topic,), consumers=1)
    coordinator.server.coordination.apply(spec)
    consumer = await rig.consumer(coordinator, spec, 0)
    await settle([consumer], lambda: len(consumer.held) == 4)

    await rig.kafka.grow(topic, 6)

    await settle([consumer], lambda: len(consumer.held) == 6)
    assert sorted(consumer.held) == shards(topic, *range(6))


async def test_a_silent_consumer_expires_and_another_reads_on(rig: Rig, name: str, topic: str) -> None:
    coordinator = await rig.coordinator()
    spec = await rig.group(name, (topic,))
    spec = replace(spec, settings=replace(spec.settings, session_timeout=6.0))
    coordinator.server.coordination.apply(spec)
    first, second = await rig.consumer(coordinator, spec, 0), await rig.consumer(coordinator, spec, 1)
    await settle([first, second], lambda: len(first.held) == len(second.held) == 2)

    await settle([second], lambda: len(second.held) == 4)

    async def recorded() -> bool:
        return "SessionTimeout" in [reason for reason, *_ in await asyncio.to_thread(rig.kubernetes.events, spec.identity)]

    await eventually(recorded)


async def test_a_consumer_that_is_proven_dead_hands_its_shards_on_at_once(rig: Rig, name: str, topic: str) -> None:
    coordinator = await rig.coordinator()
    spec = await rig.group(name, (topic,))
    coordinator.server.coordination.apply(spec)
    first, second = await rig.consumer(coordinator, spec, 0), await rig.consumer(coordinator, spec, 1)
    await settle([first, second], lambda: len(first.held) == len(second.held) == 2)

    await asyncio.to_thread(coordinator.server.coordination.consumer_died, spec.identity, first.name, first.incarnation)
    # Not by its session timeout, which is of 60 s.
    await settle([second], lambda: len(second.held) == 4, within=SOON)

    assert sorted(second.held) == shards(topic, 0, 1, 2, 3)


async def test_a_deleted_group_is_no_longer_served(rig: Rig, name: str, topic: str) -> None:
    coordinator = await rig.coordinator()
    spec = await rig.group(name, (topic,), consumers=1)
    coordinator.server.coordination.apply(spec)
    await becomes(lambda: coordinator.server.coordination.view(spec.identity) is not None)

    coordinator.server.coordination.forget(spec.identity)

    await becomes(lambda: coordinator.server.coordination.view(spec.identity) is None)
    assert dict(coordinator.server.coordination.views()) == {}


async def test_all_shards_are_counted_by_state(rig: Rig, name: str, topic: str) -> None:
    coordinator = await rig.coordinator()
    spec = await rig.group(name, (topic,), consumers=1)

    coordinator.server.coordination.apply(spec)
    await becomes(
        lambda: (
            (view := coordinator.server.coordination.view(spec.identity)) is not None
            and view.shards_in(ShardState.NOT_ALLOC) == 4
        )
    )

    assert coordinator.view(spec.identity).source_reachable
