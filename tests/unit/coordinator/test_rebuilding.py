"""A group whose stored ownership is gone, damaged, or older than its positions, when a coordinator takes it over."""

from __future__ import annotations

import pytest

from shardherd.core import ownership as codec
from shardherd.core.errors import CoordinatorUnavailableError
from shardherd.core.model import CheckpointResult, ShardId
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
