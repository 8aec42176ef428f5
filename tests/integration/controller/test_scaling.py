"""The number of consumers on a real API server: who sets it, what it follows, what keeps it, and what a user is told of it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, generate_latest

from shardherd.core.model.messages import Seconds
from shardherd.core.model.nouns import ConsumerId, GroupIdentity, GroupView, ShardId, ShardState
from shardherd.telemetry.collector import GroupCollector
from tests.harness.cluster import Names
from tests.harness.external_metrics import external_metrics
from tests.integration.controller.autoscaling import autoscaler, condition
from tests.integration.controller.bench import GROUPS, RESOURCE, ControllerBench, until
from tests.unit.core.planning.builders import consumers, shards, view


@pytest.fixture
def name(names: Names) -> str:
    """Name of a group that no other test has."""
    return names.fresh("s")


def picture(name: str, count: int, *, position: int = 100, end: int = 100, **fields: object) -> GroupView:
    """So many shards, alike, held by the group's first consumer."""
    rows = tuple(
        replace(
            shard,
            shard=ShardId(f"clicks/{number}"),
            holder=ConsumerId(f"{name}-0"),
            checkpoint=position,
            end=end,
            lag_records=end - position,
        )
        for number, shard in enumerate(shards(count))
    )
    return replace(view(rows, consumers=consumers(count)), **fields)


def desired(bench: ControllerBench, name: str) -> int | None:
    """What the StatefulSet is told; None while there is none."""
    found = bench.find("statefulsets", name)
    return None if found is None else int(found["spec"]["replicas"])


def scaling(bench: ControllerBench, name: str) -> tuple[int, str]:
    """The decision in the status."""
    found = (bench.find(GROUPS, name) or {}).get("status", {}).get("scaling", {})
    return found.get("desired", -1), found.get("reason", "")


def becomes(bench: ControllerBench, name: str, what: Callable[[], bool], within: float = 60.0) -> None:
    """Wait for it; a failure says what there is."""
    until(what, lambda: (bench.explain(name), (bench.find(GROUPS, name) or {}).get("status")), within)


def test_an_autoscaler_sets_the_number_through_the_scale_subresource(bench: ControllerBench, name: str) -> None:
    bench.coordination.pictures[name] = picture(name, 4)
    bench.group(name, scaling={"mode": "External", "shardsPerConsumer": None}, replicas=1)
    becomes(bench, name, lambda: desired(bench, name) == 1)
    bench.kubectl("scale", f"{RESOURCE}/{name}", "--replicas=3")
    becomes(bench, name, lambda: desired(bench, name) == 3)
    becomes(bench, name, lambda: scaling(bench, name) == (3, "External"))
    # What an autoscaler reads: how many there are, and which pods they are.
    until(lambda: bench.api.call("GET", f"{bench.path(GROUPS, name)}/scale")["status"]["replicas"] == 3)
    selector = bench.api.call("GET", f"{bench.path(GROUPS, name)}/scale")["status"]["selector"]
    until(lambda: len(bench.all("pods", labelSelector=selector)) == 3)


def test_a_horizontal_pod_autoscaler_follows_the_lag_that_the_operator_shows(bench: ControllerBench, name: str) -> None:
    registry = CollectorRegistry()
    identity = GroupIdentity(bench.namespace, name, "uid")
    registry.register(GroupCollector(lambda: {identity: bench.coordination.pictures[name]}, 100))
    bench.coordination.pictures[name] = picture(name, 4, end=160)
    bench.group(name, scaling={"mode": "External", "shardsPerConsumer": None}, replicas=1)
    becomes(bench, name, lambda: desired(bench, name) == 1)
    with external_metrics(bench.cluster, bench.namespace, lambda: generate_latest(registry).decode()):
        manifest = autoscaler(bench.namespace, name, most=4, each=100)
        bench.cluster.kubectl("apply", "-f", "-", input=json.dumps(manifest))
        # 240 records wait.
        until(lambda: desired(bench, name) == 3, lambda: bench.kubectl("describe", "hpa", name))
        becomes(bench, name, lambda: scaling(bench, name) == (3, "External"))
        until(lambda: condition(bench.cluster, bench.namespace, name) == ("True", "ValidMetricFound"))
        bench.coordination.pictures[name] = picture(name, 4)
        until(lambda: desired(bench, name) == 1, lambda: bench.kubectl("describe", "hpa", name))


@contextmanager
def falling_behind(bench: ControllerBench, name: str) -> Iterator[None]:
    """Until the block ends each of three shards gets 100 records a second, and a third of that is read."""
    begun, ended = time.monotonic(), threading.Event()

    def show() -> None:
        seconds = time.monotonic() - begun
        bench.coordination.pictures[name] = picture(name, 3, end=round(100 * seconds) + 2000, position=round(33 * seconds))

    def go_on() -> None:
        while not ended.wait(0.1):
            show()

    show()
    thread = threading.Thread(target=go_on, name=f"records of {name}")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_the_lag_adds_consumers_and_kubectl_says_why(bench: ControllerBench, name: str) -> None:
    with falling_behind(bench, name):
        bench.group(name, scaling={"mode": "Lag", "shardsPerConsumer": None, "lag": {"targetCatchupSeconds": 60}})
        becomes(bench, name, lambda: desired(bench, name) == 1)
        bench.until_pods(name, 1)
        bench.make_ready(f"{name}-0")
        becomes(bench, name, lambda: desired(bench, name) == 3, within=90)
        becomes(bench, name, lambda: scaling(bench, name) == (3, "CatchingUp"))
        assert bench.until_condition(name, "ScalingLimited", "True", "TooFewShards")
        text = bench.kubectl("describe", RESOURCE, name)
        assert "Catching Up" in text or "CatchingUp" in text
        assert "records/s are written" in text
        more = until(
            lambda: [message for _, reason, message in bench.events(name) if reason == "ScaledUp" and "From 1" in message]
        )
        (why,) = more
        assert "one consumer reads" in why


