"""The status as it is written, and when it is worth a write."""

from __future__ import annotations

import pytest

from shardherd.core.model import LastRebalance, ShardState
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
