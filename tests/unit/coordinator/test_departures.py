"""Whoever leaves or starts again while something of it goes on: the coordinator gives its shards away when that is over."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardherd.core.model.nouns import Incarnation, Leave
from tests.unit.coordinator.rig import IDENTITY, Consumer, Rig, spec_of


def holders(rig: Rig) -> dict[str, int]:
    """How many shards each consumer holds, as it was stored."""
    found: dict[str, int] = {}
    for shard in rig.view.shards:
        found[str(shard.holder)] = found.get(str(shard.holder), 0) + 1
    return found


async def reads_all(consumer: Consumer) -> bool:
    await consumer.heartbeat()
    return len(consumer.held) == 4


@pytest.mark.parametrize("later", [45.0, None], ids=["in time", "at its proof of death"])
async def test_who_leaves_while_it_still_writes_is_waited_for(rig: Rig, later: float | None) -> None:
    goes, stays = await rig.serving(2, ordered=True)
    await rig.group.ask(Leave(goes.name, goes.incarnation, IDENTITY.uid))
    for _ in range(14):
        await rig.advance(2.0)
        await stays.heartbeat()
    assert holders(rig) == {goes.name: 2, stays.name: 2}
    if later is None:
        rig.runtime.consumer_died(IDENTITY, goes.name, goes.incarnation)
    for _ in range(10 if later else 0):
        await rig.advance(2.0)
        await stays.heartbeat()
    await rig.comes_true(lambda: reads_all(stays))


async def test_who_has_stopped_is_waited_for_by_nobody(rig: Rig) -> None:
    goes, stays = await rig.serving(2, ordered=True)
    await rig.group.ask(Leave(goes.name, goes.incarnation, IDENTITY.uid, stopped=True))
    await rig.comes_true(lambda: reads_all(stays))


async def test_executors_of_the_start_before_are_waited_for_until_their_end_is_told(rig: Rig) -> None:
    (consumer,) = await rig.serving(1, ordered=True)
    rig.runtime.apply(replace(spec_of(1, ordered=True), executors=True))
    again = Consumer(rig, consumer.name, Incarnation(consumer.incarnation.pod_uid, 2))
    for _ in range(14):
        await again.heartbeat()
        await rig.advance(2.0)
    assert again.held == {}
    rig.runtime.consumer_died(IDENTITY, consumer.name, consumer.incarnation)
    await rig.comes_true(lambda: reads_all(again))
