"""Splits, merges and chains: who waits for whom, and what the order of a group changes."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from shardherd.core.group.lineage import ancestors, descendants, may_be_read
from shardherd.core.model.nouns import ShardId, ShardInfo
from tests.builders import Play, info, shard, spec, with_settings

READ, FREE, WAITS, DONE = "ALREADY_ALLOC", "NOT_ALLOC", "WAIT", "OVER"

SPLIT = [info("0", open=False), info("1", parents=["0"]), info("2", parents=["0"]), info("3", parents=["0"])]
MERGE = [info("0", open=False), info("1", open=False), info("2", open=False), info("3", parents=["0", "1", "2"])]
CHAIN = [info("0", open=False), info("1", parents=["0"], open=False), info("2", parents=["1"], open=False)]
CHAIN += [info("3", parents=["2"])]


def reading(infos: Iterable[ShardInfo], consumers: int = 1, *, ordered: bool = True) -> Play:
    """A group at rest."""
    play = Play(spec(consumers, ordered=ordered))
    play.discover(list(infos))
    play.settle(*(f"g-{number}" for number in range(consumers)))
    return play


def finish(play: Play, *names: str) -> None:
    """Every holder reads these shards to their ends, one after the other."""
    for name in names:
        holder = play.shard(name).holder
        assert holder is not None, f"shard {name} is {play.state(name)}"
        play.checkpoint(holder, name, 100)
        play.settle(*play.consumers)


def order(play: Play, ordered: bool) -> None:
    play.change(with_settings(play.group.spec, ordered=ordered))
    play.settle(*play.consumers)


def test_the_children_of_a_split_wait_together_and_are_freed_together() -> None:
    play = reading(SPLIT)
    assert play.states() == {"0": READ, "1": WAITS, "2": WAITS, "3": WAITS}
    finish(play, "0")
    assert play.states() == {"0": DONE, "1": READ, "2": READ, "3": READ}


def test_the_child_of_a_merge_waits_for_the_last_of_its_parents() -> None:
    play = reading(MERGE)
    finish(play, "2", "0")
    assert play.states() == {"0": DONE, "1": READ, "2": DONE, "3": WAITS}
    finish(play, "1")
    assert play.state("3") == READ


def test_a_chain_is_read_link_by_link() -> None:
    play = reading(CHAIN)
    assert play.states() == {"0": READ, "1": WAITS, "2": WAITS, "3": WAITS}
    finish(play, "0")
    assert play.states() == {"0": DONE, "1": READ, "2": WAITS, "3": WAITS}
    finish(play, "1", "2")
    assert play.states() == {"0": DONE, "1": DONE, "2": DONE, "3": READ}


def test_a_split_that_is_merged_again_waits_for_both_of_its_arms() -> None:
    arms = [info("0", open=False), info("1", parents=["0"], open=False), info("2", parents=["0"], open=False)]
    play = reading([*arms, info("3", parents=["1", "2"])])
    finish(play, "0", "1")
    assert play.states() == {"0": DONE, "1": DONE, "2": READ, "3": WAITS}
    finish(play, "2")
    assert play.state("3") == READ


def test_a_shard_is_read_only_when_all_its_ancestors_are_and_not_its_parents_alone() -> None:
    play = reading([info("0"), info("1", parents=["0"])], ordered=False)
    order(play, True)
    play.discover([info("0"), info("1", parents=["0"], open=False), info("2", parents=["1"])])
    finish(play, "1")
    assert play.states() == {"0": READ, "1": DONE, "2": WAITS}, "its grandparent is not read to its end"
    play.discover([info("0", open=False), info("1", parents=["0"], open=False), info("2", parents=["1"])])
    finish(play, "0")
    assert play.states() == {"0": DONE, "1": DONE, "2": READ}


def test_a_new_shard_enters_by_the_first_transition_alone() -> None:
    play = reading([info("0", open=False)])
    play.consumer("g-0").ready = False
    play.beat("g-0")
    play.discover([info("0", open=False), info("1", parents=["0"]), info("2")])
    assert (play.state("1"), play.state("2")) == (WAITS, FREE)
    finish(play, "0")
    play.discover([info("0", open=False), info("1", parents=["0"]), info("2"), info("3", parents=["0"])])
    assert play.state("3") == FREE, "its parent is over already"


def test_in_a_group_without_order_nothing_waits() -> None:
    play = reading(CHAIN, ordered=False)
    assert play.states() == dict.fromkeys("0123", READ)


def test_a_shard_whose_parents_the_source_no_longer_names_waits_for_nobody() -> None:
    play = reading([info("5", parents=["3", "4"])])
    assert play.state("5") == READ


def test_a_child_that_is_named_before_its_parent_waits_for_it_all_the_same() -> None:
    play = reading([info("0", parents=["9"]), info("9", open=False)])
    assert play.states() == {"0": WAITS, "9": READ}


def test_an_ancestor_that_the_source_drops_while_no_coordinator_runs_keeps_nobody_waiting() -> None:
    play = reading(CHAIN)
    play.restart()
    play.discover([info("3", parents=["2"])])
    play.settle("g-0")
    assert play.state("3") == READ


def test_a_shard_that_is_away_with_its_ancestor_waits_for_it_when_both_are_back() -> None:
    other = info("7")
    play = reading([*SPLIT, other])
    play.discover([other])
    play.settle("g-0")
    assert play.states() == {"0": READ, "1": WAITS, "2": WAITS, "3": WAITS, "7": READ}
    play.discover([*SPLIT, other])
    play.settle("g-0")
    assert play.states() == {"0": READ, "1": WAITS, "2": WAITS, "3": WAITS, "7": READ}
    finish(play, "0")
    assert play.states() == {"0": DONE, "1": READ, "2": READ, "3": READ, "7": READ}


def test_a_shard_that_comes_back_without_its_ancestor_waits_for_it_no_more() -> None:
    other = info("7")
    play = reading([*SPLIT, other])
    play.discover([other])
    play.discover([info("1", parents=["0"]), other])
    play.settle("g-0")
    assert play.states() == {"0": READ, "1": READ, "2": WAITS, "3": WAITS, "7": READ}


def test_the_end_of_one_ancestor_wakes_no_shard_that_is_away_with_another() -> None:
    play = reading(MERGE)
    play.discover(MERGE[:1])
    finish(play, "0")
    assert play.states() == {"0": DONE, "1": READ, "2": READ, "3": WAITS}


def test_the_balance_counts_neither_what_waits_nor_what_is_over() -> None:
    infos = [info(str(number), open=number >= 4) for number in range(8)]
    infos += [info(str(number), parents=[str(number - 8)]) for number in range(8, 12)]
    play = reading(infos, 2)
    assert play.counts() == {"g-0": 4, "g-1": 4}
    finish(play, *(name for name in "0123" if play.shard(name).holder == "g-0"))
    active = sum(state == READ for state in play.states().values())
    assert sorted(play.counts().values()) == [active // 2, active - active // 2]


def test_split_and_merge_are_balanced_on_the_newest_shards() -> None:
    play = reading([info(str(number)) for number in range(4)], 2)
    play.discover([info("0", open=False), info("1", open=False), info("2"), info("3"), info("4", parents=["0", "1"])])
    finish(play, "0", "1")
    assert sorted(play.counts().values()) == [1, 2]
    assert play.states() == {"0": DONE, "1": DONE, "2": READ, "3": READ, "4": READ}


def test_order_true_to_false_frees_every_waiting_shard_of_every_generation() -> None:
    play = reading([*CHAIN, info("4", open=False), info("5", parents=["4", "3"])])
    order(play, False)
    assert play.states() == dict.fromkeys("012345", READ)


def test_order_true_to_false_frees_them_also_when_it_was_changed_while_no_coordinator_ran() -> None:
    play = reading(CHAIN)
    play.group._state.put_spec(spec(1, ordered=False))
    play.restart()
    play.discover(CHAIN)
    play.settle("g-0")
    assert play.states() == dict.fromkeys("0123", READ)


def test_order_true_to_false_in_a_paused_group_frees_but_gives_to_nobody() -> None:
    play = reading(CHAIN)
    play.change(with_settings(play.group.spec, paused=True))
    order(play, False)
    assert play.states() == {"0": READ, "1": FREE, "2": FREE, "3": FREE}
    play.change(with_settings(play.group.spec, paused=False))
    play.settle("g-0")
    assert play.states() == dict.fromkeys("0123", READ)


def test_order_false_to_true_leaves_what_is_being_read_and_orders_what_appears_later() -> None:
    play = reading([info("0"), info("1", parents=["0"])], ordered=False)
    held = dict(play.consumer("g-0").held)
    order(play, True)
    assert play.consumer("g-0").held == held
    play.discover([info("0", open=False), info("1", parents=["0"]), info("2", parents=["0"])])
    play.settle("g-0")
    assert play.states() == {"0": READ, "1": READ, "2": WAITS}
    finish(play, "0")
    assert play.state("2") == READ


def test_order_false_to_true_leaves_what_nobody_holds_free_to_be_given() -> None:
    play = Play(spec(1))
    play.discover(CHAIN)
    play.change(with_settings(play.group.spec, ordered=True))
    assert play.states() == dict.fromkeys("0123", FREE)
    play.settle("g-0")
    assert play.states() == dict.fromkeys("0123", READ)


def test_order_there_and_back_again_orders_only_what_appears_in_between_and_then_frees_it() -> None:
    play = reading([info("0", open=False), info("1", parents=["0"])], ordered=False)
    order(play, True)
    play.discover([info("0", open=False), info("1", parents=["0"]), info("2", parents=["0"])])
    assert play.state("2") == WAITS
    order(play, False)
    assert play.state("2") == READ


def test_what_waits_is_kept_over_a_restart() -> None:
    play = reading(MERGE)
    finish(play, "0")
    play.restart()
    play.discover(MERGE)
    play.settle("g-0")
    assert play.states() == {"0": DONE, "1": READ, "2": READ, "3": WAITS}
    finish(play, "1", "2")
    assert play.state("3") == READ


@st.composite
def families(draw: st.DrawFn) -> dict[ShardId, tuple[ShardId, ...]]:
    """Shards and their parents, in any shape, circles included."""
    names = [shard(str(number)) for number in range(draw(st.integers(1, 8)))]
    return {name: tuple(draw(st.lists(st.sampled_from(names), max_size=3, unique=True))) for name in names}


@given(family=families())
def test_a_shard_is_the_descendant_of_its_ancestors_and_of_nobody_else(family: dict[ShardId, tuple[ShardId, ...]]) -> None:
    def children(parent: ShardId) -> list[ShardId]:
        return [name for name, parents in family.items() if parent in parents]

    above = {name: ancestors(name, family.__getitem__) for name in family}
    for name in family:
        assert name not in above[name]
        assert descendants(name, children) == {other for other in family if name in above[other]}
        assert may_be_read(name, family.__getitem__, lambda _: True)
        assert may_be_read(name, family.__getitem__, lambda _: False) == (not above[name])
