"""Topics that come and go while a group is served: the others are read and checkpointed on; users are told what is missing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace

from shardherd.adapters.memory import MemoryEvents
from shardherd.coordinator.cleaning import Cleaning
from shardherd.core.model.nouns import CheckpointResult, GroupSpec, ShardId, ShardInfo
from shardherd.ports import Discovered, SourceUnavailableError
from tests.unit.coordinator.rig import IDENTITY, Consumer, Rig, spec_of


def reading(*topics: str, starting: str = "Earliest") -> GroupSpec:
    spec = spec_of()
    return replace(spec, source=replace(spec.kafka, topics=topics, starting_position=starting))


async def holds(rig: Rig, consumer: Consumer, *shards: str) -> None:
    """Until it holds just these shards."""

    async def asked() -> bool:
        await consumer.heartbeat()
        return sorted(consumer.held) == sorted(shards)

    await rig.comes_true(asked)


async def two_topics(rig: Rig) -> Consumer:
    rig.kafka.create_topic("u", 2)
    rig.runtime.apply(reading("t", "u"))
    consumer = rig.consumer()
    await holds(rig, consumer, "t/0", "t/1", "t/2", "t/3", "u/0", "u/1")
    return consumer


async def test_a_topic_of_a_list_that_is_deleted_stops_no_checkpoint_of_the_others_and_hides_no_growth(rig: Rig) -> None:
    consumer = await two_topics(rig)
    del rig.kafka.topics["u"]

    await holds(rig, consumer, "t/0", "t/1", "t/2", "t/3")
    assert await consumer.commit(7) == {CheckpointResult.OK}
    assert rig.kafka.committed["demo.clicks"][ShardId("t/3")] == 7

    rig.kafka.grow_topic("t", 5)
    await holds(rig, consumer, "t/0", "t/1", "t/2", "t/3", "t/4")


async def test_a_consumer_that_still_names_the_deleted_topic_is_told_to_wait_with_that_one_only(rig: Rig) -> None:
    consumer = await two_topics(rig)
    del rig.kafka.topics["u"]
    await rig.looked()

    assert await consumer.commit(7) == {CheckpointResult.OK, CheckpointResult.WITHHELD}
    assert set(rig.kafka.committed["demo.clicks"].values()) == {0, 7}
    assert rig.view.source_reachable


async def test_a_topic_that_nobody_has_missed_yet_keeps_no_checkpoint_of_the_others_back(rig: Rig) -> None:
    consumer = await two_topics(rig)
    rig.kafka.faults.hold("discover")
    del rig.kafka.topics["u"]

    assert await consumer.commit(7) == {CheckpointResult.OK, CheckpointResult.WITHHELD}
    assert rig.kafka.committed["demo.clicks"] == {ShardId(f"t/{number}"): 7 for number in range(4)} | {
        ShardId("u/0"): 0,
        ShardId("u/1"): 0,
    }
    assert rig.view.source_reachable
    assert "SourceUnavailable" not in rig.events.reasons()


async def test_what_is_missing_of_a_list_is_told_until_it_is_there(rig: Rig) -> None:
    consumer = await two_topics(rig)
    del rig.kafka.topics["u"]
    await rig.becomes(lambda: rig.reasons() == ["TopicMissing"])

    message = "topic 'u' does not exist in Kafka at broker:9092; create it or correct spec.source.kafka.topics"
    assert rig.view.withheld[0].message == f"{message}; what there is of the others is read"
    assert (rig.view.stopped, rig.events.reasons().count("TopicMissing")) == ((), 1)

    rig.kafka.topics["u"] = [[0, 0], [0, 0]]
    await holds(rig, consumer, "t/0", "t/1", "t/2", "t/3", "u/0", "u/1")
    assert rig.reasons() == []


async def test_unrelated_topic_causes_no_rebalance(rig: Rig) -> None:
    spec = spec_of()
    rig.runtime.apply(replace(spec, source=replace(spec.kafka, topics=(), topic_pattern="t.*")))
    consumer = rig.consumer()
    await holds(rig, consumer, "t/0", "t/1", "t/2", "t/3")
    stored, rebalances = rig.group.group.ownership, rig.events.reasons().count("Rebalanced")

    rig.kafka.create_topic("u", 2)
    await rig.looked()
    assert (rig.group.group.ownership, rig.events.reasons().count("Rebalanced")) == (stored, rebalances)

    rig.kafka.create_topic("t-2", 1)
    await holds(rig, consumer, "t/0", "t/1", "t/2", "t/3", "t-2/0")


async def test_a_new_group_reads_what_there_is_of_its_list(rig: Rig) -> None:
    rig.runtime.apply(reading("t", "u"))
    consumer = rig.consumer()
    await holds(rig, consumer, "t/0", "t/1", "t/2", "t/3")
    assert rig.reasons() == ["TopicMissing"]


async def test_a_new_group_that_begins_at_the_ends_waits_for_all_of_its_list(rig: Rig) -> None:
    rig.kafka.append("t", 0, 5)
    rig.runtime.apply(reading("t", "u", starting="Latest"))
    await rig.becomes(lambda: rig.runtime.view(IDENTITY) is not None and bool(rig.view.source_error))
    assert rig.view.source_error == (
        "topic 'u' does not exist in Kafka at broker:9092; create it or correct spec.source.kafka.topics; startingPosition"
        " Latest begins at the ends of all shards at once"
    )
    assert not rig.view.discovered

    rig.kafka.create_topic("u", 1)
    rig.kafka.append("u", 0, 3)
    consumer = rig.consumer()
    await holds(rig, consumer, "t/0", "t/1", "t/2", "t/3", "u/0")
    assert (consumer.positions[ShardId("t/0")], consumer.positions[ShardId("u/0")]) == (5, 3)


async def test_beside_a_partition_without_a_leader_growth_is_seen_members_join_and_are_balanced(rig: Rig) -> None:
    (first,) = await rig.serving()
    await rig.runtime.stop()
    rig.kafka.leaderless.add(ShardId("t/0"))
    again = Rig(beside=rig)
    again.runtime.apply(spec_of(2))
    first.rig = again
    await again.becomes(lambda: again.runtime.ready and again.reasons() == ["ShardsUnavailable"])
    assert again.view.withheld[0].message == (
        "t/0 has no leader, so nobody knows how far there is something to read; start the broker; the other shards are served"
    )

    again.kafka.grow_topic("t", 6)
    second = again.consumer(1)

    async def shared() -> bool:
        await asyncio.gather(first.heartbeat(), second.heartbeat())
        return len(first.held) == len(second.held) == 3

    await again.comes_true(shared)
    assert sorted([*first.held, *second.held]) == ["t/0", "t/1", "t/2", "t/3", "t/4", "t/5"]
    assert await first.commit(7) == await second.commit(7) == {CheckpointResult.OK}

    again.kafka.leaderless.clear()
    await again.becomes(lambda: again.reasons() == [])
    await again.runtime.stop()


LEFT = [ShardId(f"t/{number}") for number in range(4)]


async def forgets(rig: Rig, *, delete_offsets: bool = False) -> GroupSpec:
    """A group that has read up to 7, and has forgotten the topic u."""
    rig.kafka.create_topic("u", 2)
    spec = reading("t", "u")
    spec = replace(
        spec, source=replace(spec.kafka, delete_offsets=delete_offsets), settings=replace(spec.settings, forget_after=60.0)
    )
    rig.runtime.apply(spec)
    consumer = rig.consumer()
    await holds(rig, consumer, *LEFT, "u/0", "u/1")
    await consumer.commit(7)
    del rig.kafka.topics["u"]
    await holds(rig, consumer, *LEFT)
    for _ in range(10):
        await rig.serve(60.0)
        await consumer.heartbeat()
    assert [row.shard for row in rig.view.shards] == LEFT
    return spec


async def test_what_is_forgotten_is_not_in_the_store_nor_among_its_copies(rig: Rig) -> None:
    left = LEFT
    spec = await forgets(rig)
    assert (await rig.ownership.load_copies(IDENTITY)).copies.offsets == dict.fromkeys(left, 7)
    await rig.runtime.stop()
    again = Rig(beside=rig)
    again.runtime.apply(spec)
    await again.becomes(lambda: again.runtime.ready and again.view.discovered)
    assert [row.shard for row in again.view.shards] == left
    await again.runtime.stop()


async def test_offsets_of_what_is_forgotten_are_kept(rig: Rig) -> None:
    await forgets(rig)
    assert sorted(rig.kafka.committed["demo.clicks"]) == [*LEFT, "u/0", "u/1"]


async def test_offsets_of_what_is_forgotten_are_deleted_where_that_is_declared(rig: Rig) -> None:
    await forgets(rig, delete_offsets=True)
    assert (rig.kafka.committed["demo.clicks"], sorted(rig.kafka.noted["demo.clicks"])) == (dict.fromkeys(LEFT, 7), LEFT)
    assert "OffsetsKept" not in rig.events.reasons()


async def test_offsets_that_could_not_be_deleted_are_told_of_once_and_hold_up_nothing(rig: Rig) -> None:
    for _ in range(3):
        rig.kafka.faults.fail("forget", SourceUnavailableError("GroupAuthorizationFailedError"))
    await forgets(rig, delete_offsets=True)
    events = [event for event in rig.events.events if event.reason == "OffsetsKept"]
    assert [event.message for event in events] == [
        "the offsets of u/0, u/1 stay in the source, though these shards are forgotten; spec.cleanup Delete needs the right"
        " DELETE on the Kafka group: GroupAuthorizationFailedError"
    ]
    assert rig.view.source_reachable
    assert ShardId("u/0") in rig.kafka.committed["demo.clicks"]


def test_nothing_is_deleted_of_what_a_look_shows_again() -> None:
    deleted: list[ShardId] = []

    async def forget(shards: Iterable[ShardId]) -> None:
        deleted.extend(shards)

    spec = reading("t")
    spec = replace(spec, source=replace(spec.kafka, delete_offsets=True))
    cleaning = Cleaning(MemoryEvents())
    cleaning.put([ShardId("u/0"), ShardId("u/1"), ShardId("u/2")])
    cleaning.seen(Discovered((ShardInfo(ShardId("u/0"), 0, 5),), (ShardId("u/1"),)))
    asyncio.run(cleaning.remind(forget, spec))
    asyncio.run(cleaning.remind(forget, spec))
    assert deleted == ["u/2"]


async def test_the_groups_are_told_by_their_names_in_kafka(rig: Rig) -> None:
    assert rig.runtime.kafka_groups() == {}
    await rig.serving()
    assert rig.runtime.kafka_groups() == {IDENTITY: "demo.clicks"}
