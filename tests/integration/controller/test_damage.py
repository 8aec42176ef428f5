"""What the operator made is edited, deleted or damaged by hand, or lost with its node; and consumers that read on.

No record is lost or checkpointed twice, and afterwards the group is as it is declared.
"""

from __future__ import annotations

import signal
import time

import pytest

from dev.cluster import Cluster
from shardherd.adapters.kubernetes.api import ApiError
from tests.harness.cluster import Tell
from tests.harness.long import long
from tests.integration.controller.bench import until
from tests.integration.controller.fault_lab import FAR, MISSING, SHARDS, FaultLab, undisturbed


@long
def test_objects_that_are_edited_or_deleted_by_hand_are_put_right(lab: FaultLab) -> None:
    pods = lab.pods()
    lab.patch("statefulsets", "clicks", {"spec": {"replicas": 1}})
    until(lambda: lab.find("statefulsets", "clicks")["spec"]["replicas"] == 2, lab.explain)
    before = {kind: lab.find(kind, "clicks")["metadata"]["uid"] for kind in ("services", "poddisruptionbudgets")}
    for kind in before:
        lab.delete(kind, "clicks")
    for kind, uid in before.items():
        until(lambda kind=kind, uid=uid: lab.find(kind, "clicks").get("metadata", {}).get("uid", uid) != uid, lab.explain)  # type: ignore[misc]
    lab.until_ready()
    lab.until_read()
    assert lab.pods()["clicks-0"] == pods["clicks-0"]
    # Without its StatefulSet a group's pods are deleted as well, and made again; what they checkpointed stays.
    lab.delete("statefulsets", "clicks")
    until(lambda: lab.find("statefulsets", "clicks"), lab.explain)
    until(lambda: set(lab.pods()) == set(pods) and set(lab.pods().values()).isdisjoint(pods.values()), lab.explain)
    lab.until_ready()
    lab.until_read()
    lab.nothing_lost_or_repeated()


@long
def test_an_evicted_consumer_hands_its_shards_over_and_only_one_goes_at_a_time(lab: FaultLab, tell: Tell) -> None:
    pods, begun = lab.pods(), time.monotonic()

    def evict(pod: str) -> int:
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
        try:
            lab.operator.api.call("POST", lab.path("pods", f"{pod}/eviction"), body)
        except ApiError as error:
            return error.status
        return 200

    until(lambda: evict("clicks-0") == 200, lab.explain)
    assert evict("clicks-1") == 429
    until(lambda: lab.pods().get("clicks-0", pods["clicks-0"]) != pods["clicks-0"], lab.explain)
    lab.until_ready()
    lab.until_read()
    tell(f"a pod evicted: the longest that a shard was not read: {lab.pauses(begun):.1f} s")
    assert lab.pods()["clicks-1"] == pods["clicks-1"]
    lab.nothing_lost_or_repeated()


@long
@pytest.mark.parametrize("damage", ["deleted", "corrupted", "put back"])
def test_a_snapshot_that_somebody_damages_is_rebuilt_and_moves_no_shard(lab: FaultLab, damage: str, tell: Tell) -> None:
    """While none runs, an operator finds out from Kafka and from heartbeats; while one runs, it writes what it knows.

    Only what looks like another leader's makes it end, and it finds out when it is started again.
    """
    lab.patch("consumergroups", "clicks", {"spec": {"sessionTimeout": "15s"}})
    older = lab.find("configmaps", "clicks-state")["binaryData"]
    # Shards change hands, so that what was stored is old.
    lab.patch("consumergroups", "clicks", {"spec": {"scaling": {"shardsPerConsumer": 1}}})
    lab.until_read_by(SHARDS)
    lab.patch("consumergroups", "clicks", {"spec": {"scaling": {"shardsPerConsumer": 2}}})
    until(lambda: set(lab.pods()) == {"clicks-0", "clicks-1"}, lab.explain, 90)
    lab.until_ready()
    lab.until_read()

    def harm() -> None:
        if damage == "deleted":
            lab.delete("configmaps", "clicks-state")
        else:
            data = older if damage == "put back" else {"ownership.json.gz": "bm90IGdpdmVuIHRvIGd6aXA="}
            lab.patch("configmaps", "clicks-state", {"binaryData": data})

    def restarted() -> None:
        assert lab.operator.end() == 0
        harm()
        lab.operator.start()
        until(lambda: lab.condition("Ready") == ("False", "OwnershipRebuilding"), lab.explain)

    undisturbed(lab, restarted, tell, f"snapshot {damage} while no operator ran")
    harm()
    lab.patch("consumergroups", "clicks", {"spec": {"scaling": {"shardsPerConsumer": 1}}})
    if damage == "put back":
        assert lab.operator.wait(60) == 1
        lab.operator.start()
    # The next change of ownership is written over it.
    lab.until_read_by(SHARDS)
    lab.until_ready()
    lab.nothing_lost_or_repeated()


