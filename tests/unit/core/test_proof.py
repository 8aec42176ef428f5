"""What proves to an ordered group that a run writes nothing more, and what does not.

Every test has a writer that goes on after it was believed gone, and counts what it writes beside the next holder.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from shardherd.core.model.nouns import ConsumerId, Leave, ShardId
from shardherd.core.model.requests import ConsumerDied
from tests.builders import IDENTITY, Play, incarnation, spec, started, topic

SILENT = 45.0
G0, G1 = ConsumerId("g-0"), ConsumerId("g-1")


@dataclass
class Sink:
    """What consumers write while a group is played, second by second: each what it was last told to hold."""

    play: Play
    epochs: dict[ShardId, int] = field(default_factory=dict)
    late: int = 0
    """Writes under an epoch that is older than one that was written under before."""

    def write(self, held: dict[ShardId, int]) -> None:
        for name, epoch in held.items():
            self.late += epoch < self.epochs.get(name, 0)
            self.epochs[name] = max(epoch, self.epochs.get(name, 0))

    def run(self, seconds: int, beating: tuple[str, ...], going_on: dict[ShardId, int] | None = None) -> None:
        """So many seconds, in which those who beat write what they hold, and somebody else goes on with this."""
        for _ in range(seconds):
            self.play.wait(1.0)
            self.play.beat(*beating)
            for name in beating:
                self.write(self.play.consumers[name].held)
            self.write(going_on or {})


def holding(**settings: object) -> tuple[Play, Sink, dict[ShardId, int]]:
    """An ordered group of two consumers, and what the second one holds and goes on writing."""
    play = started(4, 2, ordered=True, **settings)
    sink = Sink(play)
    sink.run(1, ("g-0", "g-1"))
    return play, sink, dict(play.consumers["g-1"].held)


def died(play: Play, name: str, start: int = 1, pod: int = 1) -> None:
    play.ask(ConsumerDied(ConsumerId(name), incarnation(name, start, pod)))


# Leaving.


def test_who_leaves_while_it_still_writes_is_not_written_beside() -> None:
    play, sink, writes = holding()
    play.leave("g-1", stopped=False)
    sink.run(28, ("g-0",), writes)
    assert (sink.late, play.held_by("g-1"), play.counts()) == (0, {"1", "3"}, {"g-0": 4 - 2})
    sink.run(20, ("g-0",))
    assert play.counts() == {"g-0": 4}


def test_who_has_stopped_says_so_and_its_shards_move_at_once() -> None:
    play, _, _ = holding()
    play.leave("g-1")
    assert play.counts() == {"g-0": 4}


def test_who_stops_after_it_has_left_may_say_so_then() -> None:
    play, _, _ = holding()
    play.leave("g-1", stopped=False)
    play.leave("g-1", stopped=False)
    assert play.counts() == {"g-0": 2}
    play.leave("g-1")
    assert play.counts() == {"g-0": 4}


def test_only_the_run_that_left_can_say_that_it_has_stopped() -> None:
    play, _, _ = holding(rejoin_grace=0.0)
    play.run("g-1", start=2)
    play.beat("g-1")
    play.leave("g-1", stopped=False)
    play.ask(Leave(G1, incarnation("g-1"), IDENTITY.uid, stopped=True))
    assert play.counts() == {"g-0": 2}


def test_who_names_nothing_any_more_and_leaves_has_stopped() -> None:
    """As a consumer that knows of no such word does when it has given up all."""
    play, _, _ = holding(rejoin_grace=SILENT)
    play.consumer("g-1").draining = True
    play.consumer("g-1").held = {}
    play.beat("g-1")
    play.leave("g-1", stopped=False)
    assert play.held_by("g-1") == {"1", "3"}, "its return is waited for"
    play.wait(1.0, ["g-0"])
    play.change(replace(play.group.spec, settings=replace(play.group.spec.settings, rejoin_grace=0.0)))
    assert play.counts() == {"g-0": 4}


def test_who_may_have_been_granted_more_since_it_was_heard_has_not_stopped() -> None:
    play = Play(spec(1, ordered=True))
    play.discover(topic(2))
    consumer = play.consumer("g-0")
    play.ask(consumer.heartbeat())
    assert play.held_by("g-0") == {"0", "1"}, "its heartbeat named nothing, and its answer gave it these"
    play.leave("g-0", stopped=False)
    play.settle("g-1")
    assert play.held_by("g-0") == {"0", "1"}


def test_what_a_consumer_that_leaves_named_last_is_not_known_after_a_change_of_leaders() -> None:
    play, _, _ = holding()
    play.restart()
    play.discover(topic(4))
    play.leave("g-1", stopped=False)
    play.wait(SILENT - 5, ["g-0"])
    assert play.held_by("g-1") == {"1", "3"}
    play.wait(8, ["g-0"])
    assert play.counts() == {"g-0": 4}


def test_one_that_left_busy_is_waited_for_under_the_next_leader_too_and_its_death_ends_the_wait() -> None:
    play, _, _ = holding()
    play.leave("g-1", stopped=False)
    play.restart()
    play.discover(topic(4))
    play.wait(SILENT - 5, ["g-0"])
    assert play.held_by("g-1") == {"1", "3"}
    play.die("g-1")
    assert play.counts() == {"g-0": 4}


def test_an_unordered_group_waits_for_nobody_who_leaves() -> None:
    play = started(4, 2)
    play.leave("g-1", stopped=False)
    assert play.counts() == {"g-0": 4}


# A later start of the same pod.


@pytest.mark.parametrize("heard", [True, False], ids=["heard", "silent before"])
def test_executors_of_the_start_before_are_not_written_beside(heard: bool) -> None:
    play, sink, writes = holding(executors=True)
    sink.run(0 if heard else 3, ("g-0",), writes)
    play.run("g-1", start=2)
    sink.run(28, ("g-0", "g-1"), writes)
    assert (sink.late, play.confirmed("g-1")) == (0, {})
    sink.run(20, ("g-0", "g-1"))
    assert play.counts() == {"g-0": 2, "g-1": 2}
    assert len(play.consumers["g-1"].held) == 2


def test_the_end_of_the_executors_moves_them_at_once() -> None:
    play, _, _ = holding(executors=True)
    play.run("g-1", start=2)
    play.beat("g-1")
    died(play, "g-1")
    play.beat("g-1")
    assert set(play.confirmed("g-1")) == {"1", "3"}
    assert play.group.ownership.consumers[G1].proven == (), "what has moved needs no proof any more"


@pytest.mark.parametrize("executors", [True, False])
def test_a_consumer_whose_start_before_was_proven_dead_waits_for_nothing(executors: bool) -> None:
    play, _, _ = holding(executors=executors, rejoin_grace=SILENT)
    play.die("g-1")
    play.run("g-1", start=2)
    play.beat("g-1")
    assert set(play.confirmed("g-1")) == {"1", "3"}


def test_a_consumer_without_executors_waits_for_nothing() -> None:
    play, _, _ = holding()
    play.run("g-1", start=2)
    play.beat("g-1")
    assert set(play.confirmed("g-1")) == {"1", "3"}


def test_an_unordered_group_waits_for_no_executors() -> None:
    play = started(4, 2, executors=True)
    play.run("g-1", start=2)
    play.beat("g-1")
    assert set(play.confirmed("g-1")) == {"1", "3"}


def test_a_later_start_that_leaves_proves_nothing_of_the_executors_of_the_one_before() -> None:
    play, sink, writes = holding(executors=True)
    play.run("g-1", start=2)
    play.beat("g-1")
    play.leave("g-1")
    sink.run(28, ("g-0",), writes)
    assert (sink.late, play.held_by("g-1")) == (0, {"1", "3"})
    died(play, "g-1")
    assert play.counts() == {"g-0": 4}


def test_a_later_start_that_leaves_proves_nothing_of_them_after_another_pod_took_its_name_either() -> None:
    play, _, _ = holding(executors=True)
    play.run("g-1", start=2)
    play.beat("g-1")
    play.leave("g-1")
    play.run("g-1", pod=2)
    play.wait(28, ["g-0", "g-1"])
    assert play.confirmed("g-1") == {}
    died(play, "g-1", start=2)
    play.beat("g-1")
    assert set(play.confirmed("g-1")) == {"1", "3"}


def test_what_was_proven_of_a_start_is_not_forgotten_when_the_next_one_ends_otherwise() -> None:
    play, _, _ = holding(executors=True)
    play.hold_commits = True
    play.checkpoint("g-1", "1", 40)
    play.die("g-1")
    play.run("g-1", start=2)
    play.beat("g-1")
    play.leave("g-1", stopped=False)
    play.commit()
    assert play.counts() == {"g-0": 4}


def test_a_proof_that_is_told_again_is_stored_once() -> None:
    play, _, _ = holding(executors=True)
    play.run("g-1", start=2)
    play.beat("g-1")
    play.hold_commits = True
    play.ask(ConsumerDied(G1, incarnation("g-1")))
    assert play.ask(ConsumerDied(G1, incarnation("g-1"))).events == ()


def test_a_run_is_not_blamed_for_what_the_one_before_it_still_holds() -> None:
    play, _, _ = holding(executors=True, session_timeout=300.0, release_timeout=20.0, progress_timeout=30.0)
    play.beat("g-2")
    play.run("g-1", start=2)
    play.wait(120, ["g-0", "g-1", "g-2"])
    assert [reason for reason in play.reasons() if reason.endswith("Timeout")] == []
    assert play.held_by("g-1") != set()


def test_the_executors_of_a_run_are_waited_for_under_the_next_leader_too() -> None:
    play, _, _ = holding(executors=True)
    play.run("g-1", start=2)
    play.beat("g-1")
    play.restart()
    play.discover(topic(4))
    play.wait(SILENT - 5, ["g-0", "g-1"])
    assert play.confirmed("g-1") == {}
    play.wait(8, ["g-0", "g-1"])
    assert set(play.confirmed("g-1")) == {"1", "3"}


def test_once_a_group_has_no_executors_any_more_nobody_is_waited_for() -> None:
    play, _, _ = holding(executors=True)
    play.run("g-1", start=2)
    play.beat("g-1")
    play.change(replace(play.group.spec, executors=False))
    play.beat("g-1")
    assert set(play.confirmed("g-1")) == {"1", "3"}
