"""The ledger of a plain consumer, call by call."""

from __future__ import annotations

import pytest

from shardherd.core.consumer.holdings import Grant, Holdings
from shardherd.core.model.errors import FencedEpochError
from shardherd.core.model.nouns import (
    CheckpointOutcome,
    CheckpointReply,
    CheckpointResult,
    ConfirmedShard,
    ConsumerId,
    HeartbeatReply,
    HeldShard,
    ShardCheckpoint,
    ShardId,
)

A, B, C, D = (ShardId(f"t/{number}") for number in range(4))
ME, OTHER = ConsumerId("clicks-0"), ConsumerId("clicks-1")


def reply(*shards: tuple[ShardId, int, int], revision: int = 1, paused: bool = False) -> HeartbeatReply:
    """What may be read: (shard, epoch, position)."""
    return HeartbeatReply(revision, tuple(ConfirmedShard(name, epoch, epoch, at) for name, epoch, at in shards), paused=paused)


def outcome(shard: ShardId, result: CheckpointResult, epoch: int = 1) -> CheckpointReply:
    return CheckpointReply((CheckpointOutcome(shard, result, 5, epoch),))


def holding(*shards: tuple[ShardId, int, int]) -> Holdings:
    ledger = Holdings(ME)
    ledger.confirm(reply(*shards))
    return ledger


def test_a_revoked_shard_in_hand_is_named_until_it_is_put_back() -> None:
    ledger = holding((A, 1, 0))
    grant = ledger.take()
    assert grant is not None
    ledger.confirm(reply(revision=2))

    assert ledger.release() == ()
    assert ledger.held() == (HeldShard(A, 1),)
    ledger.put_back(grant)
    assert ledger.release() == (A,)
    assert ledger.held() == ()


def test_a_revoked_shard_is_not_released_before_it_is_durable() -> None:
    ledger = holding((A, 1, 0))
    grant = ledger.take()
    assert grant is not None
    ledger.save(grant, 5)
    ledger.put_back(grant)
    ledger.confirm(reply(revision=2))

    assert len(ledger.release()) == 0
    assert ledger.leaving()
    assert ledger.uncommitted() == (ShardCheckpoint(A, 1, 5),)
    ledger.acknowledge(ledger.uncommitted(), outcome(A, CheckpointResult.OK))
    assert ledger.release() == (A,)
    assert not ledger.leaving()


def test_a_late_reply_does_not_bring_back_what_was_given_up() -> None:
    ledger = holding((A, 1, 0))
    ledger.confirm(reply(revision=2))
    ledger.release()
    ledger.confirm(reply((A, 1, 0)))
    before = ledger.readable
    ledger.confirm(reply((A, 2, 0), revision=3))
    assert (before, ledger.readable) == ((), (A,))


def test_a_new_epoch_starts_at_its_position_and_the_old_one_stays_named_while_in_hand() -> None:
    ledger = holding((A, 1, 0))
    old = ledger.take()
    assert old is not None
    ledger.confirm(reply((A, 2, 60), revision=2))

    assert ledger.held() == (HeldShard(A, 1), HeldShard(A, 2))
    assert refusal(ledger, old) == (
        "shard t/0 is not held under epoch 1 any more, but under epoch 2 by clicks-0; drop what was read of it",
        (A, ME, 1, 2),
    )
    assert ledger.take() is None, "two readers would write it side by side"
    ledger.put_back(old)
    assert ledger.held() == (HeldShard(A, 2),)
    new = ledger.take()
    assert new is not None
    assert (new.epoch, new.done) == (2, 60)


def test_a_fenced_checkpoint_loses_the_shard_and_a_withheld_one_stays() -> None:
    ledger = holding((A, 1, 0), (B, 1, 0))
    for _ in range(2):
        grant = ledger.take()
        assert grant is not None
        ledger.save(grant, 5)
        ledger.put_back(grant)

    assert ledger.acknowledge(ledger.uncommitted(), outcome(A, CheckpointResult.FENCED)) == (A,)
    assert ledger.acknowledge(ledger.uncommitted(), outcome(B, CheckpointResult.WITHHELD)) == ()
    assert ledger.uncommitted() == (ShardCheckpoint(B, 1, 5),)
    assert ledger.readable == (B,)


