"""The reconcile of a group, over twins of all ports."""

from __future__ import annotations

from typing import Any

import pytest

from shardherd.core.model import ConsumerId, GroupIdentity, Incarnation
from shardherd.ports import ClusterUnavailableError
from tests.unit.controller.builders import (
    IDENTITY,
    UID,
    consumers,
    driver_pod,
    executor_pod,
    resource,
    shards,
    terminated,
    view,
)
from tests.unit.controller.fakes import KEY, Bench

POD = "aaaaaaaa-0000-0000-0000-000000000000"


@pytest.fixture
async def bench() -> Bench:
    """A group that was just made; the coordinator has read eight shards."""
    bench = Bench()
    made = resource()
    bench.cluster.put("ConsumerGroup", made)
    bench.controller.saw_group(KEY, made, gone=False)
    bench.coordination.pictures[IDENTITY] = view(shards(8), consumers=consumers(4, 4))
    return bench


async def test_a_new_group_gets_its_objects_and_a_status(bench: Bench) -> None:
    assert await bench.reconcile()
    assert bench.cluster.writes == [
        "apply Service clicks",
        "apply PodDisruptionBudget clicks",
        "apply StatefulSet clicks x2",
        "status clicks",
    ]
    assert [spec.wanted for spec in bench.coordination.specs] == [2]
    assert bench.condition("ConsumersReady") == ("False", "Starting")
    assert bench.events.reasons() == ["ScaledUp"]
    assert bench.metric("shardherd_scale_decisions_total", direction="up") == 1


async def test_nothing_is_written_or_read_again_while_nothing_changes(bench: Bench) -> None:
    await bench.reconcile()
    await bench.reconcile(after=2)
    writes, reads = list(bench.cluster.writes), bench.cluster.reads
    for _ in range(10):
        await bench.reconcile(after=2)
    assert (bench.cluster.writes, bench.cluster.reads) == (writes, reads)


async def test_lag_alone_is_written_every_five_seconds(bench: Bench) -> None:
    await bench.reconcile()
    await bench.reconcile(after=10)
    before = bench.cluster.writes.count("status clicks")
    for second in range(20):
        bench.coordination.pictures[IDENTITY] = view(shards(8, lag_records=second), consumers=consumers(4, 4))
        await bench.reconcile(after=1)
    assert bench.cluster.writes.count("status clicks") - before == 4


async def test_a_pod_that_becomes_ready_is_seen(bench: Bench) -> None:
    await bench.reconcile()
    for ordinal in (0, 1):
        pod = driver_pod(ordinal, ready=True, template_hash=applied_hash(bench))
        bench.cluster.put("Pod", pod)
        bench.controller.saw_pod(KEY, pod, gone=False)
    await bench.reconcile(after=1)
    assert bench.condition("Ready") == ("True", "Consuming")
    assert bench.events.reasons() == ["ScaledUp", "Ready"]
    assert bench.metric("shardherd_replicas", kind="ready") == 2


def applied_hash(bench: Bench) -> str:
    """What the pods of the applied StatefulSet are annotated with."""
    template: dict[str, Any] = bench.cluster.objects["StatefulSet", *KEY]["spec"]["template"]
    return str(template["metadata"]["annotations"]["shardherd.dev/template-hash"])


async def test_a_death_is_reported_once_even_if_its_pod_is_gone_when_we_look(bench: Bench) -> None:
    await bench.reconcile()
    bench.controller.saw_pod(KEY, driver_pod(0, state=terminated(3)), gone=True)
    await bench.reconcile(after=1)
    await bench.reconcile(after=1)
    assert bench.coordination.deaths == [(IDENTITY, ConsumerId("clicks-0"), Incarnation(POD, 3))]


async def test_a_death_is_reported_although_the_api_server_does_not_answer(bench: Bench) -> None:
    await bench.reconcile()
    bench.controller.saw_pod(KEY, driver_pod(0, state=terminated(3)), gone=False)
    bench.cluster.available = False
    with pytest.raises(ClusterUnavailableError):
        await bench.reconcile(after=1)
    assert bench.coordination.deaths == [(IDENTITY, ConsumerId("clicks-0"), Incarnation(POD, 3))]


