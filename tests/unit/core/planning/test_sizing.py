"""How many consumers are decided for and why, word by word, and what is remembered for the next decision."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import pytest

from shardherd.core.model.nouns import GroupSettings, ShardState
from shardherd.core.planning.observed import Ceiling, Memory, OwnedSet, Pauses, Scaling, ScalingMode, Sizing, Trial
from shardherd.core.planning.sizing import Decision, decide, noted
from shardherd.core.planning.traffic import INTERVAL
from tests.unit.core.planning.builders import NOW, WALL, consumers, declared, observation, pods, shards, view

TWELVE = "12 shards to read, 4 for each consumer: 3 consumers."
RECONCILE_PAUSED = "The annotation shardherd.dev/pause-reconcile is true: nothing is changed."


def decided(*, known: Sizing | None = None, count: int = 12, **fields: Any) -> Decision:
    """The decision for two consumers of so many shards, without what is remembered."""
    seen = observation(**{"view": view(shards(count)), "memory": Memory(sizing=known or Sizing()), **fields})
    return replace(decide(seen), sizing=Sizing())


def scaling(**fields: Any) -> dict[str, Any]:
    return {"declared": declared(scaling=Scaling(**fields))}


class TestByShards:
    def test_each_consumer_has_its_number(self) -> None:
        assert decided() == Decision(3, "FollowingShards", TWELVE, 3)
        assert decided(count=1) == Decision(1, "FollowingShards", "1 shard to read, 4 for each consumer: 1 consumer.", 1)

    @pytest.mark.parametrize(
        ("low", "high", "desired", "limit"),
        [
            (1, 2, 2, ("MaxReplicas", "The shards ask for 3 consumers; spec.scaling.maxReplicas allows 2.")),
            (4, 9, 4, ("MinReplicas", "The shards ask for 3 consumers; spec.scaling.minReplicas keeps 4.")),
            (3, 3, 3, None),
        ],
    )
    def test_limits_bind(self, low: int, high: int, desired: int, limit: tuple[str, str] | None) -> None:
        found = decided(**scaling(min_replicas=low, max_replicas=high))
        assert found == Decision(desired, "FollowingShards", TWELVE, desired, limit=limit)

    @pytest.mark.parametrize(("mode", "number"), [(ScalingMode.SHARDS, 5), (ScalingMode.LAG, 3)])
    def test_the_fewest_are_one_for_each_shard_where_there_are_fewer_in_mode_lag_alone(
        self, mode: ScalingMode, number: int
    ) -> None:
        assert decided(count=3, **scaling(mode=mode, min_replicas=5)).desired == number

    @pytest.mark.parametrize(("low", "high", "desired"), [(1, 9, 2), (4, 9, 4), (1, 1, 1)])
    def test_a_recommendation_is_not_followed_but_the_limits_are(self, low: int, high: int, desired: int) -> None:
        advised = min(max(3, low), high)
        found = decided(**scaling(min_replicas=low, max_replicas=high, recommend_only=True))
        message = f"spec.scaling.recommendOnly is true: {advised} recommended (FollowingShards). {TWELVE}"
        assert replace(found, limit=None) == Decision(desired, "RecommendOnly", message, advised)


def test_what_is_remembered_of_a_recommendation_is_its_own_reason() -> None:
    advice = scaling(recommend_only=True)
    found = decide(observation(view=view(shards(12)), memory=Memory(sizing=Sizing(goal=2, trial=Trial(1, 100.0))), **advice))
    assert (found.sizing.goal, found.sizing.said, found.sizing.recommended) == (2, ("FollowingShards", TWELVE), 3)
    assert found.sizing.trial is None
    followed = decide(observation(view=view(shards(12)), memory=Memory(sizing=found.sizing)))
    assert (followed.sizing.goal, followed.sizing.said, followed.sizing.recommended) == (3, ("FollowingShards", TWELVE), None)


@pytest.mark.parametrize(("mode", "reason"), [(ScalingMode.FIXED, "Fixed"), (ScalingMode.EXTERNAL, "External")])
@pytest.mark.parametrize(
    ("asked", "now", "kept"), [(5, 2, "keeps 2 consumers; 5 are wanted."), (1, 0, "keeps 0 consumers; 1 is wanted.")]
)
def test_a_number_that_somebody_else_chose(mode: ScalingMode, reason: str, asked: int, now: int, kept: str) -> None:
    group = declared(scaling=Scaling(mode=mode), replicas=asked)
    assert decided(declared=group) == Decision(asked, reason, f"spec.replicas says {asked}.")
    paused = replace(group, pauses=Pauses(scale_out=True))
    message = f"The annotation shardherd.dev/pause-scale-out {kept}"
    expected = Decision(now, "ScaleOutPaused", message, limit=("ScaleOutPaused", message))
    assert decided(declared=paused, stateful_set=OwnedSet(replicas=now)) == expected


@pytest.mark.parametrize(
    ("fields", "reason", "message", "first"),
    [
        (
            {"settings": GroupSettings(paused=True)},
            "Paused",
            "spec.paused is true: the number of consumers is left alone.",
            Decision(3, "FollowingShards", TWELVE, 3),
        ),
        (
            {"pauses": Pauses(reconcile=True)},
            "ReconcilePaused",
            RECONCILE_PAUSED,
            Decision(2, "ReconcilePaused", RECONCILE_PAUSED, held="ReconcilePaused"),
        ),
    ],
)
def test_a_number_that_is_left_alone(fields: dict[str, Any], reason: str, message: str, first: Decision) -> None:
    asked = declared(**fields)
    assert decided(declared=asked) == Decision(2, reason, message, held=reason)
    assert decide(observation(declared=asked, memory=Memory(sizing=Sizing(goal=7)))).sizing.goal == 2
    assert decided(declared=asked, stateful_set=None) == first


@pytest.mark.parametrize("picture", [None, view(discovered=False)])
def test_a_number_that_cannot_be_known_yet(picture: Any) -> None:
    waiting = Decision(2, "WaitingForShards", "The number of shards is not known yet.", held="WaitingForShards")
    assert decided(view=picture) == waiting
    assert decide(observation(view=picture, memory=Memory(sizing=Sizing(goal=7)))).sizing.goal == 7


def test_by_the_lag_what_is_known_goes_into_the_decision_and_what_it_taught_is_remembered() -> None:
    known = Sizing(goal=2, trial=Trial(1, 100.0), ceiling=Ceiling(5, WALL + 60), wishes=((NOW, 3),))
    away = view(shards(8), source_reachable=False, source_error="no broker")
    seen = observation(view=away, memory=Memory(sizing=known), **scaling(mode=ScalingMode.LAG))
    found = decide(seen)
    assert replace(found, sizing=Sizing()) == Decision(2, "SourceAway", "Nothing can be measured: no broker", 2)
    assert (found.sizing.trial, found.sizing.ceiling, found.sizing.wishes) == (known.trial, known.ceiling, ())


class TestPausesOfOneDirection:
    def pausing(self, **pauses: bool) -> dict[str, Any]:
        return {"declared": declared(pauses=Pauses(**pauses))}

    def test_keep_what_was_decided_last(self) -> None:
        message = "The annotation shardherd.dev/pause-scale-in keeps 4 consumers; 3 would be enough."
        kept = Decision(4, "ScaleInPaused", message, 3, limit=("ScaleInPaused", message))
        assert decided(known=Sizing(goal=4), **self.pausing(scale_in=True)) == kept
        message = "The annotation shardherd.dev/pause-scale-out keeps 1 consumer; 3 are wanted."
        kept = Decision(1, "ScaleOutPaused", message, 3, limit=("ScaleOutPaused", message))
        assert decided(known=Sizing(goal=1), **self.pausing(scale_out=True)) == kept

    @pytest.mark.parametrize(("pause", "goals"), [("scale_in", (2, 3)), ("scale_out", (3, 4))])
    def test_let_the_other_direction_and_no_change_pass(self, pause: str, goals: tuple[int, int]) -> None:
        for goal in goals:
            assert decided(known=Sizing(goal=goal), **self.pausing(**{pause: True})) == Decision(
                3, "FollowingShards", TWELVE, 3
            )


class TestZero:
    idle: ClassVar[dict[str, Any]] = {
        "view": view(shards(12, lag_records=0)),
        **scaling(min_replicas=0, stabilization_window=60.0),
    }
    nobody = Decision(0, "Idle", "All is read, and was for 60 s: no consumer until the next record.", 0)
    as_ever = Decision(3, "FollowingShards", TWELVE, 3)

    def since(self, seconds: float, goal: int = 2, **fields: Any) -> Decision:
        return decided(known=Sizing(goal=goal, idle_since=NOW - seconds), **{**self.idle, **fields})

    def test_is_the_answer_after_the_whole_window(self) -> None:
        assert (self.since(59.9), self.since(60.0)) == (self.as_ever, self.nobody)
        assert (self.since(59.9, goal=1), self.since(60.0, goal=1)) == (self.as_ever, self.nobody)

    def test_is_not_where_a_closed_shard_waits_for_somebody_to_end_it(self) -> None:
        over, empty = shards(11, ShardState.OVER, lag_records=0), shards(1, ShardState.NOT_ALLOC, lag_records=0, open=False)
        message = "1 shard to read, 4 for each consumer: 1 consumer."
        assert self.since(99.0, goal=0, view=view((*over, *empty))) == Decision(1, "FollowingShards", message, 1)

    def test_says_so_where_all_shards_are_read_to_their_ends(self) -> None:
        over = view(shards(12, ShardState.OVER, lag_records=0))
        assert self.since(60.0, view=over) == Decision(0, "Idle", "All shards are read to their ends: no consumer.", 0)

    def test_stays_the_answer_whatever_the_window(self) -> None:
        at_once = replace(self.nobody, message="All is read: no consumer until the next record.")
        assert (self.since(59.9, goal=0), self.since(60.0, goal=0)) == (at_once, self.nobody)

    def test_is_the_answer_to_a_new_group_that_has_nothing_to_read_and_claims_no_time_that_nobody_has_seen(self) -> None:
        new = {**self.idle, "stateful_set": None, "consumers": ()}
        assert decided(known=Sizing(), **new) == Decision(0, "Idle", "All is read: no consumer until the next record.", 0)

    @pytest.mark.parametrize("mode", [ScalingMode.SHARDS, ScalingMode.LAG])
    def test_is_the_answer_where_records_are_not_counted_until_there_is_one(self, mode: ScalingMode) -> None:
        def asked(age: int | None, goal: int) -> tuple[int, str]:
            seen = view(shards(12, lag_records=None, checkpoint=10), counts_records=False, lag_seconds=age, source="kinesis")
            known = Sizing(goal=goal, idle_since=NOW - 60.0, checkpoints=120)
            found = decided(known=known, view=seen, **scaling(mode=mode, min_replicas=0, stabilization_window=60.0))
            return found.desired, found.reason

        assert [asked(0, goal) for goal in (2, 1, 0)] == [(0, "Idle")] * 3
        wanted = (3, "FollowingShards") if mode is ScalingMode.SHARDS else (1, "RecordsArrived")
        assert asked(7, 0) == wanted
        assert asked(None, 0) == ((1, "FirstConsumers") if mode is ScalingMode.LAG else wanted), "nobody knows: somebody looks"

    def test_is_not_where_one_has_to_stay_or_there_is_something_to_read_or_nothing_can_be_known(self) -> None:
        one = scaling(min_replicas=1, stabilization_window=60.0)
        away = view(shards(12, lag_records=0), source_reachable=False)
        unread = view(shards(12, lag_records=1))
        assert [self.since(99.0, **fields) for fields in (one, {"view": away}, {"view": unread})] == [self.as_ever] * 3


class TestWhatIsRemembered:
    def test_is_the_decision_and_its_words(self) -> None:
        left = decide(observation(view=view(shards(12)))).sizing
        assert (left.goal, left.said) == (3, ("FollowingShards", TWELVE))

    def test_of_a_decision_that_was_not_followed_teaches_nothing(self) -> None:
        known = Sizing(goal=2, trial=Trial(1, 100.0), ceiling=Ceiling(5, WALL), wishes=((NOW, 2),))
        memory = Memory(sizing=known)
        followed = decide(observation(memory=memory)).sizing
        assert (followed.trial, followed.ceiling, followed.wishes) == (None, None, ())
        paused = declared(pauses=Pauses(scale_out=True))
        kept = decide(observation(memory=memory, declared=paused, view=view(shards(12)))).sizing
        assert (kept.trial, kept.ceiling, kept.wishes) == (known.trial, known.ceiling, known.wishes)
        only_told = decide(observation(memory=memory, **scaling(recommend_only=True))).sizing
        assert (only_told.trial, only_told.ceiling, only_told.wishes) == (None, known.ceiling, ())

    @pytest.mark.parametrize(
        ("fields", "steady"),
        [
            ({}, True),
            ({"consumers": (*pods(0), *pods(1, ready=False))}, False),
            ({"consumers": (*pods(0), *pods(1, deleting=True))}, False),
            ({"consumers": (*pods(0, 1), *pods(2, ready=False))}, False),
            ({"stateful_set": OwnedSet(replicas=3)}, False),
            ({"view": view((*shards(3), *shards(1, ShardState.TRANSFER)))}, False),
            ({"view": view((*shards(3), *shards(1, ShardState.NOT_ALLOC)))}, False),
            ({"view": view((*shards(3), *shards(1, ShardState.WAIT)))}, True),
            ({"view": view(shards(4), source_reachable=False)}, False),
        ],
    )
    def test_is_since_when_all_that_should_run_runs(self, fields: dict[str, Any], steady: bool) -> None:
        assert noted(observation(**fields)).steady_since == (NOW if steady else None)
        earlier = Memory(sizing=Sizing(goal=2, steady_since=NOW - 50))
        assert noted(observation(memory=earlier, **fields)).steady_since == (NOW - 50 if steady else None)

    def test_is_since_when_all_is_read_and_nothing_was_written(self) -> None:
        def picture(end: int, lag: int = 0) -> Any:
            return view(shards(2, end=end, lag_records=lag))

        first = noted(observation(view=picture(10)))
        assert first.idle_since == NOW
        later = observation(view=picture(10), memory=Memory(sizing=first), now=NOW + INTERVAL)
        assert noted(later).idle_since == NOW
        # It was written and read between two looks.
        written = noted(replace(later, view=picture(11)))
        assert written.idle_since == NOW + INTERVAL
        assert noted(replace(later, view=picture(11, 1))).idle_since is None

    def test_is_by_the_age_and_the_checkpoints_where_records_are_not_counted(self) -> None:
        def picture(age: int | None, checkpoint: int = 10) -> Any:
            held = shards(2, lag_records=None, checkpoint=checkpoint)
            return view(held, counts_records=False, lag_seconds=age, source="kinesis")

        first = noted(observation(view=picture(0)))
        assert first.idle_since == NOW
        later = observation(view=picture(0), memory=Memory(sizing=first), now=NOW + INTERVAL)
        assert noted(later).idle_since == NOW
        # It was written and read between two looks.
        assert noted(replace(later, view=picture(0, 11))).idle_since == NOW + INTERVAL
        assert noted(replace(later, view=picture(1))).idle_since is None
        assert noted(replace(later, view=picture(None))).idle_since is None

    def test_is_nothing_of_that_while_the_shards_are_not_known_but_what_was_measured_stays(self) -> None:
        known = noted(observation(view=view(shards(2, end=10, lag_records=0))))
        for picture in (None, view(discovered=False)):
            left = noted(observation(view=picture, memory=Memory(sizing=known), now=NOW + 9))
            assert left == replace(known, steady_since=None, idle_since=None)


class TestAfterARestart:
    written: ClassVar[dict[str, Any]] = {
        "desired": 4,
        "reason": "CatchingUp",
        "message": "350 records/s are written.",
        "trial": {"replicas": 2, "perSecond": 200},
        "ceiling": {"replicas": 5, "until": "2023-11-14T22:14:20Z"},
    }

    def recalled(self, previous: dict[str, Any], **fields: Any) -> Sizing:
        return noted(observation(view=None, previous=previous, **fields))

    def test_what_was_decided_comes_back_from_the_status(self) -> None:
        assert self.recalled({"desiredReplicas": 4, "scaling": self.written}) == Sizing(
            goal=4,
            said=("CatchingUp", "350 records/s are written."),
            trial=Trial(2, 200.0),
            ceiling=Ceiling(5, WALL + 60),
        )

    def test_what_is_known_is_not_read_again(self) -> None:
        known = Memory(sizing=Sizing(goal=3))
        assert self.recalled({"desiredReplicas": 4, "scaling": self.written}, memory=known) == Sizing(goal=3)

    def test_the_words_are_those_of_the_number(self) -> None:
        found = self.recalled({"desiredReplicas": 3, "scaling": self.written})
        assert (found.goal, found.said) == (3, ("", ""))

    @pytest.mark.parametrize("previous", [{}, {"desiredReplicas": "four", "scaling": "four"}])
    def test_without_a_status_the_number_is_what_runs(self, previous: dict[str, Any]) -> None:
        assert self.recalled(previous) == Sizing(goal=2)
        assert self.recalled({**previous, "scaling": {"desired": 2}}) == Sizing(goal=2)

    def test_without_a_stateful_set_nothing_runs_whatever_was_written(self) -> None:
        found = self.recalled({"desiredReplicas": 4, "scaling": self.written}, stateful_set=None)
        assert (found.goal, found.said) == (0, ("", ""))

    @pytest.mark.parametrize(
        ("lag", "consumer_rate"),
        [
            ({"consumerPerSecond": 70}, 70.0),
            ({"consumerPerSecond": 1}, 1.0),
            ({"consumerPerSecond": 0}, None),
            ({}, None),
            (None, None),
        ],
    )
    def test_the_pace_of_one_consumer_comes_back(self, lag: object, consumer_rate: float | None) -> None:
        traffic = noted(observation(view=view(shards(2, end=10), consumers=consumers(2)), previous={"lag": lag})).traffic
        assert traffic is not None
        assert traffic.consumer_rate.per_second == consumer_rate