def refusal(ledger: Holdings, grant: Grant) -> tuple[str, tuple[object, ...]]:
    """How a save under a grant that was lost is refused: the message, and what it says for programs."""
    with pytest.raises(FencedEpochError) as refused:
        ledger.save(grant, 9)
    error = refused.value
    return error.message, (error.shard, error.consumer, error.expected_epoch, error.actual_epoch)


def test_a_fenced_save_says_whose_the_shard_is_now_and_under_which_epoch() -> None:
    ledger = holding((A, 1, 0))
    grant = ledger.take()
    assert grant is not None
    ledger.save(grant, 5)
    taken = CheckpointOutcome(A, CheckpointResult.FENCED, 5, 1, 4, OTHER)

    ledger.acknowledge(ledger.uncommitted(), CheckpointReply((taken,)))

    assert refusal(ledger, grant) == (
        "shard t/0 is not held under epoch 1 any more, but under epoch 4 by clicks-1; drop what was read of it",
        (A, ME, 1, 4),
    )


def test_an_answer_to_an_earlier_epoch_counts_for_nothing() -> None:
    ledger = holding((A, 2, 0))
    assert ledger.acknowledge((ShardCheckpoint(A, 1, 5),), outcome(A, CheckpointResult.FENCED)) == ()
    assert ledger.readable == (A,)


def test_nothing_is_taken_while_paused() -> None:
    ledger = Holdings(ME)
    ledger.confirm(reply((A, 1, 0), paused=True))
    assert ledger.take() is None


def test_progress_grows_with_all_that_gets_on() -> None:
    ledger = holding((A, 1, 0))
    seen = [ledger.progress]
    grant = ledger.take()
    assert grant is not None
    seen.append(ledger.progress)
    ledger.save(grant, 5)
    seen.append(ledger.progress)
    ledger.acknowledge(ledger.uncommitted(), outcome(A, CheckpointResult.OK))
    seen.append(ledger.progress)
    ledger.put_back(grant)
    seen.append(ledger.progress)
    assert seen == sorted(set(seen))


def test_when_the_run_is_over_nothing_can_be_saved() -> None:
    ledger = holding((A, 1, 0))
    grant = ledger.take()
    assert grant is not None
    ledger.lose_all()
    assert refusal(ledger, grant) == (
        "shard t/0 is not held under epoch 1 any more; drop what was read of it",
        (A, ME, 1, None),
    )
    assert ledger.held() == (HeldShard(A, 1),)
    ledger.put_back(grant)
    assert ledger.held() == ()


def test_what_is_lost_at_the_end_counts_as_dropped_unless_it_is_durable_and_put_back() -> None:
    ledger = holding((A, 1, 0), (B, 1, 0), (C, 1, 0), (D, 1, 0))
    taken = {}
    for _ in range(3):
        grant = ledger.take()
        assert grant is not None
        taken[grant.shard] = grant
    for shard in (A, B):
        ledger.save(taken[shard], 5)
        ledger.put_back(taken[shard])
    ledger.acknowledge((ShardCheckpoint(A, 1, 5),), outcome(A, CheckpointResult.OK))
    ledger.lose_all()
    assert ledger.dropped == 2, "t/1 was done and not durable, t/2 was in hand"


def test_a_grant_says_of_which_topic_it_is_as_far_as_the_source_has_said_that() -> None:
    ledger = Holdings(ME)
    ledger.confirm(HeartbeatReply(1, (ConfirmedShard(A, 1, 1, 0, source_id="id-1"), ConfirmedShard(B, 1, 1, 0))))
    taken = [ledger.take(), ledger.take()]
    assert [(each.shard, each.source_id) for each in taken if each is not None] == [(A, "id-1"), (B, "")]
