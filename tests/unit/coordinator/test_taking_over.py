"""What happens before the first answer, and what a group shows while it cannot be served."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from shardherd.adapters.memory import MemoryConnector, MemoryKafka
from shardherd.adapters.memory.kafka import MemoryOffsetStore, MemoryShardSource
from shardherd.coordinator.coordination import ThreadSafeCoordination
from shardherd.coordinator.items import Tell
from shardherd.coordinator.storage import GroupStorage
from shardherd.core.group.ownership import loads
from shardherd.core.group.records import Ownership, PositionCopies, ShardRecord
from shardherd.core.model.errors import CoordinatorUnavailableError, StaleIncarnationError, UnknownGroupError
from shardherd.core.model.nouns import GroupIdentity, GroupSpec, Incarnation, Offset, ShardId, ShardState
from shardherd.core.model.requests import Tick
from shardherd.ports import Discovered, OutcomeUnknownError, OwnershipConflictError, OwnershipUnavailableError
from tests.unit.coordinator.rig import IDENTITY, Consumer, Rig, drain, spec_of


@dataclass
class Journal:
    """What a coordinator did to its stores, in order."""

    entries: list[str] = field(default_factory=list)


class JournaledOffsets(MemoryOffsetStore):
    def __init__(self, journal: Journal, kafka: MemoryKafka, spec: GroupSpec) -> None:
        super().__init__(kafka, spec.kafka)
        self._journal = journal

    async def take_over(self) -> None:
        self._journal.entries.append("take over the offsets")
        await super().take_over()

    async def read(self, shards: Sequence[ShardId]) -> Mapping[ShardId, Offset]:
        self._journal.entries.append(f"read {len(shards)} offsets")
        return await super().read(shards)


class JournaledConnector(MemoryConnector):
    def __init__(self, journal: Journal, kafka: MemoryKafka) -> None:
        super().__init__(kafka)
        self._journal = journal
        self._cluster = kafka

    def offsets(self, spec: GroupSpec) -> MemoryOffsetStore:
        return JournaledOffsets(self._journal, self._cluster, spec)


async def test_the_ownership_is_written_then_the_offsets_fenced_then_read(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    (consumer,) = await rig.serving()
    await rig.runtime.stop()
    journal = Journal()
    save = rig.ownership.save

    async def journaled(group: GroupIdentity, data: bytes, expected: str | None) -> str:
        journal.entries.append("write the ownership")
        return await save(group, data, expected)

    monkeypatch.setattr(rig.ownership, "save", journaled)
    again = Rig(beside=rig)
    again.ports = replace(again.ports, connector=JournaledConnector(journal, rig.kafka))
    again.runtime = again.runtime.__class__(again.ports, discovery_interval=0.01, unknown_group_grace=0.0)
    again.runtime.lead()
    again.runtime.apply(spec_of())
    consumer.rig = again
    await consumer.heartbeat()

    assert journal.entries[:3] == ["write the ownership", "take over the offsets", "read 4 offsets"]
    await again.runtime.stop()


async def test_a_take_over_that_ends_past_the_lease_is_the_end_and_nothing_is_read_after_it(rig: Rig) -> None:
    await rig.serving()
    await rig.runtime.stop()
    again, entered = Rig(beside=rig), rig.kafka.faults.entered
    taken = rig.kafka.faults.hold("take_over")
    times, read = entered["take_over"], entered["read"]
    again.runtime.apply(spec_of())
    await again.becomes(lambda: entered["take_over"] > times)

    again.leadership.until = again.clock.now()
    taken.set()

    async with asyncio.timeout(5):
        assert "the lease ran out before the offsets" in await again.runtime.lost()
    assert (entered["take_over"], entered["read"]) == (times + 1, read)


class GrowingSource(MemoryShardSource):
    """Shows one more shard at every look, up to eight: as brokers do with a topic that was just made larger."""

    def __init__(self, kafka: MemoryKafka, spec: GroupSpec) -> None:
        super().__init__(kafka, spec.kafka)
        self._all = kafka

    async def discover(self, *, sizes: bool = False, ends: bool = False) -> Discovered:
        looked = await super().discover(sizes=sizes)
        self._all.grow_topic("t", min(8, len(looked.shards) + 1))
        return looked


class GrowingConnector(MemoryConnector):
    def __init__(self, kafka: MemoryKafka) -> None:
        super().__init__(kafka)
        self._cluster = kafka

    def source(self, spec: GroupSpec) -> MemoryShardSource:
        return GrowingSource(self._cluster, spec)


async def test_a_source_that_shows_its_new_shards_bit_by_bit_is_looked_at_until_it_has_shown_all(rig: Rig) -> None:
    ports = replace(rig.ports, connector=GrowingConnector(rig.kafka))
    rig.runtime = rig.runtime.__class__(ports, discovery_interval=3600.0, unknown_group_grace=0.0)
    rig.runtime.lead()
    rig.runtime.apply(spec_of())
    await rig.becomes(lambda: rig.runtime.view(IDENTITY) is not None and len(rig.view.shards) == 8)


async def test_a_new_leader_answers_the_first_heartbeat_of_everyone_at_once_and_parks_the_next(rig: Rig) -> None:
    consumers = await rig.serving(2)
    await asyncio.gather(*(consumer.heartbeat() for consumer in consumers))
    for _ in range(2):
        await rig.runtime.stop()
        rig = Rig(beside=rig)
        rig.runtime.apply(spec_of(2))
        await rig.becomes(lambda runner=rig.group: runner.mailbox is not None)  # type: ignore[misc]
        for consumer in consumers:
            consumer.rig = rig
        async with asyncio.timeout(5):
            await asyncio.gather(*(consumer.heartbeat(wait=60) for consumer in consumers))

        parked = [asyncio.create_task(consumer.heartbeat(wait=60)) for consumer in consumers]
        await drain()
        assert [task.done() for task in parked] == [False, False]
        for task in parked:
            task.cancel()
    await rig.runtime.stop()


async def test_a_new_leader_moves_nothing_and_goes_on_at_the_durable_positions(rig: Rig) -> None:
    first, second = await rig.serving(2)
    await first.commit(7)
    await asyncio.gather(first.heartbeat(), second.heartbeat())
    held = dict(first.held), dict(second.held)
    await rig.runtime.stop()

    again = Rig(beside=rig)
    again.runtime.apply(spec_of(2))
    first.rig = second.rig = again
    for _ in range(3):
        await asyncio.gather(first.heartbeat(), second.heartbeat())
        await again.advance(3.0)

    assert (first.held, second.held) == held
    assert first.positions == dict.fromkeys(first.held, 7)
    assert again.view.moves == 0
    await again.runtime.stop()


async def test_a_new_leader_expires_nobody_for_a_whole_session_timeout(rig: Rig) -> None:
    first, second = await rig.serving(2, session_timeout=45.0)
    await rig.advance(44.0)
    await rig.runtime.stop()
    again = Rig(beside=rig)
    again.runtime.apply(spec_of(2, session_timeout=45.0))
    await again.becomes(lambda: again.runtime.ready)

    await again.advance(44.0)
    assert len(again.alive()) == 2
    await again.advance(2.0)

    assert again.alive() == []
    assert {first.name, second.name} == {row.last_holder for row in rows(again)}
    await again.runtime.stop()


async def test_a_new_group_whose_source_is_away_answers_with_nothing_and_says_why(rig: Rig) -> None:
    rig.kafka.reachable = False
    rig.runtime.apply(spec_of())

    reply = await rig.consumer().heartbeat()
    await rig.becomes(lambda: not rig.view.source_reachable)

    assert reply.confirmed == ()
    assert rig.view.source_error == "no Kafka broker answers at broker:9092"
    assert rig.runtime.ready
    assert rig.events.reasons().count("SourceUnavailable") == 1


async def test_it_is_served_once_its_source_is_back(rig: Rig) -> None:
    rig.kafka.reachable = False
    rig.runtime.apply(spec_of())
    await rig.consumer().heartbeat()

    rig.kafka.reachable = True
    (consumer,) = await rig.serving()

    assert len(consumer.held) == 4
    reasons = [reason for reason in rig.events.reasons() if reason.startswith("Source")]
    assert reasons == ["SourceUnavailable", "SourceReachable"]


async def test_a_known_group_whose_source_is_away_is_not_answered_but_shown(rig: Rig) -> None:
    (consumer,) = await rig.serving()
    await rig.runtime.stop()
    rig.kafka.reachable = False
    again = Rig(beside=rig)
    again.runtime.apply(spec_of())
    consumer.rig = again
    await again.becomes(lambda: again.runtime.view(IDENTITY) is not None and again.runtime.ready)

    with pytest.raises(CoordinatorUnavailableError, match="cannot be served yet: no Kafka broker answers at broker:9092"):
        await consumer.heartbeat()

    assert not again.view.source_reachable
    assert again.view.shards_in(ShardState.ALREADY_ALLOC) == 4
    await again.runtime.stop()


async def test_who_joined_before_a_group_had_shards_is_known_to_the_next_leader(rig: Rig) -> None:
    rig.kafka.reachable = False
    rig.runtime.apply(spec_of())
    superseded = rig.consumer()
    await superseded.heartbeat()
    await Consumer(rig, superseded.name, Incarnation("another-uid", 1)).heartbeat()
    await rig.runtime.stop()
    before = await stored(rig)

    again = Rig(beside=rig)
    again.runtime.apply(spec_of())
    superseded.rig = again
    with pytest.raises(StaleIncarnationError, match="pod another-uid has taken its name over"):
        await superseded.heartbeat()

    assert before.group.group_epoch == 2
    assert await stored(again) == replace(before, group=replace(before.group, leader_epoch=2))
    assert again.group.mailbox is not None
    assert again.group.mailbox.group.ownership == await stored(again)
    await again.runtime.stop()


async def test_a_group_whose_topics_were_taken_away_goes_on_above_its_epochs_when_they_are_back(rig: Rig) -> None:
    (consumer,) = await rig.serving()
    held = dict(consumer.held)
    await rig.runtime.stop()
    without = Rig(beside=rig)
    without.runtime.apply(reading("nothing-yet"))
    consumer.rig = without
    await consumer.heartbeat()
    await without.consumer(1).heartbeat()
    await without.runtime.stop()
    left = await stored(without)
    assert (dict(left.shards), left.group.epoch_floor, consumer.held) == ({}, 1, {})

    again = Rig(beside=without)
    consumer.rig = again
    again.runtime.apply(reading("t"))
    await again.becomes(lambda: again.runtime.ready and len(again.view.shards) == 4)

    assert {row.owner_epoch for row in rows(again)} == {1}, "none begins below what it had"
    assert again.reasons() == []
    assert "OwnershipLost" not in again.events.reasons()
    for _ in range(20):
        await again.advance(1.0)
        await consumer.heartbeat()
    assert consumer.held == dict.fromkeys(held, 2)
    await again.runtime.stop()


async def test_what_appears_while_nobody_leads_a_group_without_shards_is_read_from_its_beginning(rig: Rig) -> None:
    rig.kafka.create_topic("t", 0)
    rig.runtime.apply(reading("t", starting_position="Latest"))
    await rig.becomes(lambda: rig.runtime.ready and rig.view.discovered)
    await rig.runtime.stop()
    rig.kafka.grow_topic("t", 1)
    rig.kafka.append("t", 0, 30)

    again = Rig(beside=rig)
    again.runtime.apply(reading("t", starting_position="Latest"))
    await again.becomes(lambda: again.runtime.ready and len(again.view.shards) == 1)

    assert [row.start for row in rows(again)] == [0], "its first look was made when there was nothing"
    await again.runtime.stop()


async def test_an_ownership_that_cannot_be_read_is_tried_again(rig: Rig) -> None:
    rig.ownership.faults.fail("load", OwnershipUnavailableError("the API server refused with 403"))

    (consumer,) = await rig.serving()

    assert len(consumer.held) == 4


async def test_a_leader_that_is_just_ending_may_write_once_more_while_it_is_taken_over(rig: Rig) -> None:
    rig.ownership.faults.fail("save", OwnershipConflictError("at version 9, not 8"), times=2)

    (consumer,) = await rig.serving()

    assert len(consumer.held) == 4


async def test_while_another_writes_all_the_time_the_group_is_not_served_and_says_why(rig: Rig) -> None:
    rig.ownership.faults.fail("save", OwnershipConflictError("at version 9, not 8"), times=5)
    rig.runtime.apply(spec_of())
    await rig.becomes(lambda: rig.runtime.view(IDENTITY) is not None)

    assert rig.view.source_error == "the ownership of group demo/clicks is being written by another coordinator"
    await rig.serving()


async def test_no_leader_epoch_is_below_one_that_was_tried_though_an_older_ownership_is_put_back_meanwhile(rig: Rig) -> None:
    await rig.serving()
    older = await rig.ownership.load(IDENTITY)
    assert older is not None
    await rig.runtime.stop()
    storage = GroupStorage(rig.ownership, rig.leadership, rig.clock, spec_of())

    async def nothing() -> PositionCopies:
        return PositionCopies()

    rig.ownership.faults.fail("save", OutcomeUnknownError("no answer"), done=True, times=2)
    for _ in range(2):
        with pytest.raises(OwnershipUnavailableError):
            await storage.take(copied=nothing)
    rig.ownership.put_back(IDENTITY, older.data)

    assert (await storage.take(copied=nothing)).group.leader_epoch == 4


async def test_taking_over_again_after_an_unknown_outcome_takes_the_next_leader_epoch(rig: Rig) -> None:
    rig.ownership.faults.fail("save", OutcomeUnknownError("no answer within 5 s"), done=True)

    await rig.serving()

    stored = await rig.ownership.load(IDENTITY)
    assert stored is not None
    assert loads(stored.data).group.leader_epoch == 2


async def test_an_ownership_of_a_format_that_is_not_ours_is_named_and_left_alone(rig: Rig) -> None:
    await rig.ownership.save(IDENTITY, b'{"format": 99}', None)
    rig.runtime.apply(spec_of())

    with pytest.raises(CoordinatorUnavailableError, match="format 99"):
        await rig.consumer().heartbeat()

    stored = await rig.ownership.load(IDENTITY)
    assert stored is not None
    assert stored.data == b'{"format": 99}'


async def test_an_unknown_group_is_refused_and_a_group_is_told_apart_by_its_uid(rig: Rig) -> None:
    rig.runtime.apply(spec_of())
    await rig.becomes(lambda: rig.runtime.ready)

    with pytest.raises(UnknownGroupError):
        rig.runtime.group("demo", "other")

    assert rig.runtime.view(replace(IDENTITY, uid="another")) is None
    rig.runtime.forget(replace(IDENTITY, uid="another"))
    assert rig.runtime.view(IDENTITY) is not None


async def test_a_group_that_was_made_anew_begins_anew(rig: Rig) -> None:
    await rig.serving()
    spec = spec_of()

    rig.runtime.apply(
        replace(spec, identity=replace(spec.identity, uid="the-new-uid"), source=replace(spec.kafka, topics=("u",)))
    )
    rig.kafka.create_topic("u", 2)

    await rig.becomes(lambda: any(len(view.shards) == 2 for view in rig.runtime.views().values()))
    assert [identity.uid for identity in rig.runtime.views()] == ["the-new-uid"]


async def test_live_members_withhold_grants_until_they_are_gone(rig: Rig) -> None:
    rig.kafka.members["demo.clicks"] = ("console at 10.0.0.9",)
    rig.runtime.apply(spec_of())
    consumer = rig.consumer()
    await rig.becomes(lambda: bool(rig.runtime.view(IDENTITY)) and rig.reasons() == ["GroupHasLiveMembers"])

    assert (await consumer.heartbeat()).confirmed == ()
    assert rig.kafka.committed == {}
    assert "(console at 10.0.0.9)" in rig.view.withheld[0].message

    del rig.kafka.members["demo.clicks"]
    (consumer,) = await rig.serving()
    assert len(consumer.held) == 4


async def test_a_new_group_is_served_without_a_look_at_what_may_be_stored_of_it(rig: Rig) -> None:
    rig.ownership.faults.hold("load")
    rig.ownership.faults.hold("load_copies")

    rig.runtime.apply(spec_of(), new=True)
    await rig.becomes(lambda: rig.runtime.ready and rig.view.discovered)
    await rig.becomes(lambda: all(row.checkpoint == 0 for row in rig.view.shards))

    consumer = rig.consumer()
    await consumer.heartbeat()
    assert len(consumer.held) == 4


async def test_a_group_that_only_looks_new_is_taken_over_as_any_other(rig: Rig) -> None:
    (consumer,) = await rig.serving()
    await consumer.commit(7)
    held = dict(consumer.held)
    rig.ownership.copy(IDENTITY, PositionCopies({ShardId("t/0"): 9}))
    await rig.runtime.stop()

    again = Rig(beside=rig)
    again.runtime.apply(spec_of(), new=True)
    consumer.rig = again
    await again.becomes(lambda: again.runtime.ready)
    await consumer.heartbeat()

    assert again.reasons() == ["CheckpointLost"], "its copies were read too"
    assert consumer.held == {shard: epoch for shard, epoch in held.items() if shard != "t/0"}
    assert {row.checkpoint for row in again.view.shards} == {7}
    await again.runtime.stop()


@pytest.mark.parametrize("noticed_by", ["the beat", "the mailbox"])
async def test_a_pause_of_our_own_expires_nobody(rig: Rig, noticed_by: str) -> None:
    await rig.serving(2, session_timeout=45.0)

    rig.clock.advance(300.0)
    if noticed_by == "the beat":
        rig.runtime.beat()
    await tick(rig)
    assert len(rig.alive()) == 2, "every deadline is 300 s later"
    await rig.advance(44.0)
    assert len(rig.alive()) == 2

    await rig.advance(2.0)
    assert rig.alive() == []


async def test_who_was_silent_before_a_pause_is_expired_after_it_by_what_he_had_left(rig: Rig) -> None:
    first, second = await rig.serving(2, session_timeout=45.0)
    await rig.advance(40.0)
    await first.heartbeat()

    rig.clock.advance(300.0)
    rig.runtime.beat()
    await tick(rig)
    assert rig.alive() == [first.name, second.name]

    await rig.advance(6.0)
    assert rig.alive() == [first.name]


async def tick(rig: Rig) -> None:
    """The timer of the mailbox, which counts real seconds, has ended: whatever is due is handled."""
    assert rig.group.mailbox is not None
    rig.group.mailbox.put(Tell(Tick(), insist=False))
    await drain()


async def test_silence_is_noticed_without_a_pause(rig: Rig) -> None:
    first, second = await rig.serving(2, session_timeout=45.0)
    for _ in range(16):
        await rig.advance(3.0)
        await first.heartbeat()

    assert [row.consumer for row in rig.view.consumers] == [first.name]
    assert len((await first.heartbeat()).confirmed) == 4
    assert second.name not in {row.consumer for row in rig.view.consumers}


async def test_the_controller_calls_from_a_thread_of_its_own(rig: Rig) -> None:
    coordination = ThreadSafeCoordination(rig.runtime, asyncio.get_running_loop())

    await asyncio.to_thread(coordination.apply, spec_of())
    await rig.becomes(lambda: rig.runtime.ready)
    view = await asyncio.to_thread(coordination.view, IDENTITY)
    views = await asyncio.to_thread(coordination.views)
    await asyncio.to_thread(coordination.forget, IDENTITY)

    assert view is not None
    assert list(views) == [IDENTITY]
    assert await asyncio.to_thread(coordination.views) == {}


async def test_what_could_not_be_taken_over_is_told_again_and_what_was_is_not(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordination = ThreadSafeCoordination(rig.runtime, asyncio.get_running_loop())
    apply, applied = rig.runtime.apply, []

    def failing_at_first(spec: GroupSpec, new: bool = False) -> None:
        applied.append((spec.wanted, new))
        if len(applied) == 1:
            raise RuntimeError("a failure of ours")
        apply(spec, new)

    monkeypatch.setattr(rig.runtime, "apply", failing_at_first)
    for spec, new in ((spec_of(1), True), (spec_of(1), True), (spec_of(1), False), (spec_of(2), False)):
        coordination.apply(spec, new=new)
        await drain()

    assert applied == [(1, True), (1, True), (2, False)]
    coordination.forget(IDENTITY)
    coordination.apply(spec_of(2))
    await drain()
    assert applied[3:] == [(2, False)], "another group of the same name"


def reading(topic: str, **source: Any) -> GroupSpec:
    """The group, with another source."""
    spec = spec_of()
    return replace(spec, source=replace(spec.kafka, topics=(topic,), **source))


async def stored(rig: Rig) -> Ownership:
    """What is stored of the group."""
    found = await rig.ownership.load(IDENTITY)
    assert found is not None
    return loads(found.data)


def rows(rig: Rig) -> Collection[ShardRecord]:
    """The stored rows of the group's shards."""
    assert rig.group.mailbox is not None
    return rig.group.mailbox.group.ownership.shards.values()
