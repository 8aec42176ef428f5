"""A consumer's ledgers, call by call: every answer of them whole, after each thing that can happen to a shard."""

from __future__ import annotations

from msgspec.structs import replace

from shardherd.core.consumer.tracker import ReadRange, Tracker, split_by_backlog
from shardherd.core.model.nouns import (
    CheckpointOutcome,
    CheckpointReply,
    CheckpointResult,
    HeartbeatReply,
    HeldShard,
    ShardCheckpoint,
    ShardId,
)
from tests.unit.spark.test_tracker import reply

A, B, C, D = (ShardId(f"clicks/{number}") for number in range(4))


def seen(tracker: Tracker) -> dict[str, object]:
    """Everything that a ledger shows."""
    return {
        "revision": tracker.revision,
        "paused": tracker.paused,
        "progress": tracker.progress,
        "held": tracker.held(),
        "shards": tracker.shards,
        "holds_any": tracker.holds_any,
        "busy": tracker.busy,
        "in_flight": tracker.in_flight,
        "positions": tracker.positions(),
        "standing": tracker.standing(),
        "uncommitted": tracker.uncommitted(),
        "ordered": tracker.ordered,
        "dropped": tracker.dropped,
        "adrift": tracker.adrift,
        "abandoned": tracker.abandoned,
    }


def test_new_books_are_empty() -> None:
    assert seen(Tracker()) == {
        "revision": 0,
        "paused": False,
        "progress": 0,
        "held": (),
        "shards": (),
        "holds_any": False,
        "busy": False,
        "in_flight": {},
        "positions": {},
        "standing": {},
        "uncommitted": (),
        "ordered": False,
        "dropped": 0,
        "adrift": {},
        "abandoned": 0,
    }


def reading() -> tuple[Tracker, dict[ShardId, ReadRange]]:
    """B from 20 on and A from 5 on, of which three and seven records are being read; C has no news, D was revoked."""
    tracker = Tracker()
    tracker.confirm(reply(1, (D, 2, 0), (C, 9, 7), (B, 3, 20), (A, 4, 5)))
    tracker.confirm(reply(2, (C, 9, 7), (B, 3, 20), (A, 4, 5)))
    return tracker, tracker.hand_out({A: 8, B: 27, D: 50})


def test_what_is_handed_out_names_every_shard_that_may_be_read() -> None:
    tracker, handed = reading()
    assert handed == {A: ReadRange(5, 8, 4), B: ReadRange(20, 27, 3), C: ReadRange(7, 7, 9)}
    assert list(handed) == [A, B, C]
    assert seen(tracker) == {
        "revision": 2,
        "paused": False,
        "progress": 1,
        "held": (HeldShard(A, 4), HeldShard(B, 3), HeldShard(C, 9), HeldShard(D, 2)),
        "shards": (A, B, C, D),
        "holds_any": True,
        "busy": True,
        "in_flight": {A: ReadRange(5, 8, 4), B: ReadRange(20, 27, 3)},
        "positions": {A: 8, B: 27, C: 7},
        "standing": {A: ReadRange(8, 8, 4), B: ReadRange(27, 27, 3), C: ReadRange(7, 7, 9)},
        "uncommitted": (),
        "ordered": False,
        "dropped": 0,
        "adrift": {},
        "abandoned": 0,
    }
    assert [list(each) for each in (tracker.positions(), tracker.standing())] == [[A, B, C], [A, B, C]]


def test_what_is_finished_can_be_checkpointed_in_order_and_is_progress_shard_by_shard() -> None:
    tracker, handed = reading()
    tracker.finish({B: handed[B]})
    assert (tracker.progress, tracker.busy, tracker.in_flight) == (2, True, {A: handed[A]})
    assert tracker.uncommitted() == (ShardCheckpoint(B, 3, 27),)
    tracker.finish(handed)
    assert (tracker.progress, tracker.busy, tracker.in_flight) == (3, False, {})
    assert tracker.uncommitted() == (ShardCheckpoint(A, 4, 8), ShardCheckpoint(B, 3, 27))
    tracker.finish(handed)
    assert tracker.progress == 3


def test_what_is_abandoned_is_handed_out_again_from_where_the_last_finished_range_ended() -> None:
    tracker, handed = reading()
    tracker.finish({B: handed[B]})
    tracker.abandon()
    assert (tracker.busy, tracker.positions()) == (False, {A: 5, B: 27, C: 7})
    assert tracker.hand_out({A: 8, B: 90}) == {A: ReadRange(5, 8, 4), B: ReadRange(27, 90, 3), C: ReadRange(7, 7, 9)}
    assert tracker.progress == 3


