"""Spans of micro-batches: what belongs to one, when it is over, and which requests tell of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan

from shardherd.client.traced import TracedCoordinator, headers
from shardherd.core.consumer.tracker import ReadRange
from shardherd.core.model.errors import CoordinatorUnavailableError
from shardherd.core.model.nouns import (
    CheckpointOutcome,
    CheckpointReply,
    CheckpointRequest,
    CheckpointResult,
    ConsumerId,
    Heartbeat,
    HeartbeatReply,
    Incarnation,
    Leave,
    Phase,
    ShardCheckpoint,
    ShardId,
)
from shardherd.spark.traces import BatchTraces, Beside
from tests.harness.spans import Shown, Spans
from tests.unit.spark.simulated import Observed

NAME, RUN = ConsumerId("clicks-0"), Incarnation("uid-0", 1)
A, B = ShardId("t/0"), ShardId("t/1")
FIRST = {A: ReadRange(0, 10, 1), B: ReadRange(5, 20, 1)}
SECOND = {A: ReadRange(10, 12, 1)}
PHASES = {"addBatch": 300, "latestOffset": 20, "walCommit": 30, "queryPlanning": 10, "triggerExecution": 400, "another": 5}
WHO = {"shardherd.group": "demo/clicks", "shardherd.consumer": "clicks-0"}
EPOCH = 1_700_000_000
BEGAN = "2023-11-14T22:13:20.000Z"
"""The same time as Spark writes it."""


@dataclass
class Answers:
    """A coordinator that says what it was sent with."""

    result: CheckpointResult = CheckpointResult.OK
    failure: Exception | None = None
    sent: list[Mapping[str, str]] = field(default_factory=list)

    async def heartbeat(self, heartbeat: Heartbeat, wait: float) -> HeartbeatReply:
        self.sent.append(headers())
        if self.failure is not None:
            raise self.failure
        return HeartbeatReply(1, ())

    async def checkpoint(self, request: CheckpointRequest) -> CheckpointReply:
        self.sent.append(headers())
        return CheckpointReply(
            tuple(CheckpointOutcome(each.shard, self.result, each.offset, each.owner_epoch) for each in request.checkpoints)
        )

    async def leave(self, leave: Leave) -> None:
        self.sent.append(headers())


class Scene:
    """A consumer's traces, at a time that a test sets."""

    def __init__(self, **settings: str) -> None:
        self.at = 0.0
        self.spans = Spans(**settings)
        self.batches = BatchTraces(
            self.spans.tracer, "demo/clicks", NAME, lambda: EPOCH * 10**9 + round(self.at * 1e9), lambda: self.at
        )
        self.coordinator = Answers()
        self.calls = TracedCoordinator(self.coordinator, self.spans.tracer, "demo/clicks", self.batches)
        self.seq = 0

    def begin(self, ranges: Mapping[ShardId, ReadRange]) -> None:
        self.batches.began(ranges, self.at)

    def tell(self, ranges: Mapping[ShardId, ReadRange], number: int = 7) -> None:
        self.batches.trigger(ranges, BEGAN, number, 25, PHASES)

    def save(self, **ends: int) -> None:
        wanted = tuple(ShardCheckpoint(ShardId(f"t/{shard[1:]}"), 1, offset) for shard, offset in ends.items())
        asyncio.run(self.checkpointing(CheckpointRequest(NAME, RUN, wanted, "uid")))

    async def checkpointing(self, request: CheckpointRequest) -> None:
        await self.calls.checkpoint(request)

    def beat(self) -> None:
        self.seq += 1
        asyncio.run(self.beating())

    async def beating(self) -> None:
        await self.calls.heartbeat(Heartbeat(NAME, RUN, self.seq, 0, phase=Phase.READING), 3.0)


def phases() -> tuple[Shown, ...]:
    names = ("latestOffset", "walCommit", "queryPlanning", "addBatch", "another")
    return tuple(Shown(name, WHO) for name in names)


def checkpoint(shards: int, links: tuple[str, ...] = ()) -> Shown:
    return Shown("checkpoint", {**WHO, "shardherd.shards": shards, "shardherd.outcome": "ok"}, (), links)


def batch(children: tuple[Shown, ...], outcome: str, **more: Any) -> Shown:
    about = {**WHO, "shardherd.shards": 2, "shardherd.records": 25, "shardherd.outcome": outcome}
    return Shown("micro-batch", {**about, **{name.replace("_", "."): value for name, value in more.items()}}, children)