async def test_a_death_waits_until_the_coordinator_has_loaded_the_group(bench: Bench) -> None:
    picture = bench.coordination.pictures.pop(IDENTITY)
    bench.controller.saw_pod(KEY, driver_pod(0, state=terminated(3)), gone=False)
    await bench.reconcile()
    assert bench.coordination.deaths == []
    bench.coordination.pictures[IDENTITY] = picture
    await bench.reconcile(after=1)
    assert bench.coordination.deaths == [(IDENTITY, ConsumerId("clicks-0"), Incarnation(POD, 3))]


async def test_executors_of_a_dead_driver_are_deleted_and_in_an_ordered_group_awaited(bench: Bench) -> None:
    ordered = resource(generation=2, ordered=True, application={"executor": {"instances": 1}})
    bench.cluster.put("ConsumerGroup", ordered)
    bench.controller.saw_group(KEY, ordered, gone=False)
    incarnation = Incarnation(POD, 1)
    running = executor_pod(1, incarnation)
    bench.cluster.put("Pod", running)
    bench.controller.saw_pod(KEY, driver_pod(0, state=terminated(1)), gone=False)
    await bench.reconcile()
    assert "delete Pod clicks-0-1-exec-1" in bench.cluster.writes
    assert bench.coordination.deaths == []
    bench.controller.saw_pod(KEY, executor_pod(1, incarnation, **terminated(None)), gone=True)
    await bench.reconcile(after=1)
    assert bench.coordination.deaths == [(IDENTITY, ConsumerId("clicks-0"), incarnation)]


async def test_what_is_refused_is_told_and_not_tried_again_at_once(bench: Bench) -> None:
    bench.cluster.refuse["StatefulSet"] = "volumeClaimTemplates: field is immutable"
    await bench.reconcile()
    assert bench.condition("Stalled") == ("True", "ApplyRefused")
    assert bench.events.reasons() == ["ApplyRefused"]
    bench.cluster.refuse.clear()
    await bench.reconcile(after=10)
    assert "apply StatefulSet clicks x2" not in bench.cluster.writes
    await bench.reconcile(after=30)
    await bench.reconcile(after=2)
    assert "apply StatefulSet clicks x2" in bench.cluster.writes
    assert bench.condition("Stalled") == ("False", "NotStalled")


async def test_what_was_refused_is_tried_again_at_once_when_the_spec_changes(bench: Bench) -> None:
    bench.cluster.refuse["StatefulSet"] = "invalid"
    await bench.reconcile()
    bench.cluster.refuse.clear()
    changed = resource(generation=2)
    bench.cluster.put("ConsumerGroup", changed)
    bench.controller.saw_group(KEY, changed, gone=False)
    await bench.reconcile(after=1)
    assert "apply StatefulSet clicks x2" in bench.cluster.writes


async def test_an_api_server_that_does_not_answer_ends_the_attempt_and_all_is_read_again(bench: Bench) -> None:
    bench.cluster.available = False
    with pytest.raises(ClusterUnavailableError):
        await bench.reconcile()
    bench.cluster.available = True
    assert await bench.reconcile(after=1)
    assert "status clicks" in bench.cluster.writes


async def test_a_deleted_group_is_forgotten(bench: Bench) -> None:
    await bench.reconcile()
    bench.cluster.remove("ConsumerGroup", *KEY)
    bench.controller.saw_group(KEY, resource(), gone=True)
    assert not await bench.reconcile(after=1)
    assert bench.coordination.forgotten == [IDENTITY]
    assert bench.metric("shardherd_replicas", kind="ready") is None
    assert not await bench.reconcile(after=1)