def test_what_is_abandoned_after_its_shard_was_lost_does_not_keep_the_others() -> None:
    tracker, handed = reading()
    tracker.finish({A: handed[A]})
    tracker.abandon()
    tracker.hand_out({A: 9, B: 90})
    assert answer(tracker, a=CheckpointResult.FENCED) == (A,)
    tracker.abandon()
    assert tracker.positions() == {B: 20, C: 7}


def test_of_what_is_granted_anew_while_it_is_read_neither_the_end_nor_the_beginning_counts() -> None:
    for finished in (True, False):
        tracker, handed = reading()
        tracker.confirm(reply(3, (A, 6, 6), (B, 3, 20)))
        tracker.finish(handed) if finished else tracker.abandon()
        assert tracker.positions() == {A: 6, B: 27 if finished else 20}
        assert tracker.uncommitted() == ((ShardCheckpoint(B, 3, 27),) if finished else ())


def test_nothing_new_is_nothing_handed_out_and_no_progress() -> None:
    tracker, handed = reading()
    tracker.finish(handed)
    before = seen(tracker)
    assert tracker.hand_out({A: 8, B: 27}) == {}
    assert seen(tracker) == before


def test_an_end_below_the_position_is_no_news() -> None:
    tracker, _ = reading()
    tracker.abandon()
    assert tracker.hand_out({A: 4, B: 21}) == {A: ReadRange(5, 5, 4), B: ReadRange(20, 21, 3), C: ReadRange(7, 7, 9)}


def answer(tracker: Tracker, **results: CheckpointResult) -> tuple[ShardId, ...]:
    """What is uncommitted is answered, by the shard's letter."""
    letters = {A: "a", B: "b", C: "c", D: "d"}
    sent = tracker.uncommitted()
    outcomes = [CheckpointOutcome(each.shard, results[letters[each.shard]], 99, each.owner_epoch) for each in sent]
    return tracker.acknowledge(sent, CheckpointReply(tuple(outcomes)))


def test_each_answer_is_taken_by_itself() -> None:
    tracker = Tracker()
    tracker.confirm(reply(1, (A, 4, 0), (B, 3, 0), (C, 9, 0), (D, 2, 0)))
    tracker.finish(tracker.hand_out({A: 5, B: 6, C: 7, D: 8}))
    assert tracker.progress == 5
    results = {
        "a": CheckpointResult.FENCED,
        "b": CheckpointResult.OK,
        "c": CheckpointResult.UNCHANGED,
        "d": CheckpointResult.WITHHELD,
    }
    assert answer(tracker, **results) == (A,)
    assert (tracker.shards, tracker.uncommitted(), tracker.progress) == ((B, C, D), (ShardCheckpoint(D, 2, 8),), 7)
    assert answer(tracker, d=CheckpointResult.FENCED) == (D,)
    assert tracker.held() == (HeldShard(B, 3), HeldShard(C, 9))


def test_answers_to_what_was_not_sent_or_is_held_no_more_do_not_keep_the_others() -> None:
    tracker = Tracker()
    tracker.confirm(reply(1, (B, 3, 0), (C, 9, 0)))
    tracker.finish(tracker.hand_out({B: 6, C: 7}))
    sent = tracker.uncommitted()
    unknown = [CheckpointOutcome(shard, CheckpointResult.FENCED, 1, 1) for shard in (D, A)]
    fenced = CheckpointOutcome(C, CheckpointResult.FENCED, 7, 9)
    assert tracker.acknowledge((*sent, ShardCheckpoint(A, 1, 1)), CheckpointReply((*unknown, fenced))) == (C,)
    assert tracker.uncommitted() == (ShardCheckpoint(B, 3, 6),)


def test_a_late_answer_does_not_take_back_what_is_durable() -> None:
    tracker = Tracker()
    tracker.confirm(reply(1, (A, 4, 0)))
    tracker.finish(tracker.hand_out({A: 5}))
    early = tracker.uncommitted()
    tracker.finish(tracker.hand_out({A: 9}))
    late = tracker.uncommitted()
    for sent in (late, early):
        outcome = CheckpointOutcome(A, CheckpointResult.OK, sent[0].offset, 4)
        tracker.acknowledge(sent, CheckpointReply((outcome,)))
    assert tracker.uncommitted() == ()


def test_a_revoked_shard_is_released_when_nothing_of_it_is_read_and_all_of_it_is_durable() -> None:
    tracker, handed = reading()
    assert tracker.release() == (D,)
    tracker.confirm(reply(3))
    assert tracker.release() == (C,)
    assert tracker.given_up((C, D)) == {C: 9, D: 2}
    tracker.finish(handed)
    assert (tracker.release(), tracker.shards) == ((), (A, B))
    assert answer(tracker, a=CheckpointResult.OK, b=CheckpointResult.WITHHELD) == ()
    assert (tracker.release(), tracker.shards) == ((A,), (B,))


