"""Who gets what: joins, restarts, drains, pauses. The specification's own examples are in a file of their own."""

from __future__ import annotations

from shardherd.core.model.nouns import ConsumerId
from tests.builders import Play, holding, shard, shards, spec, started, topic, with_settings


def test_the_first_assignment_waits_for_all_wanted_consumers() -> None:
    play = Play(spec(3))
    play.discover(topic(6))
    play.beat("g-0", "g-1")
    assert play.counts() == {"g-0": 0, "g-1": 0}
    play.beat("g-2")
    assert play.counts() == {"g-0": 2, "g-1": 2, "g-2": 2}


def test_the_first_assignment_waits_ten_seconds_after_the_first_is_ready() -> None:
    play = Play(spec(3))
    play.discover(topic(6))
    play.consumer("g-0").ready = False
    play.beat("g-0")
    play.wait(30, ["g-0"])
    play.consumer("g-0").ready = True
    play.beat("g-0")
    play.wait(9.5, ["g-0"])
    assert play.counts() == {"g-0": 0}
    play.wait(1, ["g-0"])
    assert play.counts() == {"g-0": 6}


def test_the_ten_seconds_begin_anew_when_the_first_ready_consumer_is_ready_no_more() -> None:
    play = Play(spec(3))
    play.discover(topic(6))
    play.beat("g-0")
    play.wait(6, ["g-0"])
    play.consumer("g-0").ready = False
    play.beat("g-0")
    play.wait(6, ["g-0"])
    play.consumer("g-0").ready = True
    play.beat("g-0")
    play.wait(9.5, ["g-0"])
    assert play.counts() == {"g-0": 0}
    play.wait(1, ["g-0"])
    assert play.counts() == {"g-0": 6}


def test_a_join_rebalances_at_once_and_further_joins_within_a_second_are_gathered() -> None:
    play = started(12, 1)
    play.beat("g-1")
    assert [view.next_consumer for view in play.view.shards].count(ConsumerId("g-1")) == 6
    play.wait(0.5)
    play.beat("g-2", "g-3")
    assert {view.next_consumer for view in play.view.shards} == {None, "g-1"}
    play.wait(0.5)
    assert {view.next_consumer for view in play.view.shards} == {None, "g-1", "g-2", "g-3"}


def test_a_consumer_that_is_not_ready_is_granted_nothing() -> None:
    play = started(4, 1)
    play.consumer("g-1").ready = False
    play.settle("g-0", "g-1")
    assert play.counts() == {"g-0": 4, "g-1": 0}
    play.consumer("g-1").ready = True
    play.settle("g-0", "g-1")
    assert play.counts() == {"g-0": 2, "g-1": 2}


def test_who_gave_up_all_it_held_while_it_was_not_ready_is_not_reckoned_with_any_more() -> None:
    play = holding(A="02", B="35", C="14")
    play.consumer("C").ready = False
    play.settle("A", "B", "C")
    play.change(with_settings(play.group.spec, assignor="RoundRobin"))
    play.settle("A", "B", "C")
    assert [play.held_by(name) for name in "ABC"] == [set("024"), set("135"), set()]


def test_a_consumer_that_restarts_cold_within_its_grace_keeps_the_shards_of_its_name() -> None:
    play = started(4, 2, rejoin_grace=20.0)
    before = play.holders()
    play.run("g-1", start=2, ready=False)
    play.settle("g-0", "g-1")
    assert play.holders() == before
    assert {each.owner_epoch for each in play.confirmed("g-1").values()} == {2}
    assert {each.held_since_epoch for each in play.confirmed("g-1").values()} == {1}


def test_a_consumer_that_restarts_cold_alone_keeps_the_shards_of_its_name() -> None:
    play = started(4, 1)
    play.run("g-0", start=2, ready=False)
    play.settle("g-0")
    assert play.counts() == {"g-0": 4}
    assert {each.owner_epoch for each in play.confirmed("g-0").values()} == {2}


def test_shards_of_a_consumer_that_restarts_cold_go_to_the_warm_ones_until_it_is_warm() -> None:
    play = started(4, 2)
    play.run("g-1", start=2, ready=False)
    play.settle("g-0", "g-1")
    assert play.counts() == {"g-0": 4, "g-1": 0}
    play.consumer("g-1").ready = True
    play.settle("g-0", "g-1")
    assert play.counts() == {"g-0": 2, "g-1": 2}


def test_a_draining_consumer_loses_all_it_holds_to_the_others() -> None:
    play = started(9, 3)
    play.consumer("g-2").draining = True
    play.settle("g-2", "g-0", "g-1", "g-2")
    assert sorted(play.counts().items())[2] == ("g-2", 0)
    assert sorted(play.counts().values()) == [0, 4, 5]


def test_a_leaving_consumer_is_drained_and_may_come_back() -> None:
    play = started(9, 3)
    play.change(spec(2, leaving=["g-2"]))
    play.settle("g-0", "g-1", "g-2")
    assert play.counts()["g-2"] == 0
    play.change(spec(3))
    play.settle("g-0", "g-1", "g-2")
    assert play.counts() == {"g-0": 3, "g-1": 3, "g-2": 3}


