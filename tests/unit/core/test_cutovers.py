"""A topic of an ordered group that grows by a multiple: its new shards wait until those that had their keys are read so far."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shardherd.core.group.group import Group
from shardherd.core.group.notes import parse
from shardherd.core.group.ownership import decode, encode
from shardherd.core.group.records import Ownership
from shardherd.core.model import growths
from shardherd.core.model.nouns import Growth, GrowthCutover, ShardInfo
from shardherd.core.model.requests import CheckpointsLost, CutoverDue, ForceCheckpoint, ForceCheckpointReply
from tests.builders import IDENTITY, Play, info, restore, shard, shards, spec, topic, with_settings

SETTLE = 60.0


def ends(*pairs: tuple[str, int]) -> tuple[tuple[Any, int], ...]:
    return tuple((shard(name), end) for name, end in pairs)


def small(count: int = 2, **settings: Any) -> Play:
    """An ordered group of one consumer that has read each of its shards up to 50 of 100."""
    play = Play(spec(1, ordered=True, growth_settle=SETTLE, **settings))
    play.discover(topic(count))
    play.settle("g-0")
    for number in range(count):
        play.checkpoint("g-0", str(number), 50)
    return play


def grown(before: int = 2, after: int = 4, **settings: Any) -> Play:
    play = small(before, **settings)
    play.discover([*topic(before), *(info(str(number), end=10) for number in range(before, after))])
    return play


def due(play: Play) -> CutoverDue | None:
    """What the group asks for first."""
    return next(iter(play.group.cutovers_due(play.now)), None)


def cut(play: Play, **found: int) -> CutoverDue | None:
    """Look up what the group asks for: shard `p0` ends at what is given, all others at 100."""
    wanted = due(play)
    if wanted is not None:
        play.ask(replace(wanted, ends={each: found.get(f"p{each.removeprefix('t/')}", 100) for each in wanted.shards}))
    return wanted


def settled(before: int = 2, after: int = 4, **found: int) -> Play:
    """A topic that grew, with the cutover offsets taken."""
    play = grown(before, after)
    play.wait(SETTLE, ("g-0",))
    cut(play, **found)
    return play


def waiting(play: Play) -> str:
    return "".join(name for name, state in play.states().items() if state == "WAIT")


# Who waits for whom, and until when.


def test_a_new_shard_waits_until_its_parent_alone_is_read_to_its_end_as_of_when_producers_have_settled() -> None:
    play = grown()
    assert (waiting(play), due(play)) == ("23", None)
    play.checkpoint("g-0", "0", 100)
    play.wait(SETTLE - 0.1, ("g-0",))
    assert (waiting(play), due(play)) == ("23", None)
    play.wait(0.1, ("g-0",))
    assert cut(play, p0=130) == CutoverDue("t", 4, shards("0", "1"), play.now)
    assert play.view.growths == (Growth("t", 2, 4, ends(("0", 130), ("1", 100)), keeps=True),)
    play.checkpoint("g-0", "0", 129)
    assert waiting(play) == "23"
    play.checkpoint("g-0", "0", 130)
    assert waiting(play) == "3"
    play.settle("g-0")
    assert play.holders() == {"0": "g-0", "1": "g-0", "2": "g-0", "3": None}


def test_a_parent_that_is_read_so_far_already_keeps_nobody_waiting_once_its_cutover_is_taken() -> None:
    play = settled(p0=50)
    assert waiting(play) == "3"


def test_shards_that_were_there_are_read_on_meanwhile() -> None:
    play = grown()
    assert (play.states()["0"], play.states()["1"]) == ("ALREADY_ALLOC", "ALREADY_ALLOC")


def test_what_is_taken_is_never_taken_again() -> None:
    play = settled(p0=130)
    play.ask(CutoverDue("t", 4, shards("0"), play.now, {shard("0"): 50}))
    assert (play.view.growths[0].ends, waiting(play)) == (ends(("0", 130), ("1", 100)), "23")


def test_what_was_asked_before_producers_had_settled_is_not_taken() -> None:
    play = grown()
    asked = play.now
    play.wait(SETTLE, ("g-0",))
    play.ask(CutoverDue("t", 4, shards("0"), asked, {shard("0"): 50}))
    assert (play.view.growths[0].ends, waiting(play)) == ((), "23")


def test_a_parent_that_cannot_be_asked_is_asked_again_and_keeps_its_own_children_waiting_alone() -> None:
    play = grown()
    play.wait(SETTLE, ("g-0",))
    play.ask(CutoverDue("t", 4, shards("0", "1"), play.now, {shard("1"): 50}))
    assert (waiting(play), due(play)) == ("2", CutoverDue("t", 4, shards("0"), play.now))


def test_a_topic_that_nobody_answers_for_keeps_no_other_from_being_asked() -> None:
    play = Play(spec(1, ordered=True, growth_settle=SETTLE))
    play.discover([*topic(1, name="a"), *topic(1, name="b")])
    play.discover([*topic(2, name="a"), *topic(2, name="b")])
    play.wait(SETTLE)
    wanted = (CutoverDue("a", 2, shards("a/0"), play.now), CutoverDue("b", 2, shards("b/0"), play.now))
    assert play.group.cutovers_due(play.now) == wanted


def test_a_topic_that_had_many_numbers_between_is_forgotten_in_no_time() -> None:
    """720 has 29 divisors below it: to look at the growths before each, and at those before these, would take hours."""
    play = grown(1, 720)
    play.wait(SETTLE, ("g-0",))
    cut(play, p0=50, **{f"p{number}": 0 for number in range(1, 720)})
    play.discover(topic(720))
    assert (waiting(play), play.group.ownership.group.growths) == ("", ())


def test_a_growth_is_remembered_while_one_before_it_is_not_read() -> None:
    play = settled(2, 8, p0=50, p1=60, p2=0, p3=0)
    play.discover([*topic(2, end=120), *topic(8)[2:]])
    kept = [(each.before, each.after) for each in play.group.ownership.group.growths]
    assert (waiting(play), kept) == ("357", [(2, 8), (4, 8)])


def test_the_growth_is_forgotten_once_all_is_read_and_no_shard_waits() -> None:
    play = settled()
    for name in "01":
        play.checkpoint("g-0", name, 100)
    play.discover(topic(4))
    assert (waiting(play), play.view.growths, play.group.ownership.group.growths) == ("", (), ())


@pytest.mark.parametrize("later", [10.0, SETTLE + 10.0])
def test_growth_upon_growth_chains_so_that_a_parent_that_waits_makes_its_child_wait(later: float) -> None:
    """8 was 0, 9 was 1; 6 was 2 and that was 0. No matter whether producers have settled in between."""
    play = grown(2, 4)
    play.wait(later, ("g-0",))
    cut(play, p0=120)
    play.discover([*topic(2, end=120), info("2", end=0), info("3", end=0), *(info(str(each), end=5) for each in range(4, 8))])
    play.wait(SETTLE, ("g-0",))
    while cut(play, p0=120, p2=0, p3=0) is not None:
        pass
    # Nothing was written to 2 and 3, so that 6 and 7 wait for 0 and 1 alone.
    assert waiting(play) == "234567"
    play.checkpoint("g-0", "0", 120)
    assert waiting(play) == "357"


def test_a_topic_that_may_have_grown_twice_between_two_looks_waits_for_the_shards_of_every_number_between() -> None:
    """7 of 8 may have been 3 of 4 for a producer that noticed that, and that was 1 of 2."""
    play = grown(2, 8)
    play.wait(SETTLE, ("g-0",))
    assert cut(play, p0=50, p1=60, p2=0, p3=20) == CutoverDue("t", 8, shards("0", "1", "2", "3"), play.now)
    assert due(play) is None
    assert waiting(play) == "357"
    play.checkpoint("g-0", "1", 60)
    assert waiting(play) == "7"
    play.settle("g-0")
    play.checkpoint("g-0", "3", 20)
    assert waiting(play) == ""


def test_each_growth_has_a_cutover_of_its_own() -> None:
    play = settled(2, 4, p0=110, p1=50)
    assert waiting(play) == "2"
    play.discover([*topic(4), *(info(str(each)) for each in range(4, 8))])
    play.checkpoint("g-0", "0", 110)
    assert waiting(play) == "4567"
    play.wait(SETTLE, ("g-0",))
    cut(play, p0=140, p1=50, p2=0, p3=0)
    assert waiting(play) == "4"
    play.checkpoint("g-0", "0", 140)
    assert waiting(play) == ""


def test_a_group_that_never_saw_the_smaller_topic_waits_for_nothing() -> None:
    play = Play(spec(1, ordered=True))
    play.discover(topic(4))
    assert (waiting(play), play.view.growths) == ("", ())


def test_what_could_not_be_looked_at_or_let_in_before_has_not_grown() -> None:
    play = Play(spec(1, ordered=True))
    play.discover(topic(2), unlooked=("3",), kept_out=("2",))
    play.restart()
    play.discover(topic(4))
    assert (waiting(play), play.view.growths, play.group.ownership.group.counts) == ("", (), ())


def test_partitions_of_which_some_cannot_be_looked_at_yet_have_grown_by_a_multiple_too() -> None:
    play = small()
    play.discover([*topic(2), info("2")], unlooked=("3",))
    assert play.view.growths == (Growth("t", 2, 4, (), keeps=True),)
    play.restart()
    play.discover(topic(4))
    assert (waiting(play), play.view.growths) == ("23", (Growth("t", 2, 4, (), keeps=True),))


@pytest.mark.parametrize("out", ["unlooked", "kept_out"])
def test_partitions_of_which_none_can_be_looked_at_or_let_in_yet_have_grown_all_the_same(out: str) -> None:
    play = small()
    play.discover(topic(2, end=120), **{out: ("2", "3")})
    play.restart()
    play.discover(topic(4, end=120))
    assert (waiting(play), play.view.growths) == ("23", (Growth("t", 2, 4, (), keeps=True),))


@pytest.mark.parametrize("out", ["unlooked", "kept_out"])
def test_so_they_have_by_another_number_than_a_multiple(out: str) -> None:
    play = small()
    play.discover(topic(2, end=120), **{out: ("2",)})
    lost = Growth("t", 2, 3, ends(("0", 120), ("1", 120)))
    assert (play.view.growths, play.events_of("PartitionGrowth")) == ((lost,), 1)
    play.discover(topic(3, end=130))
    assert (waiting(play), play.view.growths, play.events_of("PartitionGrowth")) == ("", (lost,), 1)


def test_what_cannot_be_looked_at_when_the_ownership_was_lost_may_have_grown_and_waits() -> None:
    """Nobody knows whether it was read before: that its position would say."""
    play = small()
    play.discover(topic(2, end=120), unlooked=("2", "3"))
    play.lose()
    play.discover(topic(2, end=120), unlooked=("2", "3"))
    play.wait(50.0, ("g-0",))
    play.discover(topic(4, end=120))
    assert (waiting(play), play.view.growths) == ("23", (Growth("t", 2, 4, (), keeps=True),))
    play.wait(SETTLE, ("g-0",))
    cut(play, p0=50, p1=50)
    assert waiting(play) == ""


def test_what_has_more_partitions_under_another_id_has_not_grown_though_none_can_be_let_in() -> None:
    play = Play(spec(1, ordered=True))
    play.discover(of_id("a", 2))
    play.discover(of_id("b", 2, end=5), kept_out=("2", "3"))
    assert play.view.growths == ()


def test_where_shards_name_their_parents_these_say_what_comes_before_what() -> None:
    play = Play(spec(1, ordered=True))
    play.discover(topic(1))
    play.settle("g-0")
    split = (info("0", open=False), info("1", parents=["0"]), info("2", parents=["0"]), info("3", parents=["1"]))
    play.discover(split)
    assert (waiting(play), play.view.growths, play.group.cutovers_due(play.now + 1e6)) == ("123", (), ())
    play.checkpoint("g-0", "0", 100)
    assert (waiting(play), play.states()["0"]) == ("3", "OVER")
    # A shard that names none, beside those that do, is no growth either.
    play.discover((*split, info("4")))
    assert (waiting(play), play.view.growths) == ("3", ())


def test_another_number_than_a_multiple_loses_order_and_keeps_nobody_waiting() -> None:
    play = small(2)
    play.discover(topic(3))
    assert (waiting(play), play.view.growths) == ("", (Growth("t", 2, 3, ends(("0", 100), ("1", 100))),))


# What is declared.


def test_with_producers_stopped_the_cutover_is_taken_at_once() -> None:
    play = grown(growth_cutover=GrowthCutover.NOW)
    assert cut(play) == CutoverDue("t", 4, shards("0", "1"), play.now)
    play.checkpoint("g-0", "1", 100)
    assert waiting(play) == "2"


def test_where_producers_do_not_choose_by_key_nobody_waits() -> None:
    play = grown(growth_cutover=GrowthCutover.NEVER)
    assert (waiting(play), play.view.growths) == ("", (Growth("t", 2, 4, ends(("0", 100), ("1", 100))),))


@pytest.mark.parametrize("change", [{"growth_cutover": GrowthCutover.NEVER}, {"ordered": False}])
def test_who_asks_for_order_no_more_wakes_the_waiting(change: dict[str, Any]) -> None:
    play = grown()
    play.change(with_settings(play.group.spec, **change))
    assert waiting(play) == ""
    play.settle("g-0")
    play.discover(topic(4))
    assert set(play.holders().values()) == {"g-0"}


@pytest.mark.parametrize("change", [{"growth_cutover": GrowthCutover.NEVER}, {"ordered": False}])
def test_nor_does_anything_wait_if_that_was_declared_while_no_coordinator_ran(change: dict[str, Any]) -> None:
    play = grown()
    play.restart(with_settings(play.group.spec, **change))
    play.discover(topic(4))
    kept = [each for each in play.group.ownership.group.growths if each.keeps]
    assert (waiting(play), kept) == ("", [])


def test_a_shorter_settle_counts_from_when_the_growth_was_seen() -> None:
    play = grown()
    play.wait(20.0, ("g-0",))
    assert cut(play) is None
    play.change(with_settings(play.group.spec, growth_settle=20.0))
    assert cut(play) is not None


def test_an_unordered_group_notes_no_growth_and_one_that_is_ordered_later_has_no_shard_wait() -> None:
    play = Play(spec(1))
    play.discover(topic(2))
    play.discover(topic(4))
    play.change(with_settings(play.group.spec, ordered=True))
    play.discover(topic(4, end=120))
    assert (waiting(play), play.view.growths) == ("", ())


# What becomes of it when something fails.


def test_another_leader_has_the_cutovers_that_were_taken_and_the_shards_that_wait() -> None:
    play = settled(p0=130)
    play.restart()
    play.discover(topic(4, end=200))
    assert (waiting(play), due(play)) == ("23", None)
    play.settle("g-0")
    play.checkpoint("g-0", "0", 130)
    assert waiting(play) == "3"


def test_another_leader_takes_those_that_were_not_taken_only_a_whole_settle_after_it_took_over() -> None:
    play = grown()
    play.wait(SETTLE - 1.0, ("g-0",))
    play.restart()
    play.discover(topic(4))
    play.wait(SETTLE - 1.0, ("g-0",))
    assert (waiting(play), due(play)) == ("23", None)
    play.wait(1.0, ("g-0",))
    assert due(play) == CutoverDue("t", 4, shards("0", "1"), play.now)


def test_the_cutover_is_to_be_stored_together_with_what_it_sets_free() -> None:
    play = grown()
    play.wait(SETTLE, ("g-0",))
    wanted = due(play)
    assert wanted is not None
    decision = play.ask(replace(wanted, ends={shard("0"): 50, shard("1"): 60}))
    assert decision.persist
    stored = decode(encode(play.group.ownership))
    assert stored.group.growths == (Growth("t", 2, 4, ends(("0", 50), ("1", 60)), keeps=True),)
    assert (stored.shards[shard("2")].state, stored.shards[shard("3")].state) == ("ALREADY_ALLOC", "WAIT")


def test_a_write_that_fails_takes_the_cutover_back_with_what_it_set_free() -> None:
    play = grown()
    play.wait(SETTLE, ("g-0",))
    before, wanted = play.group.ownership, due(play)
    assert wanted is not None
    play.group.decide(replace(wanted, ends={shard("0"): 50, shard("1"): 50}), play.now)
    play.group.roll_back()
    assert (play.group.ownership, due(play), waiting(play)) == (before, wanted, "23")


def test_a_parent_that_is_set_back_below_its_cutover_keeps_its_children_waiting() -> None:
    play = settled(p0=60)
    play.ask(ForceCheckpoint(shard("0"), 10))
    play.settle("g-0")
    play.checkpoint("g-0", "0", 59)
    assert waiting(play) == "23"
    play.checkpoint("g-0", "0", 60)
    assert waiting(play) == "3"


def test_one_that_is_set_back_when_its_child_was_read_says_that_order_can_break() -> None:
    play = settled(p0=50)
    play.settle("g-0")
    said = "descendants of t/0 were read before it, so the order of its keys can break: t/2"
    assert play.ask(ForceCheckpoint(shard("0"), 10)).reply == ForceCheckpointReply(said)
    assert play.ask(ForceCheckpoint(shard("0"), 50)).reply == ForceCheckpointReply("")
    assert play.ask(ForceCheckpoint(shard("1"), 10)).reply == ForceCheckpointReply("")
    assert play.states()["2"] == "ALREADY_ALLOC"


def test_a_parent_whose_position_is_lost_keeps_its_children_waiting() -> None:
    play = settled(p0=60)
    play.hold_commits = True
    play.checkpoint("g-0", "0", 60)
    play.uncommitted = {}
    play.ask(CheckpointsLost(frozenset(shards("0"))))
    assert (waiting(play), play.shard("0").checkpoint) == ("23", None)


def test_what_retention_has_removed_up_to_the_cutover_is_waited_for_no_more() -> None:
    play = settled()
    play.discover([info("0", begin=99), *topic(4)[1:]])
    assert waiting(play) == "23"
    play.discover([info("0", begin=100), *topic(4)[1:]])
    assert waiting(play) == "3"


def of_id(source_id: str, count: int, end: int = 100) -> list[ShardInfo]:
    return [each._replace(source_id=source_id) for each in topic(count, end=end)]


def test_a_topic_that_is_made_anew_has_nothing_of_before_to_be_waited_for() -> None:
    play = Play(spec(1, ordered=True))
    play.discover(of_id("a", 2))
    play.discover(of_id("a", 4))
    assert waiting(play) == "23"
    play.discover(of_id("b", 4, end=5))
    assert (waiting(play), play.group.ownership.group.growths) == ("", ())
    for name in "0123":
        play.ask(ForceCheckpoint(shard(name), 0))
    play.discover(of_id("b", 4, end=6))
    play.settle("g-0")
    assert (waiting(play), set(play.holders().values())) == ("", {"g-0"})


def test_a_topic_that_is_gone_for_long_is_forgotten_with_what_waits_in_it() -> None:
    play = grown(forget_after=60.0)
    other = [info("u/0")]
    play.discover(other)
    play.wait(61.0, ("g-0",))
    play.discover(other)
    play.beat("g-0")
    play.discover(other)
    assert (play.group.ownership.group.growths, set(play.group.ownership.shards)) == ((), {"u/0"})


# When the ownership is lost.


def test_a_shard_that_waited_when_the_ownership_was_lost_waits_again_for_a_later_cutover() -> None:
    play = settled(p0=60, p1=60)
    note = parse(play.noted[shard("2")])
    assert note is not None
    assert note.grown == 2
    play.lose()
    play.discover(topic(4, end=200))
    play.beat("g-0")
    assert (waiting(play), play.view.growths) == ("23", (Growth("t", 2, 4, (), keeps=True),))
    play.wait(50.0, ("g-0",))
    play.checkpoint("g-0", "0", 60)
    assert waiting(play) == "23"
    play.wait(SETTLE, ("g-0",))
    cut(play, p0=60, p1=200)
    assert waiting(play) == "3"


def test_so_does_one_that_had_no_position_yet() -> None:
    play = small()
    play.hold_commits = True
    play.discover(topic(4))
    play.uncommitted = {}
    play.lose()
    play.discover(topic(4))
    assert (waiting(play), play.view.growths) == ("23", (Growth("t", 2, 4, (), keeps=True),))


def test_all_generations_that_waited_wait_again() -> None:
    play = grown(2, 4)
    play.discover([*topic(4), *(info(str(each)) for each in range(4, 8))])
    play.lose()
    play.discover(topic(8))
    assert play.view.growths == (Growth("t", 2, 8, (), keeps=True), Growth("t", 4, 8, (), keeps=True))
    assert waiting(play) == "234567"


def test_what_was_never_in_the_group_waits_although_later_ones_were() -> None:
    """The notes say how many there were before those that waited, and nothing of one that came before these and stayed out."""
    play = Play(spec(1, ordered=True, growth_settle=SETTLE))
    play.discover(topic(1))
    play.settle("g-0")
    play.discover(topic(1), unlooked=("1",))
    shown = (info("0"), info("2"))
    play.discover(shown, kept_out=("1", "3"))
    assert play.view.growths == (Growth("t", 1, 2, (), keeps=True), Growth("t", 2, 4, (), keeps=True))
    play.lose()
    play.discover(shown, kept_out=("1", "3"))
    assert play.view.growths == (Growth("t", 1, 4, (), keeps=True), Growth("t", 2, 4, (), keeps=True))
    play.discover(topic(4))
    assert waiting(play) == "123"


@pytest.mark.parametrize(
    ("there", "out", "before", "wait"),
    [
        ((0, 1, 3), (2,), [2], "23"),
        ((0, 1, 2, 4), (3, 5), [2, 3], "2345"),
        ((0, 1, 2, 3, 5), (4,), [3], "345"),
        ((0, 2, 3, 4), (1,), [1], "1234"),
        ((0, 1, 2, 3, 4, 5), (6, 7), [4], "4567"),
        ((0, 1, 2), (3, 4, 5, 6, 7), [2, 4], "234567"),
        ((0, 1, 2, 3, 4, 5, 6, 8), (7, 9), [5], "56789"),
        ((0, 1, 2, 3, 4, 5), (6, 7, 8), [], ""),
        ((0, 1, 2, 3, 4, 5), (6, 7, 8, 9, 10), [], ""),
        ((0, 1, 2, 3), (4, 5, 6, 7), [4], "4567"),
    ],
)
def test_it_waits_for_all_that_may_have_had_its_keys_before(
    there: tuple[int, ...], out: tuple[int, ...], before: list[int], wait: str
) -> None:
    """Of how many the number is a multiple, no more than stand before it, and of which not each has a child among those."""
    play = Play(spec(1, ordered=True, growth_settle=SETTLE))
    shown = [info(str(each)) for each in there]
    play.discover(shown)
    play.settle("g-0")
    play.lose()
    play.discover(shown, unlooked=map(str, out))
    assert [each.before for each in play.view.growths] == before
    play.discover(topic(len(there) + len(out)))
    assert waiting(play) == wait


def test_what_waits_for_all_that_may_have_had_its_keys_waits_for_all_of_them_after_another_loss() -> None:
    play = Play(spec(1, ordered=True, growth_settle=SETTLE))
    play.discover(topic(3))
    play.settle("g-0")
    play.lose()
    play.discover(topic(6))
    assert [each.before for each in play.view.growths] == [2, 3]
    play.settle("g-0")
    play.wait(50, ("g-0",))
    play.discover(topic(6))
    play.lose()
    play.discover(topic(6))
    assert [each.before for each in play.view.growths] == [1, 2, 3]


@pytest.mark.parametrize(
    ("before", "after", "blind", "wanted"),
    [
        (3, 6, (2,), [2, 3]),
        (5, 10, (3,), [5]),
        (10, 20, (4,), [10]),
        (3, 9, (1,), [3]),
        (1, 2, (0,), [1]),
        (3, 6, (0, 1, 2), [2, 3]),
    ],
)
def test_what_cannot_be_looked_at_at_first_was_there_before_if_its_position_says_so(
    before: int, after: int, blind: tuple[int, ...], wanted: list[int]
) -> None:
    play = Play(spec(1, ordered=True, growth_settle=SETTLE))
    play.discover(topic(before))
    play.settle("g-0")
    play.lose()
    out = list(map(str, blind))
    play.discover([each for each in topic(after) if each.shard not in shards(*out)], unlooked=out)
    assert sorted({each.before for each in play.view.growths}) == wanted


def test_what_is_noted_of_a_topic_that_was_made_anew_tells_nothing_of_what_cannot_be_looked_at() -> None:
    play = Play(spec(1, ordered=True, growth_settle=SETTLE))
    play.discover([info("0", source_id="new")])
    play.settle("g-0")
    play.noted[shard("1")] = play.noted[shard("0")].replace("new", "old")
    play.lose()
    play.discover([info("0", source_id="new")], unlooked=["1"])
    play.discover([info("0", source_id="new"), info("1", source_id="new")])
    assert waiting(play) == "1"


def test_a_growth_that_is_read_is_not_seen_again_while_one_that_waited_cannot_be_looked_at() -> None:
    play = grown(2, 4)
    play.lose()
    shown = topic(4)[:3]
    play.discover(shown, unlooked=["3"])
    assert [each.before for each in play.view.growths] == [2]
    play.wait(SETTLE, ("g-0",))
    cut(play, p0=0, p1=0)
    for number in range(3):
        play.discover([*shown, *topic(1 + number, name="other")], unlooked=["3"])
    assert [each for each in play.view.growths if each.topic == "t"] == []


def test_what_stays_out_for_want_of_room_after_a_loss_may_have_been_there_before() -> None:
    play = Play(spec(1, ordered=True, growth_settle=SETTLE))
    play.discover(topic(3))
    play.settle("g-0")
    play.lose()
    play.discover([each for each in topic(6) if each.shard != "t/2"], kept_out=["2"])
    assert [each.before for each in play.view.growths] == [2, 3]


def test_a_new_group_waits_for_nothing_though_a_partition_cannot_be_looked_at() -> None:
    play = Play(spec(1, ordered=True, growth_settle=SETTLE))
    play.discover(topic(4)[1:], unlooked=["0"])
    assert (play.view.growths, waiting(play)) == ((), "")


def test_a_stream_whose_shards_name_their_parents_has_not_grown_when_the_first_is_gone() -> None:
    """Kinesis lists a shard no more once its records are deleted."""
    play = Play(spec(1, ordered=True, growth_settle=SETTLE))
    shown = [info("0"), info("2"), info("3", parents=("2",))]
    play.discover(shown)
    play.settle("g-0")
    play.lose()
    play.discover(shown)
    assert (play.view.growths, waiting(play)) == ((), "3")


def test_a_shard_that_somebody_holds_is_claimed_though_it_waited_once() -> None:
    play = settled(p0=50)
    play.settle("g-0")
    assert play.states()["2"] == "ALREADY_ALLOC"
    play.lose()
    play.discover(topic(4))
    play.beat("g-0")
    assert (play.holders()["2"], waiting(play)) == ("g-0", "3")


def test_notes_of_a_topic_that_was_made_anew_since_keep_nobody_waiting() -> None:
    play = Play(spec(1, ordered=True))
    play.discover(of_id("a", 2))
    play.discover(of_id("a", 4))
    play.lose()
    play.discover(of_id("b", 4, end=5))
    assert (waiting(play), play.view.growths) == ("", ())


def test_an_older_ownership_that_is_put_back_sees_the_growth_anew_and_believes_who_holds_a_child() -> None:
    play = small()
    older = play.group.ownership
    play.discover(topic(4))
    play.wait(SETTLE, ("g-0",))
    cut(play, p0=50, p1=50)
    play.settle("g-0")
    assert waiting(play) == ""
    play.group = restore(older, dict(play.log), play.group.spec, play.now, leader_epoch=1, notes=dict(play.noted))
    play.discover(topic(4))
    play.beat("g-0")
    assert (play.states()["2"], play.holders()["2"]) == ("ALREADY_ALLOC", "g-0")


def test_a_new_group_of_kept_offsets_of_another_waits_for_nothing() -> None:
    play = grown()
    kept, noted = dict(play.log), dict(play.noted)
    other = replace(play.group.spec, identity=replace(IDENTITY, uid="6a1f2c34-0000-4000-8000-000000000002"))
    again = Play(other, Group.new(other, 1000.0))
    again.log, again.noted = kept, noted
    again.discover(topic(4))
    assert (waiting(again), again.view.growths) == ("", ())


# The arithmetic.


def test_parents_and_children_follow_the_remainders_through_all_growths() -> None:
    both = (Growth("t", 4, 8, (), keeps=True), Growth("t", 2, 4, (), keeps=True), Growth("u", 1, 9, (), keeps=True))
    assert [each for _, each in growths.parents(both, shard("7"))] == [*shards("3", "1")]
    assert [each for _, each in growths.parents(both, shard("4"))] == [*shards("0")]
    assert growths.parents(both, shard("1")) == growths.parents(both, shard("8")) == []
    assert growths.children(both, shard("1")) == [*shards("3", "5", "7")]
    assert growths.children(both, shard("2")) == [*shards("6")]
    assert growths.children(both, shard("8")) == []
    assert growths.children(both, shard("v")) == []


def test_the_numbers_between_are_those_that_a_topic_can_have_had_by_multiples() -> None:
    assert [growths.steps(*each) for each in ((4, 8), (4, 24), (3, 12), (1, 6), (4, 10))] == [
        [4],
        [4, 8, 12],
        [3, 6],
        [1, 2, 3],
        [4, 8],
    ]


def test_all_numbers_between_count_also_where_none_is_a_multiple_of_another() -> None:
    every = [Growth("t", before, 24, (), keeps=True) for before in growths.steps(4, 24)]
    assert [each for _, each in growths.parents(every, shard("23"))] == [*shards("11", "3", "7", "3")]
    assert set(shards("7", "11", "15", "19", "23")) == set(growths.children(every, shard("3")))


def test_what_is_not_taken_of_a_growth_is_known_by_name() -> None:
    growth = Growth("t", 3, 6, ends(("0", 7), ("2", 9)), keeps=True)
    assert [growths.cutover(growth, shard(name)) for name in "0123"] == [7, None, 9, None]
    assert growths.uncut(growth) == [shard("1")]
    assert growths.uncut(replace_keeps(growth)) == []


def replace_keeps(growth: Growth) -> Growth:
    return Growth(growth.topic, growth.before, growth.after, growth.ends)


# What an earlier version has stored.


def stored_before(play: Play, **group: Any) -> Ownership:
    """The group's ownership as a version wrote it that let no shard wait for a growth."""
    data = encode(play.group.ownership)
    data["group"] = {name: value for name, value in data["group"].items() if name not in ("keeping", "counts")} | group
    return decode(data)