def test_several_are_released_in_order() -> None:
    tracker = Tracker()
    tracker.confirm(reply(1, (C, 9, 0), (A, 4, 0), (B, 3, 0)))
    tracker.confirm(reply(2))
    assert (tracker.release(), tracker.holds_any) == ((A, B, C), False)


def test_what_was_given_up_comes_back_only_under_a_higher_epoch() -> None:
    for given_up in ("released", "fenced"):
        tracker = Tracker()
        tracker.confirm(reply(1, (A, 4, 0)))
        if given_up == "released":
            tracker.confirm(reply(2))
            assert tracker.release() == (A,)
        else:
            tracker.finish(tracker.hand_out({A: 5}))
            assert answer(tracker, a=CheckpointResult.FENCED) == (A,)
        for epoch in (3, 4):
            tracker.confirm(reply(3, (A, epoch, 0)))
            assert tracker.shards == ()
        tracker.confirm(reply(4, (A, 5, 1)))
        assert tracker.held() == (HeldShard(A, 5),)


def test_the_first_epoch_of_all_is_taken() -> None:
    tracker = Tracker()
    tracker.confirm(reply(1, (A, 1, 0)))
    assert tracker.held() == (HeldShard(A, 1),)


def test_a_grant_that_is_confirmed_again_may_be_held_since_another_epoch() -> None:
    tracker = Tracker()
    tracker.confirm(reply(1, (A, 6, 0)))
    tracker.confirm(reply(2, (A, 6, 0), since=3))
    assert tracker.replay({A: ReadRange(0, 5, 3)}) == {A: ReadRange(0, 5, 3)}


def test_a_range_is_replayed_if_it_was_logged_since_the_name_holds_the_shard_and_is_not_durable() -> None:
    tracker = Tracker()
    tracker.confirm(reply(1, (A, 6, 9), (B, 6, 9), (C, 6, 9), (D, 6, 9), since=3))
    logged = {D: ReadRange(4, 10, 6), C: ReadRange(4, 10, 3), B: ReadRange(4, 10, 2), A: ReadRange(4, 10, 7)}
    assert tracker.replay(logged) == {C: ReadRange(4, 10, 3), D: ReadRange(4, 10, 6)}
    assert (tracker.progress, tracker.positions()) == (1, {A: 9, B: 9, C: 10, D: 10})
    tracker.finish(logged)
    assert tracker.uncommitted() == (ShardCheckpoint(C, 6, 10), ShardCheckpoint(D, 6, 10))


def test_an_empty_or_durable_range_or_one_of_another_shard_does_not_keep_the_others() -> None:
    tracker = Tracker()
    tracker.confirm(reply(1, (B, 6, 9), (C, 6, 9), (D, 6, 9)))
    logged = {A: ReadRange(1, 10, 6), B: ReadRange(12, 12, 6), C: ReadRange(1, 9, 6), D: ReadRange(9, 10, 6)}
    assert tracker.replay(logged) == {D: ReadRange(9, 10, 6)}


def test_a_replay_drops_what_was_in_flight() -> None:
    tracker, _ = reading()
    assert tracker.replay({}) == {}
    assert (tracker.busy, tracker.positions(), tracker.progress) == (False, {A: 5, B: 20, C: 7}, 2)


def test_a_paused_tracker_hands_out_nothing_of_what_was_abandoned() -> None:
    tracker, _ = reading()
    tracker.confirm(reply(3, (A, 4, 5), (B, 3, 20), paused=True))
    tracker.abandon()
    assert (tracker.paused, tracker.hand_out({A: 8, B: 90}), tracker.busy) == (True, {}, False)
    assert tracker.positions() == {A: 5, B: 20}


def test_the_budget_is_shared_by_backlog_and_ties_go_by_name() -> None:
    assert split_by_backlog({C: 9, A: 9, B: 9}, 20) == {A: 7, B: 7, C: 6}
    assert split_by_backlog({A: 1, B: 9}, 10) == {A: 1, B: 9}
    assert split_by_backlog({A: 2, B: 9, C: 9}, 13) == {A: 1, B: 6, C: 6}
    assert split_by_backlog({A: 5, B: 5}, 0) == {A: 1, B: 1}
    assert split_by_backlog({A: 0, B: -1}, 5) == {}


def test_what_was_finished_and_not_durable_when_its_shard_was_lost_is_counted() -> None:
    for result, dropped in ((CheckpointResult.FENCED, 1), (CheckpointResult.OK, 0), (CheckpointResult.WITHHELD, 0)):
        tracker, handed = reading()
        assert tracker.dropped == 0
        tracker.finish({A: handed[A]})
        answer(tracker, a=result)
        assert tracker.dropped == dropped


