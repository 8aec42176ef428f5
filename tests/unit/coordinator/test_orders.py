"""In which order the coordinator does what must not be done in another."""

from __future__ import annotations

import asyncio

import pytest

from shardherd.core.model.errors import CoordinatorUnavailableError
from shardherd.core.model.nouns import CheckpointResult
from shardherd.ports import OutcomeUnknownError
from tests.unit.coordinator.rig import Consumer, Rig, drain, spec_of

GROUP_ID = "demo.clicks"
UNKNOWN = OutcomeUnknownError("no answer to EndTxn; it may have happened")


def journal(rig: Rig) -> list[str]:
    """What is done to the stores from now on, in order."""
    entries: list[str] = []
    for faults, names in ((rig.ownership.faults, ("save",)), (rig.kafka.faults, ("take_over", "read", "commit"))):
        enter = faults.enter

        async def noted(operation: str, enter: object = enter, names: tuple[str, ...] = names) -> None:
            if operation in names:
                entries.append(operation)
            await enter(operation)  # type: ignore[operator]

        faults.enter = noted  # type: ignore[method-assign]
    return entries


# The long poll.


async def parked(consumer: Consumer, wait: float = 60.0) -> asyncio.Task[object]:
    """A heartbeat that has nothing to be told and waits."""
    await consumer.heartbeat()
    task: asyncio.Task[object] = asyncio.create_task(consumer.rig.group.heartbeat(consumer.beat(), wait))
    await drain()
    assert not task.done()
    return task


async def test_a_parked_heartbeat_is_answered_when_its_assignment_changes_and_no_time_passes(rig: Rig) -> None:
    (consumer,) = await rig.serving()
    waiting = await parked(consumer)
    now = rig.clock.now()

    await rig.consumer(1).heartbeat()

    assert len((await waiting).confirmed) == 2  # type: ignore[attr-defined]
    assert rig.clock.now() == now


async def test_a_parked_heartbeat_of_another_is_left_alone(rig: Rig) -> None:
    first, second = await rig.serving(2)
    waiting = await parked(first)

    assert await second.commit(7) == {CheckpointResult.OK}
    await second.heartbeat()

    assert not waiting.done()
    waiting.cancel()


async def test_a_parked_heartbeat_is_answered_at_the_end_of_its_interval(rig: Rig) -> None:
    (consumer,) = await rig.serving()
    waiting = await parked(consumer, wait=0.05)

    assert len((await asyncio.wait_for(waiting, 5)).confirmed) == 4  # type: ignore[attr-defined]


async def test_a_consumer_with_news_is_answered_and_so_is_its_parked_heartbeat(rig: Rig) -> None:
    (consumer,) = await rig.serving()
    waiting = await parked(consumer)

    await consumer.heartbeat()

    assert waiting.done()


# Two stores.


async def test_after_an_unknown_commit_it_proves_that_it_leads_then_fences_then_reads(rig: Rig) -> None:
    (consumer,) = await rig.serving()
    await consumer.heartbeat()
    entries = journal(rig)
    rig.kafka.faults.fail("commit", UNKNOWN, done=True)

    assert await consumer.commit(7) == {CheckpointResult.OK}

    assert entries[:4] == ["commit", "save", "take_over", "read"]


async def test_a_grant_goes_out_after_the_commit_with_its_position(rig: Rig) -> None:
    (consumer,) = await rig.serving()
    newcomer = rig.consumer(1)
    gate = rig.kafka.faults.hold("commit")
    committing = asyncio.create_task(consumer.commit(7))
    await drain()
    await newcomer.heartbeat()
    for _ in range(3):
        await consumer.heartbeat()
    assert (await newcomer.heartbeat()).confirmed == ()

    gate.set()
    assert await committing == {CheckpointResult.OK}
    await rig.becomes(lambda: sum(row.holder == newcomer.name for row in rig.view.shards) == 2)

    assert set((await newcomer.heartbeat(), newcomer.positions)[1].values()) == {7}


async def test_a_lease_that_ends_while_the_offsets_are_taken_over_is_the_end_before_anything_is_read(rig: Rig) -> None:
    entries = journal(rig)
    gate = rig.kafka.faults.hold("take_over")
    rig.runtime.apply(spec_of())
    await rig.becomes(lambda: "take_over" in entries)
    rig.leadership.until = rig.clock.now()
    gate.set()

    assert "lease ran out" in await rig.runtime.lost()
    assert "read" not in entries
    assert GROUP_ID not in rig.kafka.committed


async def test_a_commit_of_a_leader_whose_lease_ends_while_it_takes_over_again_is_not_made(rig: Rig) -> None:
    (consumer,) = await rig.serving()
    rig.kafka.faults.fail("commit", UNKNOWN)
    gate = rig.kafka.faults.hold("take_over")
    committing = asyncio.create_task(consumer.commit(7))
    await drain()
    rig.leadership.until = rig.clock.now()
    gate.set()

    with pytest.raises(CoordinatorUnavailableError):
        await committing
    assert rig.kafka.committed[GROUP_ID] == dict.fromkeys(consumer.held, 0)


# A foreign group.


async def test_members_that_come_later_are_noticed_within_a_minute_and_stop_grants_and_commits(rig: Rig) -> None:
    (consumer,) = await rig.serving(session_timeout=1000.0)
    rig.kafka.members[GROUP_ID] = ("console at 10.0.0.9",)
    await rig.advance(61.0)
    await rig.becomes(lambda: rig.reasons() == ["GroupHasLiveMembers"])

    assert await consumer.commit(7) == {CheckpointResult.WITHHELD}
    newcomer = rig.consumer(1)
    await newcomer.heartbeat()
    for _ in range(3):
        await consumer.heartbeat()
    assert (await newcomer.heartbeat()).confirmed == ()
    assert len(consumer.held) == 4

    del rig.kafka.members[GROUP_ID]
    await rig.becomes(lambda: rig.reasons() == [])
    assert await consumer.commit(7) == {CheckpointResult.OK}
