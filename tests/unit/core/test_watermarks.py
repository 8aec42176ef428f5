"""Watermarks: who is too full is given less, gives some away, is paused, and recovers; nothing goes to where it cannot stay.

The figures are those of Elasticsearch's disk watermarks, as the documents describe them.
"""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import Mock

import pytest

from shardherd.core.group import balance
from shardherd.core.model.errors import InvalidRequestError, StaleIncarnationError
from shardherd.core.model.event_reasons import BELOW_LOW, PROGRESS_TIMEOUT, WATERMARK_CROSSED
from shardherd.core.model.gauges import Gauge, GaugeKind, Marks, Stage, Watermarks, described, reached
from shardherd.core.model.naming import cell
from shardherd.core.model.reasons import ABOVE_FLOOD, ABOVE_HIGH, ABOVE_LOW
from tests.builders import Play, moved, restore, shard, spec, started, topic, with_settings

PERCENT = Marks(85, 90, 95)
DISK = Watermarks(disk=PERCENT)
MIB = 1024 * 1024
FREE = Watermarks(disk=Marks(800 * MIB, 600 * MIB, 500 * MIB, free=True))


def disk(percent: float, name: str = "/data") -> Gauge:
    return Gauge(GaugeKind.DISK, name, round(percent * 100), 10_000)


def free(mib: float) -> Gauge:
    """A disk of 1 GB."""
    return Gauge(GaugeKind.DISK, "/tmp/es-data", round((1024 - mib) * MIB), 1024 * MIB)


def full(play: Play, name: str, percent: float) -> None:
    """The consumer's disk is so full from its next heartbeat on."""
    play.consumer(name).gauges = (disk(percent),)


def told(play: Play, **percent: float) -> None:
    """Their disks are so full, and the coordinator hears of one after the other."""
    for name, each in percent.items():
        full(play, name.replace("_", "-"), each)
        play.beat(name.replace("_", "-"))


def stages(play: Play) -> dict[str, str]:
    return {each.consumer: each.stage.value for each in play.view.consumers}


def paused(play: Play, name: str) -> bool:
    reply = play.consumer(name).reply
    assert reply is not None
    return reply.paused


def all_of(count: int) -> list[str]:
    return [f"g-{number}" for number in range(count)]


# The stages.


@pytest.mark.parametrize(
    ("percent", "stage"),
    [(0, "below"), (85, "below"), (85.01, "low"), (90, "low"), (90.01, "high"), (95, "high"), (95.01, "flood"), (100, "flood")],
)
def test_a_stage_begins_above_its_percentage(percent: float, stage: str) -> None:
    assert reached(DISK, (disk(percent),))[0] == stage


def test_fullest_disk_decides() -> None:
    fuller = disk(86, "/second")
    assert reached(DISK, (disk(84),)) == (Stage.BELOW, None)
    assert reached(DISK, (disk(84), fuller, disk(10, "/third"))) == (Stage.LOW, fuller)


def test_what_uses_more_than_there_is_is_full() -> None:
    assert reached(FREE, (Gauge(GaugeKind.DISK, "/data", 2_000 * MIB, 1_024 * MIB),))[0] is Stage.FLOOD


def test_a_gauge_of_a_kind_without_watermarks_does_not_count() -> None:
    memory = Gauge(GaugeKind.MEMORY, "memory", 99, 100)
    assert reached(DISK, (memory,)) == (Stage.BELOW, None)
    assert reached(Watermarks(memory=PERCENT), (memory, disk(50))) == (Stage.FLOOD, memory)
    own = Gauge(GaugeKind.OWN, "queue", 93, 100)
    assert reached(Watermarks(own=PERCENT), (memory, own)) == (Stage.HIGH, own)