def times(scene: Scene) -> dict[str, tuple[float, float]]:
    """From when to when each span went, in milliseconds since the scene's begin."""
    return {
        span.name: (((span.start_time or 0) - EPOCH * 10**9) / 1e6, ((span.end_time or 0) - EPOCH * 10**9) / 1e6)
        for span in scene.spans.ended
        if span.name != "checkpoint"  # made in real time
    }


def whole(scene: Scene) -> None:
    scene.begin(FIRST)
    scene.at = 0.4
    scene.tell(FIRST)
    scene.batches.finished(FIRST)
    scene.at = 0.5
    scene.save(t0=10, t1=20)


def test_a_micro_batch_has_the_phases_of_spark_and_the_checkpoint_that_made_it_durable() -> None:
    scene = Scene()
    whole(scene)

    assert scene.spans.shown() == [batch((*phases(), checkpoint(2)), "durable", spark_batch=7, spark_rows=25)]
    assert times(scene) == {
        "latestOffset": (0.0, 20.0),
        "walCommit": (20.0, 50.0),
        "queryPlanning": (50.0, 60.0),
        "addBatch": (60.0, 360.0),
        "another": (360.0, 365.0),
        "micro-batch": (0.0, 500.0),
    }


@pytest.mark.parametrize(
    "order",
    [
        ["finished", "save", "tell"],
        ["tell", "finished", "save"],
        ["finished", "tell", "save"],
    ],
)
def test_it_is_over_when_all_is_known_in_whatever_order_that_comes(order: list[str]) -> None:
    scene = Scene()
    scene.begin(FIRST)
    does: dict[str, Callable[[], None]] = {
        "finished": lambda: scene.batches.finished(FIRST),
        "save": lambda: scene.save(t0=10, t1=20),
        "tell": lambda: scene.tell(FIRST),
    }
    for what in order:
        assert "micro-batch" not in {span.name for span in scene.spans.ended}
        does[what]()

    (shown,) = scene.spans.shown()
    assert shown.attributes["shardherd.outcome"] == "durable"
    assert {each.name for each in shown.children} == {each.name for each in (*phases(), checkpoint(2))}


def test_it_begins_with_the_question_for_its_records() -> None:
    scene = Scene()
    scene.at = 0.05
    scene.batches.began(FIRST, 0.02)
    scene.batches.finished(FIRST)
    scene.batches.close()

    assert times(scene) == {"micro-batch": (20.0, 50.0)}


def test_two_checkpoints_may_make_it_durable() -> None:
    scene = Scene()
    scene.begin(FIRST)
    scene.batches.finished(FIRST)
    scene.tell(FIRST)
    scene.save(t0=10)
    assert "micro-batch" not in {span.name for span in scene.spans.ended}
    scene.save(t1=20)

    children = (*phases(), checkpoint(1), checkpoint(1))
    assert scene.spans.shown() == [batch(children, "durable", spark_batch=7, spark_rows=25)]


def test_a_checkpoint_of_two_micro_batches_is_part_of_the_newer_one_and_linked_to_the_other() -> None:
    scene = Scene()
    scene.begin(FIRST)
    scene.batches.finished(FIRST)
    scene.tell(FIRST)
    scene.begin(SECOND)
    scene.batches.finished(SECOND)
    scene.tell(SECOND, 8)
    scene.save(t0=12, t1=20)
    first, second = scene.spans.shown()

    assert first.children == phases()
    assert first.attributes["shardherd.outcome"] == second.attributes["shardherd.outcome"] == "durable"
    assert second.children == (*phases(), checkpoint(2, ("micro-batch",)))


def test_one_that_another_replaces_unfinished_was_abandoned() -> None:
    scene = Scene()
    scene.begin(FIRST)
    scene.begin(SECOND)

    assert scene.spans.shown() == [batch((), "abandoned")]


def test_one_of_which_nothing_more_is_heard_ends_as_far_as_it_is_known() -> None:
    scene = Scene()
    for _ in range(3):
        scene.begin(FIRST)
        scene.batches.finished(FIRST)

    assert scene.spans.shown() == [batch((), "finished")]


def test_one_that_is_durable_says_so_even_if_spark_told_nothing_of_its_phases_before_the_consumer_went() -> None:
    scene = Scene()
    scene.begin(FIRST)
    scene.batches.finished(FIRST)
    scene.save(t0=10, t1=20)
    scene.batches.close()

    assert scene.spans.shown() == [batch((checkpoint(2),), "durable")]


