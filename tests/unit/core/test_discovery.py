"""Shards appear, close, split and merge; start positions; what withholds grants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from msgspec import structs

from shardherd.core.group import discovery
from shardherd.core.group.notes import Note, parse
from shardherd.core.group.records import ShardRecord
from shardherd.core.group.state import GroupEvent, State
from shardherd.core.model.nouns import Condition, ConsumerId, Growth, Offset, ShardId, ShardInfo, ShardState
from shardherd.core.model.requests import ConditionsChanged, ForceCheckpoint, ShardsDiscovered
from tests.builders import IDENTITY, Play, incarnation, info, shard, shards, spec, started, topic, with_settings, with_topics
from tests.unit.core.tables import CLOSED, FREE, HELD, MOVING, NOW, OPEN, OVER, A, having

WITHHELD = (Condition("TooManyGroups", ""),)


def test_a_start_position_is_durable_before_the_first_grant() -> None:
    play = Play(spec(1))
    play.hold_commits = True
    result = play.discover([info("0", begin=5, end=90)])
    assert result.positions == {shard("0"): 5}
    play.beat("g-0")
    assert (play.state("0"), play.shard("0").lag_records) == ("NOT_ALLOC", 85)
    play.commit()
    play.beat("g-0")
    assert play.confirmed("g-0")["0"].position == 5


def test_a_start_position_whose_commit_failed_is_tried_again() -> None:
    play = Play(spec(1))
    play.hold_commits = True
    play.discover([info("0", begin=5)])
    play.fail_commits()
    assert play.discover([info("0", begin=6)]).positions == {shard("0"): 6}


def test_latest_holds_for_the_first_discovery_only() -> None:
    play = Play(spec(1, starting="Latest"))
    play.discover([info("0", begin=5, end=90)])
    play.discover([info("0", begin=5, end=95), info("1", begin=0, end=30)])
    assert play.log == {shard("0"): 90, shard("1"): 0}


def test_a_durable_position_counts_more_than_the_start_position() -> None:
    play = Play(spec(1, starting="Latest"))
    play.log = {shard("0"): 42}
    assert play.discover([info("0", end=90)]).positions == {shard("0"): 42}, "so that it bears a note of this group"
    play.beat("g-0")
    assert play.confirmed("g-0")["0"].position == 42


def test_new_shards_are_given_out_at_once() -> None:
    play = started(8, 2)
    before = play.holders()
    play.discover(topic(12))
    assert play.counts() == {"g-0": 6, "g-1": 6}
    assert {name: play.holders()[name] for name in before} == before


def test_hash_seven_is_read_as_0_then_4_then_6() -> None:
    play = Play(spec(1, ordered=True))
    play.discover([info("0"), info("1"), info("2"), info("5")])
    play.settle("g-0")
    split = [info("0", open=False), info("1"), info("2"), info("5"), info("3", parents=["0"]), info("4", parents=["0"])]
    play.discover(split)
    assert (play.state("0"), play.state("3"), play.state("4")) == ("ALREADY_ALLOC", "WAIT", "WAIT")
    merged = [info("0", open=False), *split[1:3], info("5", open=False), split[4], info("4", parents=["0"], open=False)]
    merged.append(info("6", parents=["4", "5"]))
    play.discover(merged)
    assert (play.state("4"), play.state("6")) == ("WAIT", "WAIT")

    play.checkpoint("g-0", "0", 100)
    assert (play.state("0"), play.state("4"), play.state("6")) == ("OVER", "ALREADY_ALLOC", "WAIT")
    play.beat("g-0")
    play.checkpoint("g-0", "4", 100)
    assert (play.state("4"), play.state("6")) == ("OVER", "WAIT")
    play.checkpoint("g-0", "5", 100)
    assert (play.state("5"), play.state("6")) == ("OVER", "ALREADY_ALLOC")


def test_a_shard_that_closes_after_its_last_checkpoint_is_over() -> None:
    play = Play(spec(1, ordered=True))
    play.discover([info("0")])
    play.settle("g-0")
    play.checkpoint("g-0", "0", 100)
    assert play.state("0") == "ALREADY_ALLOC"
    play.discover([info("0", open=False), info("1", parents=["0"])])
    assert (play.state("0"), play.state("1")) == ("OVER", "ALREADY_ALLOC")


def test_an_empty_closed_shard_is_over_as_soon_as_it_is_granted() -> None:
    play = Play(spec(1, ordered=True))
    play.discover([info("0", begin=0, end=0, open=False), info("1", parents=["0"])])
    assert (play.state("0"), play.state("1")) == ("NOT_ALLOC", "WAIT")
    play.settle("g-0")
    assert (play.state("0"), play.state("1")) == ("OVER", "ALREADY_ALLOC")


def test_a_finished_shard_is_found_over_after_loading() -> None:
    play = Play(spec(1))
    play.discover([info("0")])
    play.settle("g-0")
    play.checkpoint("g-0", "0", 100)
    play.restart()
    play.discover([info("0", open=False)])
    assert play.state("0") == "OVER"


def test_a_finished_shard_frees_its_consumer_for_others() -> None:
    play = Play(spec(2))
    play.discover([info("0", open=False), info("1"), info("2", open=False), info("3")])
    play.settle("g-0", "g-1")
    assert play.held_by("g-1") == {"1", "3"}
    play.checkpoint("g-0", "0", 100)
    play.checkpoint("g-0", "2", 100)
    play.settle("g-0", "g-1")
    assert play.counts() == {"g-0": 1, "g-1": 1}


def test_an_ordered_topic_that_grows_is_out_of_order_until_what_was_there_is_read() -> None:
    play = Play(spec(1, ordered=True))
    play.discover(topic(2, end=100))
    play.settle("g-0")
    play.checkpoint("g-0", "0", 100)
    play.discover([*topic(2, end=120), *(info(name, end=0) for name in "234")])
    assert play.view.growths == (Growth("t", 2, 5, ((shard("0"), 120), (shard("1"), 120))),)
    assert play.view.withheld == ()
    play.settle("g-0")
    play.checkpoint("g-0", "0", 120)
    assert play.view.growths == (Growth("t", 2, 5, ((shard("1"), 120),)),)
    play.restart()
    assert play.view.growths == (Growth("t", 2, 5, ((shard("1"), 120),)),)
    play.discover([*topic(2, end=120), *(info(name, end=0) for name in "234")])
    play.settle("g-0")
    play.checkpoint("g-0", "1", 120)
    play.discover(topic(5, end=120))
    assert not play.view.growths


def test_neither_a_split_nor_another_topic_nor_an_unordered_group_is_a_growth() -> None:
    split = Play(spec(1, ordered=True))
    split.discover([info("0")])
    split.discover([info("0", open=False), info("1", parents=["0"]), info("2", parents=["0"]), *topic(2, name="other")])
    unordered = Play(spec(1))
    unordered.discover(topic(2))
    unordered.discover(topic(4))
    assert (split.view.growths, unordered.view.growths) == ((), ())


def test_order_true_to_false_releases_waiting() -> None:
    play = Play(spec(1, ordered=True))
    play.discover([info("0", open=False), info("1", parents=["0"])])
    play.settle("g-0")
    assert play.state("1") == "WAIT"
    play.change(with_settings(play.group.spec, ordered=False))
    assert play.state("1") == "ALREADY_ALLOC"


def test_order_false_to_true_spares_consumed_parents() -> None:
    play = Play(spec(1))
    play.discover([info("0", open=False), info("1", parents=["0"])])
    play.settle("g-0")
    play.change(with_settings(play.group.spec, ordered=True))
    assert play.states() == {"0": "ALREADY_ALLOC", "1": "ALREADY_ALLOC"}
    play.discover([info("0", open=False), info("1", parents=["0"], open=False), info("2", parents=["1"])])
    assert play.state("2") == "WAIT"


def test_a_waiting_shard_is_freed_when_the_source_drops_its_unread_ancestor() -> None:
    play = Play(spec(1, ordered=True))
    play.discover([info("0", open=False), info("1", parents=["0"])])
    play.settle("g-0")
    play.discover([info("1", parents=["0"])])
    assert play.state("1") == "ALREADY_ALLOC"


def test_a_condition_withholds_grants_until_it_is_gone() -> None:
    play = Play(spec(1))
    condition = Condition("GroupHasLiveMembers", "the Kafka group demo.clicks has members: console-1")
    play.ask(ConditionsChanged((condition,), commits=False))
    play.discover(topic(2))
    play.beat("g-0")
    assert play.view.withheld == (condition,)
    assert play.counts() == {"g-0": 0}
    play.ask(ConditionsChanged())
    play.discover(topic(2))
    assert play.counts() == {"g-0": 2}


def test_a_shard_that_the_source_has_no_more_is_not_present() -> None:
    play = started(2, 1)
    assert [shard.present for shard in play.view.shards] == [True, True]
    play.discover(topic(1))
    assert [shard.present for shard in play.view.shards] == [True, False]


def test_a_topic_that_the_source_names_no_more_is_dropped_and_comes_back_under_higher_epochs() -> None:
    both = with_topics(spec(1), "t", "u")
    play = Play(both)
    play.discover([info("0"), info("u/0")])
    play.settle("g-0")
    play.checkpoint("g-0", "u/0", 40)
    epoch = play.confirmed("g-0")["u/0"].owner_epoch
    play.restart(spec(1))
    play.discover([info("0")])
    play.settle("g-0")
    assert play.states() == {"0": "ALREADY_ALLOC"}
    assert set(play.confirmed("g-0")) == {"0"}
    play.restart(both)
    play.discover([info("0"), info("u/0")])
    play.settle("g-0")
    again = play.confirmed("g-0")["u/0"]
    assert (again.owner_epoch, again.position) == (epoch + 1, 40)


def test_a_recreated_topic_is_granted_to_nobody() -> None:
    play = Play(spec(1))
    play.discover([info("0", source_id="a")])
    play.settle("g-0")
    play.discover([info("0", source_id="b"), info("1", source_id="b")])
    assert [condition.reason for condition in play.view.withheld] == ["SourceRecreated"]
    play.die("g-0")
    play.run("g-0", start=2)
    play.settle("g-0")
    assert play.counts() == {"g-0": 0}


def test_who_holds_a_recreated_shard_stops_reading_it_until_the_declared_reset() -> None:
    play = Play(spec(1))
    play.discover([info("0", source_id="a"), info("1", end=0, source_id="u")])
    play.settle("g-0")
    assert set(play.confirmed("g-0")) == {"0", "1"}
    epoch = play.confirmed("g-0")["0"].owner_epoch
    applied = structs.replace(play.consumer("g-0").heartbeat(), revision=play.view.revision)

    play.discover([info("0", end=500, source_id="b"), info("1", end=0, source_id="u")])
    assert not play.group.may_park(applied), "it is told at once"
    play.beat("g-0")
    assert set(play.confirmed("g-0")) == {"1"}
    play.wait(1000, ["g-0"])
    assert play.holders() == {"0": "g-0", "1": "g-0"}, "not to read what it may not is no standstill"
    assert play.shard("0").owner_epoch == epoch, "and no reason for a new grant at every heartbeat"

    play.ask(ForceCheckpoint(shard("0"), 0))
    play.settle("g-0")
    assert play.confirmed("g-0")["0"].position == 0


def test_a_recreated_shard_that_is_closed_is_not_finished_by_the_position_of_the_one_before() -> None:
    play = Play(spec(1))
    play.discover([info("0", source_id="a")])
    play.settle("g-0")
    play.checkpoint("g-0", "0", 70)
    play.discover([info("0", end=26, source_id="b", open=False)])
    assert play.states() == {"0": "ALREADY_ALLOC"}
    assert [cause.reason for cause in play.view.withheld] == ["SourceRecreated"]


def test_an_offset_that_a_group_before_has_left_for_a_shard_that_was_recreated_since_says_nothing_of_the_new_one() -> None:
    play = Play(spec(1))
    play.log[shard("0")] = play.log[shard("1")] = 40
    play.noted = {shard("0"): "1 uid-of-the-group-before 7 9 a", shard("1"): "1 uid-of-the-group-before 7 9 b"}
    play.discover([info("0", source_id="b"), info("1", source_id="b")])
    assert [cause.message.partition(":")[0] for cause in play.view.withheld] == ["t/0"]
    assert play.shard("0").owner_epoch == 0, "epochs begin anew all the same"


def test_the_offset_of_a_shard_that_appears_later_is_committed_once_more_unless_it_bears_a_note_of_this_group() -> None:
    play = started(1, 1)
    play.log |= {shard("1"): 40, shard("2"): 41}
    play.noted[shard("1")] = "1 uid-of-the-group-before 7 9 "
    before = dict(play.noted)
    play.discover(topic(3))
    assert {each for each in shards("1", "2") if play.noted.get(each) != before.get(each)} == {*shards("1", "2")}
    play.discover(topic(3))
    play.settle("g-0")
    assert {name: each.position for name, each in play.confirmed("g-0").items()} == {"0": 0, "1": 40, "2": 41}


def test_a_position_that_is_forced_in_a_recreated_shard_is_noted_as_one_of_the_shard_that_is_there() -> None:
    play = Play(spec(1))
    play.discover([info("0", source_id="a"), info("1", source_id="a")])
    play.settle("g-0")
    play.discover([info("0", source_id="b"), info("1", source_id="b")])
    play.ask(ForceCheckpoint(shard("0"), 0))
    notes = [parse(play.noted[each]) for each in shards("0", "1")]
    assert notes == [Note(IDENTITY.uid, 0, 1, "b", forced=True), Note(IDENTITY.uid, 0, 0, "a")]


def test_an_id_that_the_source_did_not_tell_at_first_is_noted_when_it_does_and_then_holds() -> None:
    play = Play(spec(1))
    play.discover([info("0")])
    play.discover([info("0", source_id="a")])
    assert "SourceRecreated" not in {condition.reason for condition in play.view.withheld}
    play.discover([info("0", source_id="b")])
    assert "SourceRecreated" in {condition.reason for condition in play.view.withheld}


def test_a_lost_checkpoint_keeps_the_shard_where_it_is() -> None:
    play = started(2, 1)
    del play.log[shard("1")]
    play.restart()
    play.discover(topic(2))
    play.settle("g-0")
    assert set(play.confirmed("g-0")) == {"0"}
    assert [condition.reason for condition in play.view.withheld] == ["CheckpointLost"]
    play.die("g-0")
    play.settle("g-1")
    assert play.holders() == {"0": "g-1", "1": None}


def test_a_checkpoint_that_was_lost_and_set_again_counts_in_the_balance_at_once() -> None:
    play = started(4, 1)
    for number in ("2", "3"):
        del play.log[shard(number)]
    play.restart()
    play.discover(topic(4))
    play.settle("g-0", "g-1")
    assert play.counts() == {"g-0": 3, "g-1": 1}
    for number in ("2", "3"):
        play.ask(ForceCheckpoint(shard(number), 0))
    play.settle("g-0", "g-1")
    assert play.counts() == {"g-0": 2, "g-1": 2}


def test_a_checkpoint_below_the_first_record_is_lost_too() -> None:
    play = started(1, 1)
    play.checkpoint("g-0", "0", 10)
    play.discover([info("0", begin=11)])
    assert [condition.reason for condition in play.view.withheld] == ["CheckpointLost"]
    play.die("g-0")
    play.settle("g-1")
    assert play.holders() == {"0": None}


def test_a_source_without_shards_has_been_seen_too() -> None:
    play = Play(spec(1))
    assert not play.view.discovered
    play.discover([])
    assert play.view.discovered


class TestWhatIsTold:
    def test_of_shards_that_appear_and_close_is_told_once_in_their_order(self) -> None:
        play = Play(spec(1))
        first = [info(name, open=name != "2") for name in ("10", "2", "3", "4", "5", "6")]
        play.discover(first)
        six = shards("2", "3", "4", "5", "6", "10")
        appeared = GroupEvent("ShardsAppeared", "6 new shards: t/2, t/3, t/4, t/5, t/6 and others", shards=six)
        assert (play.events, play.view.group_epoch) == ([appeared], 1)
        closed = [info("10", open=False, end=70), *first[1:]]
        for _ in range(2):
            play.discover(closed)
            event = GroupEvent("ShardClosed", "shard t/10 is closed at 70", shards=shards("10"))
            assert (play.events, play.view.group_epoch) == ([appeared, event], 2)

    def test_of_five_that_appear_all_are_named(self) -> None:
        play = Play(spec(1))
        play.discover(topic(5))
        five = shards("0", "1", "2", "3", "4")
        assert play.events == [GroupEvent("ShardsAppeared", "5 new shards: t/0, t/1, t/2, t/3, t/4", shards=five)]

    def test_of_a_topic_that_grows_under_an_ordered_group_is_a_warning(self) -> None:
        play = Play(spec(1, ordered=True))
        play.discover(topic(2))
        play.events.clear()
        play.discover(topic(3))
        grew = (
            "topic t grew from 2 to 3 partitions: keys moved between them, and their records may be read out of order until "
            "what was written before is read"
        )
        assert play.events == [
            GroupEvent("PartitionGrowth", grew, shards=shards("0", "1"), warning=True),
            GroupEvent("ShardsAppeared", "1 new shard: t/2", shards=shards("2")),
        ]

    def test_of_shards_that_are_others_than_before_is_a_warning_and_told_once(self) -> None:
        play = Play(spec(1))
        play.discover([info("10", source_id="a"), info("2", source_id="a"), info("3", source_id="a")])
        play.events.clear()
        recreated = [info("10", source_id="b"), info("2", source_id="b"), info("3", source_id="a")]
        message = "t/2 is another shard than before under the same name; nothing is granted: see the conditions"
        for _ in range(2):
            play.discover(recreated)
            assert play.events == [GroupEvent("SourceRecreated", message, shards=shards("2", "10"), warning=True)]
        play.discover([*recreated[:2], info("3", source_id="b")])
        assert len(play.events) == 1


def test_the_group_epoch_grows_with_the_settings_and_not_with_the_rest_of_the_declaration() -> None:
    play = started(2, 1)
    before = play.view.group_epoch
    play.change(replace(play.group.spec, wanted=2, service_account="other"))
    assert play.view.group_epoch == before
    play.change(with_settings(play.group.spec, session_timeout=60.0))
    assert play.view.group_epoch == before + 1


def test_a_position_that_is_there_again_is_taken_over_and_the_shard_counts_at_once() -> None:
    play = started(4, 1)
    lost = {name: play.log.pop(shard(name)) for name in ("2", "3")}
    play.restart()
    play.discover(topic(4))
    play.settle("g-0", "g-1")
    assert play.counts() == {"g-0": 3, "g-1": 1}
    play.log |= {shard(name): offset + 7 for name, offset in lost.items()}
    play.discover(topic(4))
    play.settle("g-0", "g-1")
    assert (play.counts(), play.view.withheld, last_reason(play)) == ({"g-0": 2, "g-1": 2}, (), "CheckpointFound")
    assert {name: play.shard(name).checkpoint for name in ("2", "3")} == {"2": 7, "3": 7}


class TestAShardThatWaits:
    """Behind its parent, in a group without consumers, for 50 s."""

    both = (info("0", open=False), info("1", parents=["0"]))

    def waiting(self) -> Play:
        play = Play(spec(1, ordered=True))
        play.discover(self.both)
        play.wait(50)
        assert (play.state("1"), play.shard("1").state_age) == ("WAIT", 50.0)
        return play

    def test_is_free_from_when_the_group_is_not_ordered_any_more(self) -> None:
        play = self.waiting()
        play.change(with_settings(play.group.spec, session_timeout=60.0))
        assert play.state("1") == "WAIT"
        play.change(with_settings(play.group.spec, ordered=False))
        assert (play.state("1"), play.shard("1").state_age) == ("NOT_ALLOC", 0.0)

    def test_is_free_from_when_the_source_has_its_parent_no_more(self) -> None:
        play = self.waiting()
        play.discover(self.both)
        assert play.state("1") == "WAIT"
        play.discover(self.both[1:])
        assert (play.state("1"), play.shard("1").state_age) == ("NOT_ALLOC", 0.0)

    def test_is_found_free_by_a_coordinator_that_takes_over_after_that(self) -> None:
        play = self.waiting()
        play.restart(with_settings(play.group.spec, ordered=False))
        play.discover(self.both)
        assert (play.state("1"), play.shard("1").state_age) == ("NOT_ALLOC", 0.0)


def test_a_position_that_is_there_again_is_found_behind_those_of_new_shards() -> None:
    play = started(2, 1)
    lost = play.log.pop(shard("1"))
    play.restart()
    play.discover(topic(2))
    play.log |= {shard("1"): lost + 7, shard("a/0"): 3}
    play.discover([info("a/0"), *topic(2)])
    assert (play.shard("1").checkpoint, play.shard("a/0").checkpoint) == (7, 3)


def last_reason(play: Play) -> str:
    """Why the last rebalance was made."""
    last = play.view.last_rebalance
    assert last is not None
    return last.reason


def test_what_a_rebalance_was_made_for_is_known() -> None:
    play = started(4, 2)
    for changed in (
        replace(play.group.spec, cordoned=frozenset({ConsumerId("g-1")})),
        replace(play.group.spec, leaving=frozenset({ConsumerId("g-0")})),
    ):
        play.change(changed)
        play.settle("g-0", "g-1")
        assert last_reason(play) == "SettingsChanged"
    play = started(4, 1)
    play.ask(ConditionsChanged((Condition("GroupHasLiveMembers", "it has members"),)))
    play.settle("g-0", "g-1")
    play.ask(ConditionsChanged())
    play.settle("g-0", "g-1")
    assert (last_reason(play), play.counts()) == ("ConditionsCleared", {"g-0": 2, "g-1": 2})


@pytest.mark.parametrize(
    ("stopped", "goes_on"),
    [
        (ConditionsChanged(commits=False), ConditionsChanged()),
        (ConditionsChanged(source_reachable=False, source_error="no broker"), ConditionsChanged()),
    ],
)
def test_who_could_not_get_on_has_the_whole_progress_timeout_from_when_it_can(
    stopped: ConditionsChanged, goes_on: ConditionsChanged
) -> None:
    play = started(2, 1)
    play.discover(topic(2))
    play.ask(stopped)
    play.wait(1000, ["g-0"])
    play.ask(goes_on)
    play.discover(topic(2))
    play.wait(290, ["g-0"])
    assert "ProgressTimeout" not in play.reasons()
    # What holds is told again and again, and is no reason to wait any longer.
    play.ask(goes_on)
    play.change(replace(play.group.spec, service_account="other"))
    play.wait(12)
    assert "ProgressTimeout" in play.reasons()


def test_after_a_pause_there_is_the_whole_progress_timeout_again() -> None:
    play = started(2, 1)
    play.discover(topic(2))
    play.change(with_settings(play.group.spec, paused=True))
    play.wait(1000, ["g-0"])
    play.change(with_settings(play.group.spec, paused=False))
    play.wait(290, ["g-0"])
    assert "ProgressTimeout" not in play.reasons()
    play.wait(12)
    assert "ProgressTimeout" in play.reasons()


# One look at the source, by what it writes.


def known(
    *rows: ShardRecord, infos: tuple[ShardInfo, ...] = (OPEN,), positions: Mapping[ShardId, Offset] | None = None
) -> State:
    """A group that has looked at its source before, and saw these shards."""
    state = having(*rows, infos=infos, positions=positions)
    state.put_record(discovered=True)
    state.begin()
    return state


def look(
    state: State,
    *infos: ShardInfo,
    durable: Mapping[ShardId, Offset] | None = None,
    copies: Mapping[ShardId, Offset] | None = None,
) -> State:
    discovery.discovered(state, ShardsDiscovered(infos, durable or {}, copies=copies or {}), NOW)
    return state


def test_a_shard_that_is_over_and_was_set_back_is_free_from_the_look_that_finds_it_so() -> None:
    state = look(known(OVER, infos=(CLOSED,)), CLOSED)
    assert state.shards == {shard("0"): FREE._replace(since=NOW)}


def test_a_shard_that_may_be_granted_asks_for_a_rebalance_by_its_name_and_a_held_one_for_none() -> None:
    assert look(known(FREE), OPEN).clocks.due == "ShardsAppeared"
    assert look(known(HELD), OPEN).clocks.due == ""


@pytest.mark.parametrize(
    ("withheld", "then", "due"), [((), (), ""), (WITHHELD, WITHHELD, ""), (WITHHELD, (), "ConditionsCleared")]
)
def test_only_the_end_of_what_withheld_grants_asks_for_a_rebalance(
    withheld: tuple[Condition, ...], then: tuple[Condition, ...], due: str
) -> None:
    state = known(HELD)
    state.put_clocks(withheld=withheld)
    discovery.conditions_changed(state, ConditionsChanged(withheld=then), NOW)
    assert (state.clocks.withheld, state.clocks.due) == (then, due)


@pytest.mark.parametrize(("discovered", "rebuilding"), [(False, False), (True, False), (True, True)])
def test_a_copy_counts_for_a_new_shard_only_at_the_first_look_after_the_ownership_was_lost(
    discovered: bool, rebuilding: bool
) -> None:
    state = having()
    state.put_record(discovered=discovered, rebuilding=rebuilding)
    discovery._appear(state, [shard("0")], ShardsDiscovered((OPEN,), copies={shard("0"): 30}), {}, NOW)
    assert (state.shards[shard("0")].started, state.clocks.copies) == (False, {})


def test_after_the_ownership_was_lost_a_copy_counts_where_it_is_above_what_is_durable() -> None:
    copies = {shard("0"): 30, shard("1"): 40, shard("2"): 50}
    state = look(having(positions={}), *topic(4), durable=dict.fromkeys(shards("0", "1", "2"), 40), copies=copies)
    assert state.clocks.copies == {shard("2"): 50}
    assert [state.shards[each].started for each in shards("0", "1", "2", "3")] == [True, True, True, False]


def test_a_new_shard_begins_where_it_was_read_to_or_at_the_first_record() -> None:
    state = look(having(positions={}), info("0", begin=5), info("1", begin=5), durable={shard("0"): 40})
    assert [state.shards[each].start for each in shards("0", "1")] == [40, 5]


def test_a_new_shard_waits_for_the_parents_of_a_parent_that_the_source_has_no_more() -> None:
    gone = FREE._replace(shard=shard("1"), parents=shards("0"))
    state = known(HELD, gone)
    state.put_spec(with_settings(state.spec, ordered=True))
    assert look(state, OPEN, info("2", parents=["1"])).shards[shard("2")].state is ShardState.WAIT


def test_of_the_positions_that_are_found_those_of_lost_shards_are_taken_over_whatever_stands_before_them() -> None:
    second = FREE._replace(shard=shard("1"))
    found = {shard("9"): 1, shard("0"): 70, shard("1"): 60}
    state = look(known(FREE, second, infos=topic(2)), *topic(2), durable=found)
    assert state.positions == {shard("0"): 40, shard("1"): 60}


@pytest.mark.parametrize(
    ("row", "lagging"),
    [
        pytest.param(HELD._replace(incarnation=incarnation(A, start=2)), {A: NOW}, id="its holder"),
        pytest.param(HELD, {}, id="nobody, as a run holds it that is over"),
        pytest.param(MOVING, {}, id="nobody while it moves"),
        pytest.param(FREE, {}, id="nobody while it is free"),
    ],
)
def test_who_has_something_to_read_is_who_may_read_a_shard_with_news(
    row: ShardRecord, lagging: dict[ConsumerId, float]
) -> None:
    assert look(known(row), OPEN).lagging == lagging


def test_who_has_read_everything_is_behind_no_more() -> None:
    state = known(HELD._replace(incarnation=incarnation(A, start=2)), positions={shard("0"): 100})
    state.put_lagging(A, 3.0)
    assert look(state, OPEN).lagging == {}