def test_describe_alone_says_why_there_are_three_consumers_and_why_shard_7_does_not_move(
    bench: ControllerBench, name: str
) -> None:
    whole = picture(name, 12, end=500)
    stuck = replace(
        whole.shards[7],
        state=ShardState.TRANSFER,
        next_consumer=ConsumerId(f"{name}-2"),
        state_age=Seconds(40.0),
        holder=ConsumerId(f"{name}-1"),
    )
    rows = tuple(stuck if shard.shard == stuck.shard else shard for shard in whole.shards)
    bench.coordination.pictures[name] = replace(whole, shards=rows)
    bench.group(name, scaling={"shardsPerConsumer": 4})
    becomes(bench, name, lambda: scaling(bench, name)[0] == 3)

    def described() -> list[str]:
        """The words of the description, as a reader sees them: without its columns and line breaks."""
        return [" ".join(line.split()) for line in bench.kubectl("describe", RESOURCE, name).splitlines()]

    becomes(bench, name, lambda: "Shard: clicks/7" in described())
    text = described()
    assert "Message: 12 shards to read, 4 for each consumer: 3 consumers." in text
    at = text.index("Shard: clicks/7")
    around = text[at - 3 : at + 2]
    assert f"Message: {name}-1 has not given it up yet; {name}-2 is to have it" in around
    assert "Reason: NotGivenUp" in around
    assert "Stuck Shards Total: 1" in text


def test_nobody_runs_while_there_is_nothing_to_read(bench: ControllerBench, name: str) -> None:
    bench.coordination.pictures[name] = picture(name, 3)
    scale = {"mode": "Lag", "shardsPerConsumer": None, "minReplicas": 0, "stabilizationWindow": "1s"}
    bench.group(name, scaling=scale)
    becomes(bench, name, lambda: (desired(bench, name), *scaling(bench, name)) == (0, 0, "Idle"))
    bench.coordination.pictures[name] = picture(name, 3, end=101)
    becomes(bench, name, lambda: (desired(bench, name), *scaling(bench, name)) == (1, 1, "RecordsArrived"))
    bench.until_pods(name, 1)
    # The first look at the new ends takes a few seconds; then all is read, and stays so.
    bench.coordination.pictures[name] = replace(picture(name, 3, position=101, end=101), consumers=())
    becomes(bench, name, lambda: scaling(bench, name) == (0, "Idle"))


def test_recommend_only_tells_and_does_nothing(bench: ControllerBench, name: str) -> None:
    bench.coordination.pictures[name] = picture(name, 3)
    bench.group(name, scaling={"recommendOnly": True})
    becomes(bench, name, lambda: bench.get(GROUPS, name).get("status", {}).get("recommendedReplicas") == 3)
    assert desired(bench, name) == 1
    assert "3 recommended" in bench.until_condition(name, "ScalingActive", "False", "RecommendOnly")
    until(lambda: [reason for _, reason, _ in bench.events(name) if reason == "ScaleRecommended"])


def test_annotations_pause(bench: ControllerBench, name: str) -> None:
    bench.coordination.pictures[name] = picture(name, 1)
    bench.group(name)
    becomes(bench, name, lambda: desired(bench, name) == 1)
    bench.kubectl("annotate", RESOURCE, name, "shardherd.dev/pause-scale-out=true", "shardherd.dev/pause-rebalance=true")
    until(lambda: bench.coordination.specs[name][-1].rebalance_paused)
    bench.coordination.pictures[name] = picture(name, 2)
    bench.until_condition(name, "ScalingLimited", "True", "ScaleOutPaused")
    assert desired(bench, name) == 1
    bench.kubectl("annotate", RESOURCE, name, "shardherd.dev/pause-scale-out-", "shardherd.dev/pause-rebalance-")
    becomes(bench, name, lambda: desired(bench, name) == 2)
    bench.kubectl("annotate", RESOURCE, name, "shardherd.dev/pause-reconcile=true")
    bench.until_condition(name, "Reconciling", "False", "ReconcilePaused")
    bench.kubectl("delete", "service", name)
    bench.coordination.pictures[name] = picture(name, 3)
    until(lambda: bench.get(GROUPS, name)["status"]["shards"]["total"] == 3)
    assert (desired(bench, name), bench.find("services", name)) == (2, None)
    bench.kubectl("annotate", RESOURCE, name, "shardherd.dev/pause-reconcile-")
    becomes(bench, name, lambda: (desired(bench, name), bench.find("services", name) is not None) == (3, True))


def test_a_consumer_that_will_not_drain_is_reported_and_ended(bench: ControllerBench, name: str) -> None:
    bench.coordination.pictures[name] = picture(name, 2)
    bench.group(name, drainTimeout="2s")
    bench.until_pods(name, 2)
    stubborn = replace(picture(name, 1).shards[0], holder=ConsumerId(f"{name}-1"), state=ShardState.TRANSFER)
    bench.coordination.pictures[name] = replace(picture(name, 1), shards=(stubborn,))
    becomes(bench, name, lambda: desired(bench, name) == 1)
    message = f"{name}-1 did not give up clicks/0 within spec.drainTimeout (2 s): it is ended, and fenced."
    until(lambda: ("Warning", "DrainTimedOut", message) in bench.events(name), lambda: bench.events(name))
