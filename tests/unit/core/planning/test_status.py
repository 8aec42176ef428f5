"""The status as it is written, and when it is worth a write."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from shardherd.core.model.messages import Seconds
from shardherd.core.model.nouns import LastRebalance, Reset, ResetReport, ResetRow, ResetState, ResetTo, ShardId, ShardState
from shardherd.core.planning.observed import Ceiling, Sizing, Trial
from shardherd.core.planning.scaling import Scale
from shardherd.core.planning.sizing import Decision
from shardherd.core.planning.status import unreadable, write_due
from shardherd.core.planning.traffic import ConsumerRate, Mark, Traffic
from tests.unit.core.planning.builders import NOW, WALL, consumers, declared, observation, pods, shards, status_of, view

HELD = (
    *shards(5),
    *shards(1, ShardState.TRANSFER),
    *shards(2, ShardState.NOT_ALLOC, lag_records=None),
    *shards(1, ShardState.OVER),
    *shards(3, ShardState.WAIT, lag_records=0),
)


def test_the_status_counts_consumers_and_shards() -> None:
    gone = (*shards(5, present=False), *shards(1, ShardState.NOT_ALLOC, present=False))
    seen = observation(
        view=view((*HELD, *gone), consumers=consumers(4, 2), last_rebalance=LastRebalance(Seconds(WALL), "ConsumerJoined", 2)),
        consumers=(*pods(0), *pods(1, ready=False)),
    )
    written = status_of(seen)
    conditions = written.pop("conditions")
    assert isinstance(conditions, list)
    why = "8 shards to read, 4 for each consumer: 2 consumers."
    assert written == {
        "observedGeneration": 1,
        "replicas": 2,
        "readyReplicas": 1,
        "desiredReplicas": 2,
        "recommendedReplicas": 2,
        "scaling": {"desired": 2, "reason": "FollowingShards", "message": why, "time": "2023-11-14T22:13:20Z"},
        "rollout": {
            "state": "Progressing",
            "updated": 1,
            "total": 2,
            "target": "now",
            "progressTime": "2023-11-14T22:13:20Z",
        },
        "selector": "shardherd.dev/consumergroup=clicks,shardherd.dev/role=driver",
        "groupEpoch": 3,
        "shards": {"total": 12, "wait": 3, "notAlloc": 2, "alreadyAlloc": 5, "transfer": 1, "over": 1},
        "lag": {"records": 70},
        "lastRebalance": {"time": "2023-11-14T22:13:20Z", "reason": "ConsumerJoined", "moved": 2},
    }
    assert [condition["type"] for condition in conditions][:4] == ["Ready", "Stalled", "Reconciling", "SourceReachable"]


def test_what_only_the_coordinator_knows_stays_until_it_has_loaded_the_group() -> None:
    known: dict[str, object] = {
        "groupEpoch": 9,
        "shards": {"total": 8},
        "lag": {"records": 5},
        "lastRebalance": {"reason": "x"},
    }
    seen = observation(view=None, previous=known)
    assert known.items() <= status_of(seen).items()


def test_no_numbers_of_shards_are_made_up_before_the_source_was_read() -> None:
    seen = observation(view=view(discovered=False), previous={})
    assert not {"shards", "lag"} & set(status_of(seen))


NOT_STALLED, STALLED = ({"type": "Stalled", "status": status} for status in ("False", "True"))
OLD: dict[str, object] = {"conditions": [], "lag": {"records": 1}}
LAG: dict[str, object] = {"conditions": [], "lag": {"records": 2}}
NEW: dict[str, object] = {"conditions": [NOT_STALLED], "lag": {"records": 1}}
HELPLESS: dict[str, object] = {"conditions": [STALLED]}


@pytest.mark.parametrize(
    ("before", "after", "loaded", "known", "written", "due"),
    [
        pytest.param(OLD, OLD, True, 100, 100, False, id="nothing changed"),
        pytest.param(OLD, NEW, True, 100, 1, True, id="changed a second after the last write"),
        pytest.param(OLD, NEW, True, 100, 0.9, False, id="changed, but written less than a second ago"),
        pytest.param(OLD, LAG, True, 100, 4.9, False, id="only the lag changed, written less than five seconds ago"),
        pytest.param(OLD, LAG, True, 100, 5, True, id="only the lag changed, five seconds ago"),
        pytest.param(OLD, NEW, False, 29, 100, False, id="restarted, and the coordinator has not looked yet"),
        pytest.param(OLD, NEW, False, 30, 100, True, id="the coordinator does not get to look"),
        pytest.param({}, NEW, False, 14.9, 100, False, id="a new group that the coordinator will have looked at soon"),
        pytest.param({}, NEW, False, 15, 100, True, id="a new group that the coordinator does not get to look at"),
        pytest.param({}, HELPLESS, False, 0, 100, True, id="a new group that no waiting helps"),
        pytest.param({}, NEW, True, 0, 100, True, id="a new group that the coordinator has looked at"),
    ],
)
def test_a_status_is_written_when_it_is_due(
    before: dict[str, object], after: dict[str, object], loaded: bool, known: float, written: float, due: bool
) -> None:
    assert write_due(before, after, loaded=loaded, known=known, written=written, groups=1) is due


@pytest.mark.parametrize(("groups", "seconds"), [(1, 1.0), (200, 1.0), (1000, 5.0), (2000, 10.0)])
def test_the_statuses_of_very_many_groups_are_written_less_often(groups: int, seconds: float) -> None:
    def due(written: float) -> bool:
        return write_due(OLD, NEW, loaded=True, known=100, written=written, groups=groups)

    assert (due(seconds - 0.1), due(seconds)) == (False, True)


MADE = ResetReport(
    "r1",
    ResetTo.OFFSETS,
    ResetState.DONE,
    "The positions of 2 shards were set.",
    Seconds(WALL),
    shards=2,
    repeated=30,
    skipped=15,
    rows=(ResetRow(ShardId("clicks/0"), 40, 10), ResetRow(ShardId("clicks/1"), None, 15)),
    manager="kubectl-edit",
)
MADE_IN_STATUS = {
    "id": "r1",
    "to": "Offsets",
    "time": "2023-11-14T22:13:20Z",
    "shards": 2,
    "recordsRepeated": 30,
    "recordsSkipped": 15,
    "rows": [{"shard": "clicks/0", "before": 40, "after": 10}, {"shard": "clicks/1", "after": 15}],
    "fieldManager": "kubectl-edit",
}


def test_a_reset_is_shown_with_what_came_of_it_and_what_the_last_one_did() -> None:
    waiting = ResetReport("r2", ResetTo.LATEST, ResetState.PAUSE_FIRST, "Nothing was changed: the group is not paused.")
    seen = observation(view=view(HELD, reset=waiting, last_reset=MADE))
    written = status_of(seen)
    assert written["reset"] == {
        "id": "r2",
        "to": "Latest",
        "state": "PauseFirst",
        "message": "Nothing was changed: the group is not paused.",
    }
    assert written["lastReset"] == MADE_IN_STATUS


def test_a_reset_that_was_made_is_shown_with_its_state() -> None:
    seen = observation(view=view(HELD, reset=MADE, last_reset=MADE))
    made = {**MADE_IN_STATUS, "state": "Done", "message": "The positions of 2 shards were set."}
    assert status_of(seen)["reset"] == made


def test_what_is_known_of_resets_stays_while_the_group_is_loaded_and_while_it_is_declared() -> None:
    previous = {"reset": {"id": "r1", "state": "Done"}, "lastReset": MADE_IN_STATUS}
    seen = observation(view=None, previous=previous)
    assert "reset" not in status_of(seen)
    assert status_of(seen)["lastReset"] == MADE_IN_STATUS
    seen = replace(seen, declared=replace(seen.declared, reset=Reset("r1", ResetTo.LATEST)))
    assert status_of(seen)["reset"] == previous["reset"]


def decided(
    *, reason: str = "CatchingUp", message: str = "3 consumers.", recommended: int | None = None, **known: Any
) -> Scale:
    """A decision for three consumers, with what is known for the next one."""
    return Scale(Decision(3, reason, message, recommended, sizing=Sizing(**known)), 3)


class TestADecision:
    def written(self, scaled: Scale, **previous: object) -> object:
        return status_of(observation(previous={"scaling": previous}), scaled)["scaling"]

    def test_is_written_with_what_a_restarted_operator_has_to_know(self) -> None:
        scaled = decided(trial=Trial(2, 199.6), ceiling=Ceiling(4, WALL + 60))
        assert self.written(scaled) == {
            "desired": 3,
            "reason": "CatchingUp",
            "message": "3 consumers.",
            "time": "2023-11-14T22:13:20Z",
            "trial": {"replicas": 2, "perSecond": 200},
            "ceiling": {"replicas": 4, "until": "2023-11-14T22:14:20Z"},
        }

    def test_is_cut_to_the_length_that_the_resource_takes_and_a_ceiling_that_has_ended_is_left_out(self) -> None:
        assert self.written(decided(message="m" * 1025, ceiling=Ceiling(4, WALL))) == {
            "desired": 3,
            "reason": "CatchingUp",
            "message": "m" * 1024,
            "time": "2023-11-14T22:13:20Z",
        }

    @pytest.mark.parametrize(
        ("previous", "time"),
        [
            ({"desired": 3, "reason": "CatchingUp", "time": "then"}, "then"),
            ({"desired": 3, "reason": "CatchingUp"}, "2023-11-14T22:13:20Z"),
            ({"desired": 2, "reason": "CatchingUp", "time": "then"}, "2023-11-14T22:13:20Z"),
            ({"desired": 3, "reason": "KeepingUp", "time": "then"}, "2023-11-14T22:13:20Z"),
        ],
    )
    def test_keeps_the_time_at_which_it_was_made(self, previous: dict[str, object], time: str) -> None:
        written = self.written(decided(), **previous)
        assert written == {"desired": 3, "reason": "CatchingUp", "message": "3 consumers.", "time": time}

    def test_without_a_recommendation_leaves_none(self) -> None:
        assert "recommendedReplicas" not in status_of(observation(), decided())
        assert status_of(observation(), decided(recommended=0))["recommendedReplicas"] == 0


class TestTheLag:
    traffic = Traffic(
        shards=(ShardId("clicks/0"),),
        end_offsets=(),
        positions=(),
        moved_at=(NOW,),
        holders=(None,),
        marks=(Mark(100.0, 5, 7), Mark(115.0, 1508, 1209)),
        consumer_rate=ConsumerRate(1006.0, 9.0),
    )

    def written(self, traffic: Traffic, seconds: int | None = None) -> object:
        picture = structs.replace(view(shards(8)), lag_seconds=seconds)
        return status_of(observation(view=picture), decided(traffic=traffic)).get("lag")

    def test_is_written_with_its_age_and_the_rates(self) -> None:
        assert self.written(self.traffic, 4321) == {
            "records": 80,
            "seconds": 4300,
            "producedPerSecond": 100,
            "consumedPerSecond": 80,
            "consumerPerSecond": 112,
        }

    def test_is_written_without_what_is_not_known(self) -> None:
        known = replace(self.traffic, marks=self.traffic.marks[:1], consumer_rate=ConsumerRate())
        assert self.written(known) == {"records": 80}

    def test_is_not_made_up_before_the_source_was_read(self) -> None:
        assert "lag" not in status_of(observation(view=view(discovered=False)), decided(traffic=self.traffic))

    def test_counts_what_is_behind_and_not_what_is_unknown_or_ahead(self) -> None:
        held = (*shards(2), *shards(1, lag_records=None), *shards(1, lag_records=-5))
        assert status_of(observation(view=view(held)), decided())["lag"] == {"records": 20}

    @pytest.mark.parametrize(
        ("seconds", "written"),
        [(0, 0), (7, 7), (13, 13), (100, 100), (123, 120), (987, 990), (1234, 1200), (45678, 46000)],
    )
    def test_is_as_old_as_two_digits_tell(self, seconds: int, written: int) -> None:
        known = replace(self.traffic, marks=self.traffic.marks[:1], consumer_rate=ConsumerRate())
        assert self.written(known, seconds) == {"records": 80, "seconds": written}


def test_a_rollout_that_was_given_up_says_why_and_what_ran() -> None:
    seen = observation(declared=declared(rejected="w" * 1025), previous={"rollout": {"proven": "old"}}, consumers=pods(0))
    assert status_of(seen)["rollout"] == {
        "state": "RolledBack",
        "updated": 1,
        "total": 2,
        "target": "now",
        "proven": "old",
        "message": "w" * 1024,
    }


def test_a_reset_is_not_kept_once_the_coordinator_shows_none_or_where_none_was_written() -> None:
    reset = declared(reset=Reset("r1", ResetTo.LATEST))
    loaded = observation(declared=reset, previous={"reset": {"id": "r1"}})
    assert "reset" not in status_of(loaded)
    fresh = observation(declared=reset, view=None)
    assert "reset" not in status_of(fresh)


def test_a_resource_that_cannot_be_read_keeps_its_status_but_for_the_conditions_that_say_so() -> None:
    balanced = {"type": "Balanced", "status": "True", "reason": "Balanced"}
    ready = {"type": "Ready", "status": "False", "reason": "Starting", "lastTransitionTime": "then"}
    message = "spec.scaling.mode is 7; correct it: until then the group goes on as it was."
    written = unreadable({"replicas": 2, "conditions": [balanced, ready]}, 4, "spec.scaling.mode is 7", WALL)
    invalid = {"reason": "InvalidSpec", "message": message, "observedGeneration": 4}
    assert written == {
        "replicas": 2,
        "observedGeneration": 4,
        "conditions": [
            {"type": "Ready", "status": "False", "lastTransitionTime": "then", **invalid},
            {"type": "Stalled", "status": "True", "lastTransitionTime": "2023-11-14T22:13:20Z", **invalid},
            balanced,
        ],
    }
    new = unreadable({}, 4, "spec.scaling.mode is 7", WALL)["conditions"]
    assert isinstance(new, list)
    assert [(each["type"], each["lastTransitionTime"]) for each in new] == [
        ("Ready", "2023-11-14T22:13:20Z"),
        ("Stalled", "2023-11-14T22:13:20Z"),
    ]


def test_the_conditions_are_of_this_generation_and_keep_their_times() -> None:
    before = [{"type": "Ready", "status": "True", "lastTransitionTime": "then"}]
    seen = observation(declared=declared(generation=4), previous={"conditions": before})
    conditions = status_of(seen)["conditions"]
    assert isinstance(conditions, list)
    times = [(each["observedGeneration"], each["lastTransitionTime"]) for each in conditions[:2]]
    assert times == [(4, "then"), (4, "2023-11-14T22:13:20Z")]


def test_shards_that_stand_still_are_told_beside_all_else() -> None:
    standing = replace(TestTheLag.traffic, moved_at=(NOW - 60,))
    written = status_of(observation(), decided(traffic=standing))
    assert written["stuckShardsTotal"] == 1
    assert written["stuckShards"] == [
        {
            "shard": "clicks/0",
            "reason": "NoProgress",
            "message": "clicks-0 holds it and has checkpointed nothing; see the log of clicks-0",
            "since": "2023-11-14T22:12:20Z",
        }
    ]
    assert written["replicas"] == 2
