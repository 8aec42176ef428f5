"""Copies of positions: never above the durable ones, and how a restarted coordinator finds out what the source lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from shardherd.coordinator.copies import Copies
from shardherd.coordinator.runner import GroupRunner
from shardherd.coordinator.storage import GroupStorage
from shardherd.core.group.ownership import loads
from shardherd.core.group.records import PositionCopies
from shardherd.core.model.errors import CoordinatorUnavailableError
from shardherd.core.model.nouns import CheckpointResult, GroupIdentity, ShardId
from shardherd.core.model.requests import ForceCheckpoint
from shardherd.ports import OutcomeUnknownError, OwnershipConflictError, OwnershipUnavailableError
from tests.unit.coordinator.rig import IDENTITY, Consumer, Rig, spec_of

GROUP_ID = "demo.clicks"
FIRST = ShardId("t/0")
REFUSED = OwnershipUnavailableError("the API server refused with 403")


async def copied(rig: Rig) -> Consumer:
    """A consumer with all shards at 7, and copies of these positions."""
    (consumer,) = await rig.serving(session_timeout=10_000.0)
    await consumer.commit(7)
    await rig.serve(301.0)
    await rig.becomes(lambda: rig.ownership.copies.get(IDENTITY) == dict.fromkeys(consumer.held, 7))
    return consumer


async def successor(rig: Rig) -> Rig:
    """Another coordinator that has taken over."""
    await rig.runtime.stop()
    again = Rig(beside=rig)
    again.runtime.apply(spec_of(session_timeout=10_000.0))
    await again.becomes(lambda: again.runtime.view(IDENTITY) is not None and again.view.discovered)
    await again.becomes(lambda: all(row.end is not None for row in again.view.shards))
    return again


async def test_a_group_that_was_taken_over_has_copies_after_some_minutes(rig: Rig) -> None:
    (consumer,) = await rig.serving(session_timeout=10_000.0)
    await consumer.commit(7)
    await rig.serve(59.0)
    assert IDENTITY not in rig.ownership.copies

    await rig.serve(242.0)
    await rig.becomes(lambda: rig.ownership.copies.get(IDENTITY) == dict.fromkeys(consumer.held, 7))


async def test_after_that_positions_are_copied_every_ten_minutes(rig: Rig) -> None:
    consumer = await copied(rig)
    await consumer.commit(8)
    await rig.serve(470.0)
    assert rig.ownership.copies[IDENTITY] == dict.fromkeys(consumer.held, 7)

    await rig.serve(131.0)
    await rig.becomes(lambda: rig.ownership.copies.get(IDENTITY) == dict.fromkeys(consumer.held, 8))


async def test_positions_that_did_not_change_are_not_copied_again(rig: Rig) -> None:
    await copied(rig)
    rig.ownership.faults.fail("save_copies", REFUSED)

    await rig.serve(700.0)

    assert list(rig.ownership.faults.before["save_copies"]) == [REFUSED]


def test_many_groups_that_are_taken_over_together_are_copied_one_after_the_other(rig: Rig) -> None:
    groups = [GroupIdentity("demo", f"g-{number}", f"6a1f2c34-0000-4000-8000-{number:012d}") for number in range(1000)]
    begun = rig.clock.now()

    def copies_of(group: GroupIdentity) -> Copies:
        spec = replace(spec_of(), identity=group)
        storage = GroupStorage(rig.ownership, rig.leadership, rig.clock, spec)
        return Copies(rig.ports, group, storage, GroupRunner(rig.ports, spec, 1.0, step_down=print, check_clock=print))

    due = [copies_of(group).due - begun for group in groups]

    assert 60.0 <= min(due) < max(due) < 300.0
    per_second = Counter(int(each) for each in due)
    assert max(per_second.values()) < 20


async def test_a_copy_that_cannot_be_written_is_written_a_minute_later(rig: Rig) -> None:
    (consumer,) = await rig.serving(session_timeout=10_000.0)
    rig.ownership.faults.fail("save_copies", REFUSED)
    await rig.serve(213.0)  # by its UID, the first copy of this group is due after 212 s
    await rig.becomes(lambda: not rig.ownership.faults.before["save_copies"])
    assert IDENTITY not in rig.ownership.copies

    await rig.serve(61.0)
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


async def test_a_copy_that_was_taken_away_for_a_checkpoint_that_was_not_written_is_made_again(rig: Rig) -> None:
    consumer = await copied(rig)
    rig.ownership.faults.fail("save_copies", OutcomeUnknownError("no answer within 5 s"), done=True)
    with pytest.raises(CoordinatorUnavailableError):
        await rig.group.ask(ForceCheckpoint(FIRST, 3))
    assert (rig.kafka.committed[GROUP_ID][FIRST], FIRST in rig.ownership.copies[IDENTITY]) == (7, False)

    await rig.serve(601.0)

    await rig.becomes(lambda: rig.ownership.copies.get(IDENTITY) == dict.fromkeys(consumer.held, 7))


async def test_copies_that_cannot_be_read_are_waited_for(rig: Rig) -> None:
    await copied(rig)
    rig.kafka.committed[GROUP_ID][FIRST] = 3
    rig.ownership.faults.fail("load_copies", REFUSED)

    again = await successor(rig)

    assert again.reasons() == ["CheckpointLost"]
    await again.runtime.stop()


class Late:
    """The next write of copies is not answered in time, and arrives when the test says so."""

    def __init__(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        self.writes = 0
        self._store, self._save = rig.ownership, rig.ownership.save_copies
        self._sent: tuple[Any, ...] = ()
        monkeypatch.setattr(rig.ownership, "save_copies", self._lose)

    async def _lose(self, *sent: Any) -> str:
        self.writes += 1
        if self._sent:
            return await self._save(*sent)
        self._sent = sent
        raise OutcomeUnknownError("no answer within 5 s")

    async def arrive(self) -> bool:
        """Whether it is taken."""
        try:
            await self._save(*self._sent)
        except OwnershipConflictError:
            return False
        return True


async def late_copy(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Late:
    """All shards are copied at 7 and durable at 9, and a copy of that is on its way."""
    consumer = await copied(rig)
    await consumer.commit(9)
    late = Late(rig, monkeypatch)

    await rig.serve(530.0)
    assert late.writes == 1
    return late


async def test_a_copy_that_arrives_late_is_not_above_a_checkpoint_that_was_forced_meanwhile(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = await late_copy(rig, monkeypatch)
    await rig.group.ask(ForceCheckpoint(FIRST, 8))

    assert not await late.arrive()

    again = await successor(rig)
    assert again.reasons() == []
    await again.runtime.stop()


async def test_a_late_copy_of_a_leader_that_is_gone_is_not_above_what_was_forced_under_the_next(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = await late_copy(rig, monkeypatch)
    second = await successor(rig)
    await second.group.ask(ForceCheckpoint(FIRST, 8))

    assert not await late.arrive()

    third = await successor(second)
    assert third.reasons() == []
    await third.runtime.stop()


async def test_a_late_copy_that_arrives_before_the_next_write_is_seen_by_it(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    late = await late_copy(rig, monkeypatch)
    second = await successor(rig)
    assert await late.arrive()

    await second.group.ask(ForceCheckpoint(FIRST, 8))

    assert FIRST not in rig.ownership.copies[IDENTITY]
    await second.runtime.stop()


async def test_a_copy_that_is_due_while_a_checkpoint_is_being_forced_back_is_not_above_it(rig: Rig) -> None:
    await copied(rig)
    commit = rig.kafka.faults.hold("commit")
    forcing = asyncio.create_task(rig.group.ask(ForceCheckpoint(FIRST, 3)))
    await rig.becomes(lambda: FIRST not in rig.ownership.copies[IDENTITY])

    await rig.serve(700.0)
    assert FIRST not in rig.ownership.copies[IDENTITY]

    commit.set()
    await forcing
    again = await successor(rig)
    assert again.reasons() == []
    await again.runtime.stop()


async def test_the_copy_of_a_position_that_was_lost_stays(rig: Rig) -> None:
    consumer = await copied(rig)
    del rig.kafka.committed[GROUP_ID][FIRST]
    rig.kafka.committed[GROUP_ID][ShardId("t/1")] = 3
    second = await successor(rig)
    assert second.reasons() == ["CheckpointLost"]

    await second.serve(700.0)

    assert rig.ownership.copies[IDENTITY] == dict.fromkeys(consumer.held, 7)
    third = await successor(second)
    assert third.view.withheld[0].message.startswith("t/0, t/1: the checkpoint is gone")
    await third.runtime.stop()


async def test_copies_that_somebody_changed_are_written_over_by_the_proven_leader(rig: Rig) -> None:
    consumer = await copied(rig)
    rig.ownership.copy(IDENTITY, PositionCopies({FIRST: 99}, leader_epoch=99))
    await consumer.commit(8)
    saves = rig.ownership.saves

    await rig.serve(601.0)

    await rig.becomes(lambda: rig.ownership.copies[IDENTITY] == dict.fromkeys(consumer.held, 8))
    assert rig.ownership.saves == saves + 1, "it has proved that it leads"


async def test_a_takeover_in_which_nothing_changed_writes_no_copies(rig: Rig) -> None:
    await copied(rig)
    version = rig.ownership.copied[IDENTITY].version

    again = await successor(rig)
    await again.advance(1300.0)

    assert rig.ownership.copied[IDENTITY].version == version
    await again.runtime.stop()


async def test_copies_say_how_far_the_ownership_had_come(rig: Rig) -> None:
    await copied(rig)
    stored = await rig.ownership.load(IDENTITY)
    assert stored is not None
    group = loads(stored.data).group

    copies = rig.ownership.copied[IDENTITY].copies

    assert (copies.leader_epoch, copies.revision) == (group.leader_epoch, group.revision)
