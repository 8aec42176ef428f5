"""Which ranges are handed out, and which positions may be checkpointed."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shardherd.core.consumer.tracker import ReadRange, Tracker, split_by_backlog
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

A, B, C = ShardId("clicks/0"), ShardId("clicks/1"), ShardId("clicks/2")


def reply(revision: int, *confirmed: tuple[ShardId, int, int], since: int = 0, paused: bool = False) -> HeartbeatReply:
    """Shards as (name, epoch, position), held since their epoch or since `since`."""
    rows = tuple(ConfirmedShard(shard, epoch, since or epoch, position) for shard, epoch, position in confirmed)
    return HeartbeatReply(revision, rows, paused=paused)


def answered(tracker: Tracker, result: CheckpointResult = CheckpointResult.OK) -> tuple[ShardId, ...]:
    """All that is uncommitted is sent and answered like this."""
    sent = tracker.uncommitted()
    outcomes = tuple(CheckpointOutcome(each.shard, result, each.offset, each.owner_epoch) for each in sent)
    return tracker.acknowledge(sent, CheckpointReply(outcomes))


def test_each_shard_gives_in_proportion_to_what_it_has() -> None:
    assert split_by_backlog({A: 1000, B: 100}, 50) == {A: 45, B: 5}
    assert split_by_backlog({A: 100, B: 5, C: 40}, 65) == {A: 44, B: 3, C: 18}
    assert split_by_backlog({A: 100, B: 0, C: -3}, None) == {A: 100}
    assert split_by_backlog({A: 10, B: 10}, 20) == {A: 10, B: 10}


def test_no_shard_waits_because_others_have_more_however_small_the_budget() -> None:
    assert split_by_backlog({A: 1, B: 1_000, C: 1_000}, 2) == {A: 1, B: 1, C: 1}
    assert split_by_backlog({A: 1, B: 1}, 1) == {A: 1, B: 1}


def test_a_skewed_backlog_is_read_to_its_end_by_all_shards_together() -> None:
    """Else the shards that are done early advance the watermark beyond the records of those that are not."""
    left = {A: 9_000, B: 900, C: 90}
    while any(left.values()):
        shares = {shard: count / total for (shard, count), total in zip(left.items(), (9_000, 900, 90), strict=True)}
        assert max(shares.values()) - min(shares.values()) < 0.15, "the smallest gives some records at a time"
        for shard, count in split_by_backlog(left, 1_000).items():
            left[shard] -= count


@given(st.dictionaries(st.sampled_from([A, B, C]), st.integers(-5, 50)), st.integers(0, 100))
def test_a_budget_is_exceeded_only_by_the_first_record_of_each_shard(available: dict[ShardId, int], budget: int) -> None:
    counts = split_by_backlog(available, budget)

    with_records = {shard: count for shard, count in available.items() if count > 0}
    assert counts.keys() == with_records.keys()
    assert all(1 <= count <= with_records[shard] for shard, count in counts.items())
    assert sum(counts.values()) == min(sum(with_records.values()), max(budget, len(with_records)))


def test_a_shard_whose_end_is_not_known_gets_an_empty_range() -> None:
    tracker = Tracker()
    tracker.confirm(reply(1, (A, 4, 0), (B, 4, 0)))
    assert tracker.hand_out({A: 5}) == {A: ReadRange(0, 5, 4), B: ReadRange(0, 0, 4)}


def test_a_reply_that_was_on_its_way_does_not_bring_a_released_shard_back() -> None:
    tracker = Tracker()
    tracker.confirm(reply(1, (A, 4, 0)))
    tracker.confirm(reply(2))
    assert tracker.release() == (A,)

    tracker.confirm(reply(3, (A, 4, 0)))
    assert tracker.held() == ()
    tracker.confirm(reply(4, (A, 5, 7)))
    assert tracker.positions() == {A: 7}


def test_a_consumer_holds_something_for_as_long_as_a_heartbeat_names_it() -> None:
    tracker = Tracker()
    held = [tracker.holds_any]
    tracker.confirm(reply(1, (A, 4, 0)))
    tracker.finish(tracker.hand_out({A: 10}))
    second = tracker.hand_out({A: 20})
    assert [*held, tracker.holds_any] == [False, True]

    assert answered(tracker, CheckpointResult.FENCED) == (A,)
    assert (tracker.shards, tracker.held(), tracker.holds_any) == ((), (HeldShard(A, 4),), True)
    tracker.finish(second)
    assert (tracker.held(), tracker.holds_any) == ((), False)


def test_a_transfer_that_is_called_off_goes_on_where_it_was() -> None:
    tracker = Tracker()
    tracker.confirm(reply(1, (A, 4, 0)))
    handed = tracker.hand_out({A: 10})
    tracker.confirm(reply(2))
    tracker.confirm(reply(3, (A, 4, 0)))
    tracker.finish(handed)

    assert tracker.positions() == {A: 10}
    assert tracker.hand_out({A: 15}) == {A: ReadRange(10, 15, 4)}


def test_a_fenced_range_is_still_named_while_it_is_being_read() -> None:
    tracker = Tracker()
    tracker.confirm(reply(1, (A, 4, 0), (B, 5, 0)))
    first = tracker.hand_out({A: 10, B: 10})
    tracker.finish({A: first[A]})
    assert answered(tracker, CheckpointResult.FENCED) == (A,)
    assert tracker.held() == (HeldShard(B, 5),)

    tracker.confirm(reply(2, (B, 8, 3)))
    assert tracker.held() == (HeldShard(B, 5), HeldShard(B, 8))
    tracker.finish(first)
    assert tracker.held() == (HeldShard(B, 8),)
    assert tracker.uncommitted() == ()


def test_a_range_that_is_durable_already_is_not_replayed() -> None:
    tracker = Tracker()
    tracker.confirm(reply(1, (A, 6, 9), (B, 6, 9), since=3))
    assert tracker.replay({A: ReadRange(2, 9, 4), B: ReadRange(2, 9, 2)}) == {}
    assert tracker.positions() == {A: 9, B: 9}


def test_a_withheld_checkpoint_is_sent_again() -> None:
    tracker = Tracker()
    tracker.confirm(reply(1, (A, 4, 0)))
    tracker.finish(tracker.hand_out({A: 10}))
    assert answered(tracker, CheckpointResult.WITHHELD) == ()
    assert tracker.uncommitted() == (ShardCheckpoint(A, 4, 10),)


def test_an_answer_to_a_checkpoint_of_an_earlier_grant_says_nothing_of_the_present_one() -> None:
    tracker = Tracker()
    tracker.confirm(reply(1, (A, 4, 0)))
    tracker.finish(tracker.hand_out({A: 10}))
    sent = tracker.uncommitted()
    tracker.confirm(reply(2, (A, 5, 0)))
    tracker.finish(tracker.hand_out({A: 7}))
    outcomes = (CheckpointOutcome(A, CheckpointResult.FENCED, 10, 4), CheckpointOutcome(B, CheckpointResult.OK, 1, 1))
    assert tracker.acknowledge(sent, CheckpointReply(outcomes)) == ()
    assert tracker.uncommitted() == (ShardCheckpoint(A, 5, 7),)


def test_a_finished_range_is_only_what_was_handed_out_to_the_letter() -> None:
    tracker = Tracker()
    tracker.confirm(reply(1, (A, 4, 0)))
    tracker.hand_out({A: 10})
    for other in (ReadRange(0, 10, 3), ReadRange(0, 9, 4), ReadRange(1, 10, 4)):
        tracker.finish({A: other})
    assert tracker.busy
    assert tracker.uncommitted() == ()


class Ledger(RuleBasedStateMachine):
    """One consumer against a coordinator that grants, revokes and fences at random."""

    shards = st.sampled_from([A, B, C])

    @initialize()
    def begin(self) -> None:
        self.tracker = Tracker()
        self.epoch = 0
        self.revision = 0
        self.granted: dict[ShardId, tuple[int, int]] = {}  # shard -> (epoch, durable position)
        self.end_offsets = {A: 0, B: 0, C: 0}
        self.handed: dict[ShardId, ReadRange] = {}
        self.read: dict[ShardId, int] = {}  # under the current grant: end of what was finished

    def tell(self) -> None:
        self.revision += 1
        rows = [(shard, epoch, position) for shard, (epoch, position) in self.granted.items()]
        self.tracker.confirm(reply(self.revision, *rows))

    @rule(shard=shards)
    def grant(self, shard: ShardId) -> None:
        self.epoch += 1
        position = self.granted.get(shard, (0, 0))[1]
        self.granted[shard] = (self.epoch, position)
        self.read[shard] = position
        self.tell()

    @rule(shard=shards)
    def revoke(self, shard: ShardId) -> None:
        self.granted.pop(shard, None)
        self.tell()

    @rule(shard=shards, count=st.integers(1, 20))
    def produce(self, shard: ShardId, count: int) -> None:
        self.end_offsets[shard] += count

    @rule(budget=st.one_of(st.none(), st.integers(1, 15)))
    def batch(self, budget: int | None) -> None:
        self.tracker.abandon()
        at = self.tracker.positions()
        counts = split_by_backlog({shard: self.end_offsets[shard] - at[shard] for shard in at}, budget)
        handed = self.tracker.hand_out({shard: at[shard] + count for shard, count in counts.items()})
        if not handed:
            return
        total = sum(each.stop - each.start for each in handed.values())
        assert 0 < total <= (total if budget is None else max(budget, len(self.granted)))
        assert set(handed) == set(self.granted), "exactly what is confirmed is handed out"
        for shard, each in handed.items():
            assert each.epoch == self.granted[shard][0]
            assert each.start == self.read[shard], "it goes on where the last finished range ended"
            assert each.stop <= max(self.end_offsets[shard], each.start)
        self.handed = handed

    @precondition(lambda self: self.handed)
    @rule()
    def finish(self) -> None:
        self.tracker.finish(self.handed)
        for shard, each in self.handed.items():
            if shard in self.granted and self.granted[shard][0] == each.epoch:
                self.read[shard] = each.stop
        self.handed = {}

    @precondition(lambda self: self.handed)
    @rule()
    def fail(self) -> None:
        self.tracker.abandon()
        self.handed = {}

    @rule()
    def checkpoint(self) -> None:
        sent = self.tracker.uncommitted()
        outcomes = []
        for each in sent:
            epoch, position = self.granted.get(each.shard, (0, 0))
            if epoch != each.owner_epoch:
                outcomes.append(CheckpointOutcome(each.shard, CheckpointResult.FENCED, 0, each.owner_epoch))
                continue
            assert position < each.offset <= self.read[each.shard], "only what was finished is checkpointed"
            self.granted[each.shard] = (epoch, each.offset)
            outcomes.append(CheckpointOutcome(each.shard, CheckpointResult.OK, each.offset, epoch))
        self.tracker.acknowledge(sent, CheckpointReply(tuple(outcomes)))

    @rule()
    def release(self) -> None:
        for shard in self.tracker.release():
            assert shard not in self.granted
            assert shard not in self.tracker.in_flight

    @invariant()
    def names_all_that_it_reads(self) -> None:
        named = {(each.shard, each.owner_epoch) for each in self.tracker.held()}
        assert {(shard, each.epoch) for shard, each in self.tracker.in_flight.items()} <= named
        assert {(shard, epoch) for shard, (epoch, _) in self.granted.items()} <= named


Ledger.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestBooks = Ledger.TestCase
