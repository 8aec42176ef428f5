"""A group whose ownership is as large as it may be: what could stay out of it does, and all else goes on."""

from __future__ import annotations

import gzip
import random
import re
import uuid
from dataclasses import replace

from shardherd.coordinator.items import Tell
from shardherd.coordinator.size_limit import AGAIN, SizeLimit
from shardherd.core.group.ownership import dumps
from shardherd.core.model.nouns import GroupSpec, Incarnation, Reset, ResetState, ResetTo, ShardId, ShardInfo
from shardherd.core.model.requests import ResetDue, ShardsDiscovered
from shardherd.ports import GROWTH_LIMIT
from tests.harness.simulated_clock import SimulatedClock
from tests.unit.coordinator.rig import IDENTITY, Consumer, Rig, drain, spec_of


def size(rig: Rig) -> int:
    """Bytes that the group takes as it is stored."""
    assert rig.group.mailbox is not None
    return len(gzip.compress(dumps(rig.group.mailbox.group.ownership)))


def fill(rig: Rig, room: int = 0) -> None:
    """There is room for so many bytes more and no others."""
    rig.ownership.limit = size(rig) + room


async def outgrown(rig: Rig) -> None:
    """So many shards appear that they find no room."""
    fill(rig)
    rig.kafka.grow_topic("t", 2000)
    await rig.becomes(lambda: rig.reasons() == ["SnapshotTooLarge"])


async def replaced(rig: Rig, consumer: Consumer, number: int) -> Consumer:
    """Its pod is replaced by another of its name, which speaks."""
    uid = uuid.UUID(int=random.Random(number).getrandbits(128), version=4)
    pod = Consumer(rig, consumer.name, Incarnation(str(uid), 1))
    await pod.heartbeat()
    return pod


async def holding(consumer: Consumer, shards: int) -> bool:
    return len((await consumer.heartbeat()).confirmed) == shards


# What goes on whatever the size.


async def test_the_shards_of_a_dead_consumer_move_although_new_shards_find_no_room(rig: Rig) -> None:
    first, second = await rig.serving(2)
    await outgrown(rig)

    rig.runtime.consumer_died(IDENTITY, first.name, first.incarnation)

    await rig.comes_true(lambda: holding(second, 4))
    assert {row.holder for row in rig.view.shards} == {second.name}
    assert rig.reasons() == ["SnapshotTooLarge"]


async def test_a_consumer_that_comes_gets_its_share_although_new_shards_find_no_room(rig: Rig) -> None:
    (first,) = await rig.serving()
    await outgrown(rig)
    second = rig.consumer(1)
    rig.runtime.apply(spec_of(2))

    async def shared() -> bool:
        return [len((await consumer.heartbeat()).confirmed) for consumer in (first, second)] == [2, 2]

    await rig.comes_true(shared)


async def test_pods_that_are_replaced_are_let_in_although_the_list_of_those_before_finds_no_room(rig: Rig) -> None:
    first, second = await rig.serving(2)
    fill(rig)

    for number in range(70):
        first = await replaced(rig, first, number)
    rig.runtime.consumer_died(IDENTITY, first.name, first.incarnation)

    await rig.comes_true(lambda: holding(second, 4))
    assert size(rig) > rig.ownership.limit


async def test_a_death_in_one_turn_with_shards_that_find_no_room_is_stored_all_the_same(rig: Rig) -> None:
    first, second = await rig.serving(2)
    fill(rig)
    mailbox = rig.group.mailbox
    assert mailbox is not None
    shown = tuple(ShardInfo(ShardId(f"t/{number}"), 0, 0, True) for number in range(2000))
    saves = rig.ownership.saves

    mailbox.put(Tell(ShardsDiscovered(shown), insist=False))
    rig.runtime.consumer_died(IDENTITY, first.name, first.incarnation)
    await rig.becomes(lambda: rig.alive() == [second.name])

    assert rig.ownership.saves == saves + 1
    assert len(rig.view.shards) == 4
    await rig.comes_true(lambda: holding(second, 4))


