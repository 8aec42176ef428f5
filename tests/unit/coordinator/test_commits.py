"""Checkpoints are durable when they are acknowledged, whatever becomes of a commit."""

from __future__ import annotations

import asyncio

import pytest

from shardherd.core.model.errors import CoordinatorUnavailableError
from shardherd.core.model.nouns import CheckpointResult, ShardId
from shardherd.core.model.requests import ForceCheckpoint, ForceCheckpointReply
from shardherd.ports import CommitFencedError, OutcomeUnknownError, SourceUnavailableError
from tests.unit.coordinator.rig import IDENTITY, Rig, drain

OK, WITHHELD = {CheckpointResult.OK}, {CheckpointResult.WITHHELD}
GROUP_ID = "demo.clicks"
FIRST = ShardId("t/0")
UNKNOWN = OutcomeUnknownError("no answer to EndTxn; it may have happened")
AWAY = SourceUnavailableError("no Kafka broker answers at broker:9092")
FENCED = CommitFencedError("another producer has taken over")


async def test_what_is_acknowledged_is_durable(rig: Rig) -> None:
    (consumer,) = await rig.serving()

    assert await consumer.commit(7) == OK

    assert rig.kafka.committed[GROUP_ID] == dict.fromkeys(consumer.held, 7)
    await consumer.heartbeat()
    assert consumer.positions == dict.fromkeys(consumer.held, 7)


async def test_what_waits_for_a_commit_shares_the_next_one(rig: Rig) -> None:
    consumers = await rig.serving(4)
    gate = rig.kafka.faults.hold("commit")
    before = rig.kafka.commits

    first = asyncio.create_task(consumers[0].commit(7))
    await drain()
    others = [asyncio.create_task(consumer.commit(8)) for consumer in consumers[1:]]
    await drain()
    assert not first.done()
    gate.set()

    assert [await first, *await asyncio.gather(*others)] == [OK] * 4
    assert rig.kafka.commits == before + 2


async def test_heartbeats_are_answered_while_a_commit_is_under_way(rig: Rig) -> None:
    (consumer,) = await rig.serving()
    gate = rig.kafka.faults.hold("commit")
    committing = asyncio.create_task(consumer.commit(7))
    await drain()

    assert len((await consumer.heartbeat()).confirmed) == 4
    assert await consumer.commit(8) == WITHHELD

    gate.set()
    assert await committing == OK


async def test_a_commit_that_surely_failed_is_withheld_and_shows(rig: Rig) -> None:
    (consumer,) = await rig.serving()
    rig.kafka.faults.fail("commit", AWAY)
    rig.kafka.faults.hold("discover")

    assert await consumer.commit(7) == WITHHELD

    await drain()
    assert rig.view.source_error == str(AWAY)
    assert rig.kafka.committed[GROUP_ID] == dict.fromkeys(consumer.held, 0)
    assert "SourceUnavailable" in rig.events.reasons()


async def test_after_a_failed_commit_the_next_one_succeeds_and_the_source_is_well(rig: Rig) -> None:
    (consumer,) = await rig.serving()
    rig.kafka.faults.fail("commit", AWAY)
    await consumer.commit(7)

    assert await consumer.commit(8) == OK

    await rig.becomes(lambda: rig.view.source_reachable)
    assert rig.kafka.committed[GROUP_ID] == dict.fromkeys(consumer.held, 8)


async def test_a_look_after_a_failed_commit_takes_no_commit_over_that_is_under_way(rig: Rig) -> None:
    (consumer,) = await rig.serving()
    rig.kafka.faults.fail("commit", AWAY)
    looking = rig.kafka.faults.hold("discover")
    await consumer.commit(7)
    await drain()
    committing = rig.kafka.faults.hold("commit")
    commit = asyncio.create_task(consumer.commit(8))
    await drain()
    taken_over = rig.kafka.faults.entered["take_over"]
    looking.set()
    await rig.looked()
    assert rig.kafka.faults.entered["take_over"] == taken_over
    committing.set()
    assert await commit == OK
    await rig.becomes(lambda: rig.view.source_reachable)