@pytest.mark.parametrize(
    ("marks", "gauge", "text"),
    [
        (DISK, disk(50), "disk /data 50.0% full"),
        (DISK, disk(86), "disk /data 86.0% full, more than 85%"),
        (DISK, disk(93), "disk /data 93.0% full, more than 90%"),
        (DISK, disk(99), "disk /data 99.0% full, more than 95%"),
        (FREE, free(555.7), "disk /tmp/es-data 555.7Mi free, less than 600Mi"),
        (
            Watermarks(disk=Marks(3, 2, 1, free=True)),
            Gauge(GaugeKind.DISK, "/d", 9, 9),
            "disk /d 0 bytes free, less than 1 bytes",
        ),
        (Watermarks(own=PERCENT), Gauge(GaugeKind.OWN, "queue", 9, 10), "queue 90.0% full, more than 85%"),
        (DISK, Gauge(GaugeKind.MEMORY, "memory", 9, 10), "memory 90.0% full"),
    ],
)
def test_a_message_names_what_is_full_and_the_limit(marks: Watermarks, gauge: Gauge, text: str) -> None:
    assert described(marks, gauge) == text


def test_a_group_without_watermarks_looks_at_no_gauge() -> None:
    play = started(4, 2)
    full(play, "g-0", 99)
    before = play.holders()
    play.wait(120, all_of(2))
    assert (play.holders(), stages(play), paused(play, "g-0")) == (before, {"g-0": "below", "g-1": "below"}, False)


def test_a_consumer_that_reports_nothing_is_below() -> None:
    play = started(4, 2, watermarks=DISK)
    assert stages(play) == {"g-0": "below", "g-1": "below"}


# Above low.


def test_who_is_above_low_keeps_what_it_has_and_is_given_nothing_new() -> None:
    play = started(6, 3, watermarks=DISK)
    before = play.holders()
    full(play, "g-0", 86)
    play.settle(*all_of(3))
    play.discover(topic(12))
    play.settle(*all_of(3))
    assert play.counts() == {"g-0": 2, "g-1": 5, "g-2": 5}
    assert moved(before, play.holders()) == set()
    assert play.events_of(ABOVE_LOW) == 1


def test_who_is_above_low_gives_its_share_to_one_that_joins() -> None:
    play = started(8, 2, watermarks=DISK)
    full(play, "g-0", 86)
    play.settle(*all_of(3))
    assert play.counts() == {"g-0": 3, "g-1": 3, "g-2": 2}


def test_a_first_assignment_goes_round_who_is_above_low() -> None:
    play = Play(spec(3, watermarks=DISK))
    play.discover(topic(6))
    full(play, "g-1", 88)
    play.wait(20, all_of(3))
    assert play.counts() == {"g-0": 3, "g-1": 0, "g-2": 3}


def test_a_transfer_is_redirected_when_who_was_to_take_it_is_too_full_by_then() -> None:
    play = started(4, 1, watermarks=DISK)
    play.consumer("g-0").busy = set(play.consumer("g-0").held)
    play.settle("g-0", "g-1")
    assert [play.shard(str(number)).next_consumer for number in (2, 3)] == ["g-1", "g-1"]
    full(play, "g-1", 86)
    play.settle(*all_of(2))
    assert play.states() == dict.fromkeys("0123", "ALREADY_ALLOC"), (
        "called off: the holder is the only one that is not too full"
    )


def test_with_everybody_above_low_shards_that_nobody_holds_are_read_all_the_same() -> None:
    """As an index's new primary is put onto a node above low: without it nothing could be written."""
    play = started(6, 3, watermarks=DISK)
    for name in all_of(3):
        full(play, name, 88)
    play.settle(*all_of(3))
    play.die("g-0")
    play.settle("g-1", "g-2")
    assert play.counts() == {"g-1": 3, "g-2": 3}


def test_with_everybody_above_low_nothing_moves_for_balance() -> None:
    play = started(6, 2, watermarks=DISK)
    for name in all_of(3):
        full(play, name, 88)
    play.settle(*all_of(3))
    assert play.counts() == {"g-0": 3, "g-1": 3, "g-2": 0}


def test_with_everybody_above_low_a_consumer_that_drains_gives_its_shards_to_the_others() -> None:
    play = started(4, 2, watermarks=DISK)
    for name in all_of(2):
        full(play, name, 88)
    play.settle(*all_of(2))
    play.change(spec(2, leaving=["g-0"], watermarks=DISK))
    play.settle(*all_of(2))
    assert play.counts() == {"g-0": 0, "g-1": 4}


def test_who_comes_below_low_while_all_others_are_above_is_given_its_share() -> None:
    play = started(6, 2, watermarks=DISK)
    for name in all_of(2):
        full(play, name, 88)
    play.settle(*all_of(2))
    play.settle(*all_of(3))
    assert play.counts() == {"g-0": 2, "g-1": 2, "g-2": 2}