def test_a_topic_that_grew_before_the_upgrade_keeps_nobody_waiting_and_is_told_of_as_before() -> None:
    play = small(4)
    old = stored_before(play, growths=[["t", 2, 4, [["t/0", 60], ["t/1", 50]]]])
    play.group = restore(old, dict(play.log), play.group.spec, play.now, leader_epoch=1)
    play.discover(topic(4))
    assert (waiting(play), play.view.growths) == ("", (Growth("t", 2, 4, ends(("0", 60))),))
    play.settle("g-0")
    play.checkpoint("g-0", "0", 60)
    play.discover(topic(4, end=120))
    assert (play.view.growths, play.group.cutovers_due(play.now + 1e6)) == ((), ())


def test_one_that_grows_after_the_upgrade_waits_beside_what_is_left_of_before() -> None:
    play = small(4)
    old = stored_before(play, growths=[["t", 2, 4, [["t/0", 60]]]])
    play.group = restore(old, dict(play.log), play.group.spec, play.now, leader_epoch=1)
    play.discover(topic(8))
    assert waiting(play) == "4567"
    assert play.view.growths == (Growth("t", 2, 4, ends(("0", 60))), Growth("t", 4, 8, (), keeps=True))


def test_notes_of_an_earlier_version_keep_nobody_waiting_when_the_ownership_is_lost() -> None:
    """They do not say who waited, and nobody did."""
    play = small(4)
    assert not any("grown" in note for note in play.noted.values())
    play.lose()
    play.discover(topic(4))
    assert (waiting(play), play.view.growths) == ("", ())
