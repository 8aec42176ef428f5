"""The ledger of a consumer that runs cells: what is started, stopped, mirrored, given up and lost."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import UNSET

from shardherd.core.consumer.cells import Begin, CellLedger, CellStart, Pauses, Positions, lost
from shardherd.core.consumer.tracker import ReadRange
from shardherd.core.model.nouns import (
    CheckpointOutcome,
    CheckpointReply,
    CheckpointResult,
    ConfirmedShard,
    HeartbeatReply,
    HeldShard,
    ShardCheckpoint,
    ShardId,
)

A0, A1, A2, A3 = (ShardId(f"clicks/{number}") for number in range(4))
B0 = ShardId("views/0")


class Story:
    """A ledger of a group of two cells, and a coordinator that confirms what it is told."""

    def __init__(self) -> None:
        self.ledger = CellLedger()
        self.revision = 0

    def confirm(
        self,
        *shards: tuple[ShardId, int, int, int],
        generation: int = 0,
        paused: bool = False,
        topic_ids: Mapping[ShardId, str] | None = None,
    ) -> None:
        """Shards as (name, epoch, position, start)."""
        self.revision += 1
        ids = topic_ids or {}
        confirmed = tuple(
            ConfirmedShard(name, epoch, epoch, at, start=start, source_id=ids.get(name, UNSET))
            for name, epoch, at, start in shards
        )
        self.ledger.confirm(HeartbeatReply(self.revision, confirmed, cells=2, state_generation=generation, paused=paused))

    def made_durable(self) -> None:
        pending = self.ledger.uncommitted()
        outcomes = tuple(CheckpointOutcome(each.shard, CheckpointResult.OK, each.offset, each.owner_epoch) for each in pending)
        self.ledger.acknowledge(pending, CheckpointReply(outcomes))

    def lost(self) -> list[int]:
        return list(self.ledger.lost)

    def held(self) -> tuple[tuple[str, int], ...]:
        return tuple((each.shard, each.owner_epoch) for each in self.ledger.held())


def test_the_shards_of_a_cell_over_all_topics_are_started_as_one_query() -> None:
    story = Story()
    story.confirm((A0, 1, 5, 5), (A2, 2, 7, 7), (B0, 3, 0, 0), (A1, 4, 9, 3))
    assert story.ledger.to_start() == (
        CellStart(0, 0, {A0: Begin(5, 5), A2: Begin(7, 7), B0: Begin(0, 0)}),
        CellStart(1, 0, {A1: Begin(9, 3)}),
    )
    story.ledger.began(0)
    assert [each.cell for each in story.ledger.to_start()] == [1]
    assert story.ledger.to_stop() == ()


def test_a_revoked_cell_is_named_until_its_query_has_ended_and_is_mirrored_and_then_given_up_at_once() -> None:
    story = Story()
    story.confirm((A0, 1, 0, 0), (A2, 2, 0, 0))
    story.ledger.began(0)
    story.ledger.finished(0, {A0: 10})
    story.confirm()
    assert story.ledger.to_stop() == (0,)
    story.made_durable()
    assert story.ledger.release() == ()
    assert story.held() == ((A0, 1), (A2, 2))

    story.ledger.ended(0, {A0: 12, A2: 4})
    assert story.ledger.uncommitted() == (ShardCheckpoint(A0, 1, 12), ShardCheckpoint(A2, 2, 4))
    assert story.ledger.release() == (), "what is finished is mirrored first"
    story.made_durable()
    assert story.ledger.release() == (A0, A2)
    assert story.held() == ()


def test_no_shard_of_a_cell_is_given_up_before_another_that_is_not_mirrored() -> None:
    story = Story()
    story.confirm((A0, 1, 0, 0), (A2, 2, 0, 0), (A1, 3, 0, 0))
    story.ledger.began(0)
    story.ledger.ended(0, {A0: 3})
    story.confirm()
    assert story.ledger.release() == (A1,)
    assert story.held() == ((A0, 1), (A2, 2))


def test_a_cell_that_loses_one_shard_is_stopped_and_starts_again_with_the_rest() -> None:
    story = Story()
    story.confirm((A0, 1, 0, 0), (A2, 2, 0, 0))
    story.ledger.began(0)
    story.confirm((A2, 2, 0, 0))
    assert story.ledger.readable(0) == {}
    assert story.ledger.to_stop() == (0,)
    story.ledger.ended(0, {})
    assert story.ledger.release() == (A0,)
    assert story.ledger.to_start() == (CellStart(0, 0, {A2: Begin(0, 0)}),)


def test_a_shard_under_a_new_epoch_stops_its_cell_and_what_was_read_under_the_old_one_is_not_mirrored() -> None:
    story = Story()
    story.confirm((A0, 1, 0, 0))
    story.ledger.began(0)
    story.confirm((A0, 5, 0, 0))
    assert story.ledger.to_stop() == (0,)
    assert story.held() == ((A0, 1), (A0, 5)), "the old one is still read"
    story.ledger.ended(0, {A0: 10})
    assert story.ledger.uncommitted() == ()
    assert story.held() == ((A0, 5),)


def test_a_fenced_mirror_stops_its_cell_and_no_other() -> None:
    story = Story()
    story.confirm((A0, 1, 0, 0), (A1, 2, 0, 0))
    for cell, shard in ((0, A0), (1, A1)):
        story.ledger.began(cell)
        story.ledger.finished(cell, {shard: 4})
    sent = story.ledger.uncommitted()
    outcomes = (CheckpointOutcome(A0, CheckpointResult.FENCED, 0, 1), CheckpointOutcome(A1, CheckpointResult.OK, 4, 2))
    assert story.ledger.acknowledge(sent, CheckpointReply(outcomes)) == (A0,)
    assert story.ledger.to_stop() == (0,)
    assert story.held() == ((A0, 1), (A1, 2))
    story.ledger.ended(0, {A0: 4})
    assert story.ledger.held() == (HeldShard(A1, 2),)


def test_a_shard_that_joins_is_read_by_the_query_that_runs() -> None:
    story = Story()
    story.confirm((A0, 1, 0, 0))
    story.ledger.began(0)
    story.confirm((A0, 1, 0, 0), (A2, 7, 0, 0))
    assert story.ledger.to_stop() == ()
    assert story.ledger.readable(0) == {A0: 1, A2: 7}
    story.ledger.finished(0, {A2: 3})
    assert story.ledger.uncommitted() == (ShardCheckpoint(A2, 7, 3),)


def test_a_paused_group_hands_out_and_starts_nothing_and_stops_nothing() -> None:
    story = Story()
    story.confirm((A0, 1, 0, 0), (A1, 2, 0, 0))
    story.ledger.began(0)
    story.confirm((A0, 1, 0, 0), (A1, 2, 0, 0), paused=True)
    assert (story.ledger.to_start(), story.ledger.to_stop(), story.ledger.readable(0)) == ((), (), {})


def test_a_new_generation_stops_what_runs_and_forgets_what_was_lost() -> None:
    story = Story()
    story.confirm((A0, 1, 9, 0), (A1, 2, 0, 0))
    story.ledger.began(1)
    story.ledger.lose(0)
    assert story.lost() == [0]
    assert story.ledger.to_start() == ()
    story.confirm(generation=1)
    assert story.lost() == []
    assert story.ledger.to_stop() == (1,)
    story.ledger.ended(1, {})
    assert story.ledger.release() == (A0, A1)
    story.confirm((A0, 3, 9, 9), generation=1)
    assert story.ledger.to_start() == (CellStart(0, 1, {A0: Begin(9, 9)}),)


def test_a_lost_cell_that_runs_is_stopped_and_reported_until_the_coordinator_has_taken_it_back() -> None:
    story = Story()
    story.confirm((A0, 1, 0, 0))
    story.ledger.began(0)
    story.ledger.lose(0)
    assert story.ledger.to_stop() == (0,)
    story.confirm((A0, 1, 0, 0))
    assert story.lost() == [0]
    story.ledger.ended(0, {})
    assert story.ledger.to_start() == ()
    story.confirm()
    assert (story.lost(), story.ledger.release()) == ([], (A0,))


def test_what_is_in_flight_is_so_until_the_log_has_it_or_its_reader_asks_for_more() -> None:
    story = Story()
    story.confirm((A0, 1, 0, 0), (B0, 2, 0, 0))
    story.ledger.began(0)
    story.ledger.hand_out(0, 1, {A0: ReadRange(0, 5, 1)})
    story.ledger.hand_out(0, 2, {B0: ReadRange(0, 7, 2)})
    assert story.ledger.in_flight == {A0: ReadRange(0, 5, 1), B0: ReadRange(0, 7, 2)}
    assert story.ledger.finished(0, {A0: 5, B0: 3}) == {A0: ReadRange(0, 5, 1)}
    story.ledger.hand_out(0, 2, {})
    assert story.ledger.in_flight == {}


def test_state_is_lost_where_the_log_does_not_reach_what_has_been_read() -> None:
    assert lost(None, {A0: Begin(5, 5)}) == ""
    assert lost({A0: 9}, {A0: Begin(9, 0), A2: Begin(3, 3)}) == ""
    assert lost({A0: 12}, {A0: Begin(9, 0)}) == ""
    assert lost(None, {A0: Begin(6, 5)}) == ("there is no log of Spark's, and clicks/0 has been read up to 6, from 5 on")
    assert lost({A0: 9}, {A0: Begin(9, 0), A2: Begin(4, 3)}) == (
        "Spark's log does not have it, and clicks/2 has been read up to 4, from 3 on"
    )
    assert lost({A0: 8}, {A0: Begin(9, 0)}) == (
        "Spark's log ends at 8 of clicks/0, whose position is 9: it is an older copy, or the position was set ahead of it"
    )


def test_what_the_log_has_of_a_topic_that_was_there_before_is_not_finished() -> None:
    story = Story()
    story.confirm((A0, 1, 0, 0), (B0, 2, 0, 0), topic_ids={A0: "id-1", B0: "id-9"})
    (start,) = story.ledger.to_start()
    of_before = Positions({A0: 40, B0: 30}, {A0: "id-1", B0: "id-8"})
    assert lost(of_before, start.shards) == ""

    story.ledger.began(0)
    story.ledger.known(0, of_before)
    assert story.ledger.uncommitted() == (ShardCheckpoint(A0, 1, 40),)
    assert [story.ledger.of_another_topic(B0, each) for each in ("id-8", "id-9", "")] == [True, False, False]
    story.ledger.hand_out(0, 1, {B0: ReadRange(0, 20, 2)})
    assert (story.ledger.finished(0, of_before), story.ledger.untold(0)) == ({}, True)
    story.ledger.ended(0, of_before)
    assert story.ledger.uncommitted() == (ShardCheckpoint(A0, 1, 40),)


def test_a_position_that_was_set_in_a_topic_made_anew_says_that_the_log_goes_on_in_it() -> None:
    story = Story()
    story.confirm((B0, 2, 20, 0), topic_ids={B0: "id-9"})
    story.ledger.began(0)
    story.ledger.known(0, Positions({B0: 30}, {B0: "id-8"}))
    assert story.ledger.uncommitted() == (ShardCheckpoint(B0, 2, 30),)
    assert not story.ledger.of_another_topic(B0, "id-8")


def test_an_operator_that_does_not_say_where_the_state_began_is_not_believed_that_there_is_none() -> None:
    ledger = CellLedger()
    ledger.confirm(HeartbeatReply(1, (ConfirmedShard(A0, 1, 1, 5),), cells=2))
    assert ledger.to_start() == (CellStart(0, 0, {A0: Begin(5, 0)}),)


def test_a_cell_that_fails_again_and_again_rests_longer_until_it_succeeds() -> None:
    pauses = Pauses()
    assert [pauses.failed(3, 100.0) for _ in range(8)] == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert (pauses.rests(3, 159.0), pauses.rests(3, 160.0), pauses.rests(4, 100.0)) == (True, False, False)
    pauses.succeeded(3)
    assert not pauses.rests(3, 100.0)
    assert pauses.failed(3, 200.0) == 1.0


def test_a_shard_that_leaves_a_cell_is_given_up_once_it_is_mirrored_though_the_rest_runs_again() -> None:
    story = Story()
    story.confirm((A0, 1, 0, 0), (A2, 2, 0, 0))
    story.ledger.began(0)
    story.confirm((A0, 1, 0, 0))
    story.ledger.ended(0, {A0: 3, A2: 3})
    assert story.ledger.release() == (), "it is mirrored first"
    story.ledger.began(0)
    assert story.ledger.leaving(), "and nothing of it is read, so that need not wait"
    story.made_durable()
    assert story.ledger.release() == (A2,)
    assert story.held() == ((A0, 1),)
    assert story.ledger.running == (0,)


def test_what_is_found_of_the_state_that_was_discarded_meanwhile_loses_nothing() -> None:
    story = Story()
    story.confirm((A0, 1, 7, 0))
    story.ledger.began(0)
    story.confirm(generation=1)
    story.ledger.lose(0)
    story.ledger.ended(0, {})
    assert story.lost() == []
    story.confirm((A0, 2, 0, 0), generation=1)
    assert [each.cell for each in story.ledger.to_start()] == [0]


def test_a_reader_that_has_nothing_of_a_shard_begins_with_the_state_if_that_is_there() -> None:
    story = Story()
    story.confirm((A0, 1, 4, 4), (A2, 2, 9, 5), (B0, 3, 9, 6))
    story.ledger.began(0)
    story.ledger.known(0, {A2: 9})
    story.ledger.finished(0, {A0: 20, A2: 20})
    story.made_durable()
    begin = {shard: story.ledger.begin_of(0, shard) for shard in (A0, A2, B0)}
    assert begin == {A0: 4, A2: 5, B0: None}, "another reader of the query has read A0 and A2, and nobody B0"


def test_what_was_handed_out_is_untold_until_spark_says_so_much_is_finished_whatever_is_asked_meanwhile() -> None:
    story = Story()
    story.confirm((A0, 1, 0, 0), (A1, 2, 0, 0))
    story.ledger.began(0)
    assert (story.ledger.untold(0), story.ledger.untold(1)) == (False, False)
    story.ledger.hand_out(0, 1, {A0: ReadRange(0, 5, 1)})
    story.ledger.hand_out(0, 1, {})
    assert (story.ledger.in_flight, story.ledger.untold(0)) == ({}, True)
    story.ledger.finished(0, {A0: 4})
    assert story.ledger.untold(0)
    story.ledger.finished(0, {A0: 5})
    assert not story.ledger.untold(0)