def test_it_is_given_shards_again_once_it_was_below_low_for_30_seconds() -> None:
    play = started(6, 2, watermarks=DISK)
    full(play, "g-0", 86)
    play.settle(*all_of(2))
    play.discover(topic(10))
    play.settle(*all_of(2))
    assert play.counts() == {"g-0": 3, "g-1": 7}
    full(play, "g-0", 84)
    play.wait(27, all_of(2))
    assert (play.counts(), stages(play)["g-0"]) == ({"g-0": 3, "g-1": 7}, "low")
    play.wait(9, all_of(2))
    assert (play.counts(), stages(play)["g-0"]) == ({"g-0": 5, "g-1": 5}, "below")
    assert play.events_of(BELOW_LOW) == 1


def test_who_swings_around_low_is_given_nothing_meanwhile() -> None:
    play = started(6, 2, watermarks=DISK)
    for _ in range(10):
        full(play, "g-0", 86)
        play.wait(6, all_of(2))
        full(play, "g-0", 84)
        play.wait(6, all_of(2))
    assert (play.events_of(ABOVE_LOW), play.events_of(BELOW_LOW)) == (1, 0)


# Above high.


def test_who_is_above_high_gives_a_tenth_away_every_30_seconds_as_long_as_it_is() -> None:
    play = started(40, 2, watermarks=DISK)
    full(play, "g-0", 91)
    seen = []
    for _ in range(5):
        play.wait(30, all_of(2))
        seen.append(play.counts()["g-0"])
    assert seen == [18, 17, 16, 15, 14]
    full(play, "g-0", 89)
    play.wait(90, all_of(2))
    assert play.counts() == {"g-0": 14, "g-1": 26}
    assert play.events_of(ABOVE_HIGH) == 1


def test_where_nothing_of_it_can_be_moved_that_is_not_tried_with_every_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    play = started(4, 2, watermarks=DISK)
    play.wait(6, all_of(2))
    for name in play.confirmed("g-0"):
        play.checkpoint("g-0", name, 40)
        del play.log[shard(name)]
    copies = {shard(name): 41 for name in play.confirmed("g-0")}
    play.group = restore(play.group.ownership, dict(play.log), play.group.spec, play.now, copies=copies)
    play.discover(topic(4))
    full(play, "g-0", 91)
    play.settle("g-0", "g-1")
    asked = Mock(wraps=balance.problem)
    monkeypatch.setattr(balance, "problem", asked)
    play.wait(90, all_of(2))
    assert (play.counts(), asked.call_count) == ({"g-0": 2, "g-1": 2}, 3)


def test_what_is_given_away_goes_to_consumers_below_low_only() -> None:
    play = started(9, 3, watermarks=DISK)
    told(play, g_1=86, g_0=91)
    play.wait(20, all_of(3))
    assert play.counts() == {"g-0": 2, "g-1": 3, "g-2": 4}
    play.wait(20, all_of(3))
    assert play.counts() == {"g-0": 1, "g-1": 3, "g-2": 5}


def test_nothing_is_given_away_while_nobody_is_below_low() -> None:
    play = started(6, 3, watermarks=DISK)
    told(play, g_1=86, g_2=89, g_0=91)
    before = play.holders()
    play.wait(120, all_of(3))
    assert moved(before, play.holders()) == set()
    assert play.view.rebalances < 6, "and it is not tried again with every heartbeat"


def test_the_next_waits_until_the_one_before_was_given_up() -> None:
    play = started(6, 2, watermarks=DISK)
    play.consumer("g-0").busy = set(play.consumer("g-0").held)
    full(play, "g-0", 91)
    for each in range(4):
        play.consumer("g-0").progress = each
        play.wait(30, all_of(2))
    assert list(play.states().values()).count("TRANSFER") == 1


def test_shards_of_one_topic_are_not_left_together_on_who_gives_away() -> None:
    play = Play(spec(2, watermarks=DISK))
    infos = (*topic(6), *topic(2, name="u"))
    play.discover(infos)
    play.settle(*all_of(2))
    full(play, "g-0", 91)
    for _ in range(2):
        play.wait(30, all_of(2))
    left = [row.shard for row in play.view.shards if row.holder == "g-0"]
    assert sorted(name.split("/")[0] for name in left) == ["t", "u"], "of the topic of which it has most"