async def test_a_leader_that_takes_over_what_is_over_the_limit_goes_on_with_it(rig: Rig) -> None:
    first, second = await rig.serving(2)
    fill(rig, -100)
    rival = Rig(beside=rig)
    rival.runtime.apply(spec_of(2))
    await rival.becomes(lambda: rival.runtime.ready)
    second.rig = rival

    rival.runtime.consumer_died(IDENTITY, first.name, first.incarnation)

    await rival.comes_true(lambda: holding(second, 4), within=10.0)
    await rival.runtime.stop()


# What stays out, and what is said of it.


async def test_what_stays_out_is_named_with_its_size_and_the_remedy(rig: Rig) -> None:
    await rig.serving()
    await outgrown(rig)

    (message,) = [condition.message for condition in rig.view.withheld]
    sizes = rf"would take \d+ bytes compressed, over the limit of {rig.ownership.limit}: "
    what = (
        r"1996 new shards \(t/4, t/5, t/6 and others\) must stay out, and what the group has, 4 shards, is served as before; "
    )
    remedy = "split the group, or reset fewer shards at once; it is tried again every 60 s"
    assert re.fullmatch(f"the ownership of group demo/clicks {sizes}{what}{remedy}", message)
    assert [event.message for event in rig.events.events if event.reason == "SnapshotTooLarge"] == [message]


async def test_shards_that_found_no_room_are_let_in_once_there_is_some(rig: Rig) -> None:
    (consumer,) = await rig.serving()
    await outgrown(rig)

    rig.ownership.limit = GROWTH_LIMIT
    await rig.advance(AGAIN + 0.4)

    await rig.becomes(lambda: rig.reasons() == [])
    await rig.comes_true(lambda: holding(consumer, 2000))


def test_it_is_not_tried_again_with_every_look() -> None:
    clock, messages = SimulatedClock(), list[str]()
    room = SizeLimit(clock, lambda: 1, messages.append)
    known, fresh = ShardInfo(ShardId("t/0"), 0, 0), ShardInfo(ShardId("t/1"), 0, 0)

    def shown() -> tuple[tuple[ShardInfo, ...], frozenset[ShardId]]:
        return room.sift((known, fresh), lambda _: frozenset([fresh.shard]))

    before = shown()
    room.tried("1 new shard (t/1)", "it is too large")
    at_once = shown()
    clock.advance(AGAIN - 0.1)
    soon = (shown(), room.reset(ResetDue("r1"), begun=False), room.reset(ResetDue("r1"), begun=True))
    clock.advance(0.1)
    later = (shown(), room.reset(ResetDue("r1"), begun=False))

    nothing, kept_out = frozenset[ShardId](), frozenset([fresh.shard])
    assert (before, at_once) == (((known, fresh), nothing), ((known,), kept_out))
    assert soon == (((known,), kept_out), None, ResetDue("r1"))
    assert later == (((known, fresh), nothing), ResetDue("r1"))
    assert len(messages) == 1


async def test_what_is_declared_anew_is_tried_at_once(rig: Rig) -> None:
    (consumer,) = await rig.serving()
    await outgrown(rig)

    rig.ownership.limit = GROWTH_LIMIT
    rig.runtime.apply(spec_of(1, session_timeout=50.0))

    await rig.becomes(lambda: rig.reasons() == [])
    await rig.comes_true(lambda: holding(consumer, 2000))


async def test_shards_that_find_no_room_and_go_away_are_no_trouble_any_more(rig: Rig) -> None:
    (consumer,) = await rig.serving()
    await outgrown(rig)

    del rig.kafka.topics["t"][4:]

    await rig.becomes(lambda: rig.reasons() == [])
    assert len((await consumer.heartbeat()).confirmed) == 4


