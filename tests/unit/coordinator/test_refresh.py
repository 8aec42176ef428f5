"""Positions that do not change are committed once more every day, whoever leads: a broker forgets them otherwise."""

from __future__ import annotations

import asyncio

import pytest

from shardherd.coordinator import copies, refresh
from shardherd.coordinator.refresh import AT_ONCE, Refresh
from shardherd.core.group.records import PositionCopies
from shardherd.core.model.nouns import CheckpointResult, ShardId
from shardherd.core.model.requests import ForceCheckpoint
from shardherd.ports import CommitFencedError, OutcomeUnknownError, SourceUnavailableError
from tests.harness.simulated_clock import SimulatedClock
from tests.unit.coordinator.rig import IDENTITY, Rig, drain, spec_of

GROUP_ID = "demo.clicks"
HOUR = 3600.0
OK = {CheckpointResult.OK}
AWAY = SourceUnavailableError("no Kafka broker answers at broker:9092")
UNKNOWN = OutcomeUnknownError("no answer to EndTxn; it may have happened")
FENCED = CommitFencedError("another producer has taken over")


async def successor(rig: Rig) -> Rig:
    """Another coordinator that has taken over, and served for long enough to have refreshed what was due."""
    await rig.runtime.stop()
    again = Rig(beside=rig)
    again.runtime.apply(spec_of(session_timeout=10_000.0))
    await again.becomes(lambda: again.runtime.view(IDENTITY) is not None and again.view.discovered)
    return again


async def test_positions_that_do_not_change_are_committed_again_every_day(rig: Rig) -> None:
    (consumer,) = await rig.serving()
    await consumer.commit(7)
    commits = rig.kafka.commits
    rig.kafka.committed[GROUP_ID].clear()

    rig.clock.advance(23 * 3600.0)
    rig.runtime.beat()
    await asyncio.sleep(0.05)
    assert rig.kafka.commits == commits
    rig.clock.advance(3600.0)
    rig.runtime.beat()
    await rig.becomes(lambda: rig.kafka.commits == commits + 1)

    assert rig.kafka.committed[GROUP_ID] == dict.fromkeys(consumer.held, 7)


async def test_after_a_commit_of_unknown_outcome_positions_and_their_notes_are_written_once_more_soon(rig: Rig) -> None:
    (consumer,) = await rig.serving()
    await consumer.commit(7)
    noted = dict(rig.kafka.noted[GROUP_ID])
    rig.kafka.faults.fail("commit", UNKNOWN)
    await consumer.commit(8)
    # As those of another group, which had the same positions: to read them back shows no difference.
    rig.kafka.noted[GROUP_ID] = dict.fromkeys(noted, "")

    rig.clock.advance(60.0)
    rig.runtime.beat()
    await rig.becomes(lambda: rig.kafka.noted[GROUP_ID] == noted)
    assert rig.kafka.committed[GROUP_ID] == dict.fromkeys(consumer.held, 7)


async def test_a_refresh_of_unknown_outcome_is_made_again_soon_and_the_next_leader_does_not_take_it_for_made(rig: Rig) -> None:
    (consumer,) = await rig.serving()
    await consumer.commit(7)
    noted = dict(rig.kafka.noted[GROUP_ID])
    # As those of another group, which had the same positions: to read them back shows no difference.
    foreign = rig.kafka.noted[GROUP_ID] = dict.fromkeys(noted, "")
    rig.kafka.faults.fail("commit", UNKNOWN)
    begun = rig.clock.wall()

    rig.clock.advance(24 * HOUR)
    rig.runtime.beat()
    await rig.becomes(lambda: "SourceReachable" in rig.events.reasons())
    assert rig.kafka.noted[GROUP_ID] == foreign
    rig.clock.advance(60.0)
    rig.runtime.beat()

    await rig.becomes(lambda: rig.kafka.noted[GROUP_ID] == noted)
    rig.clock.advance(copies.INTERVAL)
    await rig.becomes(lambda: rig.ownership.copied[IDENTITY].copies.refreshed == begun + 24 * HOUR + 60.0)