def test_nothing_is_given_away_while_rebalancing_is_paused() -> None:
    play = started(6, 2, watermarks=DISK)
    play.change(replace(play.group.spec, rebalance_paused=True))
    full(play, "g-0", 91)
    play.wait(90, all_of(2))
    assert play.counts() == {"g-0": 3, "g-1": 3}
    play.change(replace(play.group.spec, rebalance_paused=False))
    play.wait(9, all_of(2))
    assert play.counts() == {"g-0": 2, "g-1": 4}


@pytest.mark.parametrize("assignor", ["Sticky", "Range", "RoundRobin", "Weighted"])
def test_every_assignor_gives_away_and_takes_back(assignor: str) -> None:
    play = started(6, 2, watermarks=DISK, assignor=assignor)
    play.wait(60, all_of(2))
    full(play, "g-0", 91)
    play.wait(40, all_of(2))
    assert play.counts() == {"g-0": 1, "g-1": 5}
    full(play, "g-0", 10)
    play.wait(120, all_of(2))
    play.discover(topic(6))
    play.wait(10, all_of(2))
    assert sum(play.counts().values()) == 6
    if assignor != "Weighted":
        assert play.counts() == {"g-0": 3, "g-1": 3}


def test_a_dead_consumers_shards_wait_while_all_others_are_above_high() -> None:
    play = started(6, 2, watermarks=DISK)
    full(play, "g-1", 91)
    play.settle(*all_of(2))
    play.die("g-0")
    play.wait(60, ["g-1"])
    assert list(play.holders().values()).count(None) == 4
    full(play, "g-1", 89)
    play.settle("g-1")
    assert play.counts() == {"g-1": 6}


# Above flood.


def test_who_is_above_flood_is_paused_and_reads_on_below_high() -> None:
    play = started(6, 2, watermarks=DISK)
    full(play, "g-1", 88)
    full(play, "g-0", 96)
    play.settle(*all_of(2))
    assert (paused(play, "g-0"), paused(play, "g-1")) == (True, False)
    full(play, "g-0", 94)
    play.settle(*all_of(2))
    assert (paused(play, "g-0"), stages(play)["g-0"]) == (True, "flood")
    full(play, "g-0", 89)
    play.settle(*all_of(2))
    assert (paused(play, "g-0"), stages(play)["g-0"]) == (False, "low")
    assert [play.events_of(reason) for reason in (ABOVE_FLOOD, ABOVE_HIGH, ABOVE_LOW)] == [1, 0, 2]


def test_a_parked_heartbeat_need_not_be_awaited_to_be_paused() -> None:
    play = started(6, 2, watermarks=DISK)
    full(play, "g-0", 96)
    heartbeat = play.consumer("g-0").heartbeat()
    assert "g-0" in play.ask(heartbeat).woken
    assert not play.group.may_park(heartbeat)
    assert play.group.confirmed(heartbeat).paused
    play.consumer("g-0").apply(play.group.confirmed(heartbeat))
    full(play, "g-0", 50)
    heartbeat = play.consumer("g-0").heartbeat()
    assert "g-0" in play.ask(heartbeat).woken
    assert not play.group.confirmed(heartbeat).paused


def test_who_is_paused_gives_its_shards_away_as_who_is_above_high() -> None:
    play = started(6, 2, watermarks=DISK)
    full(play, "g-0", 96)
    for _ in range(5):
        play.wait(30, all_of(2))
    assert play.counts() == {"g-0": 0, "g-1": 6}


def test_who_is_paused_is_not_taken_for_one_that_hangs_and_has_its_time_again_when_it_reads_on() -> None:
    play = started(4, 2, watermarks=DISK)
    full(play, "g-1", 88)
    full(play, "g-0", 96)
    play.discover(topic(4, end=200))
    play.consumer("g-1").progress = 1
    for each in range(12):
        play.consumer("g-1").progress = each
        play.wait(60, all_of(2))
    assert play.events_of(PROGRESS_TIMEOUT) == 0
    full(play, "g-0", 88)
    for each in range(12, 16):
        play.consumer("g-1").progress = each
        play.wait(60, all_of(2))
    assert play.events_of(PROGRESS_TIMEOUT) == 0
    with pytest.raises(StaleIncarnationError):
        play.wait(90, ["g-0"])
    assert play.events_of(PROGRESS_TIMEOUT) == 1, "it does nothing, and has had its whole time"


