"""A group whose stored ownership is gone, damaged, or older than its positions, when a coordinator takes it over."""

from __future__ import annotations

import pytest

from shardherd.core.group import ownership as codec
from shardherd.core.group.records import PositionCopies
from shardherd.core.model.errors import CoordinatorUnavailableError
from shardherd.core.model.nouns import CheckpointResult, Incarnation, ShardId
from shardherd.core.model.requests import ForceCheckpoint
from tests.unit.coordinator.rig import IDENTITY, Consumer, Rig, spec_of

TIMEOUT = 45.0


async def bytes_of(rig: Rig) -> bytes:
    found = await rig.ownership.load(IDENTITY)
    assert found is not None
    return found.data


async def successor(rig: Rig, consumers: list[Consumer]) -> Rig:
    """Another coordinator that has taken over and looked at the source."""
    again = Rig(beside=rig)
    again.runtime.apply(spec_of(2, session_timeout=TIMEOUT))
    await again.becomes(lambda: again.runtime.view(IDENTITY) is not None and again.view.discovered)
    for consumer in consumers:
        consumer.rig = again
    return again


async def held(rig: Rig, consumers: list[Consumer]) -> list[dict[ShardId, int]]:
    """What each consumer holds after another heartbeat."""
    for consumer in consumers:
        await consumer.heartbeat()
    return [dict(consumer.held) for consumer in consumers]


@pytest.mark.parametrize("left", [None, b"", b"not json", b'{"format":1,"group":{}}'])
async def test_what_is_gone_or_damaged_is_rebuilt_and_nothing_moves(rig: Rig, left: bytes | None) -> None:
    consumers = await rig.serving(2)
    await consumers[0].commit(7)
    before = await held(rig, consumers)
    await rig.runtime.stop()
    rig.ownership.tamper(IDENTITY, left)

    again = await successor(rig, consumers)

    assert again.reasons() == ["OwnershipRebuilding"]
    assert await held(again, consumers) == before
    assert await consumers[0].commit(8) == {CheckpointResult.WITHHELD}
    for _ in range(16):
        await again.advance(3.0)
        await held(again, consumers)
    assert again.reasons() == []
    assert [dict(consumer.held) for consumer in consumers] == before
    assert await consumers[0].commit(8) == {CheckpointResult.OK}
    assert [reason for reason in again.events.reasons() if reason.startswith("Ownership")] == [
        *(["OwnershipDamaged"] if left is not None else []),
        "OwnershipLost",
        "OwnershipRebuilt",
    ]
    assert codec.loads(await bytes_of(again)).group.leader_epoch > 1
    await again.runtime.stop()


async def test_what_was_put_back_from_an_older_copy_is_not_believed(rig: Rig) -> None:
    consumers = await rig.serving(1)
    old = await bytes_of(rig)
    consumers.append(rig.consumer(1))
    for _ in range(3):
        await held(rig, consumers)
        await rig.advance(1.5)
    before = await held(rig, consumers)
    assert [len(each) for each in before] == [2, 2]
    await consumers[1].commit(7)
    await rig.runtime.stop()
    rig.ownership.tamper(IDENTITY, old)

    again = await successor(rig, consumers)

    assert again.reasons() == ["OwnershipRebuilding"]
    assert "OwnershipDamaged" in again.events.reasons()
    assert await held(again, consumers) == before
    await again.runtime.stop()


async def test_an_older_copy_from_before_the_group_had_shards_is_not_believed_either(rig: Rig) -> None:
    rig.kafka.create_topic("t", 0)
    rig.runtime.apply(spec_of())
    await rig.becomes(lambda: rig.runtime.ready and rig.view.discovered)
    old = await bytes_of(rig)
    rig.kafka.grow_topic("t", 4)
    consumers = await rig.serving()
    before = await held(rig, consumers)
    await rig.runtime.stop()
    rig.ownership.tamper(IDENTITY, old)

    again = await successor(rig, consumers)
    await again.becomes(lambda: len(again.view.shards) == 4)

    assert again.reasons() == ["OwnershipRebuilding"]
    assert await held(again, consumers) == before
    await again.runtime.stop()


async def moved_on(rig: Rig) -> tuple[list[Consumer], bytes, list[dict[ShardId, int]]]:
    """An ordered group of two; what was stored while the first held all, and what each holds now, nothing committed since."""
    consumers = await rig.serving(1, ordered=True)
    old = await bytes_of(rig)
    consumers.append(rig.consumer(1))
    for _ in range(3):
        await held(rig, consumers)
        await rig.advance(1.5)
    before = await held(rig, consumers)
    assert [len(each) for each in before] == [2, 2]
    return consumers, old, before


async def another(rig: Rig, consumers: list[Consumer]) -> Rig:
    """As `successor`, of the ordered group."""
    again = Rig(beside=rig)
    again.runtime.apply(spec_of(2, session_timeout=TIMEOUT, ordered=True))
    await again.becomes(lambda: again.runtime.view(IDENTITY) is not None and again.view.discovered)
    for consumer in consumers:
        consumer.rig = again
    return again


async def test_what_somebody_put_back_is_not_believed_before_any_consumer_was_heard(rig: Rig) -> None:
    consumers, old, before = await moved_on(rig)
    await rig.runtime.stop()
    rig.ownership.put_back(IDENTITY, old)

    again = await another(rig, consumers)

    assert again.reasons() == ["OwnershipRebuilding"]
    anew = Consumer(again, consumers[0].name, Incarnation(consumers[0].incarnation.pod_uid, 2))
    await anew.heartbeat()
    assert anew.held == {}, "it remembers nothing, and the older copy says that all is its own"
    await consumers[1].heartbeat()
    assert consumers[1].held == before[1]
    await again.runtime.stop()