@pytest.mark.parametrize("error", [AWAY, UNKNOWN, FENCED])
async def test_kept_offsets_bear_the_note_of_their_new_group_before_they_are_granted_though_their_first_commit_failed(
    rig: Rig, error: Exception
) -> None:
    shards = [ShardId(f"t/{number}") for number in range(4)]
    rig.kafka.committed[GROUP_ID] = dict.fromkeys(shards, 7)
    rig.kafka.noted[GROUP_ID] = dict.fromkeys(shards, "1 the-uid-of-a-group-that-was-deleted 7 9 ")
    rig.kafka.faults.fail("commit", error)

    await rig.serving()

    assert not rig.kafka.faults.before["commit"]
    assert {note.split(" ")[1] for note in rig.kafka.noted[GROUP_ID].values()} == {IDENTITY.uid}


async def test_a_daily_look_puts_right_what_somebody_else_moved_and_tells_of_it(rig: Rig) -> None:
    (consumer,) = await rig.serving()
    await consumer.commit(7)
    rig.kafka.committed[GROUP_ID] |= {ShardId("t/0"): 3, ShardId("t/1"): 9}
    del rig.kafka.committed[GROUP_ID][ShardId("t/2")]

    rig.clock.advance(24 * 3600.0)
    rig.runtime.beat()
    await rig.becomes(lambda: "CheckpointRestored" in rig.events.reasons())

    assert rig.kafka.committed[GROUP_ID] == dict.fromkeys(consumer.held, 7)
    (message,) = [event.message for event in rig.events.events if event.reason == "CheckpointRestored"]
    assert message.endswith("t/0 at 3 instead of 7, t/1 at 9 instead of 7, t/2 at none instead of 7")


async def test_a_daily_look_that_finds_all_in_order_tells_nothing(rig: Rig) -> None:
    (consumer,) = await rig.serving()
    await consumer.commit(7)
    commits = rig.kafka.commits

    rig.clock.advance(24 * 3600.0)
    rig.runtime.beat()
    await rig.becomes(lambda: rig.kafka.commits == commits + 1)

    assert "CheckpointRestored" not in rig.events.reasons()


async def test_a_shard_that_the_source_has_no_more_does_not_keep_the_others_from_being_refreshed(rig: Rig) -> None:
    (consumer,) = await rig.serving()
    await consumer.commit(7)
    rig.kafka.topics["t"].pop()
    await rig.becomes(lambda: rig.group.mailbox is not None and len(rig.group.mailbox.group.refreshable()) == 3)
    commits = rig.kafka.commits

    rig.clock.advance(24 * 3600.0)
    rig.runtime.beat()
    await rig.becomes(lambda: rig.kafka.commits == commits + 1)


async def test_a_daily_look_that_fails_is_made_again_soon(rig: Rig) -> None:
    (consumer,) = await rig.serving()
    await consumer.commit(7)
    commits = rig.kafka.commits
    rig.kafka.faults.fail("read", AWAY)

    rig.clock.advance(24 * 3600.0)
    rig.runtime.beat()
    await rig.becomes(lambda: not rig.kafka.faults.before["read"])
    await drain()
    assert rig.kafka.commits == commits
    rig.clock.advance(600.0)
    rig.runtime.beat()

    await rig.becomes(lambda: rig.kafka.commits == commits + 1)


async def test_a_day_is_a_day_also_if_no_leader_lives_for_one(rig: Rig) -> None:
    (consumer,) = await rig.serving(session_timeout=10_000.0)
    await consumer.commit(7)
    await rig.serve(301.0)  # the copies know by now
    commits, per_life = rig.kafka.commits, []
    for _ in range(4):
        rig.clock.advance(9 * HOUR)
        rig = await successor(rig)
        await rig.serve(301.0)
        per_life.append(rig.kafka.commits - commits)
        commits = rig.kafka.commits

    assert per_life == [0, 0, 1, 0], "after 27 hours"
    await rig.runtime.stop()