def test_watermarks_that_are_taken_away_let_everybody_go_on() -> None:
    play = started(6, 2, watermarks=DISK)
    full(play, "g-0", 99)
    play.settle(*all_of(2))
    play.change(with_settings(play.group.spec, watermarks=Watermarks()))
    play.wait(45, all_of(2))
    assert (paused(play, "g-0"), play.counts()) == (False, {"g-0": 3, "g-1": 3})


def test_another_coordinator_finds_out_anew_who_is_too_full() -> None:
    play = started(6, 2, watermarks=DISK)
    told(play, g_1=86, g_0=96)
    play.restart()
    play.discover(topic(6))
    play.settle(*all_of(2))
    assert (stages(play), paused(play, "g-0")) == ({"g-0": "flood", "g-1": "low"}, True)
    assert play.counts() == {"g-0": 3, "g-1": 3}


def test_a_new_run_of_a_name_is_judged_by_what_it_reports_itself() -> None:
    play = started(6, 2, watermarks=DISK)
    full(play, "g-0", 96)
    play.settle(*all_of(2))
    play.run("g-0", start=2)
    play.settle(*all_of(2))
    assert (stages(play)["g-0"], paused(play, "g-0")) == ("below", False)


# Cells and ordered groups.


def test_a_cell_is_given_away_whole() -> None:
    play = started(12, 2, watermarks=DISK, cells=6, ordered=True)
    full(play, "g-0", 91)
    play.wait(20, all_of(2))
    assert play.counts() == {"g-0": 4, "g-1": 8}
    holders: dict[int, set[str | None]] = {}
    for row in play.view.shards:
        holders.setdefault(cell(row.shard, 6), set()).add(row.holder)
    assert all(len(each) == 1 for each in holders.values())


@pytest.mark.parametrize(("percent", "holder"), [(86, "g-0"), (91, None)])
def test_a_new_shard_of_a_cell_is_given_to_who_has_the_cell_up_to_high(percent: float, holder: str | None) -> None:
    play = started(2, 2, watermarks=DISK, cells=2)
    assert play.holders()["0"] == "g-0"
    told(play, g_1=86, g_0=percent)
    play.discover(topic(4))
    play.settle(*all_of(2))
    assert play.holders()["2"] == holder


def test_a_new_shard_of_a_cell_follows_the_cell_though_others_are_below_low() -> None:
    play = started(2, 2, watermarks=DISK, cells=2)
    told(play, g_0=86)
    play.discover(topic(4))
    play.settle(*all_of(2))
    assert play.holders() == {"0": "g-0", "1": "g-1", "2": "g-0", "3": "g-1"}


# The document's example.


def test_twelve_units_two_nodes_three_nodes_two_nodes() -> None:
    """6 primaries and 6 replicas are spread by their number alone, while all have room."""
    play = started(12, 2, watermarks=DISK)
    assert play.counts() == {"g-0": 6, "g-1": 6}
    two = play.holders()
    play.settle(*all_of(3))
    three = play.holders()
    assert (play.counts(), len(moved(two, three))) == ({"g-0": 4, "g-1": 4, "g-2": 4}, 4)
    play.leave("g-2")
    play.settle(*all_of(2))
    assert play.counts() == {"g-0": 6, "g-1": 6}
    assert moved({name: holder for name, holder in three.items() if holder != "g-2"}, play.holders()) == set()


