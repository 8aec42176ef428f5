"""A group that reads its shards up to a time only: where they are closed, although the source has more, and that they end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec import UNSET

from shardherd.core.consumer.holdings import Holdings
from shardherd.core.consumer.tracker import Tracker
from shardherd.core.group.ownership import decode, encode
from shardherd.core.model.event_reasons import SHARD_OVER
from shardherd.core.model.nouns import ConfirmedShard, ConsumerId, GroupSpec, HeartbeatReply, ShardId, ShardInfo
from shardherd.core.model.requests import ForceCheckpoint
from tests.builders import Play, info, shard, spec

A = ShardId("t/0")


def ending(wanted: int = 1, **settings: Any) -> GroupSpec:
    """The spec of such a group."""
    made = spec(wanted, **settings)
    return replace(made, source=replace(made.kafka, ending_timestamp=1_700_000_000.0))


def reading() -> Play:
    """A group with two shards that are closed at 100 and 50, and are read from 0 on."""
    play = Play(ending())
    play.discover([info("0", open=False), info("1", end=50, open=False)])
    play.settle("g-0")
    return play


def ends(play: Play) -> dict[str, object]:
    """What the last reply says of where shards end."""
    return {name: each.end for name, each in play.confirmed("g-0").items()}


def test_a_reply_says_up_to_where_each_shard_is_to_be_read() -> None:
    assert ends(reading()) == {"0": 100, "1": 50}


def test_of_a_group_without_an_end_it_says_nothing_also_where_a_shard_is_closed() -> None:
    play = Play(spec(1))
    play.discover([info("0", open=False), info("1")])
    play.settle("g-0")
    assert ends(play) == {"0": UNSET, "1": UNSET}


def test_a_coordinator_that_has_not_looked_lets_read_no_further_than_what_is_read() -> None:
    play = reading()
    play.checkpoint("g-0", "0", 40)
    play.restart()
    play.beat("g-0")
    assert ends(play) == {"0": 40, "1": 0}
    play.discover([info("0", open=False), info("1", end=50, open=False)])
    play.beat("g-0")
    assert ends(play) == {"0": 100, "1": 50}


def test_what_is_read_to_its_end_is_over_and_read_once_more_if_it_is_set_back() -> None:
    """Rows 8 and 7."""
    play = reading()
    play.checkpoint("g-0", "1", 50)
    assert (play.states(), play.events_of(SHARD_OVER)) == ({"0": "ALREADY_ALLOC", "1": "OVER"}, 1)
    play.ask(ForceCheckpoint(shard("1"), 20))
    play.settle("g-0")
    assert (play.states(), ends(play)) == ({"0": "ALREADY_ALLOC", "1": "ALREADY_ALLOC"}, {"0": 100, "1": 50})
    play.checkpoint("g-0", "1", 50)
    assert play.state("1") == "OVER"


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize(
    "now",
    [
        pytest.param(info("1", begin=80, end=80, open=False), id="retention has passed it"),
        pytest.param(info("1", end=60, open=False), id="records came late, or the one at it is compacted away"),
        pytest.param(info("1", end=30, open=False), id="its log was cut off"),
    ],
)
def test_where_a_shard_ends_is_what_was_said_first(now: ShardInfo, restarts: bool) -> None:
    play = reading()
    play.checkpoint("g-0", "1", 50)
    if restarts:
        play.restart()
        play.beat("g-0")
    play.discover([info("0", open=False), now])
    play.settle("g-0")
    over = play.shard("1")
    assert (over.state, over.end, over.lag_records, play.view.withheld) == ("OVER", 50, 0, ())
    assert play.shard("0").state == "ALREADY_ALLOC"


def test_where_shards_end_is_stored() -> None:
    play = reading()
    stored = decode(encode(play.group.ownership))
    assert {name: row.end for name, row in stored.shards.items()} == {A: ("", 100), shard("1"): ("", 50)}


def test_a_shard_of_a_topic_that_was_made_anew_ends_where_that_one_does() -> None:
    play = Play(ending())
    play.discover([info("0", open=False, source_id="one")])
    play.settle("g-0")
    play.discover([info("0", end=7, open=False, source_id="two")])
    assert play.shard("0").end == 7


def reply(end: int | None, position: int = 0) -> HeartbeatReply:
    return HeartbeatReply(1, (ConfirmedShard(A, 1, 1, position, end=UNSET if end is None else end),))


@pytest.mark.parametrize(("said", "known"), [([None], None), ([0, 100], 100), ([100, None], 100), ([100, 40], 100)])
def test_a_consumer_goes_by_the_latest_end_that_it_was_told(said: list[int | None], known: int | None) -> None:
    holdings, tracker = Holdings(ConsumerId("g-0")), Tracker()
    for end in said:
        holdings.confirm(reply(end))
        tracker.confirm(reply(end))
    grant = holdings.take()
    assert grant is not None
    assert (grant.end, tracker.ends()) == (known, {} if known is None else {A: known})


def test_a_new_shard_of_an_ordered_group_whose_topic_grew_waits_for_the_end_of_its_parent() -> None:
    """Row 2 of a group whose parents end before their cutover offsets, which are where their logs end, are reached."""
    play = Play(ending(ordered=True, growth_settle=10.0))
    play.discover([info("0", open=False)])
    play.settle("g-0")
    play.discover([info("0", open=False), info("1", end=0, open=False)])
    assert play.states() == {"0": "ALREADY_ALLOC", "1": "WAIT"}
    play.wait(10.0, ("g-0",))
    (due,) = play.group.cutovers_due(play.now)
    play.ask(replace(due, ends={A: 900}))
    assert play.states() == {"0": "ALREADY_ALLOC", "1": "WAIT"}
    play.checkpoint("g-0", "0", 100)
    assert play.states() == {"0": "OVER", "1": "OVER"}