def test_one_that_is_durable_says_so_even_if_spark_told_nothing_of_its_phases_before_others_began() -> None:
    scene = Scene()
    scene.begin(FIRST)
    scene.batches.finished(FIRST)
    scene.save(t0=10, t1=20)
    for _ in range(2):
        scene.begin(SECOND)
        scene.batches.finished(SECOND)

    assert scene.spans.shown() == [batch((checkpoint(2),), "durable")]


def test_one_of_which_a_part_is_not_durable_when_the_consumer_goes_is_finished_only() -> None:
    scene = Scene()
    scene.begin(FIRST)
    scene.batches.finished(FIRST)
    scene.save(t0=10)
    scene.batches.close()

    assert scene.spans.shown() == [batch((checkpoint(1),), "finished")]


def test_a_fenced_one_says_so() -> None:
    scene = Scene()
    scene.coordinator.result = CheckpointResult.FENCED
    whole(scene)

    (shown,) = scene.spans.shown()
    assert shown.attributes["shardherd.outcome"] == "fenced"


def test_what_is_withheld_is_not_durable_yet() -> None:
    scene = Scene()
    scene.coordinator.result = CheckpointResult.WITHHELD
    whole(scene)
    scene.coordinator.result = CheckpointResult.UNCHANGED
    scene.save(t0=10, t1=20)

    children = (*phases(), checkpoint(2), checkpoint(2))
    assert scene.spans.shown() == [batch(children, "durable", spark_batch=7, spark_rows=25)]


def test_a_heartbeat_is_linked_to_the_micro_batches_that_it_is_the_first_to_tell_of_and_to_the_running_one() -> None:
    scene = Scene()
    scene.beat()
    scene.begin(FIRST)
    scene.beat()
    scene.beat()
    scene.tell(FIRST)
    scene.batches.finished(FIRST)
    scene.save(t0=10, t1=20)
    scene.beat()
    scene.beat()

    beats = [each for each in scene.spans.shown() if each.name == "heartbeat"]
    assert [each.links for each in beats] == [(), ("micro-batch",), ("micro-batch",), ("micro-batch",), ()]
    assert beats[0] == Shown(
        "heartbeat",
        {
            **WHO,
            "shardherd.heartbeat": 1,
            "shardherd.shards.held": 0,
            "shardherd.phase": "reading",
            "shardherd.wait": 3.0,
            "shardherd.outcome": "ok",
        },
    )


def test_what_is_sampled_is_the_micro_batch_and_with_it_all_that_tells_of_it() -> None:
    scene = Scene(OTEL_TRACES_SAMPLER="parentbased_always_off")
    whole(scene)
    scene.beat()

    assert scene.spans.ended == ()
    assert [int(each["traceparent"][-2:], 16) & 1 for each in scene.coordinator.sent] == [0, 0]


def test_a_heartbeat_of_a_sampled_micro_batch_is_sampled() -> None:
    scene = Scene(OTEL_TRACES_SAMPLER="parentbased_always_off")
    sampled = Spans()
    span = sampled.tracer.start_span("micro-batch")
    scene.batches._news.append(span.get_span_context())
    scene.beat()
    scene.beat()

    assert [each.name for each in scene.spans.ended] == ["heartbeat"]


def test_a_request_says_whose_trace_it_is_part_of() -> None:
    scene = Scene()
    scene.beat()
    (span,) = scene.spans.ended

    assert scene.coordinator.sent == [{"traceparent": traceparent(span)}]


def test_a_call_that_fails_says_with_which_code() -> None:
    scene = Scene()
    scene.coordinator.failure = CoordinatorUnavailableError("away")
    with pytest.raises(CoordinatorUnavailableError):
        scene.beat()

    (span,) = scene.spans.ended
    assert (span.attributes or {})["shardherd.outcome"] == "CoordinatorUnavailable"
    assert not span.status.is_ok


def test_metrics_hear_the_same_with_traces_and_without() -> None:
    scene, metrics = Scene(), Observed()
    both = Beside(metrics, scene.batches)
    both.heartbeat("ok")
    both.checkpoint("ok")
    both.began(FIRST, 0.0)
    both.batch(FIRST, 0.1)
    scene.batches.close()

    assert metrics == Observed(["ok"], ["ok"], 25, [25])
    assert scene.spans.shown() == [batch((), "finished")]


def traceparent(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-{span.context.trace_flags:02x}"
