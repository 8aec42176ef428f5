"""How a consumer comes and goes, to the last field: what is written of it, what events say, and who is refused how."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from msgspec import structs

from shardherd.core.group import liveness
from shardherd.core.group.records import ConsumerRecord, EndReason, InFlight, Session, ShardRecord
from shardherd.core.group.state import GroupEvent, Put, State, Table
from shardherd.core.model.errors import GroupReplacedError, InvalidRequestError, ShardherdError, StaleIncarnationError
from shardherd.core.model.nouns import CheckpointRequest, ConsumerId, Heartbeat, Incarnation, Leave, ShardId
from shardherd.core.model.requests import ConsumerDied, Request
from tests.builders import IDENTITY, Play, incarnation, shard, shards, spec, started, topic, with_settings
from tests.unit.core.tables import FREE, HELD, MOVING, NOW, A, B, C, events, having

GRACE = 1_000.0
"""So long that nothing moves."""

RUN = incarnation("g-1")


def stands(play: Play) -> None:
    """Time passes in which g-1 beats without getting on."""
    for _ in range(110):
        play.consumer("g-0").progress += 1
        play.beat(*play.counts())
        play.wait(3)


def keeps(play: Play) -> None:
    """g-1 does not give up what it is to release."""
    play.consumer("g-1").busy = set(shards("1", "3"))
    play.change(spec(2, leaving=["g-1"], rejoin_grace=GRACE))
    for _ in range(22):
        play.consumer("g-0").progress += 1
        play.beat(*play.counts())
        play.wait(3)


GONE = "g-1 of pod uid-g-1-1, start 1, is no consumer any more"
WAYS: list[tuple[Callable[[Play], object], str, str, bool, str]] = [
    (lambda play: play.leave("g-1"), "ConsumerLeft", GONE, False, EndReason.LEFT),
    (lambda play: play.die("g-1"), "ConsumerDied", GONE, True, EndReason.DIED),
    (lambda play: play.wait(46, ["g-0"]), "SessionTimeout", "g-1 was silent for 45 s", True, ""),
    (
        stands,
        "ProgressTimeout",
        "g-1 has something to read and does not get on in time; its pod must be replaced",
        True,
        EndReason.PROGRESS_TIMEOUT,
    ),
    (
        keeps,
        "ReleaseTimeout",
        "g-1 has not released its shards in time; its pod must be replaced",
        True,
        EndReason.RELEASE_TIMEOUT,
    ),
]


@pytest.mark.parametrize(("goes", "reason", "message", "warning", "ended"), WAYS, ids=[way[1] for way in WAYS])
def test_a_consumer_that_goes_is_told_of_with_all_that_it_held_and_remembered_as_it_ended(
    goes: Callable[[Play], object], reason: str, message: str, warning: bool, ended: str
) -> None:
    play = started(4, 2, rejoin_grace=GRACE)
    play.discover(topic(4))
    epoch = play.view.group_epoch
    changed = goes is keeps
    goes(play)
    (event,) = [each for each in play.events if each.reason == reason]
    assert event == GroupEvent(reason, message, consumer=B, incarnation=RUN, shards=shards("1", "3"), warning=warning)
    kept = ConsumerRecord(B, RUN, present=False, ended=RUN if ended else None, end_reason=ended)
    assert play.group.ownership.consumers[B] == kept
    assert play.view.group_epoch == epoch + 1
    assert [each.consumer for each in play.view.consumers] == ["g-0"]
    assert play.group._state.clocks.expiries == (ended in EndReason.EXPIRED)
    assert play.group._state.clocks.doublings == (ended in EndReason.EXPIRED)
    assert B not in play.group._state.lagging
    assert changed or play.events[-1].reason in (reason, "Rebalanced")


def test_a_consumer_that_went_is_remembered_until_when_it_was_heard_while_it_holds_anything() -> None:
    play = started(4, 2, rejoin_grace=GRACE)
    state, heard = play.group._state, play.group._state.sessions[B].last_heard
    play.leave("g-1")
    assert state.heard == {(B, RUN): heard}
    play.wait(heard + GRACE - play.now - 1.0, ["g-0"])
    assert (play.counts(), state.heard) == ({"g-0": 2}, {(B, RUN): heard})
    play.wait(1.0, ["g-0"])
    assert (play.counts(), state.heard) == ({"g-0": 4}, {})


def test_one_that_holds_nothing_is_forgotten_at_once() -> None:
    play = started(1, 2)
    empty = next(name for name, count in play.counts().items() if count == 0)
    play.leave(empty)
    assert play.group._state.heard == {}


def test_one_that_expired_already_ends_without_a_word() -> None:
    play = started(4, 2, rejoin_grace=GRACE)
    play.wait(46, ["g-0"])
    before = play.view.group_epoch, len(play.events)
    play.die("g-1")
    assert (play.view.group_epoch, [each.reason for each in play.events[before[1] :]]) == (before[0], [])
    assert play.group.ownership.consumers[B] == ConsumerRecord(B, RUN, present=False, ended=RUN, end_reason=EndReason.DIED)


def test_one_that_expired_and_speaks_again_joins_anew() -> None:
    play = started(4, 2, rejoin_grace=GRACE)
    play.wait(46, ["g-0"])
    epoch = play.view.group_epoch
    play.beat("g-1")
    joined = GroupEvent("ConsumerJoined", "g-1 joined: pod uid-g-1-1, start 1", consumer=B, incarnation=RUN)
    assert [each for each in play.events if each.consumer == B][-1] == joined
    assert play.group.ownership.consumers[B] == ConsumerRecord(B, RUN)
    assert play.view.group_epoch == epoch + 1


def test_a_consumer_that_joins_is_told_of_once() -> None:
    play = Play(spec(1))
    play.discover(topic(1))
    epoch = play.view.group_epoch
    play.beat("g-0", "g-0")
    assert [each for each in play.events if each.consumer] == [
        GroupEvent("ConsumerJoined", "g-0 joined: pod uid-g-0-1, start 1", consumer=A, incarnation=incarnation("g-0"))
    ]
    assert play.view.group_epoch == epoch + 1


def test_an_end_that_is_told_twice_or_of_a_stranger_changes_nothing() -> None:
    play = started(4, 2)
    for request in (Leave(C, incarnation(C)), ConsumerDied(C, incarnation(C))):
        assert play.ask(request).events == ()
    for goes in (play.leave, play.die):
        goes("g-1")
        assert goes("g-1").events == ()
    assert play.group.ownership.consumers[B].end_reason == EndReason.LEFT


def test_an_expired_run_that_is_proven_dead_is_no_pod_to_be_replaced_any_more() -> None:
    play = started(4, 2)
    play.discover(topic(4))
    stands(play)
    assert play.view.expired == ((B, RUN),)
    play.die("g-1")
    assert not play.view.expired


def test_what_a_consumer_held_is_told_in_natural_order() -> None:
    play = started(12, 2)
    play.die("g-1")
    (event,) = [each for each in play.events if each.reason == "ConsumerDied"]
    assert event.shards == shards("1", "3", "5", "7", "9", "11")


@pytest.mark.parametrize("first", ["leave", "die"])
@pytest.mark.parametrize("second", ["leave", "die"])
def test_a_later_start_ends_by_itself_however_the_one_before_it_ended(first: str, second: str) -> None:
    play = started(4, 2)
    getattr(play, first)("g-1")
    play.run("g-1", start=2)
    play.settle("g-0", "g-1")
    assert play.counts() == {"g-0": 2, "g-1": 2}
    getattr(play, second)("g-1")
    assert play.counts() == {"g-0": 4}
    assert play.group.ownership.consumers[B].ended == incarnation(B, 2)


# Newer runs.


def test_a_later_start_keeps_what_is_known_of_its_pod_and_another_pod_supersedes_it() -> None:
    play = started(2, 1)
    play.wait(2.0)
    first = play.group._state.sessions[A].last_heard
    play.ask(Heartbeat(A, incarnation(A, 2), 1, 0, zone="a", capacity=2))
    assert play.group.ownership.consumers[A] == ConsumerRecord(A, incarnation(A, 2), zone="a", capacity=2)
    play.wait(1.0)
    play.ask(Heartbeat(A, incarnation(A, 1, pod=2), 1, 0, zone="a", capacity=2))
    assert play.group.ownership.consumers[A] == ConsumerRecord(
        A, incarnation(A, 1, pod=2), superseded=("uid-g-0-1",), zone="a", capacity=2
    )
    assert play.group._state.superseded == {(A, "uid-g-0-1"): play.now}
    assert play.group._state.sessions[A] == Session(last_heard=play.now, seq=1, ready=True, progress_at=play.now)
    assert first < play.now
    assert play.group._state.heard == {}


def test_a_run_that_ended_is_known_to_be_dead_for_as_long_as_its_name_holds_anything_under_it() -> None:
    play = started(2, 1, ordered=True)
    play.hold_commits = True
    play.checkpoint("g-0", "0", 40)
    play.checkpoint("g-0", "1", 40)
    play.die("g-0")
    play.run("g-0", pod=2)
    play.beat("g-0")
    dead, now = incarnation("g-0"), incarnation("g-0", pod=2)
    assert play.group.ownership.consumers[A] == ConsumerRecord(A, now, superseded=("uid-g-0-1",), proven=(dead,))
    play.commit()
    assert play.group.ownership.consumers[A] == ConsumerRecord(A, now, superseded=("uid-g-0-1",))


def test_a_later_start_keeps_how_the_start_before_it_ended() -> None:
    state = having(HELD)
    dead = state.consumers[A].incarnation
    state.put_consumer(replace(state.consumers[A], present=False, ended=dead, end_reason=EndReason.DIED))
    assert liveness.admit(state, A, incarnation(A, 3), NOW) is True
    assert state.consumers[A] == ConsumerRecord(A, incarnation(A, 3), ended=dead, end_reason=EndReason.DIED)


def test_in_an_ordered_group_a_superseded_pod_may_act_until_a_timeout_after_it_was_last_heard() -> None:
    play = started(2, 1, ordered=True)
    heard, begun = play.group._state.sessions[A].last_heard, play.group._state.shards[shard("0")].since
    play.now = heard + 20.0
    play.run("g-0", pod=2)
    play.beat("g-0")
    assert play.group._state.heard == {(A, incarnation(A)): heard}
    play.wait(heard + 45.0 - play.now - 0.1, ["g-0"])
    assert play.group._state.shards[shard("0")].since == begun
    play.wait(0.1, ["g-0"])
    assert (play.group._state.shards[shard("0")].since, play.group._state.heard) == (heard + 45.0, {})


@pytest.mark.parametrize("reason", [EndReason.PROGRESS_TIMEOUT, EndReason.RELEASE_TIMEOUT])
def test_a_run_that_only_expired_is_not_known_to_be_dead_when_another_pod_comes(reason: str) -> None:
    state = having(HELD)
    run = state.consumers[A].incarnation
    state.put_consumer(replace(state.consumers[A], present=False, ended=run, end_reason=reason))
    assert liveness.admit(state, A, incarnation(A, pod=2), NOW) is True
    assert state.consumers[A] == ConsumerRecord(A, incarnation(A, pod=2), superseded=("uid-g-0-1",))


def test_the_proof_of_a_superseded_run_is_kept_only_while_something_is_held_under_what_it_covers() -> None:
    play = started(2, 1, ordered=True)
    play.run("g-0", pod=2)
    play.beat("g-0")
    before = play.group.ownership.consumers[A]
    play.hold_commits = True
    play.checkpoint("g-0", "0", 40)
    for stranger in (incarnation(A, 1, pod=7), Incarnation("uid-g-0-1", 0)):
        play.ask(ConsumerDied(A, stranger))
    play.ask(ConsumerDied(B, incarnation(A)))
    assert play.group.ownership.consumers[A] == before
    play.ask(ConsumerDied(A, incarnation(A, 3)))
    assert play.group.ownership.consumers[A] == before, "both shards were given to the new pod at once"
    play.beat("g-0")
    assert {each.owner_epoch for each in play.confirmed("g-0").values()} == {2}


# When the shards of a run that is over may move.


def ended(reason: str, *, ordered: bool = False, grace: float = 20.0) -> State:
    """Of A the first start is over for this reason, was heard at 100.0, and holds a shard."""
    state = having(HELD)
    state.put_spec(with_settings(spec(3), ordered=ordered, rejoin_grace=grace))
    state.put_consumer(
        ConsumerRecord(A, incarnation(A), present=False, ended=incarnation(A) if reason else None, end_reason=reason)
    )
    state.put_heard(A, incarnation(A), 100.0)
    state.begin()
    return state


@pytest.mark.parametrize(
    ("reason", "ordered", "gone", "reclaimable"),
    [
        (EndReason.DIED, True, liveness.AT_ONCE, 120.0),
        (EndReason.LEFT, True, liveness.AT_ONCE, 120.0),
        (EndReason.RELEASE_TIMEOUT, True, 145.0, liveness.AT_ONCE),
        (EndReason.PROGRESS_TIMEOUT, True, 145.0, liveness.AT_ONCE),
        ("", True, 145.0, 120.0),
        (EndReason.PROGRESS_TIMEOUT, False, liveness.AT_ONCE, liveness.AT_ONCE),
        (EndReason.EXPIRED_AND_DIED, True, liveness.AT_ONCE, liveness.AT_ONCE),
        ("", False, liveness.AT_ONCE, 120.0),
    ],
)
def test_its_shards_may_move_when_it_cannot_act_any_more_and_no_return_is_waited_for(
    reason: str, ordered: bool, gone: float, reclaimable: float
) -> None:
    state = ended(reason, ordered=ordered)
    assert liveness.gone_at(state, A, incarnation(A)) == gone
    assert liveness.reclaimable_at(state, A, incarnation(A)) == reclaimable


@pytest.mark.parametrize("start", [1, 2], ids=["its own death", "that of a later start, which was never heard"])
@pytest.mark.parametrize("reason", [EndReason.PROGRESS_TIMEOUT, EndReason.RELEASE_TIMEOUT])
def test_the_proof_of_death_of_a_run_that_was_expired_moves_its_shards_and_gives_it_no_grace(reason: str, start: int) -> None:
    state = ended(reason, ordered=True)
    liveness.died(state, ConsumerDied(A, incarnation(A, start)))
    liveness.settle(state, 101.0)
    assert state.shards == {shard("0"): FREE._replace(last_holder=A, since=101.0)}
    assert state.consumers[A] == ConsumerRecord(
        A, incarnation(A), present=False, ended=incarnation(A, start), end_reason=EndReason.EXPIRED_AND_DIED
    )


def test_the_death_of_a_run_that_was_expired_is_stored_once_and_counts_when_another_pod_has_its_name() -> None:
    state = ended(EndReason.PROGRESS_TIMEOUT, ordered=True)
    liveness.died(state, ConsumerDied(A, incarnation(A)))
    state.begin()
    liveness.died(state, ConsumerDied(A, incarnation(A)))
    assert state.journal == []
    liveness.admit(state, A, incarnation(A, pod=2), 101.0)
    assert state.consumers[A] == ConsumerRecord(A, incarnation(A, pod=2), superseded=("uid-g-0-1",), proven=(incarnation(A),))


@pytest.mark.parametrize("proof_first", [True, False])
def test_a_cold_start_after_one_that_was_expired_yields_whether_the_proof_or_its_heartbeat_comes_first(
    proof_first: bool,
) -> None:
    state = ended(EndReason.PROGRESS_TIMEOUT, ordered=True)
    state.put_spec(replace(state.spec, executors=True))
    state.put_session(B, WARM)
    state.put_in_flight(shard("0"), InFlight(1))
    if proof_first:
        liveness.died(state, ConsumerDied(A, incarnation(A)))
    liveness.admit(state, A, incarnation(A, 2), 101.0)
    if not proof_first:
        liveness.died(state, ConsumerDied(A, incarnation(A)))
    state.put_in_flight(shard("0"), None)
    liveness.settle(state, 102.0)
    assert state.shards == {shard("0"): FREED._replace(since=102.0)}
    reason = EndReason.EXPIRED_AND_DIED if proof_first else EndReason.PROGRESS_TIMEOUT
    assert state.consumers[A] == ConsumerRecord(A, incarnation(A, 2), True, incarnation(A), reason)


@pytest.mark.parametrize("before", [EndReason.PROGRESS_TIMEOUT, EndReason.EXPIRED_AND_DIED])
def test_a_later_start_that_was_heard_and_died_has_its_grace_though_the_one_before_was_expired(before: str) -> None:
    state = ended(before)
    liveness.admit(state, A, incarnation(A, 2), 101.0)
    state.put_shard(HELD._replace(incarnation=incarnation(A, 2)))
    liveness.died(state, ConsumerDied(A, incarnation(A, 2)))
    assert state.consumers[A] == ConsumerRecord(A, incarnation(A, 2), False, incarnation(A, 2), EndReason.DIED)
    state.put_heard(A, incarnation(A, 2), 110.0)
    assert liveness.reclaimable_at(state, A, incarnation(A, 2)) == 130.0


def test_of_a_run_that_nobody_heard_since_the_restart_the_restart_counts() -> None:
    state = ended("", ordered=True)
    state.put_heard(A, incarnation(A), None)
    state.restored_at = 50.0
    assert liveness.gone_at(state, A, incarnation(A)) == 95.0


def test_a_free_shard_of_a_consumer_that_went_is_told_of_by_a_rebalance_at_the_very_moment_its_grace_ends() -> None:
    state = ended("")
    liveness.settle(state, 119.9)
    assert state.journal == []
    liveness.settle(state, 120.0)
    assert state.shards == {shard("0"): FREE._replace(last_holder=A, since=120.0)}
    assert (state.clocks.due, state.heard, events(state)) == ("ShardsFreed", {}, [])


def test_a_transfer_of_a_consumer_that_went_waits_for_no_grace() -> None:
    state = ended("")
    state.put_shard(MOVING)
    liveness.settle(state, 100.0)
    assert state.shards == {shard("0"): FREE._replace(last_holder=A, since=100.0)}
    assert state.clocks.due == "ShardsFreed"


def test_in_an_ordered_group_a_silent_run_is_gone_at_the_very_moment_of_its_timeout() -> None:
    state = ended("", ordered=True, grace=0.0)
    liveness.settle(state, 144.9)
    assert state.journal == []
    liveness.settle(state, 145.0)
    assert state.shards == {shard("0"): FREE._replace(last_holder=A, since=145.0)}


def test_the_shards_of_all_runs_that_are_over_move_in_order_and_none_keeps_the_others() -> None:
    """A's first start may still act until 245.0, a commit of shard 7 is under way; the rest of B and C is over at 45.0."""

    def held(name: str, consumer: ConsumerId, start: int = 1, pod: int = 1) -> ShardRecord:
        return HELD._replace(shard=shard(name), holder=consumer, incarnation=incarnation(consumer, start, pod))

    rows = [held("10", A), held("2", A), held("1", A), held("7", C, 1), held("6", C, 1, 2), held("5", C, 2), held("4", C, 1)]
    state = having(*rows, held("3", B, pod=9), infos=(), positions={})
    state.put_spec(with_settings(spec(3), ordered=True))
    state.put_consumer(ConsumerRecord(A, incarnation(A), present=False))
    state.put_consumer(replace(state.consumers[C], present=False))
    state.put_heard(A, incarnation(A), 200.0)
    state.put_in_flight(shard("7"), InFlight(1))

    def moved(at: float) -> list[ShardId]:
        state.begin()
        liveness.settle(state, at)
        return [event.key for event in state.journal if isinstance(event, Put) and event.table is Table.SHARDS]

    assert moved(44.9) == [shard("4")], "a later start of its pod is known"
    assert moved(45.0) == shards_of("3 5 6")
    state.put_in_flight(shard("7"), None)
    assert moved(46.0) == shards_of("7")
    assert moved(244.9) == []
    assert moved(245.0) == shards_of("1 2 10")
    assert state.under == {(B, incarnation(B, 2)): {shard("3"): None}}
    assert state.heard == {}
    assert moved(246.0) == []


