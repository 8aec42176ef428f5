"""Each way in which a held shard can leave the balance, or count in it again: what is uneven then is evened out."""

from __future__ import annotations

from collections import Counter

import pytest

from shardherd.core.group import balance, counted
from shardherd.core.group.records import ConsumerRecord, InFlight
from shardherd.core.model.nouns import CheckpointResult, Condition, ShardInfo
from shardherd.core.model.requests import CheckpointsLost, ConditionsChanged, ForceCheckpoint
from tests.builders import Play, holding, incarnation, info, restore, shard, shards, spec, started, topic, with_settings
from tests.unit.core.tables import FREE, HELD, MOVING, OVER, WAITING, A, B, having

LATE = topic(6, name="u")


def counts(play: Play, of: tuple[ShardInfo, ...]) -> list[int]:
    """How many of these shards each consumer holds that the group counts, the fewest first."""
    holders: Counter[str | None] = Counter(play.shard(each.shard).holder for each in of)
    return sorted(holders[consumer] for consumer in play.counts())


def last_reason(play: Play) -> str:
    last = play.view.last_rebalance
    assert last is not None
    return last.reason


def away() -> Play:
    """g-0 held t and u, u is away, and g-1 has come since: of t each holds half."""
    play = Play(spec(1))
    play.discover((*topic(6), *LATE))
    play.settle("g-0")
    play.discover(topic(6))
    play.settle("g-0", "g-1")
    assert (play.counts(), play.held_by("g-0") > {"u/0", "u/5"}) == ({"g-0": 3, "g-1": 3}, True)
    return play


def lost() -> Play:
    """Of eight shards that g-0 held four have lost their checkpoints, and g-1 has come since: of the others each holds half."""
    play = started(8, 1)
    for number in "0123":
        play.checkpoint("g-0", number, 40)
        play.log[shard(number)] = 10
    copies = {shard(number): 40 for number in "0123"}
    play.group = restore(play.group.ownership, dict(play.log), play.group.spec, play.now, copies=copies)
    play.discover(topic(8))
    play.settle("g-0", "g-1")
    assert play.counts() == {"g-0": 6, "g-1": 2}
    return play


def test_shards_that_were_away_count_when_the_source_shows_them_again() -> None:
    play = away()
    play.discover((*topic(6), *LATE))
    play.settle("g-0", "g-1")
    assert (play.counts(), play.view.moves, last_reason(play)) == ({"g-0": 6, "g-1": 6}, 6, "ShardsReturned")


def test_shards_that_were_away_before_another_coordinator_took_over_count_when_they_are_back() -> None:
    play = away()
    play.change(with_settings(play.group.spec, session_timeout=60.0))
    play.restart(spec(1))
    play.discover(topic(6))
    play.settle("g-0", "g-1")
    play.discover((*topic(6), *LATE))
    play.settle("g-0", "g-1")
    # Shards of topics that the spec does not name were dropped at the restart: they are new now.
    assert play.counts() == {"g-0": 6, "g-1": 6}


def test_a_few_of_many_shards_that_are_back_count_too() -> None:
    play = away()
    play.discover((*topic(6), *LATE[:2]))
    play.settle("g-0", "g-1")
    assert counts(play, (*topic(6), *LATE[:2])) == [4, 4]
    play.discover((*topic(6), *LATE))
    play.settle("g-0", "g-1")
    assert play.counts() == {"g-0": 6, "g-1": 6}


def test_what_is_left_is_balanced_when_shards_vanish() -> None:
    play = holding(A="0123", B="4567")
    left = topic(8)[3:]
    play.discover(left)
    play.settle("A", "B")
    assert (counts(play, left), play.view.moves, last_reason(play)) == ([2, 3], 1, "ShardsGone")


def test_what_is_left_is_balanced_when_shards_vanish_that_a_new_coordinator_could_not_look_at() -> None:
    play = holding(A="0123", B="4567")
    play.restart()
    left = topic(8)[3:]
    play.discover(left, unlooked="012")
    play.settle("A", "B")
    assert play.counts() == {"A": 4, "B": 4}
    epoch = play.view.group_epoch
    play.discover(left)
    assert play.view.group_epoch == epoch + 1
    play.settle("A", "B")
    assert (counts(play, left), play.view.moves, last_reason(play)) == ([2, 3], 1, "ShardsGone")


def test_what_is_left_is_balanced_when_the_source_drops_what_was_not_read() -> None:
    play = holding(A="0123", B="4567")
    play.discover((*(info(number, begin=20) for number in "012"), *topic(8)[3:]))
    play.settle("A", "B")
    assert (counts(play, topic(8)[3:]), last_reason(play)) == ([2, 3], "ShardsGone")


def test_what_is_left_is_balanced_when_positions_are_lost_as_they_are_written() -> None:
    play = holding(A="0123", B="4567")
    play.hold_commits = True
    for number in "012":
        play.checkpoint("A", number, 50)
    play.hold_commits = False
    lost, play.uncommitted = frozenset(shards("0", "1", "2")), {}
    play.log = {each: offset for each, offset in play.log.items() if each not in lost}
    play.ask(CheckpointsLost(lost))
    play.discover(topic(8))
    play.settle("A", "B")
    assert (counts(play, topic(8)[3:]), last_reason(play)) == ([2, 3], "ShardsGone")


