"""Each of these orders of events was dangerous once, somewhere. The rule that closes it is in docs/safety.md."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from shardherd.core.group.liveness import KEPT_FOR, KEPT_UIDS
from shardherd.core.model.errors import GroupReplacedError, StaleIncarnationError
from shardherd.core.model.nouns import (
    CheckpointReply,
    CheckpointRequest,
    CheckpointResult,
    ConfirmedShard,
    ConsumerId,
    Heartbeat,
    HeldShard,
    Leave,
    ShardCheckpoint,
)
from shardherd.core.model.requests import ClockGap, ConditionsChanged, ConsumerDied, ForceCheckpoint, Request, Tick
from tests.builders import Play, incarnation, info, shard, spec, started, topic

SILENT = 45.0


def transferring(**settings: object) -> Play:
    """Shards 0 and 1 of g-0; 1 is on its way to g-1, and g-0 cannot give it up yet."""
    play = started(2, 1, **settings)
    play.consumer("g-0").busy = {shard("1")}
    play.beat("g-1", "g-0")
    assert play.states() == {"0": "ALREADY_ALLOC", "1": "TRANSFER"}
    return play


def silence(play: Play, *silent: str) -> None:
    """The session timeout passes for these; all others beat."""
    play.wait(SILENT + 1, sorted(set(play.consumers) - set(silent)))


def overdue(play: Play, holder: str, other: str) -> None:
    """The release timeout passes while the holder beats and does not get on."""
    play.wait(57, [holder, other])
    play.wait(6, [other])


# A consumer gives up, takes on, or cannot give up yet.


def test_what_is_not_confirmed_is_checkpointed_and_given_up_and_only_then_does_the_other_start() -> None:
    play = transferring()
    play.beat("g-1")
    assert play.confirmed("g-1") == {}
    assert play.checkpoint("g-0", "1", 60) is CheckpointResult.OK
    play.consumer("g-0").busy = set()
    play.beat("g-0", "g-0", "g-1")
    assert play.confirmed("g-1") == {"1": ConfirmedShard(shard("1"), 2, 2, 60)}


def test_what_is_newly_confirmed_starts_at_the_position_of_the_reply() -> None:
    play = Play(spec(1))
    play.log = {shard("0"): 17}
    play.discover(topic(2))
    play.beat("g-0", "g-0")
    assert play.confirmed("g-0") == {"0": ConfirmedShard(shard("0"), 1, 1, 17), "1": ConfirmedShard(shard("1"), 1, 1, 0)}


def test_a_consumer_that_is_slow_to_give_up_holds_on_for_as_long_as_it_gets_on() -> None:
    play = transferring()
    for _ in range(40):
        play.consumer("g-0").progress += 1
        play.beat("g-0", "g-1")
        play.wait(3)
    assert (play.state("1"), play.shard("1").holder) == ("TRANSFER", "g-0")
    play.consumer("g-0").busy = set()
    play.beat("g-0", "g-0")
    assert (play.state("1"), play.shard("1").holder) == ("ALREADY_ALLOC", "g-1")


# Somebody expires in the middle of a transfer.


def test_the_holder_expires_in_transfer_and_the_next_consumer_gets_the_shard_at_the_durable_position() -> None:
    play = transferring()
    play.checkpoint("g-0", "1", 60)
    silence(play, "g-0")
    assert play.holders() == {"0": "g-1", "1": "g-1"}
    assert play.confirmed("g-1")["1"] == ConfirmedShard(shard("1"), 2, 2, 60)


def test_the_next_consumer_expires_in_transfer_and_the_holder_reads_on_under_its_epoch() -> None:
    play = transferring()
    silence(play, "g-1")
    assert play.states() == {"0": "ALREADY_ALLOC", "1": "ALREADY_ALLOC"}
    assert play.confirmed("g-0")["1"].owner_epoch == 1
    assert play.checkpoint("g-0", "1", 60) is CheckpointResult.OK


def test_holder_and_next_consumer_expire_together_and_the_shard_is_free() -> None:
    play = transferring()
    silence(play, "g-0", "g-1")
    assert play.states() == {"0": "NOT_ALLOC", "1": "NOT_ALLOC"}
    play.settle("g-2")
    assert play.counts() == {"g-2": 2}


def test_the_next_consumer_leaves_and_then_the_holder_expires() -> None:
    play = transferring()
    play.leave("g-1")
    assert play.state("1") == "ALREADY_ALLOC"
    silence(play, "g-0", "g-1")
    assert play.states() == {"0": "NOT_ALLOC", "1": "NOT_ALLOC"}


def test_the_next_consumer_drains_and_the_holder_keeps_the_shard() -> None:
    play = transferring()
    play.consumer("g-1").draining = True
    play.beat("g-1", "g-0")
    assert play.states() == {"0": "ALREADY_ALLOC", "1": "ALREADY_ALLOC"}
    assert play.confirmed("g-0")["1"].owner_epoch == 1


def test_the_next_consumer_that_expired_and_comes_back_is_given_nothing_of_the_old_transfer() -> None:
    play = transferring()
    silence(play, "g-1")
    play.beat("g-1")
    assert play.confirmed("g-1") == {}
    play.consumer("g-0").busy = set()
    play.settle("g-0", "g-1")
    assert play.counts() == {"g-0": 1, "g-1": 1}


def test_a_holder_that_expired_in_transfer_and_comes_back_is_told_what_it_lost_and_fenced() -> None:
    play = transferring()
    silence(play, "g-0")
    held = dict(play.consumer("g-0").held)
    assert play.checkpoint("g-0", "1", 60) is CheckpointResult.FENCED
    play.beat("g-0")
    reply = play.consumer("g-0").reply
    assert reply is not None
    assert reply.fenced == tuple(HeldShard(name, epoch) for name, epoch in sorted(held.items()))


# Two processes with one name.


def test_of_two_processes_with_one_name_the_earlier_is_refused_whatever_it_asks_and_changes_nothing() -> None:
    play = started(2, 1)
    old = play.consumer("g-0")
    play.run("g-0", pod=2)
    play.beat("g-0")
    before = play.view
    for _ in range(3):
        for request in (
            old.heartbeat(),
            CheckpointRequest(old.name, old.incarnation, (ShardCheckpoint(shard("0"), 1, 70),)),
        ):
            with pytest.raises(StaleIncarnationError, match="end this process"):
                play.ask(request)
    assert play.view == before
    assert play.log[shard("0")] == 0


def test_proof_of_death_of_the_earlier_of_two_processes_leaves_the_later_alone() -> None:
    play = started(2, 1)
    play.run("g-0", pod=2)
    play.beat("g-0")
    before = play.view
    play.ask(ConsumerDied(ConsumerId("g-0"), incarnation("g-0", 1, pod=1)))
    assert play.view == before


def test_a_superseded_pod_is_refused_after_restarts_of_the_coordinator_and_of_its_container() -> None:
    play = started(2, 1)
    for pod in range(2, 8):
        play.run("g-0", pod=pod)
        play.beat("g-0")
        play.restart()
        play.discover(topic(2))
    for pod in range(1, 7):
        for start in (1, 2, 9):
            with pytest.raises(StaleIncarnationError, match="has taken its name over"):
                play.ask(Heartbeat(ConsumerId("g-0"), incarnation("g-0", start, pod), 1, 0))


def test_a_superseded_pod_is_refused_for_as_long_as_its_token_may_be_believed() -> None:
    """However many pods of one name come meanwhile, and whatever coordinator they meet."""
    play = started(1, 1)
    for pod in range(2, 202):
        play.now += 2.0
        play.run("g-0", pod=pod)
        play.beat("g-0")
        if pod % 50 == 0:
            play.restart()
            play.discover(topic(1))
    for pod in range(1, 201):
        with pytest.raises(StaleIncarnationError, match="has taken its name over"):
            play.ask(Heartbeat(ConsumerId("g-0"), incarnation("g-0", 9, pod), 1, 0))


def test_the_superseded_pods_of_a_name_do_not_outgrow_the_stored_form() -> None:
    play = started(1, 1)
    for pod in range(2, 202):
        play.now += 60.0
        play.run("g-0", pod=pod)
        play.beat("g-0")

    def stored() -> tuple[str, ...]:
        return play.group.ownership.consumers[ConsumerId("g-0")].superseded

    def last(pods: int) -> tuple[str, ...]:
        return tuple(incarnation("g-0", 1, pod).pod_uid for pod in range(201 - pods, 201))

    assert stored() == last(10)
    # They are forgotten as time goes by, though no other pod of the name comes.
    for seconds, left in ((59.9, 10), (0.1, 9), (60.0, 8), (KEPT_FOR, KEPT_UIDS)):
        play.now += seconds
        play.beat("g-0")
        play.ask(Tick())
        assert stored() == last(left)
    assert sorted(uid for _, uid in play.group._state.superseded) == sorted(last(KEPT_UIDS))


# A group that was deleted and made anew under the same name.


def test_a_consumer_of_a_group_that_was_replaced_is_refused_whatever_it_asks_and_changes_nothing() -> None:
    """Its pod, its name and its run may be the same as those of a consumer of the new group; its epochs mean nothing here."""
    play = started(2, 1)
    consumer = play.consumer("g-0")
    before = play.view
    asked: list[Request] = [
        consumer.heartbeat(),
        CheckpointRequest(consumer.name, consumer.incarnation, (ShardCheckpoint(shard("0"), 1, 70),)),
        Leave(consumer.name, consumer.incarnation),
    ]
    for request in asked:
        assert isinstance(request, Heartbeat | CheckpointRequest | Leave)
        with pytest.raises(GroupReplacedError, match=r"UID the-old-one, which was deleted; .* end this process") as refusal:
            play.ask(replace(request, group_uid="the-old-one"))
        assert (refusal.value.code, refusal.value.consumer) == ("GroupReplaced", "g-0")
    assert play.view == before
    assert play.log[shard("0")] == 0


def test_a_late_first_heartbeat_of_a_replaced_group_joins_nothing() -> None:
    play = Play(spec(1))
    play.discover(topic(2))
    late = replace(play.consumer("g-0").heartbeat(), group_uid="the-old-one")
    with pytest.raises(GroupReplacedError):
        play.ask(late)
    assert play.view.consumers == ()


def test_a_consumer_that_speaks_version_1_names_no_group_and_is_told_apart_by_its_run() -> None:
    play = started(2, 1)
    consumer = play.consumer("g-0")
    checkpoint = CheckpointRequest(consumer.name, consumer.incarnation, (ShardCheckpoint(shard("0"), 1, 70),))
    reply = play.ask(checkpoint).reply
    assert isinstance(reply, CheckpointReply)
    assert [outcome.result for outcome in reply.outcomes] == [CheckpointResult.OK]


# Grants and epochs.


@pytest.mark.parametrize(
    ("wrong", "consumer", "pod", "start", "name", "epoch"),
    [
        ("shard", "g-0", 1, 1, "1", 1),
        ("consumer", "g-1", 1, 1, "0", 1),
        ("epoch", "g-0", 1, 1, "0", 2),
        ("epoch", "g-0", 1, 1, "0", 0),
        ("incarnation", "g-0", 1, 2, "0", 1),
        ("incarnation", "g-0", 5, 1, "0", 1),
    ],
)
def test_a_checkpoint_that_differs_from_the_grant_in_one_thing_is_fenced(
    wrong: str, consumer: str, pod: int, start: int, name: str, epoch: int
) -> None:
    play = started(2, 2)
    assert play.holders() == {"0": "g-0", "1": "g-1"}
    run = incarnation(consumer, start, pod)
    reply = play.ask(CheckpointRequest(ConsumerId(consumer), run, (ShardCheckpoint(shard(name), epoch, 9),))).reply
    assert isinstance(reply, CheckpointReply)
    assert reply.outcomes[0].result is CheckpointResult.FENCED, wrong
    assert play.log[shard(name)] == 0


def test_a_name_that_lost_a_shard_and_got_it_back_has_not_held_it_since() -> None:
    play = started(2, 2)
    play.die("g-1")
    assert play.holders() == {"0": "g-0", "1": "g-0"}
    play.run("g-1", start=2)
    play.settle("g-0", "g-1")
    (granted,) = play.confirmed("g-1").values()
    assert granted.held_since_epoch == granted.owner_epoch > 1


def test_a_name_that_restarts_again_and_again_has_held_it_since_the_first_time() -> None:
    play = started(1, 1)
    for start in (2, 3, 4):
        play.run("g-0", start=start)
        play.beat("g-0")
    assert play.confirmed("g-0")["0"] == ConfirmedShard(shard("0"), 4, 1, 0)


def test_a_grant_goes_out_only_after_the_commit_under_way_whatever_its_outcome() -> None:
    for succeeds, position in ((True, 60), (False, 0)):
        play = transferring()
        play.hold_commits = True
        play.checkpoint("g-0", "1", 60)
        play.consumer("g-0").busy = set()
        play.beat("g-0", "g-0", "g-1")
        assert play.shard("1").holder == "g-0"
        play.commit() if succeeds else play.fail_commits()
        play.hold_commits = False
        play.beat("g-1")
        assert play.confirmed("g-1")["1"].position == position


def test_a_checkpoint_that_arrives_after_its_shard_was_released_is_fenced() -> None:
    play = transferring()
    late = CheckpointRequest(ConsumerId("g-0"), incarnation("g-0"), (ShardCheckpoint(shard("1"), 1, 90),))
    play.consumer("g-0").busy = set()
    play.beat("g-0", "g-0", "g-1")
    reply = play.ask(late).reply
    assert isinstance(reply, CheckpointReply)
    assert reply.outcomes[0].result is CheckpointResult.FENCED
    assert play.log[shard("1")] == 0


# Heartbeats that are late, doubled, or of another time.


def test_a_doubled_heartbeat_releases_nothing_that_was_granted_in_between() -> None:
    play = started(2, 1)
    empty = replace(play.consumer("g-0").heartbeat(), held=())
    play.consumer("g-0").seq += 1
    play.beat("g-0", "g-1")
    before = play.view
    play.ask(empty)
    assert play.view == before


def test_a_stale_pair_refuses_no_heartbeat_and_the_current_grant_is_named_beside_it() -> None:
    play = started(2, 1)
    play.checkpoint("g-0", "0", 40)
    play.ask(ForceCheckpoint(shard("0"), 10))
    reply = play.answer(play.consumer("g-0").heartbeat())
    assert reply.fenced == (HeldShard(shard("0"), 1),)
    assert reply.confirmed == (ConfirmedShard(shard("0"), 2, 2, 10), ConfirmedShard(shard("1"), 1, 1, 0))


def test_a_shard_that_is_named_under_a_stale_epoch_is_not_released_until_no_epoch_of_it_is_named() -> None:
    play = transferring()
    play.ask(ForceCheckpoint(shard("1"), 10))
    play.beat("g-0", "g-0")
    assert play.consumer("g-0").held[shard("1")] == 1
    assert play.state("1") == "TRANSFER"
    play.consumer("g-0").busy = set()
    play.beat("g-0", "g-0")
    assert play.shard("1").holder == "g-1"


def test_a_heartbeat_of_before_a_restart_that_arrives_after_it_releases_nothing() -> None:
    play = started(2, 1)
    consumer = play.consumer("g-0")
    early = Heartbeat(consumer.name, consumer.incarnation, 1, 0, ())
    play.beat("g-1")
    play.restart()
    play.discover(topic(2))
    play.ask(early)
    assert play.states() == {"0": "ALREADY_ALLOC", "1": "TRANSFER"}
    assert play.shard("1").holder == "g-0"


def test_a_heartbeat_that_crossed_its_own_grant_does_not_give_it_back() -> None:
    play = Play(spec(1))
    play.discover(topic(1))
    first, second = play.consumer("g-0").heartbeat(), play.consumer("g-0").heartbeat()
    play.ask(first)
    play.ask(second)
    assert (play.shard("0").holder, play.shard("0").owner_epoch) == ("g-0", 1)


def test_a_consumer_that_drains_alone_and_gives_up_what_it_was_told_to_hold_frees_it() -> None:
    play = started(2, 1)
    consumer = play.consumer("g-0")
    consumer.draining = True
    play.beat("g-0")
    consumer.held = {}
    play.beat("g-0")
    assert play.states() == {"0": "NOT_ALLOC", "1": "NOT_ALLOC"}
    play.settle("g-1")
    assert play.counts() == {"g-0": 0, "g-1": 2}


# Proof of death.


def test_a_proof_that_comes_while_a_commit_is_under_way_counts_when_it_has_ended() -> None:
    play = started(2, 2, ordered=True)
    play.hold_commits = True
    play.checkpoint("g-1", "1", 40)
    play.die("g-1")
    assert play.shard("1").holder == "g-1"
    play.commit()
    play.beat("g-0")
    assert play.confirmed("g-0")["1"].position == 40


def test_a_proof_that_was_taken_counts_after_a_restart_of_the_coordinator() -> None:
    play = started(2, 1, ordered=True)
    play.run("g-0", pod=2)
    play.beat("g-0")
    play.hold_commits = True
    play.ask(ForceCheckpoint(shard("0"), 10))
    play.ask(ConsumerDied(ConsumerId("g-0"), incarnation("g-0", 1, pod=1)))
    assert play.confirmed("g-0") == {}
    play.uncommitted = {}
    play.restart()
    play.hold_commits = False
    play.discover(topic(2))
    play.beat("g-0")
    assert set(play.confirmed("g-0")) == {"0", "1"}


def test_an_ordered_group_does_not_move_the_shards_of_a_silent_consumer_before_it_must_have_stopped() -> None:
    play = started(4, 2, ordered=True)
    play.wait(SILENT - 1, ["g-0"])
    assert play.counts() == {"g-0": 2, "g-1": 2}
    play.wait(2, ["g-0"])
    assert play.counts() == {"g-0": 4}


def test_a_later_start_proves_the_end_of_every_earlier_one_of_its_pod_in_an_ordered_group_too() -> None:
    play = started(2, 1, ordered=True)
    play.run("g-0", start=5)
    play.beat("g-0")
    assert {each.owner_epoch for each in play.confirmed("g-0").values()} == {2}


@pytest.mark.parametrize("grace", [0.0, 300.0], ids=["no grace", "a grace for those that died or left"])
def test_an_expired_run_of_an_ordered_group_frees_its_shards_at_its_proof_of_death(grace: float) -> None:
    play = transferring(ordered=True, rejoin_grace=grace)
    overdue(play, "g-0", "g-1")
    assert "ReleaseTimeout" in play.reasons()
    assert play.held_by("g-0") == {"0", "1"}
    play.die("g-0")
    assert play.counts() == {"g-1": 2}


# Deadlines.


def test_the_release_clock_stands_still_while_the_coordinator_cannot_commit() -> None:
    play = transferring()
    play.ask(ConditionsChanged(commits=False))
    play.wait(600, ["g-0", "g-1"])
    assert play.state("1") == "TRANSFER"
    play.ask(ConditionsChanged())
    play.wait(50, ["g-0", "g-1"])
    assert play.state("1") == "TRANSFER"
    play.wait(15, ["g-1"])
    assert "ReleaseTimeout" in play.reasons()


def test_a_checkpoint_that_succeeds_makes_doubled_deadlines_plain_again() -> None:
    play = transferring()
    overdue(play, "g-0", "g-1")
    play.settle("g-1")
    assert play.checkpoint("g-1", "0", 40) is CheckpointResult.OK
    play.consumer("g-1").busy = {shard("0"), shard("1")}
    play.run("g-0", pod=2)
    play.beat("g-0", "g-1")
    overdue(play, "g-1", "g-0")
    assert play.reasons().count("ReleaseTimeout") == 2


def test_nobody_expires_while_the_coordinator_did_not_run_even_if_it_wakes_by_a_tick() -> None:
    play = started(2, 2)
    play.now += 3600
    play.ask(ClockGap(3600))
    play.ask(Tick())
    assert play.counts() == {"g-0": 1, "g-1": 1}


def test_what_waits_or_is_free_has_no_deadline() -> None:
    play = Play(spec(1, ordered=True))
    play.discover([info("0", open=False), info("1", parents=["0"])])
    play.wait(100_000)
    assert play.states() == {"0": "NOT_ALLOC", "1": "WAIT"}


# Where to start.


def test_latest_is_resolved_once_and_a_failed_commit_does_not_move_it() -> None:
    play = Play(spec(1, starting="Latest"))
    play.hold_commits = True
    play.discover([info("0", end=90)])
    play.fail_commits()
    play.restart()
    assert play.discover([info("0", end=500)]).positions == {shard("0"): 90}


def test_nothing_is_granted_before_its_start_is_durable_also_after_a_crash_in_between() -> None:
    play = Play(spec(1))
    play.hold_commits = True
    play.discover(topic(1))
    play.uncommitted = {}
    play.restart()
    play.settle("g-0")
    assert play.confirmed("g-0") == {}
    play.hold_commits = False
    play.discover(topic(1))
    play.settle("g-0")
    assert play.confirmed("g-0")["0"].position == 0