def shards_of(names: str) -> list[ShardId]:
    return [shard(name) for name in names.split()]


def coming_back(grace: float, **sessions: Session | None) -> State:
    """A's second start has spoken and its first, heard at 100.0, holds a shard; consumers by their letters."""
    state = having(HELD)
    state.put_spec(with_settings(spec(3), rejoin_grace=grace))
    state.put_heard(A, incarnation(A), 100.0)
    for name, session in ({"a": Session(110.0, seq=1)} | sessions).items():
        state.put_session({"a": A, "b": B}[name], session)
    state.begin()
    return state


WARM = Session(110.0, seq=1, ready=True)
REGRANTED = HELD._replace(incarnation=incarnation(A, 2), owner_epoch=5, revision=8)
FREED = FREE._replace(last_holder=A)


@pytest.mark.parametrize(
    ("grace", "sessions", "now", "after", "due"),
    [
        (20.0, {"b": WARM}, 119.9, REGRANTED, ""),
        (20.0, {"b": WARM}, 120.0, FREED, "ShardsFreed"),
        (20.0, {"b": Session(110.0, seq=1)}, 120.0, REGRANTED, ""),
        (20.0, {}, 120.0, REGRANTED, ""),
        (20.0, {"a": WARM, "b": WARM}, 120.0, REGRANTED, ""),
    ],
    ids=["within the grace", "after it", "nobody else is warm", "it is alone", "it is warm"],
)
def test_a_newer_run_keeps_the_shards_of_its_name_unless_it_is_cold_others_are_warm_and_its_grace_is_over(
    grace: float, sessions: dict[str, Session], now: float, after: ShardRecord, due: str
) -> None:
    state = coming_back(grace, **sessions)
    liveness.settle(state, now)
    assert state.shards == {shard("0"): after._replace(since=now)}
    assert (state.clocks.due, state.heard) == (due, {})


