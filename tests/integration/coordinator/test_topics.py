"""Topics that come and go, on a real broker: what is left is read, checkpointed and balanced as if nothing had happened."""

from __future__ import annotations

from dataclasses import replace

from shardherd.core.model.nouns import CheckpointResult, ShardId, ShardState
from tests.integration.contract.labs import eventually
from tests.integration.coordinator.rig import Consumer, Rig, becomes, settle, shards


async def saves(consumer: Consumer, shard: ShardId, offset: int) -> None:
    """Until a checkpoint of this shard is durable; nothing but what fails for a moment is tried again."""

    async def saved() -> bool:
        await consumer.heartbeat()
        outcomes = await consumer.commit({shard: offset})
        return [outcome.result for outcome in outcomes] == [CheckpointResult.OK]

    await eventually(saved)


async def test_a_topic_of_a_list_that_is_deleted_stops_nothing_of_the_others(rig: Rig, name: str, topic: str) -> None:
    coordinator, other = await rig.coordinator(), f"{topic}-other"
    await rig.kafka.create(other, 2)
    spec = await rig.group(name, (topic, other), consumers=1)
    coordinator.server.coordination.apply(spec)
    consumer = await rig.consumer(coordinator, spec, 0)
    await settle([consumer], lambda: len(consumer.held) == 6)

    await rig.kafka.delete(other)
    await becomes(lambda: [cause.reason for cause in coordinator.view(spec.identity).withheld] == ["TopicMissing"])

    await settle([consumer], lambda: sorted(consumer.held) == shards(topic, 0, 1, 2, 3))
    await saves(consumer, shards(topic, 0)[0], 7)
    view = coordinator.view(spec.identity)
    assert view.source_reachable
    assert f"topic '{other}' does not exist" in view.withheld[0].message
    assert [row.shards for row in view.consumers] == [4]

    await rig.kafka.grow(topic, 5)
    await settle([consumer], lambda: sorted(consumer.held) == shards(topic, 0, 1, 2, 3, 4))


async def test_a_topic_that_vanishes_under_a_pattern_is_taken_from_its_holder_and_forgotten(
    rig: Rig, name: str, topic: str
) -> None:
    coordinator, other = await rig.coordinator(), f"{topic}-other"
    await rig.kafka.create(other, 4)
    made = await rig.group(name, (), consumers=2)
    source = replace(made.kafka, topic_pattern=f"{topic}.*")
    settings = replace(made.settings, assignor="Range", session_timeout=5.0, forget_after=5.0)
    spec = replace(made, source=source, settings=settings)
    coordinator.server.coordination.apply(spec)
    both = [await rig.consumer(coordinator, spec, ordinal) for ordinal in range(2)]
    await settle(both, lambda: [len(each.held) for each in both] == [4, 4])
    gone, left = set(shards(other, 0, 1, 2, 3)), shards(topic, 0, 1, 2, 3)

    await rig.kafka.delete(other)
    await settle(both, lambda: not gone & (both[0].held.keys() | both[1].held.keys()))

    seen = coordinator.view(spec.identity)
    assert sorted(row.shards for row in seen.consumers) == [2, 2]
    assert seen.shards_in(*ShardState) == 4
    for consumer in both:
        await saves(consumer, sorted(consumer.held)[0], 3)
    await settle(both, lambda: [row.shard for row in coordinator.view(spec.identity).shards] == left)

    store = rig.kafka.connector.offsets(spec)

    async def deleted() -> bool:
        return await store.read(sorted(gone)) == {}

    await eventually(deleted)  # by Kafka, with the topic

    successor = await rig.coordinator()
    successor.server.coordination.apply(spec)
    await becomes(lambda: successor.server.coordination.view(spec.identity) is not None)
    await becomes(lambda: successor.view(spec.identity).discovered)
    assert [row.shard for row in successor.view(spec.identity).shards] == left
