"""The controller on a real API server without a node: its objects, its status, its conditions, and what deleting leaves."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from shardherd.adapters.kubernetes.api import ApiError
from shardherd.core.model.messages import Seconds
from shardherd.core.model.nouns import ConsumerId, Incarnation, ShardState
from tests.harness.cluster import Names
from tests.harness.long import long
from tests.integration.controller.bench import GROUPS, RESOURCE, ControllerBench, Json, until
from tests.unit.core.planning.builders import consumers, shards, view

OWNED = ("statefulsets", "services", "poddisruptionbudgets")


@pytest.fixture
def name(names: Names) -> str:
    """Name of a group that no other test has."""
    return names.fresh("g")


def play(bench: ControllerBench, name: str, count: int, **fields: object) -> None:
    """The coordinator shows so many shards of this group, held by its first consumer."""
    held = tuple(replace(shard, holder=ConsumerId(f"{name}-0")) for shard in shards(count))
    bench.coordination.pictures[name] = replace(view(held, consumers=consumers(count)), **fields)


def test_a_new_group_gets_its_objects_owned_by_it(bench: ControllerBench, name: str) -> None:
    play(bench, name, 2)
    bench.group(name)
    bench.until_pods(name, 2)
    uid = bench.get(GROUPS, name)["metadata"]["uid"]
    owners = {kind: bench.get(kind, name)["metadata"]["ownerReferences"] for kind in OWNED}
    assert owners == {
        kind: [
            {
                "apiVersion": "shardherd.dev/v1alpha1",
                "kind": "ConsumerGroup",
                "name": name,
                "uid": uid,
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ]
        for kind in OWNED
    }
    assert [(spec.wanted, spec.leaving) for spec in bench.coordination.specs[name]] == [(2, frozenset())]
    why = "From 0 to 2 consumers. 2 shards to read, 1 for each consumer: 2 consumers."
    until(lambda: ("Normal", "ScaledUp", why) in bench.events(name), lambda: bench.events(name))


def test_the_resource_itself_is_left_as_the_user_wrote_it(bench: ControllerBench, name: str) -> None:
    play(bench, name, 1)
    bench.group(name)
    bench.until_condition(name, "ConsumersReady", "False", "Starting")
    metadata = bench.get(GROUPS, name)["metadata"]
    assert "finalizers" not in metadata
    assert "annotations" not in metadata


def test_nothing_is_written_while_nothing_changes(bench: ControllerBench, name: str) -> None:
    play(bench, name, 1)
    bench.group(name)
    bench.until_condition(name, "Reconciling", "False", "Settled")
    kinds = (GROUPS, *OWNED)

    def versions() -> list[str]:
        return [bench.get(kind, name)["metadata"]["resourceVersion"] for kind in kinds]

    # The StatefulSet's own controller may still write its status; ours must come to rest.
    def at_rest() -> bool:
        before = versions()
        ticks = _reconciles(bench)
        until(lambda: _reconciles(bench) >= ticks + 3)
        return versions() == before

    until(at_rest)


def _reconciles(bench: ControllerBench) -> float:
    """How many reconciliations there were, of all groups."""
    samples = [sample for metric in bench.metrics.reconcile_duration.collect() for sample in metric.samples]
    return sum(sample.value for sample in samples if sample.name.endswith("_count"))


def test_a_group_whose_consumers_are_ready_is_ready(bench: ControllerBench, name: str) -> None:
    play(bench, name, 2)
    bench.group(name)
    for pod in bench.until_pods(name, 2):
        bench.make_ready(pod["metadata"]["name"])
    bench.kubectl("wait", "--for=condition=Ready", f"{RESOURCE}/{name}", "--timeout=60s")
    status = bench.get(GROUPS, name)["status"]
    conditions = status.pop("conditions")
    assert status.pop("scaling").items() >= {"desired": 2, "reason": "FollowingShards"}.items()
    assert status.pop("rollout").items() >= {"updated": 2, "total": 2}.items()
    assert status == {
        "observedGeneration": 1,
        "replicas": 2,
        "readyReplicas": 2,
        "desiredReplicas": 2,
        "recommendedReplicas": 2,
        "selector": f"shardherd.dev/consumergroup={name},shardherd.dev/role=driver",
        "groupEpoch": 3,
        "shards": {"total": 2, "wait": 0, "notAlloc": 0, "alreadyAlloc": 2, "transfer": 0, "over": 0},
        "lag": {"records": 20},
    }
    assert {condition["observedGeneration"] for condition in conditions} == {1}
    header, row = bench.kubectl("get", RESOURCE, name).splitlines()
    assert header.split() == ["NAME", "READY", "SHARDS", "ASSIGNED", "CONSUMERS", "LAG", "LAG-S", "EPOCH", "AGE"]
    assert row.split()[:7] == [name, "True", "2", "2", "2", "20", "3"]


@long
def test_kubectl_waits_for_each_condition_of_a_group_that_works(bench: ControllerBench, name: str) -> None:
    play(bench, name, 2)
    bench.group(name, ordered=True)
    for pod in bench.until_pods(name, 2):
        bench.make_ready(pod["metadata"]["name"])
    wanted = {
        **dict.fromkeys(("Ready", "SourceReachable", "ConsumersReady", "Balanced", "OrderPreserved", "ScalingActive"), "True"),
        **dict.fromkeys(("Reconciling", "Stalled", "ScalingLimited", "CheckpointLost"), "False"),
    }
    for condition, status in wanted.items():
        bench.kubectl("wait", f"--for=condition={condition}={status}", f"{RESOURCE}/{name}", "--timeout=30s")
    assert {item["type"] for item in bench.get(GROUPS, name)["status"]["conditions"]} == set(wanted)


def test_scaling_out_and_then_in_after_a_drain(bench: ControllerBench, name: str) -> None:
    play(bench, name, 1)
    bench.group(name)
    bench.until_pods(name, 1)
    play(bench, name, 3)
    bench.until_pods(name, 3)
    held = bench.coordination.pictures[name]
    last = ConsumerId(f"{name}-2")
    bench.coordination.pictures[name] = replace(held, shards=(replace(held.shards[0], holder=last),))
    bench.until_condition(name, "Reconciling", "True", "Draining")
    leaving = {ConsumerId(f"{name}-1"), last}
    until(lambda: bench.coordination.specs[name][-1].leaving == leaving)
    # It still holds a shard: all three stay.
    assert bench.get("statefulsets", name)["spec"]["replicas"] == 3
    play(bench, name, 1)
    bench.until_pods(name, 1)
    expected = {"ScaledUp": 2, "ScaledDown": 1}
    until(
        lambda: {r: sum(1 for e in bench.events(name) if e[1] == r) for r in expected} == expected, lambda: bench.events(name)
    )
    until(lambda: bench.coordination.specs[name][-1].leaving == frozenset())


def test_the_scale_subresource_sets_the_number_in_mode_fixed(bench: ControllerBench, name: str) -> None:
    play(bench, name, 8)
    bench.group(name, scaling={"mode": "Fixed", "shardsPerConsumer": None}, replicas=1)
    bench.until_pods(name, 1)
    bench.kubectl("scale", f"{RESOURCE}/{name}", "--replicas=2")
    bench.until_pods(name, 2)
    bench.until_condition(name, "ScalingActive", "False", "Fixed")


def test_settings_that_consumers_hear_while_they_run_restart_nobody(bench: ControllerBench, name: str) -> None:
    play(bench, name, 1)
    bench.group(name)
    (before,) = bench.until_pods(name, 1)
    bench.make_ready(f"{name}-0")
    bench.group(name, heartbeatInterval="5s", sessionTimeout="60s")
    until(lambda: bench.coordination.specs[name][-1].settings.heartbeat_interval == 5.0)
    until(lambda: bench.get(GROUPS, name)["status"]["observedGeneration"] == 2, lambda: bench.explain(name))
    (after,) = bench.pods(name)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]


def test_another_image_replaces_the_pods_one_at_a_time(bench: ControllerBench, name: str) -> None:
    play(bench, name, 2)
    bench.group(name)
    before = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in bench.until_pods(name, 2)}
    for pod in before:
        bench.make_ready(pod)
    bench.until_condition(name, "Ready", "True", "Consuming")
    bench.group(name, application={"image": "example/clicks:2"})

    def images() -> dict[str, str]:
        return {pod["metadata"]["name"]: pod["spec"]["containers"][0]["image"] for pod in bench.pods(name)}

    until(lambda: images() == {f"{name}-0": "example/clicks:1", f"{name}-1": "example/clicks:2"}, lambda: bench.explain(name))
    bench.make_ready(f"{name}-1")
    # The first one holds all shards, and is asked to give them to the other.
    until(lambda: bench.coordination.specs[name][-1].cordoned == {f"{name}-0"}, lambda: bench.explain(name))
    held = bench.coordination.pictures[name]
    given = tuple(replace(shard, holder=ConsumerId(f"{name}-1")) for shard in held.shards)
    assert images()[f"{name}-0"] == "example/clicks:1"
    bench.coordination.pictures[name] = replace(held, shards=given)
    until(lambda: images() == {f"{name}-0": "example/clicks:2", f"{name}-1": "example/clicks:2"}, lambda: bench.explain(name))


def test_a_pod_that_cannot_run_is_replaced_when_the_image_is_corrected(bench: ControllerBench, name: str) -> None:
    play(bench, name, 1)
    bench.group(name, application={"image": "example/clicsk:1"})
    bench.until_pods(name, 1)
    waiting = {"reason": "ErrImageNeverPull", "message": 'Container image "example/clicsk:1" is not present'}
    status = {"name": "driver", "image": "example/clicsk:1", "imageID": "", "ready": False, "restartCount": 0}
    bench.pod_status(f"{name}-0", {"containerStatuses": [{**status, "state": {"waiting": waiting}}]})
    message = bench.until_condition(name, "ConsumersReady", "False", "ImageUnavailable")
    assert message == (
        f'Pod {name}-0 cannot get the image "example/clicsk:1" (ErrImageNeverPull). Correct spec.application.image, or'
        ' spec.application.imagePullSecrets. The kubelet says: Container image "example/clicsk:1" is not present'
    )
    assert bench.until_condition(name, "Stalled", "True", "ImageUnavailable") == message
    assert bench.until_condition(name, "Ready", "False", "ImageUnavailable") == message
    until(lambda: ("Warning", "ImageUnavailable", message) in bench.events(name), lambda: bench.events(name))
    bench.group(name, application={"image": "example/clicks:1"})
    until(lambda: [pod["spec"]["containers"][0]["image"] for pod in bench.pods(name)] == ["example/clicks:1"])
    bench.until_condition(name, "Stalled", "False", "NotStalled")


def test_an_application_that_crashes_is_named_with_its_exit_code(bench: ControllerBench, name: str) -> None:
    play(bench, name, 1)
    bench.group(name)
    bench.until_pods(name, 1)
    ended = {"terminated": {"exitCode": 3, "reason": "Error", "message": '{"start": 4}', "containerID": "containerd://x"}}
    status = {"name": "driver", "image": "i", "imageID": "i", "ready": False, "restartCount": 4, "lastState": ended}
    bench.pod_status(f"{name}-0", {"containerStatuses": [{**status, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]})
    message = bench.until_condition(name, "Stalled", "True", "CrashLooping")
    assert message.startswith(f"The application in pod {name}-0 ended with exit code 3 and was started again 4 times")


def test_a_death_is_reported_with_the_incarnation_that_died(bench: ControllerBench, name: str) -> None:
    play(bench, name, 1)
    bench.group(name)
    (pod,) = bench.until_pods(name, 1)
    ended = {"terminated": {"exitCode": 137, "reason": "Error", "message": '{"start": 2}\n', "containerID": "containerd://x"}}
    status = {"name": "driver", "image": "i", "imageID": "i", "ready": False, "restartCount": 2}
    bench.pod_status(f"{name}-0", {"containerStatuses": [{**status, "state": ended}]})
    died = (name, ConsumerId(f"{name}-0"), Incarnation(pod["metadata"]["uid"], 2))
    until(lambda: died in bench.coordination.deaths, lambda: bench.coordination.deaths)


def test_executors_of_a_dead_driver_are_deleted(bench: ControllerBench, name: str) -> None:
    play(bench, name, 1)
    bench.group(name, application={"executor": {"instances": 1}})
    (pod,) = bench.until_pods(name, 1)
    uid = pod["metadata"]["uid"]
    template = json.loads(
        next(item["value"] for item in pod["spec"]["containers"][0]["env"] if item["name"] == "SHARDHERD_EXECUTOR_TEMPLATE")
    )
    # As Spark makes an executor from our template.
    template["metadata"] |= {"name": f"{name}-0-1-exec-1", "namespace": bench.namespace}
    template["metadata"]["labels"]["shardherd.dev/incarnation"] = f"{uid}.1"
    template["spec"]["containers"][0]["image"] = "example/clicks:1"
    bench.create("pods", template)
    ended = {"terminated": {"exitCode": 137, "message": '{"start": 1}', "containerID": "containerd://x"}}
    status = {"name": "driver", "image": "i", "imageID": "i", "ready": False, "restartCount": 1}
    bench.pod_status(f"{name}-0", {"containerStatuses": [{**status, "state": ended}]})
    until(lambda: [item["metadata"]["name"] for item in bench.pods(name)] == [f"{name}-0"], lambda: bench.explain(name))


def of_driver(**security: Any) -> Json:
    return {"containers": [{"name": "driver", "securityContext": security}]}


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        pytest.param({"hostNetwork": True}, "hostNetwork=true", id="the node's network"),
        pytest.param({"hostPID": True}, "hostPID=true", id="the node's processes", marks=long),
        pytest.param({"volumes": [{"name": "node", "hostPath": {"path": "/"}}]}, "hostPath", id="the node's files", marks=long),
        pytest.param(of_driver(privileged=True, allowPrivilegeEscalation=True), "privileged", id="privileged", marks=long),
        pytest.param(of_driver(capabilities={"add": ["NET_ADMIN"]}), "NET_ADMIN", id="a capability", marks=long),
        pytest.param(of_driver(runAsUser=0, runAsNonRoot=False), "runAsUser=0", id="root", marks=long),
    ],
)
def test_pods_that_pod_security_rejects_say_so(bench: ControllerBench, name: str, spec: Json, named: str) -> None:
    play(bench, name, 1)
    bench.group(name, application={"driver": {"template": {"spec": spec}}})
    message = bench.until_condition(name, "Stalled", "True", "PodsRejected")
    assert 'violates PodSecurity "restricted:latest"' in message
    assert named in message


def until_enforced(bench: ControllerBench, quota: str) -> None:
    """Until the API server refuses pods by this quota, of which it hears a little later than it has it."""
    secured = {
        "runAsNonRoot": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    container = {"name": "main", "image": "example/probe:1", "securityContext": secured}
    probe = {"metadata": {"generateName": "probe-"}, "spec": {"containers": [container]}}

    def said() -> str:
        try:
            bench.api.call("POST", bench.path("pods"), probe, query={"dryRun": "All"})
        except ApiError as error:
            return str(error)
        return ""

    until(lambda: f"quota: {quota}" in said(), said)


def test_pods_are_made_where_a_quota_asks_for_limits(bench: ControllerBench, name: str) -> None:
    # It asks every pod for limits; how much there is matters to nobody, as the namespace has pods of other tests, too.
    hard = {"limits.memory": "1Ti", "limits.cpu": "1k"}
    bench.create("resourcequotas", {"metadata": {"name": "limits"}, "spec": {"hard": hard}})
    try:
        until_enforced(bench, "limits")
        play(bench, name, 1)
        bench.group(name, application={"driver": {"memory": "512m", "cpuLimit": 2}, "executor": {"instances": 0}})
        (pod,) = bench.until_pods(name, 1)
        assert pod["spec"]["containers"][0]["resources"] == {
            "requests": {"cpu": "250m", "memory": "1664Mi"},
            "limits": {"cpu": "2", "memory": "1664Mi"},
        }
    finally:
        bench.delete("resourcequotas", "limits")


def test_pods_beyond_a_quota_say_so(bench: ControllerBench, name: str) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "none"},
        "spec": {"hard": {"requests.cpu": "1m"}},
    }
    bench.create("resourcequotas", quota)
    try:
        until_enforced(bench, "none")
        play(bench, name, 1)
        bench.group(name)
        message = bench.until_condition(name, "Stalled", "True", "QuotaExceeded")
        assert "exceeded quota: none" in message
    finally:
        bench.delete("resourcequotas", "none")


@pytest.mark.parametrize(
    "spec", [{}, {"clusterIP": "None"}, {"selector": {"app": "shop"}}], ids=["plain", "headless", "of pods"]
)
def test_a_name_that_is_taken_is_not_taken_over(bench: ControllerBench, name: str, spec: dict[str, Any]) -> None:
    bench.create("services", {"metadata": {"name": name}, "spec": {"ports": [{"port": 80}], **spec}})
    taken = bench.get("services", name)
    play(bench, name, 1)
    bench.group(name)
    message = bench.until_condition(name, "Stalled", "True", "NameTaken")
    assert message.startswith(f'There already is a Service named "{name}" that belongs to something else')
    assert bench.find("statefulsets", name) is None
    assert bench.find("services", name) == taken
    bench.delete("services", name)
    bench.until_pods(name, 1)


def test_what_lost_its_label_by_hand_is_found_and_labelled_again(bench: ControllerBench, name: str) -> None:
    play(bench, name, 2)
    bench.group(name, scaling={"minReplicas": 1})
    pods = bench.until_pods(name, 2)
    for kind in OWNED:
        bench.kubectl("label", kind, name, "shardherd.dev/consumergroup-")

    def labelled() -> bool:
        found = [bench.find(kind, name) for kind in OWNED]
        return all(item and item["metadata"]["labels"].get("shardherd.dev/consumergroup") == name for item in found)

    until(labelled)
    assert {pod["metadata"]["uid"] for pod in bench.until_pods(name, 2)} == {pod["metadata"]["uid"] for pod in pods}
    # Its watch shows it again.
    bench.delete("services", name)
    until(lambda: bench.find("services", name) is not None)


def test_what_the_api_server_refuses_is_told_in_its_words(bench: ControllerBench, name: str) -> None:
    play(bench, name, 1)
    bench.group(name)
    bench.until_pods(name, 1)
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    bench.group(name, application={"checkpoint": {"volumeClaimTemplate": claim}})
    message = bench.until_condition(name, "Stalled", "True", "ApplyRefused")
    assert "updates to statefulset spec for fields other than" in message
    bench.group(name)
    bench.until_condition(name, "Stalled", "False", "NotStalled")


def test_a_source_that_went_away_ends_ready_and_changes_no_replicas(bench: ControllerBench, name: str) -> None:
    play(bench, name, 2)
    bench.group(name)
    for pod in bench.until_pods(name, 2):
        bench.make_ready(pod["metadata"]["name"])
    bench.until_condition(name, "Ready", "True", "Consuming")
    play(bench, name, 2, source_reachable=False, source_error="no Kafka broker answers at kafka:9092")
    assert bench.until_condition(name, "Ready", "False", "SourceUnavailable") == "no Kafka broker answers at kafka:9092"
    assert bench.get("statefulsets", name)["spec"]["replicas"] == 2


def test_a_transfer_does_not_end_ready(bench: ControllerBench, name: str) -> None:
    play(bench, name, 1)
    bench.group(name)
    bench.until_pods(name, 1)
    bench.make_ready(f"{name}-0")
    bench.until_condition(name, "Ready", "True", "Consuming")
    before = bench.condition(name, "Ready")["lastTransitionTime"]
    held = bench.coordination.pictures[name]
    moving = replace(held.shards[0], state=ShardState.TRANSFER, state_age=Seconds(1.0))
    bench.coordination.pictures[name] = replace(held, shards=(moving,))
    bench.until_condition(name, "Balanced", "False", "Rebalancing")
    ready = bench.condition(name, "Ready")
    assert (ready["status"], ready["lastTransitionTime"]) == ("True", before)


def gone(bench: ControllerBench, name: str) -> bool:
    """Whether nothing of a group is left."""
    pods = bench.all("pods", labelSelector=f"shardherd.dev/consumergroup={name}")
    return not pods and not any(bench.find(kind, name) for kind in (GROUPS, *OWNED))


def test_deleting_a_group_leaves_nothing(bench: ControllerBench, name: str) -> None:
    play(bench, name, 2)
    bench.group(name)
    bench.until_pods(name, 2)
    bench.delete(GROUPS, name)
    until(lambda: name in bench.coordination.forgotten)
    until(lambda: gone(bench, name), lambda: bench.explain(name), within=60)


def test_deleting_a_group_leaves_nothing_even_while_the_operator_is_down(bench: ControllerBench, name: str) -> None:
    play(bench, name, 2)
    bench.group(name)
    bench.until_pods(name, 2)
    bench.stop()
    try:
        bench.delete(GROUPS, name)
        until(lambda: gone(bench, name), lambda: bench.explain(name), within=60)
    finally:
        bench.start()


def test_a_group_that_is_made_again_under_its_name_starts_anew(bench: ControllerBench, name: str) -> None:
    play(bench, name, 1)
    bench.group(name)
    bench.until_pods(name, 1)
    bench.delete(GROUPS, name, policy="Orphan")
    # Orphaning holds the old one until its objects are let go.
    until(lambda: bench.find(GROUPS, name) is None)
    bench.group(name)
    # What is left of the old one belongs to nobody; it is not taken over.
    bench.until_condition(name, "Stalled", "True", "NameTaken")
    for kind in OWNED:
        bench.delete(kind, name)
    bench.until_pods(name, 1)
    bench.until_condition(name, "Stalled", "False", "NotStalled")


def test_a_controller_that_was_down_makes_up_for_what_it_missed(bench: ControllerBench, name: str) -> None:
    play(bench, name, 1)
    bench.group(name)
    (pod,) = bench.until_pods(name, 1)
    bench.stop()
    try:
        ended = {"terminated": {"exitCode": 1, "message": '{"start": 1}', "containerID": "containerd://x"}}
        status = {"name": "driver", "image": "i", "imageID": "i", "ready": False, "restartCount": 1, "lastState": ended}
        running = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
        bench.pod_status(f"{name}-0", {"containerStatuses": [{**status, "state": running}]})
        play(bench, name, 2)
    finally:
        bench.start()
    bench.until_pods(name, 2)
    died = (name, ConsumerId(f"{name}-0"), Incarnation(pod["metadata"]["uid"], 1))
    until(lambda: died in bench.coordination.deaths, lambda: bench.coordination.deaths)