@pytest.mark.parametrize(("warm", "gives"), [(True, True), (False, False)])
def test_a_newer_run_was_never_told_of_a_transfer_so_it_goes_on_if_it_can(warm: bool, gives: bool) -> None:
    state = coming_back(20.0, b=structs.replace(WARM, ready=warm))
    state.put_shard(MOVING)
    state.begin()
    liveness.settle(state, 110.0)
    row = state.shards[shard("0")]
    expected = (B, incarnation(B, 2), 110.0) if gives else (A, incarnation(A), MOVING.since)
    assert (row.holder, row.incarnation, row.since) == expected


def test_a_proof_is_forgotten_with_the_last_shard_that_is_held_under_what_it_covers() -> None:
    first, second, third = incarnation(A, 1, pod=7), incarnation(A, 1, pod=8), incarnation(A, 4, pod=8)
    rows = [HELD._replace(shard=shard("0"), incarnation=first), HELD._replace(shard=shard("1"), incarnation=second)]
    state = having(*rows, HELD._replace(shard=shard("2"), holder=B, incarnation=incarnation(B)))
    state.put_spec(with_settings(spec(3), ordered=True))
    state.put_consumer(replace(state.consumers[A], proven=(first, third)))
    state.put_consumer(replace(state.consumers[B], proven=(first,)))
    for run in (first, second):
        state.put_heard(A, run, 300.0)
    state.put_in_flight(shard("1"), InFlight(1))
    liveness.settle(state, 310.0)
    assert (state.consumers[A].proven, state.consumers[B].proven) == ((third,), ())
    assert state.heard == {(A, second): 300.0}
    state.put_in_flight(shard("1"), None)
    liveness.settle(state, 311.0)
    assert (state.consumers[A].proven, state.heard) == ((), {})
    assert {row.incarnation for row in state.shards.values()} == {incarnation(A, 2), incarnation(B, 2)}