async def test_a_commit_of_unknown_outcome_that_happened_is_acknowledged(rig: Rig) -> None:
    (consumer,) = await rig.serving()
    rig.kafka.faults.fail("commit", UNKNOWN, done=True)

    assert await consumer.commit(7) == OK

    assert rig.kafka.committed[GROUP_ID] == dict.fromkeys(consumer.held, 7)
    assert rig.kafka.writers[GROUP_ID] > 1, "it took over again before it read back"


async def test_a_commit_of_unknown_outcome_that_did_not_happen_is_withheld(rig: Rig) -> None:
    (consumer,) = await rig.serving()
    rig.kafka.faults.fail("commit", UNKNOWN)

    assert await consumer.commit(7) == WITHHELD

    await consumer.heartbeat()
    assert consumer.positions == dict.fromkeys(consumer.held, 0)
    assert await consumer.commit(7) == OK


async def test_a_position_that_is_absent_after_a_commit_of_unknown_outcome_is_lost_and_not_the_one_before(rig: Rig) -> None:
    consumer, other = await rig.serving(2)
    await consumer.commit(7)
    rig.kafka.faults.fail("commit", UNKNOWN, done=True)
    gate = rig.kafka.faults.hold("take_over")
    committing = asyncio.create_task(consumer.commit(9))
    await drain()
    lost = sorted(consumer.held)
    for shard in lost:
        # It was written, and the broker has forgotten it before it was read back.
        assert rig.kafka.committed[GROUP_ID].pop(shard) == 9
    gate.set()
    assert await committing == WITHHELD

    rig.runtime.consumer_died(IDENTITY, consumer.name, consumer.incarnation)
    for _ in range(3):
        await other.heartbeat()
    await rig.becomes(lambda: {row.shard for row in rig.view.shards if row.holder is None} == set(lost))
    assert {row.shard: row.checkpoint for row in rig.view.shards if row.shard in lost} == dict.fromkeys(lost)
    assert lost not in [sorted(other.held)]


async def test_a_holder_whose_position_is_absent_after_a_commit_saves_it_again(rig: Rig) -> None:
    (consumer,) = await rig.serving()
    rig.kafka.faults.fail("commit", UNKNOWN, done=True)
    gate = rig.kafka.faults.hold("take_over")
    committing = asyncio.create_task(consumer.commit(9))
    await drain()
    rig.kafka.committed[GROUP_ID].clear()
    gate.set()
    assert await committing == WITHHELD

    assert await consumer.commit(9) == OK
    await consumer.heartbeat()
    assert consumer.positions == dict.fromkeys(consumer.held, 9)


async def test_finding_out_goes_on_until_the_source_answers(rig: Rig) -> None:
    (consumer,) = await rig.serving()
    rig.kafka.faults.fail("commit", UNKNOWN, done=True)
    rig.kafka.faults.fail("take_over", AWAY)

    assert await consumer.commit(7) == OK


async def test_a_fenced_leader_that_still_leads_takes_over_again(rig: Rig) -> None:
    (consumer,) = await rig.serving()
    rig.kafka.faults.fail("commit", FENCED)
    saves = rig.ownership.saves

    assert await consumer.commit(7) == WITHHELD

    assert rig.ownership.saves == saves + 1, "it proved that it leads by a write"
    assert rig.kafka.writers[GROUP_ID] == 2
    assert await consumer.commit(7) == OK
    assert rig.reasons() == []


async def test_fenced_three_times_in_a_minute_it_leaves_the_id_alone_and_says_so(rig: Rig) -> None:
    (consumer,) = await rig.serving()

    for offset in (7, 8, 9):
        rig.kafka.faults.fail("commit", FENCED)
        assert await consumer.commit(offset) == WITHHELD
    await drain()

    assert rig.reasons() == ["GroupIdInUse"]
    assert "'shardherd.demo.clicks'" in rig.view.withheld[0].message
    commits = rig.kafka.commits
    assert await consumer.commit(10) == WITHHELD
    assert rig.kafka.commits == commits


async def test_fenced_now_and_then_is_no_reason_to_stop(rig: Rig) -> None:
    (consumer,) = await rig.serving(session_timeout=1000.0)

    for offset in (7, 8, 9, 10):
        rig.kafka.faults.fail("commit", FENCED)
        assert await consumer.commit(offset) == WITHHELD
        await rig.advance(31.0)

    assert rig.reasons() == []


