"""The status as it is written, and when it is worth a write."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardherd.core.model import LastRebalance, Reset, ResetReport, ResetRow, ResetState, ResetTo, ShardId, ShardState
from shardherd.core.scaling import scale
from shardherd.core.status import status, write_due
from tests.unit.controller.builders import WALL, consumers, observation, pods, shards, view

HELD = (
    *shards(5),
    *shards(1, ShardState.TRANSFER),
    *shards(2, ShardState.NOT_ALLOC, lag_records=None),
    *shards(1, ShardState.OVER),
)


def test_the_status_counts_consumers_and_shards() -> None:
    seen = observation(
        view=view(HELD, consumers=consumers(4, 2), last_rebalance=LastRebalance(WALL, "ConsumerJoined", 2)),
        consumers=(*pods(0), *pods(1, ready=False)),
    )
    written = status(seen, scale(seen))
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
        "shards": {"total": 9, "wait": 0, "notAlloc": 2, "alreadyAlloc": 5, "transfer": 1, "over": 1},
        "lag": {"records": 70},
        "lastRebalance": {"time": "2023-11-14T22:13:20Z", "reason": "ConsumerJoined", "moved": 2},
    }
    assert [condition["type"] for condition in conditions][:4] == ["Ready", "Reconciling", "Stalled", "SourceReachable"]


def test_what_only_the_coordinator_knows_stays_until_it_has_loaded_the_group() -> None:
    known: dict[str, object] = {
        "groupEpoch": 9,
        "shards": {"total": 8},
        "lag": {"records": 5},
        "lastRebalance": {"reason": "x"},
    }
    seen = observation(view=None, previous=known)
    assert known.items() <= status(seen, scale(seen)).items()


def test_no_numbers_of_shards_are_made_up_before_the_source_was_read() -> None:
    seen = observation(view=view(discovered=False), previous={})
    assert not {"shards", "lag"} & set(status(seen, scale(seen)))


OLD: dict[str, object] = {"conditions": [1], "lag": {"records": 1}}
LAG: dict[str, object] = {"conditions": [1], "lag": {"records": 2}}
NEW: dict[str, object] = {"conditions": [2], "lag": {"records": 1}}


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
        pytest.param({}, NEW, False, 0, 100, True, id="a new group"),
    ],
)
def test_a_status_is_written_when_it_is_due(
    before: dict[str, object], after: dict[str, object], loaded: bool, known: float, written: float, due: bool
) -> None:
    assert write_due(before, after, loaded=loaded, known=known, written=written) is due


MADE = ResetReport(
    "r1",
    ResetTo.OFFSETS,
    ResetState.DONE,
    "The positions of 2 shards were set.",
    WALL,
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
    written = status(seen, scale(seen))
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
    assert status(seen, scale(seen))["reset"] == made


def test_what_is_known_of_resets_stays_while_the_group_is_loaded_and_while_it_is_declared() -> None:
    previous = {"reset": {"id": "r1", "state": "Done"}, "lastReset": MADE_IN_STATUS}
    seen = observation(view=None, previous=previous)
    assert "reset" not in status(seen, scale(seen))
    assert status(seen, scale(seen))["lastReset"] == MADE_IN_STATUS
    seen = replace(seen, declared=replace(seen.declared, reset=Reset("r1", ResetTo.LATEST)))
    assert status(seen, scale(seen))["reset"] == previous["reset"]
