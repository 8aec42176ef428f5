"""A topic of an ordered group grows while the group is served: its new shards wait, and nobody is given one too soon."""

from __future__ import annotations

from dataclasses import replace

from shardherd.core.model.nouns import CheckpointResult, GroupSpec, ShardId, ShardState
from shardherd.ports import SourceUnavailableError
from tests.unit.coordinator.rig import Consumer, Rig, spec_of

SETTLE = 20.0


def ordered() -> GroupSpec:
    spec = spec_of()
    return replace(spec, settings=replace(spec.settings, ordered=True, growth_settle=SETTLE))


def waiting(rig: Rig) -> list[ShardId]:
    return [each.shard for each in rig.view.shards if each.state is ShardState.WAIT]


async def reads(rig: Rig, consumer: Consumer, count: int) -> None:
    """Until the consumer holds so many shards."""

    async def asked() -> bool:
        await consumer.heartbeat()
        return len(consumer.held) == count

    await rig.comes_true(asked)


async def test_new_shards_are_read_once_their_parents_are_read_to_where_they_end_after_the_settle_time(rig: Rig) -> None:
    rig.runtime.apply(ordered())
    consumer = rig.consumer()
    await reads(rig, consumer, 4)
    assert await consumer.commit(7) == {CheckpointResult.OK}
    rig.kafka.append("t", 0, 7)

    rig.kafka.grow_topic("t", 8)
    await rig.becomes(lambda: len(rig.view.shards) == 8)
    assert waiting(rig) == [ShardId(f"t/{number}") for number in range(4, 8)]
    rig.kafka.append("t", 0, 3)  # a producer that has not noticed
    await rig.advance(SETTLE + 1.0)

    # Nothing was written to 1, 2 and 3, which are read past their ends: 4 alone has to wait for what was written late.
    await reads(rig, consumer, 7)
    assert waiting(rig) == [ShardId("t/4")]
    assert [each.ends[0] for each in rig.view.growths] == [(ShardId("t/0"), 10)]
    assert "CutoverTaken" in rig.events.reasons()
    assert await consumer.commit(10) == {CheckpointResult.OK}
    await reads(rig, consumer, 8)
    await rig.becomes(lambda: rig.view.growths == ())


async def test_while_the_ends_cannot_be_looked_up_nothing_is_set_free(rig: Rig) -> None:
    rig.runtime.apply(ordered())
    consumer = rig.consumer()
    await reads(rig, consumer, 4)
    rig.kafka.faults.fail("log_ends", SourceUnavailableError("the broker is away"), times=3)
    rig.kafka.grow_topic("t", 8)
    await rig.becomes(lambda: len(rig.view.shards) == 8)
    await rig.advance(SETTLE + 1.0)
    await rig.becomes(lambda: rig.kafka.faults.entered["log_ends"] == 3)
    assert len(waiting(rig)) == 4
    await reads(rig, consumer, 8)