async def test_what_was_put_back_stays_unbelieved_although_its_first_reader_crashed(rig: Rig) -> None:
    consumers, old, before = await moved_on(rig)
    await rig.runtime.stop()
    rig.ownership.put_back(IDENTITY, old)
    crashed = Rig(beside=rig)
    rig.kafka.reachable = False
    crashed.runtime.apply(spec_of(2, session_timeout=TIMEOUT, ordered=True))
    await crashed.becomes(lambda: "OwnershipDamaged" in crashed.events.reasons())
    await crashed.runtime.stop()
    rig.kafka.reachable = True

    again = await another(rig, consumers)

    assert again.reasons() == ["OwnershipRebuilding"]
    assert await held(again, consumers) == before
    await again.runtime.stop()


async def test_what_cannot_be_told_from_a_leaders_own_is_known_by_the_copies_of_positions(rig: Rig) -> None:
    consumers, old, before = await moved_on(rig)
    copied = codec.loads(await bytes_of(rig)).group
    positions = PositionCopies(dict.fromkeys([*before[0], *before[1]], 0), copied.leader_epoch, copied.revision)
    await rig.runtime.stop()
    rig.ownership.copy(IDENTITY, positions)
    rig.ownership.tamper(IDENTITY, old)

    again = await another(rig, consumers)

    assert again.reasons() == ["OwnershipRebuilding"]
    assert await held(again, consumers) == before
    await again.runtime.stop()


async def test_what_nothing_else_shows_is_known_by_what_consumers_were_told(rig: Rig) -> None:
    consumers, old, before = await moved_on(rig)
    await rig.runtime.stop()
    rig.ownership.tamper(IDENTITY, old)
    again = await another(rig, consumers)
    assert again.reasons() == []

    assert (await held(again, consumers), again.reasons()) == (before, ["OwnershipRebuilding"])
    await again.runtime.stop()


@pytest.mark.parametrize("since", ["the same leader", "an earlier leader"])
async def test_an_older_copy_that_is_put_back_under_its_leader_is_written_over_with_what_it_knows(rig: Rig, since: str) -> None:
    consumers, old, before = await moved_on(rig)
    if since == "an earlier leader":
        await rig.runtime.stop()
        rig = await another(rig, consumers)
        assert await held(rig, consumers) == before
    rig.ownership.put_back(IDENTITY, old)

    await rig.group.ask(ForceCheckpoint(ShardId("t/0"), 0))

    assert rig.runtime.leading
    stored = await rig.ownership.load(IDENTITY)
    assert stored is not None
    holders = {shard: row.holder for shard, row in codec.loads(stored.data).shards.items()}
    assert (stored.foreign, holders) == (
        False,
        {shard: consumer.name for consumer, each in zip(consumers, before, strict=True) for shard in each},
    )
    await rig.runtime.stop()


async def test_an_ownership_that_the_positions_show_to_be_old_is_gone_before_anything_is_answered(rig: Rig) -> None:
    consumers, old, _ = await moved_on(rig)
    await consumers[1].commit(7)
    await rig.runtime.stop()
    rig.ownership.tamper(IDENTITY, old)

    again = Rig(beside=rig)
    again.runtime.apply(spec_of(2, session_timeout=TIMEOUT, ordered=True))
    await again.becomes(lambda: "OwnershipDamaged" in again.events.reasons())
    await again.becomes(lambda: again.group.mailbox is not None)
    crashed = await bytes_of(again)
    await again.runtime.stop()

    assert [row.holder for row in codec.loads(crashed).shards.values() if row.holder] == []


async def test_an_ownership_as_it_was_left_is_believed(rig: Rig) -> None:
    consumers = await rig.serving(2)
    await consumers[0].commit(7)
    await rig.runtime.stop()

    again = await successor(rig, consumers)

    assert again.reasons() == []
    await again.runtime.stop()


async def test_one_of_another_version_is_refused_with_a_condition_and_left_alone(rig: Rig) -> None:
    rig.ownership.tamper(IDENTITY, b'{"format":99}')
    rig.runtime.apply(spec_of())
    await rig.becomes(lambda: rig.runtime.view(IDENTITY) is not None)

    (condition,) = rig.view.withheld
    assert condition.reason == "OwnershipUnreadable"
    assert condition.message.startswith(
        "the stored ownership has format 99, this version reads 1; run the version that wrote it"
    )
    with pytest.raises(CoordinatorUnavailableError, match="format 99"):
        await rig.consumer().heartbeat()
    assert await bytes_of(rig) == b'{"format":99}'
    assert rig.events.reasons() == ["OwnershipUnreadable"]


async def test_one_of_another_version_is_served_once_a_version_that_can_read_it_is_there(rig: Rig) -> None:
    consumers = await rig.serving(1)
    readable = await bytes_of(rig)
    await rig.runtime.stop()
    rig.ownership.tamper(IDENTITY, b'{"format":99}')
    again = Rig(beside=rig)
    again.runtime.apply(spec_of())
    await again.becomes(lambda: again.runtime.view(IDENTITY) is not None and again.reasons() == ["OwnershipUnreadable"])

    rig.ownership.tamper(IDENTITY, readable)
    await again.becomes(lambda: again.view.discovered and again.reasons() == [])

    consumers[0].rig = again
    assert [len(each) for each in await held(again, consumers)] == [4]
    await again.runtime.stop()