def test_watermarks_787_555_488() -> None:
    """Two nodes of 1 GB; low, high and flood at 800, 600 and 500 mb free.

    A primary is a shard that nobody holds yet, a replica one that moves although somebody reads it.
    """
    play = started(2, 2, watermarks=FREE)
    both = all_of(2)

    def at(mib: float) -> None:
        for name in both:
            play.consumer(name).gauges = (free(mib),)
        play.settle(*both)

    at(787.8)
    assert stages(play) == {"g-0": "low", "g-1": "low"}
    play.discover(topic(3))
    play.settle(*both)
    assert list(play.holders().values()).count(None) == 0, "primary given"
    before = play.holders()
    play.consumer("g-2").gauges = (free(787.8),)
    play.settle(*all_of(3))
    assert moved(before, play.holders()) == set(), "replica not"
    play.leave("g-2")
    at(555.7)
    assert stages(play) == {"g-0": "high", "g-1": "high"}
    play.discover(topic(4))
    play.wait(60, both)
    assert play.holders() == before | {"3": None}, "neither given, 0 relocated"
    assert not paused(play, "g-0"), "what is there is read on"
    at(488.6)
    assert stages(play) == {"g-0": "flood", "g-1": "flood"}
    assert (paused(play, "g-0"), paused(play, "g-1")) == (True, True)
    messages = [event.message for event in play.events if event.reason == ABOVE_FLOOD]
    assert messages[0] == (
        "g-0 is above its flood watermark: it is paused, and gives its shards away (disk /tmp/es-data 488.6Mi free, less than"
        " 500Mi)"
    )
    at(820)
    play.wait(40, both)
    assert (stages(play), paused(play, "g-0")) == ({"g-0": "below", "g-1": "below"}, False)
    assert play.counts() == {"g-0": 2, "g-1": 2}


def test_messages_are_warnings_from_high_on_and_name_who_what_and_the_limit() -> None:
    play = started(4, 2, watermarks=DISK)
    for percent in (86, 91, 96, 92, 50):
        full(play, "g-0", percent)
        play.beat("g-0")
    full(play, "g-0", 50)
    play.wait(36, all_of(2))
    told = [
        (event.reason, event.warning, event.message) for event in play.events if event.reason.endswith(("Low", "High", "Flood"))
    ]
    text = {
        "AboveLow": "others are given shards before it",
        "AboveHigh": "it is given no shards, and gives some away",
        "AboveFlood": "it is paused, and gives its shards away",
    }
    assert told == [
        ("AboveLow", False, f"g-0 is above its low watermark: {text['AboveLow']} (disk /data 86.0% full, more than 85%)"),
        ("AboveHigh", True, f"g-0 is above its high watermark: {text['AboveHigh']} (disk /data 91.0% full, more than 90%)"),
        ("AboveFlood", True, f"g-0 is above its flood watermark: {text['AboveFlood']} (disk /data 96.0% full, more than 95%)"),
        ("AboveLow", False, f"g-0 is above its low watermark: {text['AboveLow']}"),
        ("BelowLow", False, "g-0 is below its low watermark again, and is given shards as the others are"),
    ]
    assert play.view.last_rebalance is not None
    assert play.view.last_rebalance.reason == WATERMARK_CROSSED


def test_consumers_that_all_begin_above_high_are_given_nothing_until_one_has_room() -> None:
    play = Play(spec(2, watermarks=DISK))
    play.discover(topic(4))
    told(play, g_0=91, g_1=96)
    play.wait(60, all_of(2))
    assert play.counts() == {"g-0": 0, "g-1": 0}
    told(play, g_0=88)
    play.wait(20, all_of(2))
    assert play.counts() == {"g-0": 4, "g-1": 0}


# What cannot be.


def test_too_many_gauges_are_refused() -> None:
    play = started(2, 1, watermarks=DISK)
    play.consumer("g-0").gauges = tuple(disk(1, f"/{number}") for number in range(17))
    with pytest.raises(InvalidRequestError, match="heartbeat of g-0 has 17 gauges; send at most 16, the fullest"):
        play.beat("g-0")


def test_a_gauge_of_nothing_is_refused() -> None:
    play = started(2, 1, watermarks=DISK)
    play.consumer("g-0").gauges = (Gauge(GaugeKind.DISK, "/proc", 0, 0),)
    with pytest.raises(InvalidRequestError, match="heartbeat of g-0 has the disk gauge /proc with total 0; leave it out"):
        play.beat("g-0")


def test_a_gauge_that_is_there_twice_is_refused() -> None:
    play = started(2, 1, watermarks=DISK)
    play.consumer("g-0").gauges = (disk(1), disk(2, "/second"), disk(3))
    with pytest.raises(InvalidRequestError, match="heartbeat of g-0 has the disk gauge /data twice; send each once"):
        play.beat("g-0")