def test_a_superseded_pod_is_forgotten_when_enough_came_after_it_and_its_token_is_believed_no_more() -> None:
    uids = tuple(f"uid-{number}" for number in range(liveness.KEPT_UIDS + 2))
    enough, known = uids[:-1], {(A, uids[0]): 100.0, (A, uids[1]): 150.0}

    def remembered(given: tuple[str, ...], now: float) -> tuple[tuple[str, ...], dict[tuple[ConsumerId, str], float]]:
        state = having()
        state.restored_at = 200.0
        for (consumer, uid), at in known.items():
            state.put_superseded(consumer, uid, at)
        return liveness._remembered(state, A, given, now), dict(state.superseded)

    assert remembered(enough, 699.9) == (enough, known)
    assert remembered(enough, 700.0) == (enough[1:], {(A, uids[1]): 150.0})
    assert remembered(uids, 750.0) == (uids[2:], {})
    assert remembered(enough[1:], 9_000.0) == (enough[1:], known)
    del known[A, uids[0]]
    assert remembered(enough, 799.9)[0] == enough
    assert remembered(enough, 800.0)[0] == enough[1:]


# Refusals.


def refusal(play: Play, request: Request) -> tuple[type[ShardherdError], str, str | None, str | None]:
    with pytest.raises(ShardherdError) as refused:
        play.ask(request)
    return type(refused.value), refused.value.message, refused.value.group, refused.value.consumer


