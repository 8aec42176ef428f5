"""The books of a consumer, call by call."""

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
    books = Holdings(ME)
    books.confirm(reply(*shards))
    return books


def test_a_revoked_shard_in_hand_is_named_until_it_is_put_back() -> None:
    books = holding((A, 1, 0))
    grant = books.take()
    assert grant is not None
    books.confirm(reply(revision=2))

    assert books.release() == ()
    assert books.held() == (HeldShard(A, 1),)
    books.put_back(grant)
    assert books.release() == (A,)
    assert books.held() == ()


def test_a_revoked_shard_is_not_released_before_it_is_durable() -> None:
    books = holding((A, 1, 0))
    grant = books.take()
    assert grant is not None
    books.save(grant, 5)
    books.put_back(grant)
    books.confirm(reply(revision=2))

    assert len(books.release()) == 0
    assert books.leaving()
    assert books.uncommitted() == (ShardCheckpoint(A, 1, 5),)
    books.acknowledge(books.uncommitted(), outcome(A, CheckpointResult.OK))
    assert books.release() == (A,)
    assert not books.leaving()


def test_a_late_reply_does_not_bring_back_what_was_given_up() -> None:
    books = holding((A, 1, 0))
    books.confirm(reply(revision=2))
    books.release()
    books.confirm(reply((A, 1, 0)))
    before = books.readable
    books.confirm(reply((A, 2, 0), revision=3))
    assert (before, books.readable) == ((), (A,))


def test_a_new_epoch_starts_at_its_position_and_the_old_one_stays_named_while_in_hand() -> None:
    books = holding((A, 1, 0))
    old = books.take()
    assert old is not None
    books.confirm(reply((A, 2, 60), revision=2))

    assert books.held() == (HeldShard(A, 1), HeldShard(A, 2))
    assert refusal(books, old) == (
        "shard t/0 is not held under epoch 1 any more, but under epoch 2 by clicks-0; drop what was read of it",
        (A, ME, 1, 2),
    )
    assert books.take() is None, "two readers would write it side by side"
    books.put_back(old)
    assert books.held() == (HeldShard(A, 2),)
    new = books.take()
    assert new is not None
    assert (new.epoch, new.done) == (2, 60)


def test_a_fenced_checkpoint_loses_the_shard_and_a_withheld_one_stays() -> None:
    books = holding((A, 1, 0), (B, 1, 0))
    for _ in range(2):
        grant = books.take()
        assert grant is not None
        books.save(grant, 5)
        books.put_back(grant)

    assert books.acknowledge(books.uncommitted(), outcome(A, CheckpointResult.FENCED)) == (A,)
    assert books.acknowledge(books.uncommitted(), outcome(B, CheckpointResult.WITHHELD)) == ()
    assert books.uncommitted() == (ShardCheckpoint(B, 1, 5),)
    assert books.readable == (B,)


def refusal(books: Holdings, grant: Grant) -> tuple[str, tuple[object, ...]]:
    """How a save under a grant that was lost is refused: the message, and what it says for programs."""
    with pytest.raises(FencedEpochError) as refused:
        books.save(grant, 9)
    error = refused.value
    return error.message, (error.shard, error.consumer, error.expected_epoch, error.actual_epoch)


def test_a_fenced_save_says_whose_the_shard_is_now_and_under_which_epoch() -> None:
    books = holding((A, 1, 0))
    grant = books.take()
    assert grant is not None
    books.save(grant, 5)
    taken = CheckpointOutcome(A, CheckpointResult.FENCED, 5, 1, 4, OTHER)

    books.acknowledge(books.uncommitted(), CheckpointReply((taken,)))

    assert refusal(books, grant) == (
        "shard t/0 is not held under epoch 1 any more, but under epoch 4 by clicks-1; drop what was read of it",
        (A, ME, 1, 4),
    )


def test_an_answer_to_an_earlier_epoch_counts_for_nothing() -> None:
    books = holding((A, 2, 0))
    assert books.acknowledge((ShardCheckpoint(A, 1, 5),), outcome(A, CheckpointResult.FENCED)) == ()
    assert books.readable == (A,)


def test_nothing_is_taken_while_paused() -> None:
    books = Holdings(ME)
    books.confirm(reply((A, 1, 0), paused=True))
    assert books.take() is None


def test_progress_grows_with_all_that_gets_on() -> None:
    books = holding((A, 1, 0))
    seen = [books.progress]
    grant = books.take()
    assert grant is not None
    seen.append(books.progress)
    books.save(grant, 5)
    seen.append(books.progress)
    books.acknowledge(books.uncommitted(), outcome(A, CheckpointResult.OK))
    seen.append(books.progress)
    books.put_back(grant)
    seen.append(books.progress)
    assert seen == sorted(set(seen))


def test_when_the_run_is_over_nothing_can_be_saved() -> None:
    books = holding((A, 1, 0))
    grant = books.take()
    assert grant is not None
    books.lose_all()
    assert refusal(books, grant) == (
        "shard t/0 is not held under epoch 1 any more; drop what was read of it",
        (A, ME, 1, None),
    )
    assert books.held() == (HeldShard(A, 1),)
    books.put_back(grant)
    assert books.held() == ()


def test_what_is_lost_at_the_end_counts_as_dropped_unless_it_is_durable_and_put_back() -> None:
    books = holding((A, 1, 0), (B, 1, 0), (C, 1, 0), (D, 1, 0))
    taken = {}
    for _ in range(3):
        grant = books.take()
        assert grant is not None
        taken[grant.shard] = grant
    for shard in (A, B):
        books.save(taken[shard], 5)
        books.put_back(taken[shard])
    books.acknowledge((ShardCheckpoint(A, 1, 5),), outcome(A, CheckpointResult.OK))
    books.lose_all()
    assert books.dropped == 2, "t/1 was done and not durable, t/2 was in hand"