def test_what_was_finished_is_counted_when_its_shard_becomes_ours_anew_below_it() -> None:
    """A was finished up to 8, and at 5 when it was granted."""
    for position, dropped in ((5, 1), (7, 1), (8, 0), (9, 0)):
        tracker, handed = reading()
        tracker.finish({A: handed[A]})
        tracker.confirm(reply(3, (A, 6, position), (B, 3, 20), (C, 9, 7)))
        assert tracker.dropped == dropped
        tracker.confirm(reply(4, (A, 6, position), (B, 3, 20), (C, 9, 7)))
        assert tracker.dropped == dropped, "it is told once more"


def test_what_is_durable_is_not_counted_although_the_position_is_below_it() -> None:
    tracker, handed = reading()
    tracker.finish({A: handed[A]})
    answer(tracker, a=CheckpointResult.OK)
    tracker.confirm(reply(3, (A, 6, 5)))
    assert tracker.dropped == 0


def abandoned(*, ordered: bool) -> Tracker:
    """A and B were being read when their query ended; A was revoked meanwhile, and B was granted anew."""
    tracker, _ = reading()
    tracker.confirm(replace(reply(3, (B, 5, 20), (C, 9, 7)), ordered=ordered))
    tracker.abandon()
    return tracker


def test_an_ordered_group_goes_on_naming_what_was_abandoned_until_it_has_ended() -> None:
    tracker = abandoned(ordered=True)
    assert (tracker.adrift, tracker.abandoned, tracker.busy) == ({A: 4, B: 3}, 1, False)
    assert tracker.release() == (D,)
    assert tracker.held() == (HeldShard(A, 4), HeldShard(B, 3), HeldShard(B, 5), HeldShard(C, 9))
    tracker.settled()
    assert (tracker.adrift, tracker.release()) == ({}, (A,))
    assert tracker.held() == (HeldShard(B, 5), HeldShard(C, 9))


def test_an_unordered_group_gives_up_at_once_what_was_abandoned() -> None:
    tracker = abandoned(ordered=False)
    assert (tracker.adrift, tracker.release()) == ({}, (A, D))
    assert tracker.held() == (HeldShard(B, 5), HeldShard(C, 9))


def test_who_has_nothing_but_what_was_abandoned_still_names_something() -> None:
    tracker = abandoned(ordered=True)
    tracker.confirm(HeartbeatReply(4, (), ordered=True))
    assert tracker.release() == (C, D)
    assert tracker.holds_any
    tracker.settled()
    tracker.release()
    assert not tracker.holds_any


def test_a_later_micro_batch_that_is_finished_shows_that_what_was_abandoned_has_ended() -> None:
    tracker = abandoned(ordered=True)
    handed = tracker.hand_out({B: 90})
    assert tracker.abandoned == 1, "nothing was in flight"
    tracker.finish({B: ReadRange(0, 1, 1)})
    assert tracker.adrift == {A: 4, B: 3}
    tracker.finish(handed)
    assert tracker.adrift == {}


def with_ids(*shards: tuple[ShardId, int], of: str = "id-1") -> HeartbeatReply:
    told = reply(1, *((shard, epoch, 0) for shard, epoch in shards))
    return replace(told, confirmed=tuple(replace(each, source_id=of) for each in told.confirmed))


def test_ids_of_sources_are_another_mapping_only_when_one_has_changed() -> None:
    tracker = Tracker()
    tracker.confirm(with_ids((A, 1), (B, 1)))
    first = tracker.source_ids
    tracker.confirm(with_ids((A, 1), (B, 1)))
    tracker.confirm(reply(1, (A, 1, 0), (B, 1, 0)))  # the source does not say
    assert tracker.source_ids is first
    tracker.confirm(with_ids((A, 2), (B, 1), of="id-2"))
    assert (first, tracker.source_ids) == ({A: "id-1", B: "id-1"}, {A: "id-2", B: "id-2"})


def test_ids_of_sources_are_forgotten_with_the_shards_that_no_heartbeat_names() -> None:
    tracker = Tracker()
    tracker.confirm(with_ids((A, 1), (B, 1)))
    tracker.confirm(with_ids((B, 1)))
    assert (tracker.release(), tracker.source_ids) == ((A,), {A: "id-1", B: "id-1"}), "a heartbeat has named it"
    first = tracker.source_ids
    tracker.confirm(with_ids((B, 1)))
    assert (first, tracker.source_ids) == ({A: "id-1", B: "id-1"}, {B: "id-1"})
