"""Row 8: a closed shard whose checkpoint is at its end is over, whenever the two come together."""

from __future__ import annotations

from shardherd.core.model.nouns import CheckpointResult
from shardherd.core.model.requests import ConditionsChanged
from tests.builders import Play, info, shard, spec, started

PARENT, CHILD = info("0", open=False), info("1", parents=["0"])


def reading() -> Play:
    """An ordered group whose shard 0 is open and read by g-0."""
    play = Play(spec(1, ordered=True))
    play.discover([info("0")])
    play.settle("g-0")
    return play


def test_at_the_checkpoint_that_reaches_the_end_and_not_one_before() -> None:
    play = reading()
    play.discover([PARENT, CHILD])
    play.checkpoint("g-0", "0", 99)
    assert play.states() == {"0": "ALREADY_ALLOC", "1": "WAIT"}
    play.checkpoint("g-0", "0", 100)
    assert play.states() == {"0": "OVER", "1": "ALREADY_ALLOC"}


def test_at_closing_when_the_last_checkpoint_came_before() -> None:
    play = reading()
    play.checkpoint("g-0", "0", 100)
    play.discover([PARENT, CHILD])
    assert play.states() == {"0": "OVER", "1": "ALREADY_ALLOC"}


def test_not_at_closing_when_the_last_checkpoint_is_still_being_written_but_right_after() -> None:
    play = reading()
    play.hold_commits = True
    play.checkpoint("g-0", "0", 100)
    play.discover([PARENT, CHILD])
    assert play.state("0") == "ALREADY_ALLOC"
    play.hold_commits = False
    play.commit()
    assert play.states() == {"0": "OVER", "1": "ALREADY_ALLOC"}


def test_in_transfer_and_the_next_consumer_is_given_nothing_of_it() -> None:
    play = started(2, 1, ordered=True)
    play.consumer("g-0").busy = {shard("1")}
    play.beat("g-1", "g-0")
    assert play.state("1") == "TRANSFER"
    play.discover([info("0"), info("1", open=False)])
    assert play.checkpoint("g-0", "1", 100) is CheckpointResult.OK
    assert play.state("1") == "OVER"
    play.consumer("g-0").busy = set()
    play.settle("g-0", "g-1")
    assert play.confirmed("g-1") == {}


def test_at_granting_when_it_is_empty() -> None:
    play = Play(spec(1, ordered=True))
    play.discover([info("0", begin=7, end=7, open=False), CHILD])
    assert play.states() == {"0": "NOT_ALLOC", "1": "WAIT"}
    play.settle("g-0")
    assert play.states() == {"0": "OVER", "1": "ALREADY_ALLOC"}


def test_a_chain_of_empty_shards_is_over_in_one_step() -> None:
    play = Play(spec(1, ordered=True))
    empty = [info(str(n), end=0, open=False, parents=[str(n - 1)] if n else []) for n in range(5)]
    play.discover([*empty, info("5", parents=["4"])])
    play.settle("g-0")
    assert play.states() == {"0": "OVER", "1": "OVER", "2": "OVER", "3": "OVER", "4": "OVER", "5": "ALREADY_ALLOC"}


def test_after_loading_when_it_closed_while_nobody_looked() -> None:
    play = reading()
    play.checkpoint("g-0", "0", 100)
    play.restart()
    play.discover([PARENT, CHILD])
    play.settle("g-0")
    assert play.states() == {"0": "OVER", "1": "ALREADY_ALLOC"}


def test_after_loading_when_the_coordinator_crashed_between_the_commit_and_the_ownership_write() -> None:
    play = reading()
    play.discover([PARENT, CHILD])
    play.hold_commits = True
    play.checkpoint("g-0", "0", 100)
    play.log |= play.uncommitted
    play.uncommitted = {}
    play.hold_commits = False
    play.restart()
    assert play.states() == {"0": "ALREADY_ALLOC", "1": "WAIT"}
    play.discover([PARENT, CHILD])
    play.settle("g-0")
    assert play.states() == {"0": "OVER", "1": "ALREADY_ALLOC"}


def test_a_closed_shard_that_nobody_holds_is_over_when_it_is_granted() -> None:
    play = reading()
    play.checkpoint("g-0", "0", 100)
    play.leave("g-0")
    play.discover([PARENT, CHILD])
    assert play.states() == {"0": "NOT_ALLOC", "1": "WAIT"}
    play.settle("g-1")
    assert play.states() == {"0": "OVER", "1": "ALREADY_ALLOC"}


def test_its_holder_is_told_and_balance_is_made_anew() -> None:
    play = reading()
    play.discover([PARENT])
    play.checkpoint("g-0", "0", 100)
    play.beat("g-0")
    assert play.confirmed("g-0") == {}
    assert play.reasons().count("ShardOver") == 1


def test_it_is_over_even_while_grants_are_withheld() -> None:
    play = reading()
    play.ask(ConditionsChanged(source_reachable=False))
    play.discover([PARENT, CHILD])
    play.checkpoint("g-0", "0", 100)
    assert play.state("0") == "OVER"