@pytest.mark.parametrize("wrong", [-10 * 24 * HOUR, 1.0, 0.0, float("nan"), float("inf"), -30 * 24 * HOUR])
async def test_a_time_of_the_last_refresh_that_cannot_be_leads_to_one_soon(rig: Rig, wrong: float) -> None:
    (consumer,) = await rig.serving(session_timeout=10_000.0)
    await consumer.commit(7)
    refreshed = 0.0 if wrong == 0.0 else rig.clock.wall() + wrong
    rig.ownership.copy(IDENTITY, PositionCopies(dict.fromkeys(consumer.held, 7), refreshed=refreshed))
    again, commits = await successor(rig), rig.kafka.commits

    await again.serve(301.0)

    assert rig.kafka.commits == commits + 1
    assert rig.ownership.copied[IDENTITY].copies.refreshed == pytest.approx(rig.clock.wall(), abs=301.0)
    await again.runtime.stop()


@pytest.mark.parametrize("error", [AWAY, UNKNOWN, FENCED])
async def test_a_refresh_that_is_not_committed_is_made_again_soon(rig: Rig, error: Exception) -> None:
    (consumer,) = await rig.serving(session_timeout=10_000.0)
    await consumer.commit(7)
    rig.kafka.committed[GROUP_ID].clear()
    rig.clock.advance(24 * HOUR)
    rig.kafka.faults.fail("commit", error)
    rig.runtime.beat()
    await rig.becomes(lambda: not rig.kafka.faults.before["commit"])
    await drain()
    assert rig.kafka.committed[GROUP_ID] == {}

    await rig.serve(601.0)

    await rig.becomes(lambda: rig.kafka.committed[GROUP_ID] == dict.fromkeys(consumer.held, 7))


@pytest.mark.parametrize("error", [UNKNOWN, FENCED])
async def test_a_refresh_that_may_not_have_been_committed_is_made_again_soon_though_all_is_found_as_it_was(
    rig: Rig, error: Exception
) -> None:
    (consumer,) = await rig.serving(session_timeout=10_000.0)
    await consumer.commit(7)
    rig.clock.advance(24 * HOUR)
    rig.kafka.faults.fail("commit", error)
    rig.runtime.beat()
    await rig.becomes(lambda: not rig.kafka.faults.before["commit"])
    await drain()
    commits = rig.kafka.commits

    rig.clock.advance(60.0)
    rig.runtime.beat()

    await rig.becomes(lambda: rig.kafka.commits == commits + 1)


async def test_a_position_that_is_set_while_a_refresh_is_lost_fences_its_holder_all_the_same(rig: Rig) -> None:
    (consumer,) = await rig.serving(session_timeout=10_000.0)
    await consumer.commit(7)
    shard = ShardId("t/0")
    before = consumer.held[shard]
    writing = rig.kafka.faults.hold("commit")
    rig.kafka.faults.fail("commit", UNKNOWN)
    entered = rig.kafka.faults.entered["commit"]
    rig.clock.advance(24 * HOUR)
    rig.runtime.beat()
    await rig.becomes(lambda: rig.kafka.faults.entered["commit"] == entered + 1)
    forcing = asyncio.create_task(rig.group.ask(ForceCheckpoint(shard, 3)))
    await drain()
    rig.kafka.committed[GROUP_ID].clear()

    writing.set()
    await forcing
    await consumer.heartbeat()

    assert rig.kafka.committed[GROUP_ID][shard] == 3
    assert consumer.held[shard] > before, "nothing that was read before is its own any more"


async def test_what_a_refresh_puts_right_is_told_of_though_it_is_made_again(rig: Rig) -> None:
    (consumer,) = await rig.serving(session_timeout=10_000.0)
    await consumer.commit(7)
    rig.kafka.committed[GROUP_ID][ShardId("t/0")] = 3
    rig.clock.advance(24 * HOUR)
    rig.kafka.faults.fail("commit", UNKNOWN, done=True)
    rig.runtime.beat()

    await rig.becomes(lambda: "CheckpointRestored" in rig.events.reasons())

    assert rig.kafka.committed[GROUP_ID] == dict.fromkeys(consumer.held, 7)


