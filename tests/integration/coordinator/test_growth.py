"""Keys stay in order while their topic grows under load: real producers, a real broker, consumers that read and checkpoint.

The producers are those of kafka-python: they choose a partition by murmur2 of the key modulo the number that they know of.
`Late` goes on with the number that it knew for as long as a producer may. Other producers: `test_growth_by_any_producer`.
"""

from __future__ import annotations

from kafka.partitioner.default import DefaultPartitioner

from shardherd.core.model.nouns import ShardState
from tests.integration.coordinator.growing import KEYS, Late, scene
from tests.integration.coordinator.rig import Rig, becomes, shards


async def test_each_key_is_read_in_order_while_its_topic_grows_twice_under_load(rig: Rig, name: str, topic: str) -> None:
    """From 4 to 8 and on to 16 within the settle time, with a producer that notices late, and parents that are read late."""
    played, coordinator = await scene(rig, name, topic, settle=6.0)
    try:
        await played.read(coordinator)
        behind = Late()
        played.produce(KEYS[:20], DefaultPartitioner())
        late = played.produce(KEYS[20:], behind)
        await becomes(lambda: set(played.sink.of) == set(KEYS))

        await rig.kafka.grow(topic, 8)
        await becomes(lambda: len(coordinator.view(played.spec.identity).growths) == 1)
        await rig.kafka.grow(topic, 16)
        await becomes(lambda: len(coordinator.view(played.spec.identity).growths) == 2)
        assert coordinator.view(played.spec.identity).shards_in(ShardState.WAIT) == 12
        played.neglect(shards(topic, *range(4)))
        for known in (4, 16):
            behind.known, before = known, late.rounds
            await becomes(lambda before=before: late.rounds > before + 5)  # type: ignore[misc]
        assert coordinator.view(played.spec.identity).shards_in(ShardState.WAIT) == 12
        played.neglect(())
        await becomes(lambda: coordinator.view(played.spec.identity).shards_in(ShardState.WAIT) == 0)
        before = late.rounds
        await becomes(lambda: late.rounds > before + 5)
        await played.caught_up()
        assert sorted(shard.shard for shard in coordinator.view(played.spec.identity).shards) == sorted(
            shards(topic, *range(16))
        )
    finally:
        await played.end()
    assert played.sink.disorder() == []
    assert set(played.sink.of) == set(KEYS)


async def test_with_no_time_for_late_producers_the_same_load_is_out_of_order(rig: Rig, name: str, topic: str) -> None:
    """What shows that the test above can fail: a producer that goes on with the old number after the cutover is taken."""
    played, coordinator = await scene(rig, name, topic, settle=0.0)
    try:
        await played.read(coordinator)
        behind = Late()
        late = played.produce(KEYS, behind)
        await becomes(lambda: set(played.sink.of) == set(KEYS))
        await rig.kafka.grow(topic, 8)
        await becomes(lambda: len(coordinator.view(played.spec.identity).shards) == 8)
        await becomes(lambda: coordinator.view(played.spec.identity).shards_in(ShardState.WAIT) == 0)
        # The old partitions are read late, while the producer goes on to write there, and then to the new ones.
        played.neglect(shards(topic, *range(4)))
        for known in (4, 8):
            behind.known, before = known, late.rounds
            await becomes(lambda before=before: late.rounds > before + 5)  # type: ignore[misc]
        await becomes(lambda: bool(played.sink.disorder()))
        played.neglect(())
        await played.caught_up()
    finally:
        await played.end()
    assert played.sink.disorder()