async def test_a_new_group_whose_shards_find_no_room_has_none_and_is_not_discovered(rig: Rig) -> None:
    """What holds of the first look only, as the start position does, holds when they are let in."""
    rig.ownership.limit = 500
    rig.kafka.grow_topic("t", 2000)
    rig.kafka.append("t", 0, 30)
    spec = spec_of()
    rig.runtime.apply(replace(spec, source=replace(spec.source, starting_position="Latest")))
    await rig.becomes(lambda: rig.runtime.view(IDENTITY) is not None and rig.reasons() == ["SnapshotTooLarge"])
    await drain()
    assert (rig.view.shards, rig.view.discovered) == ((), False)

    rig.ownership.limit = GROWTH_LIMIT
    await rig.advance(AGAIN + 0.4)

    await rig.becomes(lambda: len(rig.view.shards) == 2000 and rig.view.shards[0].checkpoint == 30)


async def test_a_shard_that_lost_its_checkpoint_is_looked_at_while_others_find_no_room(rig: Rig) -> None:
    (consumer,) = await rig.serving()
    await consumer.commit(0)
    stored = rig.ownership
    await rig.runtime.stop()
    del rig.kafka.committed["demo.clicks"][ShardId("t/0")]
    rival = Rig(beside=rig)
    stored.limit = 0
    rig.kafka.grow_topic("t", 6)
    rival.runtime.apply(spec_of())
    await rival.becomes(lambda: rival.runtime.ready)
    await rival.becomes(lambda: sorted(rival.reasons()) == ["CheckpointLost", "SnapshotTooLarge"])

    assert [(row.shard, row.present) for row in rival.view.shards] == [(ShardId(f"t/{number}"), True) for number in range(4)]
    rig.kafka.committed["demo.clicks"][ShardId("t/0")] = 0

    await rival.becomes(lambda: rival.reasons() == ["SnapshotTooLarge"])
    await rival.runtime.stop()


# A reset.


def declaring(reset: Reset) -> GroupSpec:
    return replace(spec_of(paused=True), reset=reset)


async def test_a_reset_that_finds_no_room_waits_and_says_so_and_is_made_once_there_is_some(rig: Rig) -> None:
    rig.kafka.append("t", 0, 100)
    (consumer,) = await rig.serving()
    await rig.becomes(lambda: rig.view.shards[0].end == 100)
    fill(rig, 20)

    rig.runtime.apply(declaring(Reset("r1", ResetTo.LATEST)))
    await rig.becomes(lambda: "SnapshotTooLarge" in rig.reasons())

    assert rig.view.reset is not None
    assert rig.view.reset.state is ResetState.WAITING
    assert "the reset r1 of 4 shards must stay out" in rig.view.reset.message
    assert len((await consumer.heartbeat()).confirmed) == 4

    rig.ownership.limit = GROWTH_LIMIT
    await rig.advance(AGAIN + 0.4)

    await rig.becomes(lambda: rig.view.reset is not None and rig.view.reset.state is ResetState.DONE)
    assert "SnapshotTooLarge" not in rig.reasons()
    assert rig.kafka.committed["demo.clicks"][ShardId("t/0")] == 100


async def test_a_reset_that_was_begun_is_finished_whatever_the_size(rig: Rig) -> None:
    rig.kafka.append("t", 0, 100)
    await rig.serving()
    await rig.becomes(lambda: rig.view.shards[0].end == 100)
    gate = rig.kafka.faults.hold("commit")

    rig.runtime.apply(declaring(Reset("r1", ResetTo.LATEST)))
    await rig.becomes(lambda: rig.group.mailbox is not None and rig.group.mailbox.group.reset_begun)
    rig.ownership.limit = 100
    gate.set()

    await rig.becomes(lambda: rig.view.reset is not None and rig.view.reset.state is ResetState.DONE)


async def test_a_reset_that_is_withdrawn_for_want_of_room_is_no_trouble_any_more(rig: Rig) -> None:
    await rig.serving()
    fill(rig, 20)
    rig.runtime.apply(declaring(Reset("r1", ResetTo.LATEST)))
    await rig.becomes(lambda: "SnapshotTooLarge" in rig.reasons())

    rig.runtime.apply(spec_of())

    await rig.becomes(lambda: rig.reasons() == [])