async def test_a_refresh_that_was_due_while_the_source_was_away_is_made_when_it_is_back(rig: Rig) -> None:
    (consumer,) = await rig.serving(session_timeout=10_000.0)
    await consumer.commit(7)
    rig.kafka.reachable = False
    rig.clock.advance(26 * HOUR)
    rig.runtime.beat()
    await rig.becomes(lambda: not rig.view.source_reachable)
    commits = rig.kafka.commits

    rig.kafka.reachable = True

    await rig.becomes(lambda: rig.kafka.commits == commits + 1)


async def test_a_paused_group_is_refreshed_too(rig: Rig) -> None:
    (consumer,) = await rig.serving(session_timeout=10_000.0)
    await consumer.commit(7)
    rig.runtime.apply(spec_of(session_timeout=10_000.0, paused=True))
    commits = rig.kafka.commits

    rig.clock.advance(24 * HOUR)
    rig.runtime.beat()

    await rig.becomes(lambda: rig.kafka.commits == commits + 1)


async def test_checkpoints_take_turns_with_a_refresh_of_very_many_positions(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refresh, "AT_ONCE", 1)
    (consumer,) = await rig.serving(session_timeout=10_000.0)
    await consumer.commit(7)
    commits = rig.kafka.commits
    gate = rig.kafka.faults.hold("commit")
    rig.clock.advance(24 * HOUR)
    rig.runtime.beat()
    await asyncio.sleep(0.05)
    asking = asyncio.create_task(consumer.commit(9))
    await drain()

    gate.set()
    assert await asking == OK

    assert rig.kafka.commits <= commits + 2, "at most one part of the refresh came before it"
    await rig.advance(2.0)
    assert rig.kafka.committed[GROUP_ID] == dict.fromkeys(consumer.held, 9), "none went back"


def test_a_hundred_thousand_positions_are_so_many_commits() -> None:
    clock = SimulatedClock()
    shards = [ShardId(f"t/{number}") for number in range(100_000)]
    part = Refresh(clock, 0.0)
    part.resume(clock.wall())
    clock.advance(24 * HOUR)
    part.begin(shards)

    done, made = [], False
    while not made:
        assert part.due
        done.append(part.next())
        made = part.made(done[-1])

    assert [len(each) for each in done] == [AT_ONCE] * 50
    assert [shard for each in done for shard in each] == shards
    assert not part.due


def test_what_failed_is_gone_on_with_and_not_begun_anew() -> None:
    clock = SimulatedClock()
    shards = [ShardId(f"t/{number}") for number in range(AT_ONCE + 1)]
    part = Refresh(clock, 0.0)
    part.resume(0.0)
    part.begin(shards)
    assert not part.made(part.next())
    part.failed()
    assert (part.due, part.begun) == (False, True)

    clock.advance(600.0)

    assert (part.due, part.next()) == (True, (shards[-1],))
    assert part.made(part.next())


def test_what_is_to_be_made_soon_while_it_is_under_way_is_made_soon_after_it() -> None:
    clock = SimulatedClock()
    part = Refresh(clock, 0.0)
    part.resume(0.0)
    for unsure in (True, False):
        part.begin([ShardId("t/0")])
        if unsure:
            part.soon()
        assert (part.made(part.next()), part.begun, part.due) == (not unsure, False, False)
        clock.advance(60.0)
        assert part.due is unsure


def test_groups_that_are_due_when_they_are_taken_over_are_refreshed_one_after_the_other() -> None:
    clock = SimulatedClock()
    first, last = Refresh(clock, 0.0), Refresh(clock, 1.0)
    for each in (first, last):
        each.resume(0.0)
    assert (first.due, last.due) == (True, False)

    clock.advance(300.0)

    assert last.due
