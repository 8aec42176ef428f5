"""Why shards do not move on, as a user reads it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec import structs

from shardherd.core.model.messages import Seconds
from shardherd.core.model.nouns import (
    Condition,
    ConsumerId,
    ConsumerView,
    GroupView,
    Growth,
    Phase,
    ShardId,
    ShardState,
    ShardView,
)
from shardherd.core.planning.diagnosis import stuck_shards
from shardherd.core.planning.observed import Memory
from shardherd.core.planning.plan import plan
from shardherd.core.planning.traffic import Traffic
from tests.unit.core.planning.builders import NOW, WALL, consumers, declared, observation, pods, view

C0, C1 = ConsumerId("clicks-0"), ConsumerId("clicks-1")


def shard(number: int, state: ShardState = ShardState.ALREADY_ALLOC, *, end: int = 1000, **fields: Any) -> ShardView:
    """A shard whose checkpoint stands at 10."""
    values = {"holder": C0 if state in (ShardState.ALREADY_ALLOC, ShardState.TRANSFER) else None, "checkpoint": 10, **fields}
    return ShardView(ShardId(f"clicks/{number}"), state, end=end, lag_records=end - 10, **values)


def stuck(picture: GroupView, *, seconds: int = 0) -> list[dict[str, Any]]:
    """What the status says of stuck shards after so many seconds of this picture."""
    memory = Memory()
    previous: dict[str, object] = {}
    for second in range(seconds + 1):
        planned = plan(observation(view=picture, now=NOW + second, wall=WALL + second, memory=memory, previous=previous))
        memory, previous = planned.memory, dict(planned.status)
    found = previous.get("stuckShards", [])
    assert isinstance(found, list)
    return found


def test_a_shard_whose_holder_does_not_checkpoint_is_named_with_its_holder() -> None:
    picture = view((shard(7), shard(8, end=10)), consumers=consumers(1, 1))
    assert stuck(picture, seconds=50) == []
    first = stuck(picture, seconds=75)
    assert first == [
        {
            "shard": "clicks/7",
            "reason": "NoProgress",
            "message": "clicks-0 holds it and has checkpointed nothing; see the log of clicks-0",
            "since": "2023-11-14T22:13:20Z",
        }
    ]
    # It is not told anew every second.
    assert stuck(picture, seconds=100) == first


def test_a_shard_whose_holder_may_not_get_on_says_why() -> None:
    def why(**fields: Any) -> str:
        (found,) = stuck(view((shard(7),), consumers=consumers(1), **fields), seconds=75)
        assert found["reason"] == "NoProgress"
        return str(found["message"])

    paused = (Condition("CheckpointLost", "another shard lost it"), Condition("Paused", "spec.paused is true"))
    assert why(withheld=paused) == "clicks-0 holds it and has checkpointed nothing: spec.paused is true"
    assert why(withheld=paused[:1]) == "clicks-0 holds it and has checkpointed nothing; see the log of clicks-0"
    assert why(source_reachable=False, source_error="no broker at kafka:9092") == (
        "clicks-0 holds it and has checkpointed nothing: the source does not answer: no broker at kafka:9092"
    )


def test_a_shard_whose_holder_waits_for_its_sink_says_so_and_one_that_waits_for_its_trigger_is_not_stuck() -> None:
    def phase(phase: Phase, **fields: Any) -> list[tuple[str, str]]:
        holder = tuple(structs.replace(each, phase=phase) for each in consumers(1))
        rows = stuck(view((shard(7),), consumers=holder, **fields), seconds=75)
        return [(str(row["reason"]), str(row["message"])) for row in rows]

    assert phase(Phase.WRITING) == [("SinkBlocked", "clicks-0 holds it and waits for its sink; see the log of clicks-0")]
    assert phase(Phase.WAITING) == []
    paused = (Condition("Paused", "spec.paused is true"),)
    assert phase(Phase.WRITING, withheld=paused) == [
        ("NoProgress", "clicks-0 holds it and has checkpointed nothing: spec.paused is true")
    ]


def test_a_shard_whose_holder_has_no_executors_says_so() -> None:
    lacking = observation(
        view=view((shard(7),), consumers=consumers(1)),
        declared=declared(executors=2),
        consumers=pods(0, running=True),
    )
    memory = Memory()
    for second in range(76):
        planned = plan(replace(lacking, now=NOW + second, wall=WALL + second, memory=memory))
        memory = planned.memory
    (found,) = cast("list[dict[str, Any]]", planned.status["stuckShards"])
    assert found["message"] == "clicks-0 holds it and has checkpointed nothing, and has no executor; see the log of clicks-0"


def test_a_shard_that_is_not_given_up_is_named_with_both_consumers() -> None:
    moving = shard(7, ShardState.TRANSFER, next_consumer=C1, state_age=30.0)
    (found,) = stuck(view((moving, structs.replace(moving, shard=ShardId("clicks/8"), state_age=Seconds(2.0)))))
    assert (found["shard"], found["reason"], found["since"]) == ("clicks/7", "NotGivenUp", "2023-11-14T22:12:50Z")
    assert found["message"] == "clicks-0 has not given it up yet; clicks-1 is to have it"


def test_a_shard_that_nobody_is_given_says_why() -> None:
    free = (shard(7, ShardState.NOT_ALLOC, state_age=30.0),)

    def why(picture: GroupView) -> str:
        (found,) = stuck(picture)
        assert found["reason"] == "NoHolder"
        return str(found["message"])

    assert why(view(free)) == "no consumer is ready"
    withheld = (Condition("GroupHasLiveMembers", "console-consumer is a member of shop.clicks"),)
    full = Condition("SnapshotTooLarge", "4 new shards must stay out")
    assert why(view(free, withheld=(full, *withheld))) == "nothing is granted: console-consumer is a member of shop.clicks"
    assert why(view(free, withheld=(full,))) == why(view(free))
    away = view(free, source_reachable=False, source_error="no broker at kafka:9092")
    assert why(away) == "the source does not answer: no broker at kafka:9092"
    lost = (structs.replace(free[0], checkpoint=None),)
    assert why(view(lost, consumers=consumers(1))) == "its durable position is missing, or its start is not committed yet"
    able, draining, cordoned = consumers(1, 0, 0)
    unable = (
        structs.replace(able, ready=False),
        structs.replace(draining, draining=True),
        structs.replace(cordoned, cordoned=True),
    )
    assert why(view(free, consumers=unable)) == "no consumer is ready"
    assert why(view(free, consumers=(*unable, able))) == (
        "it waits for the next rebalance, for its last consumer to return (rejoinGrace), or for proof that this one is dead"
    )


def test_at_most_five_are_told_and_those_that_somebody_must_see_to_come_first() -> None:
    waiting = tuple(shard(number, ShardState.WAIT) for number in range(6))
    free = (shard(7, ShardState.NOT_ALLOC, state_age=30.0),)
    found = stuck(view((*waiting, *free)))
    assert [item["shard"] for item in found] == ["clicks/7", "clicks/0", "clicks/1", "clicks/2", "clicks/3"]
    assert (found[1]["reason"], found[1]["message"]) == (
        "WaitsForParents",
        "in an ordered group it waits until the shards that come before it are read to their ends",
    )
    assert plan(observation(view=view((*waiting, *free)))).status["stuckShardsTotal"] == 7


GREW = "topic clicks grew from 4 to 8 partitions, and it waits for clicks/3"


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ((), f"{GREW}: how far that must be read is looked up once producers have noticed (spec.source.kafka.growth)"),
        (((ShardId("clicks/3"), 25),), f"{GREW} to be read to 25; it is read to 10"),
    ],
    ids=["before its cutover offset is taken", "until it is reached"],
)
def test_a_shard_that_waits_since_its_topic_grew_says_for_what_and_how_far_that_is(
    ends: tuple[tuple[ShardId, int], ...], said: str
) -> None:
    waits = shard(7, ShardState.WAIT, state_age=90.0)
    picture = view((shard(3), waits), consumers=consumers(1), growths=(Growth("clicks", 4, 8, ends, keeps=True),))

    assert stuck(picture) == [
        {"shard": "clicks/7", "reason": "WaitsForParents", "message": said, "since": "2023-11-14T22:11:50Z"}
    ]


def test_a_shard_with_nothing_to_read_is_not_stuck() -> None:
    assert stuck(view((shard(7, ShardState.NOT_ALLOC, end=10, state_age=30.0),))) == []


def test_a_shard_that_the_source_has_no_more_or_of_which_nothing_is_known_is_not_stuck() -> None:
    free = shard(7, ShardState.NOT_ALLOC, state_age=30.0)
    others = (structs.replace(free, present=False), structs.replace(free, lag_records=None))
    assert stuck(view(others)) == []
    assert [item["shard"] for item in stuck(view((*others, structs.replace(free, shard=ShardId("clicks/8")))))] == ["clicks/8"]
    for picture in (None, view((free,), discovered=False)):
        assert stuck_shards(observation(view=picture), None) == ([], 0)


def test_a_grant_and_a_transfer_have_ten_seconds() -> None:
    for state in (ShardState.NOT_ALLOC, ShardState.TRANSFER):
        rows = (shard(7, state, state_age=9.9), shard(8, state, state_age=10.0))
        assert [item["shard"] for item in stuck(view(rows))] == ["clicks/8"]


def test_they_are_told_in_the_order_in_which_somebody_must_see_to_them() -> None:
    rows = (
        shard(0, ShardState.WAIT),
        shard(1, ShardState.NOT_ALLOC, state_age=90.0),
        shard(2, ShardState.TRANSFER, state_age=90.0),
        shard(3),
    )
    found = stuck(view(rows, consumers=consumers(1)), seconds=75)
    assert [item["reason"] for item in found] == ["NoProgress", "NotGivenUp", "NoHolder", "WaitsForParents"]


def test_a_shard_that_stands_still_for_another_reason_does_so_since_then() -> None:
    free = view((shard(7, ShardState.NOT_ALLOC, state_age=30.0),))
    since = {"shard": "clicks/7", "since": "then"}
    for previous, expected in (
        ([{**since, "reason": "NoHolder"}], "then"),
        ([{**since, "reason": "NotGivenUp"}], "2023-11-14T22:12:50Z"),
        ([{**since, "reason": "NoHolder", "shard": "clicks/8"}], "2023-11-14T22:12:50Z"),
        (["clicks/7"], "2023-11-14T22:12:50Z"),
        ("clicks/7", "2023-11-14T22:12:50Z"),
    ):
        written = plan(observation(view=free, previous={"stuckShards": previous})).status["stuckShards"]
        assert isinstance(written, list)
        assert [item["since"] for item in written] == [expected]


class Counted(tuple[ConsumerView, ...]):
    """Consumers that count how often somebody goes through them."""

    walks = 0

    def __iter__(self) -> Iterator[ConsumerView]:
        self.walks += 1
        return super().__iter__()


@pytest.mark.parametrize("state", [ShardState.NOT_ALLOC, ShardState.ALREADY_ALLOC])
def test_who_is_there_is_looked_at_once_for_all_shards(state: ShardState) -> None:
    def walks(number: int) -> int:
        there = Counted(consumers(1, 1))
        rows = tuple(shard(each, state, state_age=60.0) for each in range(number))
        still = cast(Traffic, SimpleNamespace(still_for=lambda *_: {row.shard: 60.0 for row in rows}))
        _, found = stuck_shards(observation(view=view(rows, consumers=there)), still)
        assert found == number
        return there.walks

    assert walks(100) == walks(1)
