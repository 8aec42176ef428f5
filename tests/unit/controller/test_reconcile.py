"""The reconcile of a group, over twins of all ports."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from shardherd.controller.manifests import Manifests
from shardherd.controller.reconcile import AT_ONCE, LAST_WORDS, Controller
from shardherd.core.model.nouns import ConsumerId, GroupIdentity, Incarnation, ShardState
from shardherd.core.planning.observed import Observation
from shardherd.core.planning.plan import Plan, plan
from shardherd.ports import ClusterUnavailableError, GroupObjects
from shardherd.telemetry.operator_metrics import OperatorMetrics
from tests.unit.controller.builders import MANIFESTS, driver_pod, executor_pod, resource, terminated
from tests.unit.controller.fakes import KEY, Bench
from tests.unit.core.planning.builders import IDENTITY, UID, consumers, shards, view

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
    assert bench.metric("shardherd_scale_decisions_total", direction="up", reason="FollowingShards") == 1


async def test_a_resource_that_cannot_be_read_says_so_in_its_conditions_and_its_group_goes_on(bench: Bench) -> None:
    await bench.reconcile()
    broken = resource(generation=2)
    del broken["spec"]["scaling"]
    broken["status"] = bench.cluster.objects["ConsumerGroup", *KEY]["status"]
    bench.cluster.put("ConsumerGroup", broken)
    bench.controller.saw_group(KEY, broken, gone=False)
    bench.cluster.writes.clear()
    for _ in range(3):
        assert await bench.reconcile(after=2)
    assert bench.cluster.writes == ["status clicks"]
    said = "ConsumerGroup shop/clicks cannot be read: KeyError 'scaling'; correct it: until then the group goes on as it was."
    status = bench.cluster.objects["ConsumerGroup", *KEY]["status"]
    conditions = {each["type"]: each for each in status["conditions"]}
    for kind, value in (("Ready", "False"), ("Stalled", "True")):
        assert (conditions[kind]["status"], conditions[kind]["reason"]) == (value, "InvalidSpec")
        assert (conditions[kind]["message"], conditions[kind]["observedGeneration"]) == (said, 2)
    assert (status["desiredReplicas"], bench.condition("ConsumersReady")) == (2, ("False", "Starting"))
    shown = {kind: bench.metric("shardherd_group_condition", condition=kind) for kind in ("Ready", "Stalled")}
    assert shown == {"Ready": 0, "Stalled": 1}
    assert bench.events.reasons() == ["ScaledUp", "InvalidSpec"]

    mended = resource(generation=3)
    mended["status"] = status
    bench.cluster.put("ConsumerGroup", mended)
    bench.controller.saw_group(KEY, mended, gone=False)
    await bench.reconcile(after=2)
    assert bench.condition("Stalled") == ("False", "NotStalled")


async def test_a_group_whose_resource_cannot_be_read_goes_on_after_a_restart_of_the_operator_too(bench: Bench) -> None:
    await bench.reconcile()
    run_pods(bench)
    await bench.reconcile(after=2)
    template = {"spec": {"containers": [{"name": "driver", "env": {"LEVEL": "debug"}}]}}
    broken = resource(generation=2, application={"driver": {"template": template}}, status=bench.status())
    bench.cluster.put("ConsumerGroup", broken)
    successor = Bench()
    successor.cluster.objects = bench.cluster.objects
    successor.controller.saw_group(KEY, broken, gone=False)

    for _ in range(3):
        await successor.reconcile(after=1)
    assert successor.condition("Stalled") == ("True", "InvalidSpec")
    (told,) = successor.coordination.specs
    assert (told, told.wanted, told.leaving) == (bench.coordination.specs[-1], 2, frozenset())

    successor.coordination.pictures[IDENTITY] = bench.coordination.pictures[IDENTITY]
    successor.controller.saw_pod(KEY, driver_pod(0, state=terminated(3)), gone=False)
    await successor.reconcile(after=1)
    assert successor.coordination.deaths == [(IDENTITY, ConsumerId("clicks-0"), Incarnation(POD, 3))]
    assert successor.cluster.writes == ["status clicks"]


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


def run_pods(bench: Bench, *, broken: bool = False) -> None:
    """Both pods are there, made from what is applied, and ready unless they are broken."""
    for ordinal in (0, 1):
        pod = driver_pod(ordinal, ready=not broken, template_hash=applied_hash(bench))
        bench.cluster.put("Pod", pod)
        bench.controller.saw_pod(KEY, pod, gone=False)


def declare(bench: Bench, generation: int, image: str) -> None:
    """The user declares another image."""
    changed = resource(generation=generation, application={"image": image}, status=bench.status())
    bench.cluster.put("ConsumerGroup", changed)
    bench.controller.saw_group(KEY, changed, gone=False)


def applied_image(bench: Bench) -> str:
    """The image that new pods get."""
    containers: list[dict[str, Any]] = bench.cluster.objects["StatefulSet", *KEY]["spec"]["template"]["spec"]["containers"]
    return str(containers[0]["image"])


class TestADeclarationThatDoesNotRun:
    """From an image that runs to one that does not."""

    @pytest.fixture
    async def rolled(self, bench: Bench) -> Bench:
        """It was rolled out, and had its ten minutes."""
        await bench.reconcile()
        run_pods(bench)
        await bench.reconcile(after=5)
        declare(bench, 2, "example/clicks:2")
        await bench.reconcile(after=5)
        assert applied_image(bench) == "example/clicks:2"
        run_pods(bench, broken=True)
        await bench.reconcile(after=5)
        await bench.reconcile(after=600)
        return bench

    async def test_is_taken_back(self, rolled: Bench) -> None:
        assert applied_image(rolled) == "example/clicks:1"
        assert "RolledBack" in rolled.events.reasons()
        run_pods(rolled)
        await rolled.reconcile(after=5)
        assert rolled.condition("Stalled") == ("True", "RolledBack")
        assert rolled.condition("ConsumersReady") == ("True", "AllReady")
        writes = len(rolled.cluster.writes)
        for _ in range(5):
            await rolled.reconcile(after=5)
        assert "apply" not in " ".join(rolled.cluster.writes[writes:])

    async def test_stays_so_after_a_restart_of_the_operator(self, rolled: Bench) -> None:
        successor = Bench()
        successor.clock.advance(10_000)
        successor.cluster.objects.update(rolled.cluster.objects)
        successor.coordination.pictures.update(rolled.coordination.pictures)
        successor.controller.saw_group(KEY, rolled.cluster.objects["ConsumerGroup", *KEY], gone=False)
        run_pods(successor)
        await successor.reconcile()
        assert applied_image(successor) == "example/clicks:1"
        assert successor.condition("Stalled") == ("True", "RolledBack")

    async def test_is_forgotten_when_something_else_is_declared(self, rolled: Bench) -> None:
        run_pods(rolled)
        await rolled.reconcile(after=5)
        declare(rolled, 3, "example/clicks:3")
        await rolled.reconcile(after=5)
        assert applied_image(rolled) == "example/clicks:3"
        run_pods(rolled)
        await rolled.reconcile(after=5)
        assert rolled.condition("Stalled") == ("False", "NotStalled")
        # And may be tried again.
        declare(rolled, 4, "example/clicks:2")
        await rolled.reconcile(after=5)
        assert applied_image(rolled) == "example/clicks:2"
        # With the last one that ran to go back to.
        run_pods(rolled, broken=True)
        await rolled.reconcile(after=5)
        await rolled.reconcile(after=600)
        assert applied_image(rolled) == "example/clicks:3"


class AnotherVersion(Manifests):
    """How another version of the operator renders pods."""

    def stateful_set(
        self, resource: Mapping[str, Any], replicas: int, remembered: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        made = super().stateful_set(resource, replicas, remembered)
        made["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 7
        made["metadata"]["annotations"]["shardherd.dev/manifest-hash"] = "another"
        return made


async def test_another_version_of_the_operator_restarts_no_pod(bench: Bench) -> None:
    await bench.reconcile()
    run_pods(bench)
    await bench.reconcile(after=5)
    upgraded = Bench(AnotherVersion(MANIFESTS.coordinator_url, MANIFESTS.audience))
    upgraded.cluster.objects.update(bench.cluster.objects)
    upgraded.coordination.pictures.update(bench.coordination.pictures)
    upgraded.controller.saw_group(KEY, resource(), gone=False)
    for _ in range(5):
        await upgraded.reconcile(after=5)
    assert "apply StatefulSet clicks x2" in upgraded.cluster.writes
    assert [write for write in upgraded.cluster.writes if write.startswith("delete")] == []
    assert upgraded.condition("Reconciling") == ("False", "Settled")


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


async def test_so_many_groups_are_read_at_once_and_a_death_waits_for_none_of_them(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.reconcile()
    reading: list[str] = []
    answers = asyncio.Event()

    async def read(_namespace: str, name: str) -> None:
        reading.append(name)
        await answers.wait()

    monkeypatch.setattr(bench.cluster, "read", read)
    others = [("shop", f"clicks-{number}") for number in range(AT_ONCE + 4)]
    for key in others:
        bench.controller.saw_object(key)
    at_work = [asyncio.create_task(bench.controller.reconcile(key)) for key in others]
    await asyncio.sleep(0)
    bench.controller.saw_pod(KEY, driver_pod(0, state=terminated(3)), gone=False)
    at_work.append(asyncio.create_task(bench.reconcile()))
    await asyncio.sleep(0)

    assert reading == [name for _, name in others[:AT_ONCE]]
    assert bench.coordination.deaths == [(IDENTITY, ConsumerId("clicks-0"), Incarnation(POD, 3))]

    answers.set()
    await asyncio.gather(*at_work)
    assert reading == [*(name for _, name in others), "clicks"]


async def test_a_death_waits_until_the_coordinator_has_loaded_the_group(bench: Bench) -> None:
    picture = bench.coordination.pictures.pop(IDENTITY)
    bench.controller.saw_pod(KEY, driver_pod(0, state=terminated(3)), gone=False)
    await bench.reconcile()
    assert bench.coordination.deaths == []
    bench.coordination.pictures[IDENTITY] = picture
    await bench.reconcile(after=1)
    assert bench.coordination.deaths == [(IDENTITY, ConsumerId("clicks-0"), Incarnation(POD, 3))]


async def test_a_pod_that_the_coordinator_refuses_for_ever_is_deleted_with_an_event_and_left_alone_once_it_goes(
    bench: Bench,
) -> None:
    await bench.reconcile()
    pod = driver_pod(0)
    bench.cluster.put("Pod", pod)
    bench.controller.saw_pod(KEY, pod, gone=False)
    refused = ((ConsumerId("clicks-0"), POD),)
    bench.coordination.pictures[IDENTITY] = view(shards(8), consumers=consumers(4, 4), superseded=refused)
    await bench.reconcile(after=1)
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    bench.controller.saw_pod(KEY, pod, gone=False)
    await bench.reconcile(after=1)
    bench.controller.saw_pod(KEY, pod, gone=True)
    bench.controller.saw_pod(KEY, driver_pod(0, uid="bbbbbbbb-0000-0000-0000-000000000000"), gone=False)
    await bench.reconcile(after=1)
    assert [write for write in bench.cluster.writes if "Pod " in write] == ["delete Pod clicks-0"]
    assert bench.events.reasons().count("PodSuperseded") == 1


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


async def test_an_annotation_that_pauses_is_noticed_although_it_leaves_the_generation(bench: Bench) -> None:
    await bench.reconcile()
    await bench.reconcile(after=2)
    paused = resource()
    paused["metadata"]["annotations"] = {"shardherd.dev/pause-reconcile": "true", "else": "other"}
    bench.cluster.put("ConsumerGroup", paused)
    bench.controller.saw_group(KEY, paused, gone=False)
    bench.coordination.pictures[IDENTITY] = view(shards(40), consumers=consumers(4, 4))
    await bench.reconcile(after=2)
    assert bench.condition("Reconciling") == ("False", "ReconcilePaused")
    assert "apply StatefulSet clicks x10" not in bench.cluster.writes
    bench.cluster.put("ConsumerGroup", resource())
    bench.controller.saw_group(KEY, resource(), gone=False)
    await bench.reconcile(after=2)
    assert "apply StatefulSet clicks x10" in bench.cluster.writes


async def test_a_lag_that_is_not_known_any_more_is_not_shown(bench: Bench) -> None:
    picture = view(shards(8), consumers=consumers(8), lag_seconds=7)
    bench.coordination.pictures[IDENTITY] = picture
    await bench.reconcile()
    assert bench.metric("shardherd_group_lag_seconds") == 7
    assert bench.status()["lag"] == {"records": 80, "seconds": 7}
    bench.coordination.pictures[IDENTITY] = replace(picture, lag_seconds=None)
    await bench.reconcile(after=60)
    assert bench.metric("shardherd_group_lag_seconds") is None
    assert bench.status()["lag"].get("seconds") is None


async def test_the_figures_of_the_lag_are_metrics(bench: Bench) -> None:
    for second in range(60):
        held = shards(8, checkpoint=50 * second, end=100 * second, lag_records=50 * second)
        bench.coordination.pictures[IDENTITY] = view(held, consumers=consumers(8), lag_seconds=30)
        await bench.reconcile(after=1)
    assert bench.metric("shardherd_group_produced_records_per_second") == pytest.approx(800)
    assert bench.metric("shardherd_group_consumed_records_per_second") == pytest.approx(400)
    assert bench.metric("shardherd_group_consumer_records_per_second") == pytest.approx(400)
    assert bench.metric("shardherd_group_lag_seconds") == 30
    assert bench.metric("shardherd_replicas", kind="recommended") == 2
    assert bench.status()["lag"].keys() == {
        "records",
        "seconds",
        "producedPerSecond",
        "consumedPerSecond",
        "consumerPerSecond",
    }


async def test_what_the_status_does_not_say_any_more_is_no_metric_any_more(bench: Bench) -> None:
    ordered = resource(ordered=True)
    bench.cluster.put("ConsumerGroup", ordered)
    bench.controller.saw_group(KEY, ordered, gone=False)
    await bench.reconcile()
    order = bench.metric("shardherd_group_condition", condition="OrderPreserved")
    assert (order, bench.metric("shardherd_replicas", kind="recommended")) == (1, 2)

    edited = resource(generation=2, replicas=3, scaling={"mode": "Fixed"}, status=bench.status())
    bench.cluster.put("ConsumerGroup", edited)
    bench.controller.saw_group(KEY, edited, gone=False)
    await bench.reconcile(after=2)
    order = bench.metric("shardherd_group_condition", condition="OrderPreserved")
    assert (order, bench.metric("shardherd_replicas", kind="recommended")) == (None, None)
    assert bench.metric("shardherd_replicas", kind="desired") == 3


async def test_rates_of_shards_that_are_all_read_to_their_ends_are_not_shown_any_more(bench: Bench) -> None:
    rates = ("shardherd_group_produced_records_per_second", "shardherd_group_consumed_records_per_second")
    for second in range(60):
        held = shards(8, checkpoint=50 * second, end=100 * second, lag_records=50 * second)
        bench.coordination.pictures[IDENTITY] = view(held, consumers=consumers(8))
        await bench.reconcile(after=1)
    assert [bench.metric(name) for name in rates] == [pytest.approx(800), pytest.approx(400)]
    bench.coordination.pictures[IDENTITY] = view(shards(8, ShardState.OVER, checkpoint=5900, end=5900, lag_records=0))
    await bench.reconcile(after=1)
    assert [bench.metric(name) for name in rates] == [None, None]


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
    assert bench.cluster.writes == ["status clicks"]


def test_the_builders_resource_is_the_identity_that_tests_use() -> None:
    assert resource()["metadata"]["uid"] == UID == IDENTITY.uid


async def test_looks_at_many_groups_are_as_far_apart_as_planning_for_all_of_them_asks_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()

    def slow_plan(observation: Observation) -> Plan:
        bench.clock.advance(0.02)
        return plan(observation)

    monkeypatch.setattr("shardherd.controller.reconcile.plan", slow_plan)
    keys = [("shop", f"clicks-{number}") for number in range(10)]
    for key in keys:
        made = resource(uid=f"uid-of-{key[1]}")
        made["metadata"]["name"] = key[1]
        bench.cluster.put("ConsumerGroup", made)
        bench.controller.saw_group(key, made, gone=False)
    for _ in range(3):
        for key in keys:
            await bench.controller.reconcile(key)
    bench.worklist.added.clear()

    bench.controller.tick()
    bench.clock.advance(1.0)
    bench.controller.tick()
    assert bench.worklist.added == []

    bench.clock.advance(1.0)
    bench.controller.tick()
    assert sorted(bench.worklist.added) == keys


async def test_groups_of_a_namespace_that_is_let_go_are_forgotten_and_nothing_of_theirs_is_changed(bench: Bench) -> None:
    made = resource(cleanup="Delete")
    bench.cluster.put("ConsumerGroup", made)
    bench.bundle = "authorities"
    await bench.reconcile()
    before, writes = dict(bench.cluster.objects), list(bench.cluster.writes)
    assert bench.metric("shardherd_replicas", kind="desired") == 2

    bench.controller.let_go("web")
    assert bench.coordination.forgotten == []
    bench.controller.let_go("shop")

    assert bench.coordination.forgotten == [IDENTITY]
    assert (bench.cluster.objects, bench.cluster.writes) == (before, writes)
    assert bench.metric("shardherd_replicas", kind="desired") is None
    # A consumer that was parked is answered, and counted, a moment later.
    bench.metrics.heartbeats.labels(*KEY, "CoordinatorUnavailable").inc()
    assert bench.metric("shardherd_heartbeats_total", result="CoordinatorUnavailable") == 1
    bench.clock.advance(LAST_WORDS)
    bench.controller.tick()
    assert bench.metric("shardherd_heartbeats_total", result="CoordinatorUnavailable") is None
    bench.worklist.added.clear()
    bench.clock.advance(3600)
    bench.controller.tick()
    assert (bench.worklist.added, await bench.reconcile()) == ([], False)


async def test_a_group_that_was_let_go_is_served_as_by_another_leader_once_it_is_found_again(bench: Bench) -> None:
    bench.bundle = "authorities"
    await bench.reconcile()
    bench.controller.let_go("shop")
    bench.coordination.pictures[IDENTITY] = view(shards(8), consumers=consumers(4, 4))
    # Meanwhile another operator has put its own authorities there.
    trust = bench.cluster.objects["ConfigMap", "shop", "shardherd-ca"]
    trust["data"] = {"ca.crt": "others"}
    (told,) = bench.coordination.specs
    bench.coordination.specs.clear()

    bench.controller.found_group(KEY)
    assert bench.worklist.added[-1] == KEY
    assert await bench.reconcile()
    assert bench.coordination.specs == [told]
    assert bench.cluster.objects["ConfigMap", "shop", "shardherd-ca"]["data"] == {"ca.crt": "authorities"}


async def test_what_is_under_way_when_a_namespace_is_let_go_writes_nothing_more() -> None:
    bench = Bench()
    made = resource()
    bench.cluster.put("ConsumerGroup", made)
    bench.coordination.pictures[IDENTITY] = view(shards(8), consumers=consumers(4, 4))
    reading, answered = asyncio.Event(), asyncio.Event()
    read = bench.cluster.read

    async def slowly(namespace: str, name: str) -> GroupObjects | None:
        reading.set()
        await answered.wait()
        return await read(namespace, name)

    bench.cluster.read = slowly  # type: ignore[method-assign]
    controller = Controller(
        bench.cluster, bench.coordination, bench.events, bench.clock, OperatorMetrics(CollectorRegistry()), MANIFESTS
    )
    controller.saw_group(KEY, made, gone=False)
    await reading.wait()
    controller.let_go("shop")
    answered.set()
    for _ in range(20):
        await asyncio.sleep(0)
    assert (bench.cluster.writes, bench.coordination.specs, bench.coordination.forgotten) == ([], [], [])