async def test_a_leader_that_a_newer_one_has_fenced_steps_down(rig: Rig) -> None:
    (consumer,) = await rig.serving()
    await consumer.commit(7)
    newer = Rig(beside=rig)
    newer.runtime.apply(rig.group.spec)
    await newer.becomes(lambda: newer.runtime.ready)

    with pytest.raises(CoordinatorUnavailableError):
        await consumer.commit(99)

    assert "was written by another coordinator" in await rig.runtime.lost()
    assert rig.kafka.committed[GROUP_ID] == dict.fromkeys(consumer.held, 7)
    assert newer.runtime.leading
    await newer.runtime.stop()


async def test_a_proof_that_comes_back_past_the_lease_fences_nobody(rig: Rig) -> None:
    (consumer,) = await rig.serving()
    rig.kafka.faults.hold("discover")
    await drain()
    rig.kafka.faults.fail("commit", UNKNOWN)
    proof = rig.ownership.faults.hold("save")
    saves = rig.ownership.saves
    committing = asyncio.create_task(consumer.commit(7))
    await drain()

    rig.leadership.until = rig.clock.now()
    proof.set()

    with pytest.raises(CoordinatorUnavailableError):
        await committing
    assert "the lease ran out before the offsets" in await rig.runtime.lost()
    assert rig.ownership.saves == saves + 1, "the write that proves it had come through"
    assert rig.kafka.writers[GROUP_ID] == 1


async def test_nothing_is_committed_past_the_lease(rig: Rig) -> None:
    (consumer,) = await rig.serving()
    rig.leadership.until = rig.clock.now()

    with pytest.raises(CoordinatorUnavailableError):
        await consumer.commit(7)

    assert rig.kafka.committed[GROUP_ID] == dict.fromkeys(consumer.held, 0)
    assert "lease ran out" in await rig.runtime.lost()


async def test_nothing_is_committed_if_the_lease_runs_out_while_copies_make_way(rig: Rig) -> None:
    (consumer,) = await rig.serving(session_timeout=10_000.0)
    await consumer.commit(7)
    await rig.serve(301.0)
    await rig.becomes(lambda: rig.ownership.copies.get(IDENTITY) == dict.fromkeys(consumer.held, 7))
    rig.kafka.faults.hold("discover")
    await drain()
    copies = rig.ownership.faults.hold("save_copies")
    forcing = asyncio.create_task(rig.group.ask(ForceCheckpoint(FIRST, 3)))
    await drain()

    rig.leadership.until = rig.clock.now()
    copies.set()

    with pytest.raises(CoordinatorUnavailableError):
        await forcing
    assert FIRST not in rig.ownership.copies[IDENTITY], "the copy that was above the position had been taken away"
    assert rig.kafka.committed[GROUP_ID][FIRST] == 7
    assert "the lease ran out before the offsets" in await rig.runtime.lost()


async def test_a_forced_checkpoint_is_durable_when_it_is_answered(rig: Rig) -> None:
    (consumer,) = await rig.serving()
    await consumer.commit(7)

    assert await rig.group.ask(ForceCheckpoint(ShardId("t/0"), 3)) == ForceCheckpointReply()

    assert rig.kafka.committed[GROUP_ID][ShardId("t/0")] == 3
    await consumer.heartbeat()
    assert consumer.positions[ShardId("t/0")] == 3


@pytest.mark.parametrize("error", [AWAY, UNKNOWN, FENCED])
async def test_a_forced_checkpoint_that_was_not_written_is_not_acknowledged(rig: Rig, error: Exception) -> None:
    (consumer,) = await rig.serving()
    await consumer.commit(7)
    rig.kafka.faults.fail("commit", error)

    with pytest.raises(CoordinatorUnavailableError, match="the checkpoint of shard t/0 was not written; ask again"):
        await rig.group.ask(ForceCheckpoint(ShardId("t/0"), 3))

    assert rig.kafka.committed[GROUP_ID] == dict.fromkeys(consumer.held, 7)
    assert await consumer.commit(8) == OK, "nobody was fenced"
