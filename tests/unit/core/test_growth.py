"""Which topics grew, between which shards, and how far what was there must still be read."""

from __future__ import annotations

from shardherd.core.group.growth import grown, unread
from shardherd.core.group.lineage import ancestors, descendants, may_be_read
from shardherd.core.group.records import ShardRecord
from shardherd.core.model.nouns import Growth, ShardId, ShardInfo
from shardherd.core.model.requests import ForceCheckpoint
from tests.builders import Play, info, shard, shards, spec
from tests.unit.core.tables import FREE


def known(*names: str) -> dict[ShardId, ShardRecord]:
    return {shard(name): FREE._replace(shard=shard(name)) for name in names}


def shown(*infos: ShardInfo) -> dict[ShardId, ShardInfo]:
    return {each.shard: each for each in infos}


def test_each_topic_that_grew_is_told_in_order_with_the_ends_of_what_was_there() -> None:
    """u and t grow, v is new, w splits, x keeps its size; t/1 was deleted, t/10 comes after t/2."""
    before = known("u/0", "t/10", "t/2", "t/1", "w/0", "x/0")
    infos = shown(
        *(info(name, end=end) for name, end in (("u/0", 7), ("u/1", 1), ("t/2", 30), ("t/10", 20), ("t/3", 1), ("t/4", 1))),
        info("v/0"),
        info("w/0", open=False),
        info("w/1", parents=["w/0"]),
        info("x/0"),
    )
    assert grown(before, shards("u/1", "t/3", "t/4", "v/0", "w/1"), infos) == [
        Growth("t", 2, 4, ((shard("t/2"), 30), (shard("t/10"), 20))),
        Growth("u", 1, 2, ((shard("u/0"), 7),)),
    ]


def test_nothing_fresh_is_no_growth() -> None:
    assert grown(known("t/0"), (), shown(info("t/0"))) == []


def test_what_is_read_past_its_end_need_not_be_read_any_more() -> None:
    growth = Growth("t", 3, 4, ((shard("0"), 5), (shard("1"), 5), (shard("2"), 1), (shard("3"), 0)))
    assert unread(growth, {shard("0"): 4, shard("1"): 5}, {}) == Growth("t", 3, 4, ((shard("0"), 5), (shard("2"), 1)))


def test_of_a_shard_that_is_gone_nothing_is_left_to_be_read() -> None:
    growth = Growth("t", 2, 3, ((shard("0"), 5), (shard("1"), 5)))
    assert unread(growth, {}, {shard("1"): info("1")}) == Growth("t", 2, 3, ((shard("1"), 5),))


def grew() -> Play:
    """An ordered group whose topic, of id a, grew from 2 shards to 3."""
    play = Play(spec(1, ordered=True))
    play.discover([info(name, source_id="a") for name in "01"])
    play.settle("g-0")
    play.discover([info(name, source_id="a") for name in "012"])
    return play


def growths(play: Play) -> tuple[Growth, ...]:
    return play.view.growths


def test_what_was_written_before_a_growth_is_gone_with_a_topic_that_is_made_anew() -> None:
    play = grew()
    assert growths(play) == (Growth("t", 2, 3, ((shard("0"), 100), (shard("1"), 100))),)
    play.discover([info(name, end=5, source_id="b") for name in "012"])
    assert not growths(play)
    for name in "012":
        play.ask(ForceCheckpoint(shard(name), 0))
    play.restart()
    play.discover([info(name, end=150, source_id="b") for name in "012"])
    assert (growths(play), play.view.withheld) == ((), ())


def test_what_was_written_before_a_growth_is_gone_in_the_shards_that_are_made_anew_and_not_in_others() -> None:
    play = grew()
    play.discover([info("0", end=5, source_id="b"), info("1", source_id="a"), info("2", source_id="a")])
    assert growths(play) == (Growth("t", 2, 3, ((shard("1"), 100),)),)
    play.ask(ForceCheckpoint(shard("0"), 0))
    assert growths(play) == (Growth("t", 2, 3, ((shard("1"), 100),)),)


def test_a_topic_that_is_made_anew_with_more_partitions_did_not_grow() -> None:
    play = Play(spec(1, ordered=True))
    play.discover([info(name, source_id="a") for name in "01"])
    play.discover([info(name, end=5, source_id="b") for name in "0123"])
    assert (growths(play), "PartitionGrowth" in play.reasons()) == ((), False)


PARENTS = {"d": ("b", "c"), "c": ("a",), "b": ("a", "e"), "a": ("d",)}


def parents(name: ShardId) -> tuple[ShardId, ...]:
    return tuple(ShardId(each) for each in PARENTS.get(name, ()))


def test_ancestors_are_all_that_come_before_and_never_the_shard_itself_even_in_a_circle() -> None:
    assert ancestors(ShardId("d"), parents) == descendants(ShardId("d"), parents) == set("abce")
    assert ancestors(ShardId("e"), parents) == frozenset()


def test_a_shard_may_be_read_when_every_ancestor_is_done_and_not_before() -> None:
    assert may_be_read(ShardId("d"), parents, lambda each: each in set("abce"))
    for missing in "abce":
        assert not may_be_read(ShardId("d"), parents, lambda each, missing=missing: each != missing)  # type: ignore[misc]
    assert may_be_read(ShardId("e"), parents, lambda _: False)
