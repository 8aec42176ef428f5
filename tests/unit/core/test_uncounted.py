"""A source that counts no records: ends are lower bounds, lags are not in records, and resets do not trust them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shardherd.core.group.ages import unread
from shardherd.core.model.errors import InvalidRequestError
from shardherd.core.model.nouns import (
    CheckpointResult,
    GroupIdentity,
    GroupSpec,
    KinesisSource,
    Reset,
    ResetTo,
    ShardId,
    ShardInfo,
)
from shardherd.core.model.positions import MAX_POSITION
from shardherd.core.model.requests import ResetDue
from tests.builders import Play, spec

FIRST, SECOND, THIRD = (ShardId(f"orders/shardId-{number:012d}") for number in range(3))
BEGIN = 49590338271490256608559692538361571095921575989136588800


def kinesis(wanted: int = 1, **settings: Any) -> GroupSpec:
    return replace(spec(wanted, **settings), source=KinesisSource("orders", "eu-central-1"))


def info(shard: ShardId, reached: int = 0, *, closed: bool = False, parents: tuple[ShardId, ...] = ()) -> ShardInfo:
    """A shard that surely reaches so far, or is closed there."""
    return ShardInfo(shard, BEGIN, BEGIN + reached, open=not closed, parents=parents)


def reading(**settings: Any) -> Play:
    play = Play(kinesis(1, **settings))
    play.discover([info(FIRST, 10)])
    play.settle("g-0")
    return play


def test_a_shard_is_over_at_its_end_and_frees_its_children() -> None:
    play = reading(ordered=True)
    children = [info(SECOND, parents=(FIRST,)), info(THIRD, parents=(FIRST,))]
    assert play.checkpoint("g-0", FIRST, BEGIN + 40) is CheckpointResult.OK  # beyond what was seen
    play.discover([info(FIRST, 50, closed=True), *children])
    assert [play.state(shard) for shard in (FIRST, SECOND, THIRD)] == ["ALREADY_ALLOC", "WAIT", "WAIT"]
    play.checkpoint("g-0", FIRST, BEGIN + 50)
    play.settle("g-0")
    assert [play.state(shard) for shard in (FIRST, SECOND, THIRD)] == ["OVER", "ALREADY_ALLOC", "ALREADY_ALLOC"]


def test_a_shard_that_was_read_to_its_end_before_anybody_saw_it_closed_is_over_once_that_is_seen() -> None:
    play = reading(ordered=True)
    play.checkpoint("g-0", FIRST, BEGIN + 50)
    play.discover([info(FIRST, 50, closed=True), info(SECOND, parents=(FIRST,))])
    play.settle("g-0")
    assert [play.state(shard) for shard in (FIRST, SECOND)] == ["OVER", "ALREADY_ALLOC"]


def test_a_parent_that_has_expired_keeps_nobody_waiting() -> None:
    play = Play(kinesis(1, ordered=True))
    play.discover([info(SECOND, parents=(FIRST,))])
    play.settle("g-0")
    assert play.state(SECOND) == "ALREADY_ALLOC"


def test_a_merge_of_shards_of_two_generations_waits_for_both() -> None:
    play = Play(kinesis(1, ordered=True))
    play.discover([info(FIRST, closed=True, reached=5), info(SECOND, 3), info(THIRD, parents=(FIRST, SECOND))])
    play.settle("g-0")
    play.checkpoint("g-0", FIRST, BEGIN + 5)
    assert play.state(THIRD) == "WAIT"
    play.discover([info(FIRST, 5, closed=True), info(SECOND, 7, closed=True), info(THIRD, parents=(FIRST, SECOND))])
    play.checkpoint("g-0", SECOND, BEGIN + 7)
    play.settle("g-0")
    assert play.state(THIRD) == "ALREADY_ALLOC"


def test_the_picture_has_no_lag_in_records_and_no_end_of_an_open_shard() -> None:
    play = reading()
    play.discover([info(FIRST, 10), info(SECOND, 20, closed=True)])
    play.settle("g-0")
    play.checkpoint("g-0", SECOND, BEGIN + 20)
    view = play.view
    assert not view.counts_records
    assert [(row.checkpoint, row.end, row.lag_records) for row in view.shards] == [
        (BEGIN, None, None),
        (BEGIN + 20, BEGIN + 20, None),
    ]
    assert unread(view).positions == {FIRST: BEGIN}


def test_no_position_beyond_56_digits_is_taken() -> None:
    play = reading()
    with pytest.raises(InvalidRequestError, match=r"at most 9{56}"):
        play.checkpoint("g-0", FIRST, MAX_POSITION + 1)


def reset(to: ResetTo, **fields: Any) -> Reset:
    return Reset("r1", to, **fields)


def declared(play: Play, wanted: Reset) -> None:
    paused = replace(play.group.spec.settings, paused=True)
    play.change(replace(play.group.spec, settings=paused, reset=wanted))


@pytest.mark.parametrize(
    ("wanted", "found", "after"),
    [
        (reset(ResetTo.EARLIEST), {}, BEGIN),
        (reset(ResetTo.LATEST), {FIRST: BEGIN + 99}, BEGIN + 99),
        (reset(ResetTo.TIMESTAMP, timestamp=17.5), {FIRST: BEGIN + 77}, BEGIN + 77),
    ],
)
def test_a_reset_goes_beyond_what_was_seen_of_a_shard(wanted: Reset, found: dict[ShardId, int], after: int) -> None:
    play = reading()
    play.checkpoint("g-0", FIRST, BEGIN + 12)
    declared(play, wanted)
    assert play.group.reset_to_ends == ((FIRST,) if wanted.to is ResetTo.LATEST else ())
    play.ask(ResetDue("r1", wanted.timestamp, positions=found))
    report = play.group.reset_report
    assert report is not None
    assert (play.view.shards[0].checkpoint, report.repeated, report.skipped) == (after, 0, 0)
    assert "record" not in report.message


def withheld(play: Play) -> list[tuple[str, str]]:
    return [(condition.reason, condition.message.partition(":")[0]) for condition in play.view.withheld]


def test_a_position_whose_records_are_known_to_be_gone_is_lost_until_its_shard_is_reset_and_its_beginning_never_is() -> None:
    play = reading()
    play.checkpoint("g-0", FIRST, BEGIN + 40)
    gone, other = info(FIRST, 200)._replace(oldest=BEGIN + 90), info(SECOND, 200)._replace(oldest=BEGIN + 90)
    play.discover([gone, other])
    play.settle("g-0")
    assert withheld(play) == [("CheckpointLost", FIRST)]
    assert play.confirmed("g-0").keys() == {SECOND}, "from its beginning what is left is read"
    assert [(row.checkpoint, row.begin) for row in play.view.shards] == [(BEGIN + 40, BEGIN + 90), (BEGIN, BEGIN)]

    declared(play, reset(ResetTo.EARLIEST, shards=(FIRST,)))
    play.ask(ResetDue("r1"))
    play.change(replace(play.group.spec, settings=replace(play.group.spec.settings, paused=False)))
    play.settle("g-0")
    assert withheld(play) == []
    assert {shard: each.position for shard, each in play.confirmed("g-0").items()} == {FIRST: BEGIN, SECOND: BEGIN}


def test_what_its_holder_has_read_beyond_records_that_are_gone_counts() -> None:
    play = reading()
    play.checkpoint("g-0", FIRST, BEGIN + 40)
    play.discover([info(FIRST, 200)._replace(oldest=BEGIN + 90)])
    assert withheld(play) == [("CheckpointLost", FIRST)]
    assert play.checkpoint("g-0", FIRST, BEGIN + 90, epoch=1) is CheckpointResult.OK
    play.settle("g-0")
    assert withheld(play) == []
    assert play.confirmed("g-0")[FIRST].position == BEGIN + 90


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (reset(ResetTo.LATEST), f"where {FIRST} ends could not be looked up"),
        (reset(ResetTo.TIMESTAMP, timestamp=17.5), f"where {FIRST} is at that time could not be looked up"),
    ],
)
def test_a_reset_to_a_place_that_nobody_could_look_up_changes_nothing(wanted: Reset, said: str) -> None:
    play = reading()
    declared(play, wanted)
    play.ask(ResetDue("r1", wanted.timestamp, positions={}))
    report = play.group.reset_report
    assert report is not None
    assert said in report.message
    assert play.view.shards[0].checkpoint == BEGIN


@pytest.mark.parametrize("wanted", [reset(ResetTo.LATEST), reset(ResetTo.TIMESTAMP, timestamp=17.5)])
def test_a_reset_waits_for_the_next_look_where_a_shard_has_appeared_since_ends_were_looked_up(wanted: Reset) -> None:
    play = reading()
    declared(play, wanted)
    play.discover([info(FIRST, 50, closed=True), info(SECOND, parents=(FIRST,)), info(THIRD, parents=(FIRST,))])
    play.ask(ResetDue("r1", wanted.timestamp, positions={FIRST: BEGIN + 50}))
    assert play.group.reset_due == ResetDue("r1", wanted.timestamp)
    play.ask(ResetDue("r1", wanted.timestamp, positions={FIRST: BEGIN + 50, SECOND: BEGIN + 7, THIRD: BEGIN}))
    positions = {shard.shard: shard.checkpoint for shard in play.view.shards}
    assert positions == {FIRST: BEGIN + 50, SECOND: BEGIN + 7, THIRD: BEGIN}


def test_a_plug_in_is_told_no_weights_and_the_balance_holds() -> None:
    play = Play(kinesis(2, assignor="Sticky"))
    play.discover([info(FIRST, 10), info(SECOND, 10**20)])
    play.settle("g-0", "g-1")
    assert sorted(len(play.confirmed(name)) for name in ("g-0", "g-1")) == [1, 1]
    assert GroupIdentity("demo", "clicks", play.group.spec.identity.uid) == play.group.spec.identity


def test_a_stream_that_was_made_anew_is_named_as_one_and_granted_to_nobody() -> None:
    play = Play(kinesis(1))
    play.discover([info(FIRST, 10)._replace(source_id="arn@1")])
    play.settle("g-0")
    play.discover([info(FIRST, 10)._replace(source_id="arn@2")])
    (cause,) = play.view.withheld
    assert cause.reason == "SourceRecreated"
    assert cause.message.startswith(f"{FIRST}: the stream was deleted and made again")
    play.settle("g-0")
    assert play.confirmed("g-0") == {}
