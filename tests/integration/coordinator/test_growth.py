"""Keys stay in order while their topic grows under load: a real broker, real producers, and workers that are processes.

The producers are those of kafka-python: they choose a partition by murmur2 of the key modulo the number that they know of.
`Late` goes on with the number that it knew for as long as a producer may. Other producers: `test_growth_by_any_producer`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from kafka.partitioner.default import DefaultPartitioner

from shardherd.core.model.nouns import GrowthCutover, ShardState
from tests.integration.coordinator.growing import KEYS, Late, produce, scene
from tests.integration.coordinator.rig import Rig, becomes, shards
from tests.integration.coordinator.scenes import more_rounds


async def test_each_key_is_read_in_order_while_its_topic_grows_twice_under_load(
    rig: Rig, name: str, topic: str, tmp_path: Path
) -> None:
    """From 4 to 8 and on to 16 within the settle time. A producer notices late, the parents are read late, another coordinator
    takes the lead from one that lives on, and a worker is killed."""
    played = await scene(rig, name, topic, tmp_path, growth_settle=12.0)
    try:
        await played.start()
        behind = Late()
        produce(played, KEYS[:20], DefaultPartitioner())
        late = produce(played, KEYS[20:], behind)
        await becomes(lambda: set(played.read.of) == set(KEYS))

        await rig.kafka.grow(topic, 8)
        await becomes(lambda: len(played.view.growths) == 1)
        await rig.kafka.grow(topic, 16)
        await becomes(lambda: len(played.view.growths) == 2)
        assert played.waiting() == 12
        played.workers.hold_up(*shards(topic, *range(4)))
        former = await played.replace_leader()
        for known in (4, 16):
            assert not any(each.ends for each in played.view.growths), "this machine is too slow for so short a time to settle"
            behind.known = known
            await more_rounds(late)
        await played.replace_worker(0)
        assert played.waiting() == 12
        await becomes(lambda: all(len(each.ends) == each.before for each in played.view.growths))
        assert played.waiting() == 12
        await becomes(lambda: not former.leads)
        played.workers.hold_up()
        await becomes(lambda: played.waiting() == 0)
        await more_rounds(late)
        await played.caught_up()
        assert {row.shard: row.state for row in played.view.shards} == dict.fromkeys(
            shards(topic, *range(16)), ShardState.ALREADY_ALLOC
        )
    finally:
        await played.end()
    assert played.read.disorder() == []
    assert set(played.read.of) == set(KEYS)


async def test_with_no_time_for_late_producers_the_same_load_is_out_of_order(
    rig: Rig, name: str, topic: str, tmp_path: Path
) -> None:
    """What shows that the test above can fail: a producer that goes on with the old number after the cutover is taken."""
    played = await scene(rig, name, topic, tmp_path, growth_settle=0.0)
    try:
        await played.start()
        behind = Late()
        late = produce(played, KEYS, behind)
        await becomes(lambda: set(played.read.of) == set(KEYS))
        await rig.kafka.grow(topic, 8)
        await becomes(lambda: len(played.view.shards) == 8)
        await becomes(lambda: played.waiting() == 0)
        # The old partitions are read late, while the producer goes on to write there, and then to the new ones.
        played.workers.hold_up(*shards(topic, *range(4)))
        for known in (4, 8):
            behind.known = known
            await more_rounds(late)
        await becomes(lambda: bool(played.read.disorder()))
        played.workers.hold_up()
        await played.caught_up()
    finally:
        await played.end()


@pytest.mark.parametrize(
    ("partitions", "patient", "in_order"),
    [
        pytest.param(8, False, True, id="of a multiple, from when the cutover offsets are taken"),
        pytest.param(6, True, True, id="of another number, from when all is read"),
        pytest.param(6, False, False, id="of another number, before all is read"),
    ],
)
async def test_a_topic_that_grows_while_nothing_produces_can_be_written_again(
    rig: Rig, name: str, topic: str, tmp_path: Path, *, partitions: int, patient: bool, in_order: bool
) -> None:
    """Its growth is declared as `cutover: Now`, as docs/order.md says. The last case shows that the one before can fail."""
    played = await scene(rig, name, topic, tmp_path, growth_cutover=GrowthCutover.NOW)
    try:
        await played.start()
        before = produce(played, KEYS, DefaultPartitioner())
        await becomes(lambda: set(played.read.of) == set(KEYS))
        played.workers.hold_up(*shards(topic, *range(4)))
        await more_rounds(before)
        await played.stop_producing()
        await rig.kafka.grow(topic, partitions)
        await becomes(lambda: any(len(each.ends) == 4 for each in played.view.growths))
        assert [(each.before, each.after, each.keeps) for each in played.view.growths] == [(4, partitions, partitions == 8)]
        if patient:
            played.workers.hold_up()
            await becomes(lambda: played.view.growths == ())
        again = produce(played, KEYS, DefaultPartitioner(), rounds=before.rounds)
        await more_rounds(again)
        assert played.waiting() == (4 if partitions == 8 else 0)
        if not in_order:
            await becomes(lambda: bool(played.read.disorder()))
        played.workers.hold_up()
        await played.caught_up()
    finally:
        await played.end()
    assert (played.read.disorder() == []) is in_order