async def test_a_group_that_was_made_again_under_the_same_name_is_another_one(bench: Bench) -> None:
    await bench.reconcile()
    bench.controller.saw_pod(KEY, driver_pod(0, state=terminated(3)), gone=False)
    other = resource(uid="22222222-0000-0000-0000-000000000000")
    bench.cluster.put("ConsumerGroup", other)
    bench.controller.saw_group(KEY, other, gone=False)
    identity = GroupIdentity("shop", "clicks", "22222222-0000-0000-0000-000000000000")
    bench.coordination.pictures[identity] = view(shards(8))
    await bench.reconcile(after=1)
    assert bench.coordination.forgotten == [IDENTITY]
    # The old one heard of the death before it was forgotten; the new one does not.
    assert bench.coordination.deaths == [(IDENTITY, ConsumerId("clicks-0"), Incarnation(POD, 3))]
    # The objects of the old one still stand; they go by themselves.
    assert bench.condition("Stalled") == ("True", "NameTaken")
    for kind in ("StatefulSet", "Service", "PodDisruptionBudget"):
        bench.cluster.remove(kind, *KEY)
    bench.controller.saw_object(KEY)
    await bench.reconcile(after=1)
    assert bench.condition("Stalled") == ("False", "NotStalled")


async def test_a_group_that_is_made_again_while_its_end_is_read_is_not_missed(bench: Bench) -> None:
    await bench.reconcile()
    bench.cluster.remove("ConsumerGroup", *KEY)
    bench.controller.saw_group(KEY, resource(), gone=True)
    other = resource(uid="22222222-0000-0000-0000-000000000000")

    def made_again() -> None:
        bench.cluster.put("ConsumerGroup", other)
        bench.controller.saw_group(KEY, other, gone=False)

    bench.cluster.after_read = made_again
    assert await bench.reconcile(after=1)
    bench.cluster.after_read = lambda: None
    assert bench.coordination.forgotten == [IDENTITY]

    assert await bench.reconcile(after=1)
    assert bench.coordination.specs[-1].identity.uid == other["metadata"]["uid"]
    assert bench.condition("Stalled") == ("True", "NameTaken")


async def test_a_status_that_we_wrote_ourselves_wakes_nobody(bench: Bench) -> None:
    await bench.reconcile()
    await bench.reconcile(after=2)
    reads = bench.cluster.reads
    bench.controller.saw_group(KEY, resource(status={"replicas": 7}), gone=False)
    await bench.reconcile(after=2)
    assert bench.cluster.reads == reads


async def test_a_restarted_operator_leaves_the_status_alone_until_its_coordinator_has_looked() -> None:
    bench = Bench()
    ready = {"conditions": [{"type": "Ready", "status": "True", "reason": "Consuming"}]}
    made = resource(status=ready)
    bench.cluster.put("ConsumerGroup", made)
    bench.controller.saw_group(KEY, made, gone=False)
    await bench.reconcile()
    await bench.reconcile(after=5)
    assert bench.status() == ready
    assert bench.metric("shardherd_group_condition", condition="Ready") is None
    await bench.reconcile(after=30)
    assert bench.condition("Ready") == ("False", "Discovering")
    assert bench.metric("shardherd_group_condition", condition="Ready") == 0


async def test_a_new_leader_shows_as_metrics_the_status_that_it_finds_written(bench: Bench) -> None:
    await bench.reconcile()
    await bench.reconcile(after=2)
    successor = Bench()
    successor.cluster.objects = bench.cluster.objects
    successor.coordination.pictures[IDENTITY] = bench.coordination.pictures[IDENTITY]
    successor.controller.saw_group(KEY, resource(), gone=False)

    await successor.reconcile()

    assert "status clicks" not in successor.cluster.writes
    assert successor.metric("shardherd_group_condition", condition="SourceReachable") == 1
    assert successor.metric("shardherd_replicas", kind="desired") == 2


async def test_a_resource_that_cannot_be_read_harms_nobody_else(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    broken = resource(generation=2)
    del broken["spec"]["scaling"]
    bench.cluster.put("ConsumerGroup", broken)
    bench.controller.saw_group(KEY, broken, gone=False)
    assert await bench.reconcile()
    assert "ConsumerGroup shop/clicks cannot be read" in caplog.text
    assert bench.cluster.writes == []


def test_the_builders_resource_is_the_identity_that_tests_use() -> None:
    assert resource()["metadata"]["uid"] == UID == IDENTITY.uid