@long
def test_a_quota_that_is_used_up_keeps_others_from_starting_and_nobody_from_reading(lab: FaultLab, tell: Tell) -> None:
    def exceeded() -> None:
        quota = {"metadata": {"name": "two"}, "spec": {"hard": {"pods": "2"}}}
        lab.operator.api.call("POST", lab.path("resourcequotas"), quota)
        until(lambda: "used" in lab.find("resourcequotas", "two").get("status", {}), lab.explain)
        lab.patch("consumergroups", "clicks", {"spec": {"scaling": {"shardsPerConsumer": 1}}})
        until(lambda: lab.condition("Stalled") == ("True", "QuotaExceeded"), lab.explain)
        lab.until_read()
        lab.patch("consumergroups", "clicks", {"spec": {"scaling": {"shardsPerConsumer": 2}}})

    undisturbed(lab, exceeded, tell, "the quota used up")
    lab.patch("consumergroups", "clicks", {"spec": {"scaling": {"shardsPerConsumer": 1}}})
    until(lambda: lab.condition("Stalled") == ("True", "QuotaExceeded"), lab.explain)
    lab.delete("resourcequotas", "two")
    lab.until_read_by(SHARDS)
    lab.until_ready()
    lab.nothing_lost_or_repeated()


@long
def test_an_image_that_cannot_be_had_costs_one_consumer_and_the_other_reads_on(lab: FaultLab, tell: Tell) -> None:
    pods, begun = lab.pods(), time.monotonic()
    lab.patch("consumergroups", "clicks", {"spec": {"application": {"image": MISSING}}})
    until(lambda: lab.condition("ConsumersReady") == ("False", "ImageUnavailable"), lab.explain)
    lab.until_read()
    assert set(lab.owners().values()) == {"clicks-0"}
    assert lab.pods()["clicks-0"] == pods["clicks-0"]
    lab.patch("consumergroups", "clicks", {"spec": {"application": {"image": "example/clicks:2"}}})
    lab.until_ready()
    lab.until_read_by(2)
    tell(f"an image that cannot be had: the longest that a shard was not read: {lab.pauses(begun):.1f} s")
    lab.nothing_lost_or_repeated()


@long
def test_what_the_control_plane_makes_up_for_a_lost_node_proves_no_death_and_the_consumer_is_replaced(
    lab: FaultLab, tell: Tell
) -> None:
    """Nobody knows whether a consumer on a lost node still runs; this one does, until it hears that it is to go."""
    pods, begun = lab.pods(), time.monotonic()
    lost = {"reason": "ContainerStatusUnknown", "exitCode": 137, "message": ""}
    status = {"name": "driver", "ready": False, "restartCount": 0, "image": "i", "imageID": "i", "state": {"terminated": lost}}
    conditions = [{"type": "Ready", "status": "False", "reason": "NodeLost"}]
    lab.patch(
        "pods", "clicks-1/status", {"status": {"phase": "Failed", "containerStatuses": [status], "conditions": conditions}}
    )
    until(lambda: lab.pods().get("clicks-1", pods["clicks-1"]) != pods["clicks-1"], lab.explain, 90)
    lab.until_read(within=120)
    lab.until_ready(120)
    tell(f"a node gone: the longest that a shard was not read: {lab.pauses(begun):.1f} s")
    assert f"of pod UID {pods['clicks-1']} is dead" not in lab.operator.log.read_text()
    assert lab.pods()["clicks-0"] == pods["clicks-0"]


@long
def test_a_node_that_is_gone_costs_its_shards_one_session_timeout(lab: FaultLab, tell: Tell) -> None:
    """Its consumer is cut off and reads on. Nobody can prove its end, and the control plane deletes its pod by force."""
    lab.patch("consumergroups", "clicks", {"spec": {"sessionTimeout": "15s"}})
    lab.until_ready()
    lab.until_read()
    pods, begun = lab.pods(), time.monotonic()
    lab.far.faults.refuse = True
    lab.far.cut()
    # There is no such node, so the control plane takes it for one that has gone.
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": FAR}, "target": {"kind": "Node", "name": "gone"}}
    lab.operator.api.call("POST", lab.path("pods", f"{FAR}/binding"), binding)
    lab.until_read_by(1)
    lab.until_read()
    tell(f"a node gone: the longest that a shard was not read: {lab.pauses(begun):.1f} s")
    until(lambda: lab.pods().get(FAR) != pods[FAR], lab.explain, 180)
    lab.far.faults.refuse = False
    lab.until_read_by(2)
    lab.until_ready()
    assert f"of pod UID {pods[FAR]} is dead" not in lab.operator.log.read_text()
    assert lab.pods()["clicks-0"] == pods["clicks-0"]
    lab.nothing_lost_or_repeated()


@long
def test_a_group_can_be_deleted_although_neither_operator_nor_broker_is_there(lab: FaultLab, cluster: Cluster) -> None:
    """Nothing of ours keeps anything from being deleted: neither an operator that is gone, nor a broker."""
    assert lab.find("consumergroups", "clicks")["metadata"].get("finalizers") is None
    assert lab.find("statefulsets", "clicks")["metadata"].get("finalizers") is None
    lab.operator.end(signal.SIGKILL)
    cluster.signal("kafka", signal.SIGSTOP)
    try:
        lab.delete("consumergroups", "clicks")
        until(lambda: not lab.find("consumergroups", "clicks") and not lab.find("configmaps", "clicks-state"), lab.explain)
        until(lambda: not lab.find("statefulsets", "clicks") and not lab.pods(), lab.explain)
    finally:
        cluster.signal("kafka", signal.SIGCONT)