def test_a_run_that_may_not_speak_is_told_why_in_whole_sentences() -> None:
    play = started(2, 2)
    play.run("g-0", start=3)
    play.beat("g-0")
    play.run("g-0", pod=2)
    play.beat("g-0")
    play.run("g-1", start=2)
    play.beat("g-1")
    play.ask(ConsumerDied(B, incarnation(B, 3)))
    play.run("g-1", start=5)
    play.beat("g-1")
    play.die("g-1")

    def stale(name: str, pod: int, start: int, why: str) -> tuple[type[ShardherdError], str, str, str]:
        said = f"{name} of pod uid-{name}-{pod}, start {start}, is refused in group demo/clicks: {why}; end this process"
        return StaleIncarnationError, said, "demo/clicks", name

    asked: list[tuple[str, int, int, str]] = [
        ("g-0", 1, 3, "pod uid-g-0-2 has taken its name over"),
        ("g-0", 1, 9, "pod uid-g-0-2 has taken its name over"),
        ("g-1", 1, 4, "start 5 of the same pod has taken over"),
        ("g-1", 1, 5, "it is over (Died)"),
    ]
    for name, pod, start, why in asked:
        run = incarnation(name, start, pod)
        expected = stale(name, pod, start, why)
        assert refusal(play, Heartbeat(ConsumerId(name), run, 1, 0)) == expected
        assert refusal(play, CheckpointRequest(ConsumerId(name), run, ())) == expected
        assert refusal(play, Leave(ConsumerId(name), run)) == expected


@pytest.mark.parametrize("run", [Incarnation("uid", 0), Incarnation("", 1)])
def test_an_incarnation_that_the_entrypoint_cannot_have_given_is_refused(run: Incarnation) -> None:
    play = started(1, 1)
    assert refusal(play, Heartbeat(B, run, 1, 0)) == (
        InvalidRequestError,
        f"incarnation of g-1 is {run.pod_uid!r} start {run.start}; it needs a pod UID and a start of 1 or more, as the "
        "driver's entrypoint gives them",
        "demo/clicks",
        "g-1",
    )


def test_a_consumer_of_a_deleted_group_is_told_which_group_there_is_now() -> None:
    play = started(1, 1)
    assert refusal(play, structs.replace(play.consumer("g-0").heartbeat(), group_uid="the-old-one")) == (
        GroupReplacedError,
        "g-0 was started for ConsumerGroup demo/clicks of UID the-old-one, which was deleted; the group of that name is now "
        f"{IDENTITY.uid}: end this process",
        "demo/clicks",
        "g-0",
    )