def test_the_last_consumer_keeps_its_shards_while_it_drains_and_frees_them_when_it_leaves() -> None:
    play = started(3, 1)
    play.consumer("g-0").draining = True
    play.settle("g-0")
    assert play.states() == dict.fromkeys("012", "ALREADY_ALLOC")
    play.leave("g-0")
    assert play.states() == dict.fromkeys("012", "NOT_ALLOC")
    assert play.counts() == {}


def test_only_partition_five_is_revoked() -> None:
    play = holding(A="135", B="24")
    read = dict(play.consumer("A").held)
    play.beat("C")
    assert [name for name, state in play.states().items() if state == "TRANSFER"] == ["5"]
    play.beat("A")
    assert play.consumer("A").held == {name: epoch for name, epoch in read.items() if name != shard("5")}
    play.settle("A", "B", "C")
    assert play.holders() == {"1": "A", "2": "B", "3": "A", "4": "B", "5": "C"}
    assert play.view.moves == 1


def test_only_the_shard_that_is_too_many_is_revoked() -> None:
    play = started(5, 2)
    rich = max(play.counts(), key=lambda name: play.counts()[name])
    before = play.held_by(rich)
    play.beat("g-2")
    revoked = {name for name, state in play.states().items() if state == "TRANSFER"}
    assert revoked < before
    assert len(revoked) == 1


def test_paused_grants_and_moves_nothing_and_goes_on_afterwards() -> None:
    play = started(4, 2)
    before = play.holders()
    play.change(with_settings(play.group.spec, paused=True))
    play.beat("g-2")
    play.settle("g-0", "g-1", "g-2")
    assert play.holders() == before
    assert [condition.reason for condition in play.view.withheld] == ["Paused"]
    play.die("g-0")
    assert sorted(play.states().values()) == ["ALREADY_ALLOC", "ALREADY_ALLOC", "NOT_ALLOC", "NOT_ALLOC"]
    play.change(with_settings(play.group.spec, paused=False))
    play.settle("g-1", "g-2")
    assert play.counts() == {"g-1": 2, "g-2": 2}


def test_a_transfer_released_while_paused_goes_on_after_the_pause() -> None:
    play = started(2, 1)
    play.beat("g-1")
    play.change(with_settings(play.group.spec, paused=True))
    play.settle("g-0", "g-1")
    assert sorted(play.states().values()) == ["ALREADY_ALLOC", "TRANSFER"]
    play.change(with_settings(play.group.spec, paused=False))
    assert play.counts() == {"g-0": 1, "g-1": 1}


def test_changing_the_assignor_moves_towards_its_target() -> None:
    play = started(4, 2)
    assert play.holders() == {"0": "g-0", "1": "g-1", "2": "g-0", "3": "g-1"}
    play.change(with_settings(play.group.spec, assignor="Range"))
    play.settle("g-0", "g-1")
    assert play.holders() == {"0": "g-0", "1": "g-0", "2": "g-1", "3": "g-1"}
    assert play.view.moves == 2


def test_a_transfer_is_not_called_off_for_a_better_target_but_followed_by_another() -> None:
    play = started(4, 1)
    play.consumer("g-0").busy = set(shards("2", "3"))
    play.beat("g-1", "g-0")
    assert [name for name, state in play.states().items() if state == "TRANSFER"] == ["2", "3"]
    # RoundRobin would leave shard 2 with g-0, which has been asked to release it already.
    play.change(with_settings(play.group.spec, assignor="RoundRobin"))
    play.beat("g-0", "g-1")
    assert (play.shard("2").state, play.shard("2").next_consumer) == ("TRANSFER", "g-1")
    play.consumer("g-0").busy = set()
    play.beat("g-0", "g-0")
    assert play.shard("2").next_consumer == "g-0"
    play.settle("g-0", "g-1")
    assert play.holders() == {"0": "g-0", "1": "g-1", "2": "g-0", "3": "g-1"}


def test_a_transfer_of_an_expired_holder_stays_as_it_is_when_its_next_consumer_is_not_ready_any_more() -> None:
    # In an ordered group the expired holder may still read: its shards wait for proof, or for one session timeout.
    play = started(2, 1, ordered=True)
    play.beat("g-1")
    play.consumer("g-0").busy = set(shards("1"))
    play.wait(59, ["g-0", "g-1"])
    play.wait(3, ["g-1"])
    assert play.reasons()[-1] == "ReleaseTimeout"
    play.consumer("g-1").ready = False
    play.beat("g-1")
    assert (play.shard("1").state, play.shard("1").holder, play.shard("1").next_consumer) == ("TRANSFER", "g-0", "g-1")
    play.wait(45, ["g-1"])
    assert play.states() == {"0": "NOT_ALLOC", "1": "NOT_ALLOC"}
