"""Copies of positions: never above the durable ones, and how a restarted coordinator finds out what the source lost."""

from __future__ import annotations

from collections import Counter

import pytest

from shardherd.coordinator.copies import Copies
from shardherd.core.errors import CoordinatorUnavailableError
from shardherd.core.model import CheckpointResult, GroupIdentity, ShardId
from shardherd.core.requests import ForceCheckpoint
from shardherd.ports import OwnershipUnavailableError
from tests.unit.coordinator.rig import IDENTITY, Consumer, Rig, spec_of

GROUP_ID = "demo.clicks"
FIRST = ShardId("t/0")
REFUSED = OwnershipUnavailableError("the API server refused with 403")


async def copied(rig: Rig) -> Consumer:
    """A consumer with all shards at 7, and copies of these positions."""
    (consumer,) = await rig.serving(session_timeout=10_000.0)
    await consumer.commit(7)
    await rig.advance(301.0)
    await rig.becomes(lambda: rig.ownership.copies.get(IDENTITY) == dict.fromkeys(consumer.held, 7))
    return consumer


async def successor(rig: Rig) -> Rig:
    """Another coordinator that has taken over."""
    await rig.runtime.stop()
    again = Rig(beside=rig)
    again.runtime.apply(spec_of(session_timeout=10_000.0))
    await again.becomes(lambda: again.runtime.view(IDENTITY) is not None and again.view.source_reachable)
    await again.becomes(lambda: all(row.end is not None for row in again.view.shards))
    return again


async def test_a_group_that_was_taken_over_has_copies_after_some_minutes(rig: Rig) -> None:
    (consumer,) = await rig.serving(session_timeout=10_000.0)
    await consumer.commit(7)
    await rig.advance(59.0)
    assert IDENTITY not in rig.ownership.copies

    await rig.advance(242.0)
    await rig.becomes(lambda: rig.ownership.copies.get(IDENTITY) == dict.fromkeys(consumer.held, 7))


async def test_after_that_positions_are_copied_every_ten_minutes(rig: Rig) -> None:
    consumer = await copied(rig)
    await consumer.commit(8)
    await rig.advance(470.0)
    assert rig.ownership.copies[IDENTITY] == dict.fromkeys(consumer.held, 7)

    await rig.advance(131.0)
    await rig.becomes(lambda: rig.ownership.copies.get(IDENTITY) == dict.fromkeys(consumer.held, 8))


async def test_positions_that_did_not_change_are_not_copied_again(rig: Rig) -> None:
    await copied(rig)
    rig.ownership.faults.fail("save_copies", REFUSED)

    await rig.advance(700.0)

    assert list(rig.ownership.faults.before["save_copies"]) == [REFUSED]


def test_many_groups_that_are_taken_over_together_are_copied_one_after_the_other(rig: Rig) -> None:
    groups = [GroupIdentity("demo", f"g-{number}", f"6a1f2c34-0000-4000-8000-{number:012d}") for number in range(1000)]
    begun = rig.clock.now()

    due = [Copies(rig.ports, group, positions=dict).due - begun for group in groups]

    assert 60.0 <= min(due) < max(due) < 300.0
    per_second = Counter(int(each) for each in due)
    assert max(per_second.values()) < 20


async def test_a_copy_that_cannot_be_written_is_written_a_minute_later(rig: Rig) -> None:
    (consumer,) = await rig.serving(session_timeout=10_000.0)
    rig.ownership.faults.fail("save_copies", REFUSED)
    await rig.advance(213.0)  # by its UID, the first copy of this group is due after 212 s
    await rig.becomes(lambda: not rig.ownership.faults.before["save_copies"])
    assert IDENTITY not in rig.ownership.copies

    await rig.advance(61.0)
    await rig.becomes(lambda: rig.ownership.copies.get(IDENTITY) == dict.fromkeys(consumer.held, 0))


async def test_positions_that_went_back_while_no_coordinator_ran_are_lost(rig: Rig) -> None:
    await copied(rig)
    rig.kafka.committed[GROUP_ID][FIRST] = 3

    again = await successor(rig)

    assert again.reasons() == ["CheckpointLost"]
    assert again.view.withheld[0].message.startswith("t/0: the checkpoint is gone")
    await again.runtime.stop()


async def test_positions_that_are_where_they_were_or_further_are_not_lost(rig: Rig) -> None:
    consumer = await copied(rig)
    await consumer.commit(8)

    again = await successor(rig)

    assert again.reasons() == []
    await again.runtime.stop()


async def test_a_forced_checkpoint_takes_the_copy_away_first(rig: Rig) -> None:
    await copied(rig)
    await rig.group.ask(ForceCheckpoint(FIRST, 3))
    assert FIRST not in rig.ownership.copies[IDENTITY]

    again = await successor(rig)

    assert again.reasons() == []
    await again.runtime.stop()


async def test_a_forced_checkpoint_whose_copy_cannot_be_taken_away_is_not_written(rig: Rig) -> None:
    consumer = await copied(rig)
    rig.ownership.faults.fail("save_copies", REFUSED)

    with pytest.raises(CoordinatorUnavailableError, match="was not written; ask again"):
        await rig.group.ask(ForceCheckpoint(FIRST, 3))

    assert rig.kafka.committed[GROUP_ID] == dict.fromkeys(consumer.held, 7)
    assert await consumer.commit(8) == {CheckpointResult.OK}


async def test_copies_that_cannot_be_read_are_waited_for(rig: Rig) -> None:
    await copied(rig)
    rig.kafka.committed[GROUP_ID][FIRST] = 3
    rig.ownership.faults.fail("load_copies", REFUSED)

    again = await successor(rig)

    assert again.reasons() == ["CheckpointLost"]
    await again.runtime.stop()
