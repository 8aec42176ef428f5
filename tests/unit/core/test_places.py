"""Where consumers run and what they can do: told in heartbeats, and looked at by the group's assignor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from shardherd.core.group.ownership import decode, encode
from shardherd.core.model.errors import InvalidRequestError
from shardherd.core.model.nouns import ShardInfo, Weights, Zones
from tests.builders import Play, copy_of, info, shard, spec, topic, with_settings

ZONES = "abababab"
"""The zones of the leaders of shards 0, 1 and so on."""


def zoned(zones: str = ZONES) -> tuple[ShardInfo, ...]:
    """A topic whose shards are led in these zones; a dot stands for an unknown one."""
    return tuple(each._replace(zone=zone.strip(".")) for each, zone in zip(topic(len(zones)), zones, strict=True))


def placed(consumers: Mapping[str, str], infos: tuple[ShardInfo, ...], **settings: Any) -> Play:
    """A group of these shards, held by consumers in these zones."""
    play = Play(spec(len(consumers), **settings))
    for name, zone in consumers.items():
        play.consumer(name).zone = zone
    play.discover(infos)
    play.settle(*consumers)
    return play


def test_shards_are_given_to_consumers_of_the_zone_of_their_leader() -> None:
    play = placed({"g-0": "b", "g-1": "a"}, zoned())
    assert play.held_by("g-0") == {"1", "3", "5", "7"}
    assert play.held_by("g-1") == {"0", "2", "4", "6"}


def test_balance_comes_before_zones() -> None:
    play = placed({"g-0": "b", "g-1": "a"}, zoned("aaaaaabb"))
    assert play.counts() == {"g-0": 4, "g-1": 4}
    assert {"6", "7"} <= play.held_by("g-0")


def test_a_group_that_ignores_zones_gives_shards_out_as_if_there_were_none() -> None:
    play = placed({"g-0": "b", "g-1": "a"}, zoned(), zones=Zones.IGNORE)
    assert play.held_by("g-0") == {"0", "2", "4", "6"}


@pytest.mark.parametrize(
    ("zones", "infos"),
    [({"g-0": "", "g-1": ""}, zoned()), ({"g-0": "b", "g-1": "a"}, topic(8))],
    ids=["consumers that do not know where they run", "a source that does not know its zones"],
)
def test_where_zones_are_not_known_on_both_sides_nobody_looks_at_them(
    zones: Mapping[str, str], infos: tuple[ShardInfo, ...]
) -> None:
    assert placed(zones, infos).held_by("g-0") == {"0", "2", "4", "6"}


def test_what_has_no_zone_fills_the_gaps() -> None:
    play = placed({"g-0": "b", "g-1": "a"}, zoned("ab..a.ab"))
    assert play.counts() == {"g-0": 4, "g-1": 4}
    assert {"1", "7"} <= play.held_by("g-0")
    assert {"0", "4", "6"} <= play.held_by("g-1")


def test_no_shard_moves_because_its_leader_moved_to_another_zone() -> None:
    play = placed({"g-0": "b", "g-1": "a"}, zoned())
    before = play.holders()
    play.discover(zoned("babababa"))
    play.settle("g-0", "g-1")
    assert play.holders() == before


def test_a_joiner_gets_the_shards_of_its_own_zone_and_a_new_coordinator_decides_the_same() -> None:
    play = placed({"g-0": "a", "g-1": "a"}, zoned("aabbaabb"))
    play.consumer("g-2").zone = "b"
    twin = Play(play.group.spec, copy_of(play.group), play.now)
    twin.consumers, twin.log = {name: replace(each) for name, each in play.consumers.items()}, dict(play.log)
    twin.restart()
    twin.discover(zoned("aabbaabb"))
    twin.settle("g-0", "g-1")
    for each in (play, twin):
        each.settle("g-0", "g-1", "g-2")
    assert play.held_by("g-2") <= {"2", "3", "6", "7"}
    assert twin.holders() == play.holders()


def test_where_a_consumer_runs_is_shown_and_survives_the_coordinator() -> None:
    play = placed({"g-0": "b", "g-1": "a"}, zoned())
    play.restart()
    assert {each.consumer: (each.zone, each.capacity) for each in play.view.consumers} == {"g-0": ("b", 1), "g-1": ("a", 1)}
    play.discover(zoned())
    assert [each.zone for each in play.view.shards] == list(ZONES)


def test_an_ownership_of_before_places_were_known_is_read() -> None:
    play = placed({"g-0": "b"}, zoned())
    stored = encode(play.group.ownership)
    for consumer in stored["consumers"]:
        del consumer["zone"], consumer["capacity"]
    found = decode(stored).consumers[play.consumer("g-0").name]
    assert (found.zone, found.capacity) == ("", 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"capacity": 0}, "capacity 0 and zone ''; a capacity is 1 to 1000000"),
        ({"capacity": 1_000_001}, "capacity 1000001"),
        ({"zone": "z" * 64}, "a zone has at most 63 characters: see SHARDHERD_CAPACITY and SHARDHERD_ZONE of its pod"),
    ],
)
def test_what_cannot_be_a_place_is_refused_and_changes_nothing(change: Mapping[str, object], message: str) -> None:
    play = Play(spec(1))
    play.discover(topic(2))
    with pytest.raises(InvalidRequestError, match=message):
        play.ask(structs.replace(play.consumer("g-0").heartbeat(), **change))
    assert play.view.consumers == ()


# Capacities and weights.


def written(play: Play, seconds: int, rates: tuple[float, ...], sizes: tuple[int, ...] = ()) -> None:
    """So many records a second are written to each shard, of so many bytes; the source is looked at every second."""
    names = list(play.consumers)
    for second in range(1, seconds + 1):
        play.wait(1.0)
        wanted = play.group.wants_sizes(play.now)
        ends = [int(play.now * rate) for rate in rates]
        infos = [info(str(number), end=end) for number, end in enumerate(ends)]
        if sizes and wanted:
            infos = [each._replace(size=each.end * size) for each, size in zip(infos, sizes, strict=True)]
        play.discover(infos)
        for name in names:
            play.consumer(name).progress += second
        play.beat(*names)


def weighing(
    rates: tuple[float, ...], capacities: tuple[int, ...] = (1, 1), sizes: tuple[int, ...] = (), **settings: Any
) -> Play:
    """A group under Weighted, at rest while this is written."""
    play = Play(spec(len(capacities), assignor="Weighted", **settings))
    for number, capacity in enumerate(capacities):
        play.consumer(f"g-{number}").capacity = capacity
    written(play, 20, rates, sizes)
    play.settle(*play.consumers)
    return play


EVEN = (10.0,) * 8


def test_a_consumer_with_three_times_the_capacity_holds_three_times_the_work() -> None:
    assert weighing(EVEN, (3, 1)).counts() == {"g-0": 6, "g-1": 2}


def test_a_capacity_that_changes_moves_shards_and_one_that_stays_moves_nothing() -> None:
    play = weighing(EVEN, (1, 1))
    moves = play.view.moves
    written(play, 40, EVEN)
    assert play.view.moves == moves
    play.consumer("g-1").capacity = 3
    play.settle("g-0", "g-1")
    assert play.counts() == {"g-0": 2, "g-1": 6}
    assert play.view.last_rebalance is not None
    assert play.view.last_rebalance.reason == "CapacityChanged"


def test_a_capacity_is_known_to_a_new_coordinator_before_its_consumer_speaks() -> None:
    play = weighing(EVEN, (3, 1))
    before = play.holders()
    play.restart()
    written(play, 60, EVEN)
    assert play.holders() == before


def test_sticky_does_not_look_at_capacities() -> None:
    play = Play(spec(2))
    play.consumer("g-0").capacity = 3
    play.discover(topic(8))
    play.settle("g-0", "g-1")
    assert play.counts() == {"g-0": 4, "g-1": 4}


LARGE_FIRST = (700, 100, 100, 100, 100, 100, 100, 100)


def test_bytes_weigh_where_they_are_asked_for() -> None:
    assert sorted(weighing(EVEN, sizes=LARGE_FIRST).counts().values()) == [4, 4]
    play = weighing(EVEN, sizes=LARGE_FIRST, weights=Weights.BYTES)
    holder = play.holders()["0"]
    assert holder is not None
    assert play.held_by(holder) == {"0"}


def test_sizes_are_asked_for_only_where_they_weigh_and_only_now_and_then() -> None:
    play = weighing(EVEN, sizes=LARGE_FIRST)
    assert not play.group.wants_sizes(play.now + 3600)
    play.change(with_settings(play.group.spec, weights=Weights.BYTES))
    assert play.group.wants_sizes(play.now)
    written(play, 1, EVEN, LARGE_FIRST)
    assert not play.group.wants_sizes(play.now)
    assert play.group.wants_sizes(play.now + 30)
    play.change(with_settings(play.group.spec, assignor="Sticky"))
    assert not play.group.wants_sizes(play.now + 30)


def test_an_edit_from_records_to_bytes_and_back_evens_out_the_other_one() -> None:
    play = weighing(EVEN, sizes=LARGE_FIRST)
    play.change(with_settings(play.group.spec, weights=Weights.BYTES))
    written(play, 3, EVEN, LARGE_FIRST)
    play.settle("g-0", "g-1")
    assert sorted(play.counts().values()) == [1, 7]
    play.change(with_settings(play.group.spec, weights=Weights.RECORDS))
    written(play, 3, EVEN, LARGE_FIRST)
    play.settle("g-0", "g-1")
    assert sorted(play.counts().values()) == [4, 4]


def test_where_the_source_shows_no_sizes_records_weigh_and_that_is_told_once() -> None:
    play = weighing((70.0, *EVEN[1:]), weights=Weights.BYTES)
    written(play, 60, (70.0, *EVEN[1:]))
    holder = play.holders()["0"]
    assert holder is not None
    assert play.held_by(holder) == {"0"}
    assert play.reasons().count("ShardSizesUnknown") == 1


def test_and_once_more_when_bytes_are_wanted_again() -> None:
    play = weighing(EVEN, weights=Weights.BYTES)
    written(play, 3, EVEN)
    play.change(with_settings(play.group.spec, weights=Weights.RECORDS))
    written(play, 3, EVEN)
    assert play.reasons().count("ShardSizesUnknown") == 1
    play.change(with_settings(play.group.spec, weights=Weights.BYTES))
    written(play, 3, EVEN)
    assert play.reasons().count("ShardSizesUnknown") == 2


def test_a_shard_whose_size_is_not_known_has_records_of_the_mean_size() -> None:
    play = weighing(EVEN, sizes=LARGE_FIRST, weights=Weights.BYTES)
    seen = play.group._state.rates
    assert seen is not None
    partial = replace(seen, record_sizes={shard("0"): 700.0, shard("1"): 100.0})
    assert partial.weights[shard("2")] == pytest.approx(400 * partial.per_second[shard("2")])


def test_without_any_rate_shards_are_counted() -> None:
    play = Play(spec(2, assignor="Weighted", weights=Weights.BYTES))
    play.discover(topic(8))
    play.settle("g-0", "g-1")
    assert play.counts() == {"g-0": 4, "g-1": 4}
