"""Decide, persist, answer: what a caller hears is durable, and memory is never ahead of the store."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
from msgspec import structs

from shardherd.coordinator import storage
from shardherd.core.group import ownership
from shardherd.core.group.decisions import Decision
from shardherd.core.group.group import Group
from shardherd.core.group.records import Ownership
from shardherd.core.model.errors import CoordinatorUnavailableError, StaleIncarnationError
from shardherd.core.model.nouns import GroupIdentity, Heartbeat, HeartbeatReply, Incarnation, Leave, ShardId
from shardherd.core.model.requests import Request, SettingsChanged
from shardherd.ports import (
    OutcomeUnknownError,
    OwnershipConflictError,
    OwnershipTooLargeError,
    OwnershipUnavailableError,
    StoredOwnership,
)
from tests.unit.coordinator.rig import IDENTITY, Consumer, Rig, drain

FULL = OwnershipTooLargeError("the ownership of group demo/clicks takes 921601 bytes, over the limit of 921600")
REFUSED = OwnershipUnavailableError("the API server refused with 403")
UNKNOWN = OutcomeUnknownError("no answer within 5 s")
NEVER = 3600.0
"""Real seconds that no test takes: what would be told again then is told by `Rig.insist`."""


async def stored(rig: Rig) -> Ownership:
    found = await rig.ownership.load(IDENTITY)
    assert found is not None
    return ownership.decode(json.loads(found.data))


async def test_what_is_answered_is_stored(rig: Rig) -> None:
    (consumer,) = await rig.serving()

    found = await stored(rig)

    assert {name: row.owner_epoch for name, row in found.shards.items()} == consumer.held
    assert {row.holder for row in found.shards.values()} == {consumer.name}


async def test_many_requests_share_one_write(rig: Rig) -> None:
    await rig.serving()
    joining = [rig.consumer(ordinal) for ordinal in range(1, 21)]
    before = rig.ownership.saves

    await asyncio.gather(*(consumer.heartbeat() for consumer in joining))

    assert rig.ownership.saves == before + 1
    assert set((await stored(rig)).consumers) >= {consumer.name for consumer in joining}


async def test_a_request_that_changes_nothing_writes_nothing(rig: Rig) -> None:
    (consumer,) = await rig.serving()
    await consumer.heartbeat()
    before = rig.ownership.saves

    for _ in range(5):
        await consumer.heartbeat()
    await consumer.commit(7)

    assert rig.ownership.saves == before


async def test_a_write_that_surely_failed_changes_nothing_and_may_be_asked_again(rig: Rig) -> None:
    await rig.serving()
    before = rig.view
    newcomer = rig.consumer(1)

    rig.ownership.faults.fail("save", REFUSED)
    with pytest.raises(CoordinatorUnavailableError, match="403; ask again"):
        await newcomer.heartbeat()

    assert [row.consumer for row in rig.view.consumers] == [row.consumer for row in before.consumers]
    assert newcomer.name not in (await stored(rig)).consumers
    await newcomer.heartbeat()
    assert newcomer.name in (await stored(rig)).consumers


async def test_nobody_is_refused_for_ever_because_of_what_is_not_stored(rig: Rig) -> None:
    (consumer,) = await rig.serving()
    newer = Consumer(rig, consumer.name, Incarnation("uid-newer", 1))

    rig.ownership.faults.fail("save", REFUSED)
    answers = await asyncio.gather(newer.heartbeat(), consumer.heartbeat(), return_exceptions=True)
    assert [type(answer) for answer in answers] == [CoordinatorUnavailableError] * 2
    assert len((await consumer.heartbeat()).confirmed) == 4

    gate = rig.ownership.faults.hold("save")
    asked = [asyncio.create_task(newer.heartbeat()), asyncio.create_task(consumer.heartbeat())]
    await drain()
    assert [task.done() for task in asked] == [False, False]
    gate.set()
    await asked[0]
    with pytest.raises(StaleIncarnationError):
        await asked[1]


async def test_requests_that_shared_a_write_that_failed_are_taken_back_the_last_one_first(rig: Rig) -> None:
    await rig.serving()
    assert rig.group.mailbox is not None
    before = rig.group.mailbox.group.ownership
    joining = [rig.consumer(ordinal) for ordinal in range(1, 4)]

    rig.ownership.faults.fail("save", REFUSED)
    refused = await asyncio.gather(*(consumer.heartbeat() for consumer in joining), return_exceptions=True)

    assert [type(each) for each in refused] == [CoordinatorUnavailableError] * 3
    assert rig.group.mailbox.group.ownership == before, "each had changed the group's epoch and revision once more"


async def test_a_write_of_unknown_outcome_that_happened_is_found_out(rig: Rig) -> None:
    await rig.serving()
    newcomer = rig.consumer(1)
    before = rig.ownership.saves

    rig.ownership.faults.fail("save", UNKNOWN, done=True)
    await newcomer.heartbeat()

    assert rig.ownership.saves == before + 1
    assert newcomer.name in (await stored(rig)).consumers


async def test_a_write_of_unknown_outcome_that_did_not_happen_is_made_again(rig: Rig) -> None:
    await rig.serving()
    newcomer = rig.consumer(1)

    rig.ownership.faults.fail("save", UNKNOWN, times=3)
    rig.ownership.faults.fail("load", REFUSED)
    await newcomer.heartbeat()

    assert newcomer.name in (await stored(rig)).consumers


async def test_a_write_over_another_coordinators_is_the_end(rig: Rig) -> None:
    await rig.serving()
    rival = Rig(beside=rig)
    rival.runtime.apply(rig.group.spec)
    await rival.becomes(lambda: rival.runtime.ready)

    with pytest.raises(CoordinatorUnavailableError, match="ask again"):
        await rig.consumer(1).heartbeat()

    assert "was written by another coordinator" in await rig.runtime.lost()
    assert not rig.runtime.leading
    await rival.runtime.stop()


async def test_a_write_of_unknown_outcome_that_arrives_after_it_was_read_back_is_known_as_our_own(rig: Rig) -> None:
    await rig.serving()
    before = await rig.ownership.load(IDENTITY)
    assert before is not None
    load = rig.ownership.load

    async def late(group: GroupIdentity) -> StoredOwnership | None:
        """Reads what was before; then the write that was thought lost arrives."""
        found = await load(group)
        if reads:
            reads.pop()
            assert rig.group.mailbox is not None
            await rig.ownership.save(group, ownership.dumps(rig.group.mailbox.group.ownership), before.version)
        return found

    reads = [1]
    rig.ownership.load = late  # type: ignore[method-assign]
    rig.ownership.faults.fail("save", UNKNOWN)
    await rig.consumer(1).heartbeat()

    assert rig.runtime.leading
    assert rig.consumer(1).name in (await stored(rig)).consumers


async def test_a_write_that_is_refused_is_made_again_while_an_attempt_before_it_may_still_be_carried_out(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "RETRY", 0.0)
    await rig.serving()
    newcomer = rig.consumer(1)

    rig.ownership.faults.fail("save", UNKNOWN)
    rig.ownership.faults.fail("save", REFUSED, times=3)
    await newcomer.heartbeat()

    assert newcomer.name in (await stored(rig)).consumers


async def test_a_write_that_is_refused_for_so_long_that_no_attempt_can_be_carried_out_any_more_has_failed(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "RETRY", 0.0)
    await rig.serving()
    newcomer = rig.consumer(1)
    before, tried = await stored(rig), rig.ownership.faults.entered["save"]

    rig.ownership.faults.fail("save", UNKNOWN)
    rig.ownership.faults.fail("save", REFUSED, times=1_000_000)
    asked = asyncio.create_task(newcomer.heartbeat())
    await rig.becomes(lambda: rig.ownership.faults.entered["save"] > tried + 3)
    assert not asked.done()
    rig.clock.advance(storage.LATE)
    with pytest.raises(CoordinatorUnavailableError, match="403; ask again"):
        await asked
    rig.ownership.faults.before.clear()

    assert await stored(rig) == before


async def test_a_write_over_somebodys_annotation_is_made_again(rig: Rig) -> None:
    await rig.serving()
    newcomer = rig.consumer(1)

    rig.ownership.faults.fail("save", OwnershipConflictError("at version 9, not 8"), times=2)
    await newcomer.heartbeat()

    assert newcomer.name in (await stored(rig)).consumers
    assert rig.runtime.leading


async def test_of_two_settings_the_older_is_not_told_again_after_the_newer(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardherd.coordinator.mailbox.INSIST_AFTER", NEVER)
    await rig.serving()
    spec = rig.group.spec

    rig.ownership.faults.fail("save", REFUSED)
    rig.runtime.apply(replace(spec, settings=replace(spec.settings, paused=True)))
    await rig.becomes(lambda: not rig.ownership.faults.before["save"])
    rig.runtime.apply(spec)
    handled: list[Request] = []
    decide = Group.decide

    def watched(group: Group, request: Request, now: float) -> Decision:
        handled.append(request)
        return decide(group, request, now)

    monkeypatch.setattr(Group, "decide", watched)
    rig.runtime.consumer_died(IDENTITY, rig.consumer(0).name, rig.consumer(0).incarnation)
    rig.ownership.faults.fail("save", REFUSED)
    await rig.becomes(lambda: not rig.ownership.faults.before["save"])
    # Both were refused; the death is told again, and so is the newer of the settings alone.
    rig.insist()
    await rig.becomes(lambda: not rig.alive())

    assert [each.spec.settings.paused for each in handled if isinstance(each, SettingsChanged)] == [False, False]
    assert not rig.group.spec.settings.paused


async def test_what_timed_out_and_could_not_be_stored_is_not_tried_without_pause(rig: Rig) -> None:
    await rig.serving()

    rig.ownership.faults.fail("save", REFUSED, times=1000)
    await rig.advance(50.0)
    left = len(rig.ownership.faults.before["save"])
    for _ in range(100):
        await drain()

    assert 900 < left < 1000
    assert len(rig.ownership.faults.before["save"]) == left


async def test_an_ownership_that_is_deleted_under_its_leader_is_written_anew_as_it_was(rig: Rig) -> None:
    (consumer,) = await rig.serving()
    await consumer.heartbeat()
    held, mailbox = dict(consumer.held), rig.group.mailbox

    rig.ownership.tamper(IDENTITY, None)
    await rig.consumer(1).heartbeat()

    found = await stored(rig)
    assert {name: row.owner_epoch for name, row in found.shards.items()} == held
    assert set(found.consumers) == {consumer.name, rig.consumer(1).name}
    assert rig.group.mailbox is mailbox
    assert rig.runtime.leading


async def test_an_ownership_that_is_deleted_during_a_write_of_unknown_outcome_is_written_anew(rig: Rig) -> None:
    (consumer,) = await rig.serving()

    rig.ownership.faults.fail("save", UNKNOWN)
    rig.ownership.tamper(IDENTITY, None)
    await rig.consumer(1).heartbeat()

    assert set((await stored(rig)).consumers) == {consumer.name, rig.consumer(1).name}


async def test_an_ownership_that_was_damaged_while_we_lead_is_written_over(rig: Rig) -> None:
    await rig.serving()
    newcomer = rig.consumer(1)

    rig.ownership.tamper(IDENTITY, b"{}")
    await newcomer.heartbeat()

    assert newcomer.name in (await stored(rig)).consumers
    assert rig.runtime.leading


async def test_an_ownership_that_a_later_version_wrote_is_the_end(rig: Rig) -> None:
    await rig.serving()

    rig.ownership.tamper(IDENTITY, b'{"format": 99}')
    with pytest.raises(CoordinatorUnavailableError, match="ask again"):
        await rig.consumer(1).heartbeat()

    assert "format 99" in await rig.runtime.lost()


async def test_after_an_unknown_outcome_another_coordinators_write_is_the_end(rig: Rig) -> None:
    await rig.serving()
    rival = Rig(beside=rig)
    rival.runtime.apply(rig.group.spec)
    await rival.becomes(lambda: rival.runtime.ready)

    rig.ownership.faults.fail("save", UNKNOWN)
    with pytest.raises(CoordinatorUnavailableError):
        await rig.consumer(1).heartbeat()

    assert "was written by another coordinator" in await rig.runtime.lost()
    await rival.runtime.stop()


async def test_nothing_is_written_past_the_lease(rig: Rig) -> None:
    await rig.serving()
    before = rig.ownership.saves

    rig.leadership.until = rig.clock.now()
    with pytest.raises(CoordinatorUnavailableError):
        await rig.consumer(1).heartbeat()

    assert rig.ownership.saves == before
    assert "lease ran out" in await rig.runtime.lost()


async def test_a_proof_of_death_that_could_not_be_stored_is_taken_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardherd.coordinator.mailbox.INSIST_AFTER", NEVER)
    first, second = await rig.serving(2)

    rig.ownership.faults.fail("save", REFUSED)
    rig.runtime.consumer_died(IDENTITY, first.name, first.incarnation)
    await rig.becomes(lambda: not rig.ownership.faults.before["save"])
    assert len((await second.heartbeat()).confirmed) == 2
    rig.insist()
    await rig.becomes(lambda: [row.consumer for row in rig.view.consumers] == [second.name])

    assert len((await second.heartbeat()).confirmed) == 4


async def test_an_ownership_that_does_not_fit_admits_no_new_shards_and_says_so(rig: Rig) -> None:
    (consumer,) = await rig.serving()

    rig.ownership.faults.fail("save", FULL, times=1)
    rig.kafka.grow_topic("t", 5)
    await rig.becomes(lambda: rig.reasons() == ["SnapshotTooLarge"])
    await asyncio.sleep(0.05)

    assert len(rig.view.shards) == 4
    assert len((await consumer.heartbeat()).confirmed) == 4
    assert "SnapshotTooLarge" in rig.events.reasons()


async def test_a_look_during_a_write_that_fails_does_not_begin_the_new_shards_anew(rig: Rig) -> None:
    await rig.serving()
    (committed,) = rig.kafka.committed.values()
    committed[ShardId("t/4")] = 500
    begun = rig.ownership.faults.entered["save"]
    gate = rig.ownership.faults.hold("save")
    rig.ownership.faults.fail("save", REFUSED)

    rig.kafka.grow_topic("t", 5)
    rig.kafka.append("t", 4, 600)
    await rig.becomes(lambda: rig.ownership.faults.entered["save"] > begun)
    await rig.looked()
    gate.set()
    await rig.becomes(lambda: len(rig.view.shards) == 5)
    await rig.looked()

    assert committed[ShardId("t/4")] == 500


async def test_a_failure_of_ours_in_one_request_does_not_stop_the_others(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    (consumer,) = await rig.serving()
    decide = Group.decide

    def failing(self: Group, request: Request, now: float) -> Decision:
        if isinstance(request, Leave):
            raise KeyError("a bug")
        return decide(self, request, now)

    monkeypatch.setattr(Group, "decide", failing)
    leaving, beating = await asyncio.gather(
        rig.group.ask(Leave(consumer.name, consumer.incarnation)), consumer.heartbeat(), return_exceptions=True
    )

    assert "failed on this request: KeyError('a bug')" in str(leaving)
    assert not isinstance(beating, BaseException)
    assert len(beating.confirmed) == 4


async def test_a_failure_of_ours_in_one_reply_does_not_stop_the_others(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = await rig.serving(2)
    confirmed = Group.confirmed

    def failing(self: Group, heartbeat: Heartbeat) -> HeartbeatReply:
        if heartbeat.consumer == first.name:
            raise KeyError("a bug")
        return confirmed(self, heartbeat)

    monkeypatch.setattr(Group, "confirmed", failing)
    refused, answered = await asyncio.gather(first.heartbeat(), second.heartbeat(), return_exceptions=True)

    assert "failed on this request: KeyError('a bug')" in str(refused)
    assert not isinstance(answered, BaseException)
    assert len(answered.confirmed) == 2


async def test_who_is_waiting_when_the_coordinator_stops_is_told_to_ask_again(rig: Rig) -> None:
    (consumer,) = await rig.serving()
    await consumer.heartbeat()
    parked = asyncio.create_task(consumer.heartbeat(wait=60.0))
    await drain()

    await rig.runtime.stop()

    with pytest.raises(CoordinatorUnavailableError, match="stops serving group demo/clicks; ask again"):
        await parked


async def test_a_caller_that_goes_away_is_forgotten(rig: Rig) -> None:
    (consumer,) = await rig.serving()
    await consumer.heartbeat()
    parked = asyncio.create_task(consumer.heartbeat(wait=60.0))
    await drain()
    mailbox = rig.group.mailbox
    assert mailbox is not None
    waiting = mailbox._parking.everyone()

    parked.cancel()
    await asyncio.gather(parked, return_exceptions=True)
    await drain()

    assert (waiting, mailbox._parking.everyone()) == ((consumer.name,), ())
    assert len((await consumer.heartbeat()).confirmed) == 4


async def test_a_proof_of_death_for_an_earlier_group_of_the_same_name_is_ignored(rig: Rig) -> None:
    (consumer,) = await rig.serving()

    rig.runtime.consumer_died(replace(IDENTITY, uid="another-uid"), consumer.name, consumer.incarnation)
    await drain()

    assert len((await consumer.heartbeat()).confirmed) == 4


async def test_the_time_that_a_write_takes_does_not_count_for_who_was_not_told_before_it_was_done(rig: Rig) -> None:
    holder, _ = await rig.serving(2, release_timeout=30.0, session_timeout=600.0)
    gate = rig.ownership.faults.hold("save")
    asked = asyncio.create_task(rig.group.heartbeat(structs.replace(holder.beat(), draining=True), 0.0))
    await drain()
    await rig.advance(20.0)
    assert not asked.done()
    gate.set()
    assert (await asked).confirmed == (), "only now it is asked to release its shards"

    await rig.advance(29.0)
    assert holder.name in rig.alive()
    await rig.advance(2.0)
    assert holder.name not in rig.alive()


async def test_the_time_of_a_write_that_failed_does_not_count_for_who_was_not_answered_meanwhile(rig: Rig) -> None:
    holder, _ = await rig.serving(2, release_timeout=30.0, session_timeout=600.0)
    await rig.group.heartbeat(structs.replace(holder.beat(), draining=True), 0.0)
    await rig.advance(9.0)
    gate = rig.ownership.faults.hold("save")
    rig.ownership.faults.fail("save", REFUSED)
    joining = asyncio.create_task(rig.consumer(2).heartbeat())
    await drain()
    await rig.advance(60.0)
    gate.set()
    with pytest.raises(CoordinatorUnavailableError, match="403; ask again"):
        await joining

    await rig.advance(20.0)
    assert holder.name in rig.alive()
    await rig.advance(2.0)
    assert holder.name not in rig.alive()


async def test_who_did_in_time_what_was_asked_and_was_refused_with_the_write_is_not_timed_out(rig: Rig) -> None:
    holder, other = await rig.serving(2, release_timeout=30.0, session_timeout=600.0)
    asked = await rig.group.heartbeat(structs.replace(holder.beat(), draining=True), 0.0)
    rig.ownership.faults.fail("save", REFUSED, times=1000)
    holder.held, holder.revision = {}, asked.revision
    for _ in range(6):
        with pytest.raises(CoordinatorUnavailableError, match="403; ask again"):
            await rig.group.heartbeat(structs.replace(holder.beat(), draining=True), 0.0)
        await rig.advance(10.0)

    rig.ownership.faults.before["save"].clear()
    await rig.advance(10.0)
    assert holder.name in rig.alive()
    await rig.group.heartbeat(structs.replace(holder.beat(), draining=True), 0.0)
    await other.heartbeat()
    assert len(other.held) == 4


async def test_who_did_nothing_is_timed_out_once_writes_went_through_for_as_long_as_it_was_given(rig: Rig) -> None:
    holder, _ = await rig.serving(2, release_timeout=30.0, session_timeout=600.0)
    await rig.group.heartbeat(structs.replace(holder.beat(), draining=True), 0.0)
    await rig.advance(10.0)
    rig.ownership.faults.fail("save", REFUSED, times=1000)
    with pytest.raises(CoordinatorUnavailableError, match="403; ask again"):
        await rig.consumer(2).heartbeat()
    await rig.advance(60.0)

    rig.ownership.faults.before["save"].clear()
    await rig.advance(1.0)
    await rig.advance(19.0)
    assert holder.name in rig.alive()
    await rig.advance(2.0)
    assert holder.name not in rig.alive()


async def test_a_clock_gap_that_was_refused_with_a_write_counts_before_anybody_is_expired(rig: Rig) -> None:
    holder, _ = await rig.serving(2, session_timeout=45.0)
    await rig.advance(5.0)
    rig.clock.advance(60.0)
    rig.ownership.faults.fail("save", REFUSED)
    with pytest.raises(CoordinatorUnavailableError, match="403; ask again"):
        await rig.consumer(2).heartbeat()
    rig.clock.advance(0.2)
    await rig.consumer(2).heartbeat()
    await rig.advance(0.4)
    assert holder.name in rig.alive()


async def test_who_was_refused_with_a_write_was_heard_all_the_same(rig: Rig) -> None:
    holder, other = await rig.serving(2, session_timeout=45.0)
    await rig.advance(30.0)
    rig.ownership.faults.fail("save", REFUSED)
    refused = await asyncio.gather(rig.consumer(2).heartbeat(), holder.heartbeat(), return_exceptions=True)
    assert [type(each) for each in refused] == [CoordinatorUnavailableError] * 2

    await rig.advance(16.0)
    await rig.advance(28.0)
    assert (holder.name in rig.alive(), other.name in rig.alive()) == (True, False)
    await rig.advance(2.0)
    assert holder.name not in rig.alive()


async def test_who_was_heard_while_writes_were_refused_gets_no_more_than_its_session_timeout(rig: Rig) -> None:
    holder, other = await rig.serving(2, session_timeout=45.0)
    rig.ownership.faults.fail("save", REFUSED, times=1000)
    with pytest.raises(CoordinatorUnavailableError, match="403; ask again"):
        await rig.consumer(2).heartbeat()
    for _ in range(200):
        await rig.advance(3.0)
        await asyncio.gather(holder.heartbeat(), other.heartbeat())

    rig.ownership.faults.before["save"].clear()
    await rig.advance(60.0)
    assert holder.name not in rig.alive()


async def test_what_is_asked_by_the_write_that_goes_through_again_has_its_own_time(rig: Rig) -> None:
    (holder,) = await rig.serving(1, release_timeout=30.0, session_timeout=4000.0)
    rig.ownership.faults.fail("save", REFUSED, times=1000)
    with pytest.raises(CoordinatorUnavailableError, match="403; ask again"):
        await rig.consumer(1).heartbeat()
    await rig.advance(600.0)

    rig.ownership.faults.before["save"].clear()
    await rig.consumer(1).heartbeat()
    held = holder.held
    await holder.heartbeat()
    holder.held = held
    for _ in range(14):
        await rig.advance(2.0)
        await rig.group.heartbeat(holder.beat(), 0.0)
    assert holder.name in rig.alive()
    await rig.advance(4.0)
    assert holder.name not in rig.alive()


async def test_a_request_that_is_never_stored_holds_up_no_deadline_while_all_else_is(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    (holder,) = await rig.serving(1, session_timeout=45.0)
    poison, save = rig.consumer(1), rig.ownership.save

    async def but_for_one(group: GroupIdentity, data: bytes, expected: str | None, *, grows: bool = False) -> str:
        if poison.name.encode() in data:
            raise REFUSED
        return await save(group, data, expected, grows=grows)

    monkeypatch.setattr(rig.ownership, "save", but_for_one)
    for _ in range(50):
        await rig.advance(1.0)
        with pytest.raises(CoordinatorUnavailableError, match="403; ask again"):
            await poison.heartbeat()
    assert holder.name not in rig.alive()


async def test_the_time_of_a_write_for_which_this_process_did_not_run_either_is_given_once(rig: Rig) -> None:
    holder, _ = await rig.serving(2, release_timeout=30.0, session_timeout=600.0)
    gate = rig.ownership.faults.hold("save")
    asked = asyncio.create_task(rig.group.heartbeat(structs.replace(holder.beat(), draining=True), 0.0))
    await drain()
    rig.clock.advance(20.0)
    gate.set()
    await asked

    await rig.advance(29.0)
    assert holder.name in rig.alive()
    await rig.advance(2.0)
    assert holder.name not in rig.alive()