@pytest.mark.parametrize("assignor", ["Range", "RoundRobin", "Sticky"])
def test_nothing_moves_for_a_position_that_its_holder_saves_again_before_the_next_look(assignor: str) -> None:
    play = started(8, 2, assignor=assignor)
    holder = play.holders()["0"]
    assert holder is not None
    play.hold_commits = True
    play.checkpoint(holder, "0", 50)
    play.hold_commits = False
    play.uncommitted = {}
    play.ask(CheckpointsLost(frozenset(shards("0"))))
    assert play.checkpoint(holder, "0", 60) is CheckpointResult.OK
    play.discover(topic(8))
    play.settle("g-0", "g-1")
    assert (play.view.moves, play.counts()) == (0, {"g-0": 4, "g-1": 4})


def test_lost_checkpoints_that_are_forced_bring_their_shards_back() -> None:
    play = lost()
    for number in "0123":
        play.ask(ForceCheckpoint(shard(number), 10))
    play.settle("g-0", "g-1")
    assert (play.counts(), last_reason(play)) == ({"g-0": 4, "g-1": 4}, "ShardsReturned")


def test_lost_checkpoints_that_are_found_bring_their_shards_back() -> None:
    play = lost()
    play.log |= {shard(number): 40 for number in "0123"}
    play.discover(topic(8))
    play.settle("g-0", "g-1")
    assert (play.counts(), last_reason(play)) == ({"g-0": 4, "g-1": 4}, "CheckpointFound")


def test_the_shards_of_a_consumer_that_is_back_count_though_it_is_cold() -> None:
    play = started(8, 2, rejoin_grace=60.0)
    play.die("g-1")
    play.settle("g-0", "g-2")
    assert play.counts() == {"g-0": 2, "g-2": 2}
    play.run("g-1", start=2, ready=False)
    play.settle("g-0", "g-1", "g-2")
    assert play.counts() == {"g-0": 3, "g-1": 3, "g-2": 2}


def test_a_free_shard_whose_commit_failed_is_given_out_at_once() -> None:
    play = Play(spec(1))
    play.discover(topic(2))
    play.hold_commits = True
    play.ask(ForceCheckpoint(shard("0"), 10))
    play.settle("g-0")
    assert play.states() == {"0": "NOT_ALLOC", "1": "ALREADY_ALLOC"}
    play.fail_commits()
    assert play.states() == {"0": "ALREADY_ALLOC", "1": "ALREADY_ALLOC"}


def test_shards_that_were_made_anew_are_balanced_when_they_are_accepted() -> None:
    play = Play(spec(1))
    play.discover([info(number, source_id="a") for number in "0123"])
    play.settle("g-0")
    play.discover([info(number, source_id="b" if number == "0" else "a") for number in "0123"])
    play.settle("g-0", "g-1")
    assert play.counts() == {"g-0": 4, "g-1": 0}
    play.ask(ForceCheckpoint(shard("0"), 0))
    play.settle("g-0", "g-1")
    assert play.counts() == {"g-0": 2, "g-1": 2}


def test_what_comes_back_while_nothing_may_move_is_balanced_afterwards() -> None:
    play = away()
    play.ask(ConditionsChanged((Condition("GroupHasLiveMembers", "it has members"),)))
    play.discover((*topic(6), *LATE))
    play.settle("g-0", "g-1")
    assert play.counts() == {"g-0": 9, "g-1": 3}
    play.ask(ConditionsChanged())
    play.settle("g-0", "g-1")
    assert play.counts() == {"g-0": 6, "g-1": 6}


@pytest.mark.parametrize("make", [away, lost])
def test_what_stays_out_of_the_balance_is_no_reason_for_another_rebalance(make: object) -> None:
    assert callable(make)
    play: Play = make()
    before = (play.view.rebalances, play.group._state.record.revision)
    shown = topic(6) if make is away else topic(8)
    for end in (110, 120, 130):
        play.discover([each._replace(end=end) for each in shown])
        assert play.checkpoint("g-1", sorted(play.held_by("g-1"))[0], end - 20).value == "ok"
        play.settle("g-0", "g-1")
        assert play.group._state.clocks.due == ""
    assert (play.view.rebalances, play.group._state.record.revision) == before


def test_with_nobody_to_hold_anything_what_vanishes_is_looked_at_once() -> None:
    play = started(4, 1)
    play.consumer("g-0").draining = True
    play.settle("g-0")
    play.discover(topic(2))
    assert play.group._state.clocks.due == ""
    result = play.discover(topic(2))
    assert len(result.entries) == 1


def test_a_shard_counts_by_itself_where_the_question_to_the_assignor_has_it_too() -> None:
    states = (FREE, HELD, MOVING, OVER, WAITING)
    rows = [row._replace(shard=shard(f"{at}{why}")) for at, row in enumerate(states) for why in range(6)]
    infos = tuple(info(row.shard, begin=50 if row.shard.endswith("2") else 0) for row in rows if row.shard[-1] != "1")
    state = having(*rows, infos=infos, positions={row.shard: 40 for row in rows if row.shard[-1] != "3"})
    for row in rows:
        if row.shard.endswith("4"):
            state.put_in_flight(row.shard, InFlight(50))
        if row.shard.endswith("5") and row.holder is not None:
            state.put_shard(row._replace(holder=B, incarnation=incarnation(B, 2)))
    state.put_consumer(ConsumerRecord(B, incarnation(B, 2), present=False))
    asked = balance.problem(state, [A]).shards.tolist()
    assert [name for name in state.order if counted.counts(state, name)] == asked
    assert asked == [*shards("00", "05", "10", "14", "20", "24")]
    counted.note(state, balance.problem(state, [A]))
    left_out = {row.shard for row in rows if row.shard[-2] in "/12"} | set(shards("00", "01", "02", "03", "04", "05"))
    assert state.clocks.left_out == left_out - set(asked)
