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
from tests.integration.controller.place import FAR, MISSING, SHARDS, Place, undisturbed


@long
def test_objects_that_are_edited_or_deleted_by_hand_are_put_right(place: Place) -> None:
    pods = place.pods()
    place.patch("statefulsets", "clicks", {"spec": {"replicas": 1}})
    until(lambda: place.find("statefulsets", "clicks")["spec"]["replicas"] == 2, place.explain)
    before = {kind: place.find(kind, "clicks")["metadata"]["uid"] for kind in ("services", "poddisruptionbudgets")}
    for kind in before:
        place.delete(kind, "clicks")
    for kind, uid in before.items():
        until(lambda kind=kind, uid=uid: place.find(kind, "clicks").get("metadata", {}).get("uid", uid) != uid, place.explain)  # type: ignore[misc]
    place.until_ready()
    place.until_read()
    assert place.pods()["clicks-0"] == pods["clicks-0"]
    # Without its StatefulSet a group's pods are deleted as well, and made again; what they checkpointed stays.
    place.delete("statefulsets", "clicks")
    until(lambda: place.find("statefulsets", "clicks"), place.explain)
    until(lambda: set(place.pods()) == set(pods) and set(place.pods().values()).isdisjoint(pods.values()), place.explain)
    place.until_ready()
    place.until_read()
    place.nothing_lost_or_repeated()


@long
def test_an_evicted_consumer_hands_its_shards_over_and_only_one_goes_at_a_time(place: Place, tell: Tell) -> None:
    pods, begun = place.pods(), time.monotonic()

    def evict(pod: str) -> int:
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
        try:
            place.operator.api.call("POST", place.path("pods", f"{pod}/eviction"), body)
        except ApiError as error:
            return error.status
        return 200

    until(lambda: evict("clicks-0") == 200, place.explain)
    assert evict("clicks-1") == 429
    until(lambda: place.pods().get("clicks-0", pods["clicks-0"]) != pods["clicks-0"], place.explain)
    place.until_ready()
    place.until_read()
    tell(f"a pod evicted: the longest that a shard was not read: {place.pauses(begun):.1f} s")
    assert place.pods()["clicks-1"] == pods["clicks-1"]
    place.nothing_lost_or_repeated()


@long
@pytest.mark.parametrize("damage", ["deleted", "corrupted", "put back"])
def test_a_snapshot_that_somebody_damages_is_rebuilt_and_moves_no_shard(place: Place, damage: str, tell: Tell) -> None:
    """While none runs, an operator finds out from Kafka and from heartbeats; while one runs, it writes what it knows.

    Only what looks like another leader's makes it end, and it finds out when it is started again.
    """
    place.patch("consumergroups", "clicks", {"spec": {"sessionTimeout": "15s"}})
    older = place.find("configmaps", "clicks-state")["binaryData"]
    # Shards change hands, so that what was stored is old.
    place.patch("consumergroups", "clicks", {"spec": {"scaling": {"shardsPerConsumer": 1}}})
    place.until_read_by(SHARDS)
    place.patch("consumergroups", "clicks", {"spec": {"scaling": {"shardsPerConsumer": 2}}})
    until(lambda: set(place.pods()) == {"clicks-0", "clicks-1"}, place.explain, 90)
    place.until_ready()
    place.until_read()

    def harm() -> None:
        if damage == "deleted":
            place.delete("configmaps", "clicks-state")
        else:
            data = older if damage == "put back" else {"ownership.json.gz": "bm90IGdpdmVuIHRvIGd6aXA="}
            place.patch("configmaps", "clicks-state", {"binaryData": data})

    def restarted() -> None:
        assert place.operator.end() == 0
        harm()
        place.operator.start()
        until(lambda: place.condition("Ready") == ("False", "OwnershipRebuilding"), place.explain)

    undisturbed(place, restarted, tell, f"snapshot {damage} while no operator ran")
    harm()
    place.patch("consumergroups", "clicks", {"spec": {"scaling": {"shardsPerConsumer": 1}}})
    if damage == "put back":
        assert place.operator.wait(60) == 1
        place.operator.start()
    # The next change of ownership is written over it.
    place.until_read_by(SHARDS)
    place.until_ready()
    place.nothing_lost_or_repeated()


@long
def test_a_quota_that_is_used_up_keeps_others_from_starting_and_nobody_from_reading(place: Place, tell: Tell) -> None:
    def exceeded() -> None:
        quota = {"metadata": {"name": "two"}, "spec": {"hard": {"pods": "2"}}}
        place.operator.api.call("POST", place.path("resourcequotas"), quota)
        until(lambda: "used" in place.find("resourcequotas", "two").get("status", {}), place.explain)
        place.patch("consumergroups", "clicks", {"spec": {"scaling": {"shardsPerConsumer": 1}}})
        until(lambda: place.condition("Stalled") == ("True", "QuotaExceeded"), place.explain)
        place.until_read()
        place.patch("consumergroups", "clicks", {"spec": {"scaling": {"shardsPerConsumer": 2}}})

    undisturbed(place, exceeded, tell, "the quota used up")
    place.patch("consumergroups", "clicks", {"spec": {"scaling": {"shardsPerConsumer": 1}}})
    until(lambda: place.condition("Stalled") == ("True", "QuotaExceeded"), place.explain)
    place.delete("resourcequotas", "two")
    place.until_read_by(SHARDS)
    place.until_ready()
    place.nothing_lost_or_repeated()


@long
def test_an_image_that_cannot_be_had_costs_one_consumer_and_the_other_reads_on(place: Place, tell: Tell) -> None:
    pods, begun = place.pods(), time.monotonic()
    place.patch("consumergroups", "clicks", {"spec": {"application": {"image": MISSING}}})
    until(lambda: place.condition("ConsumersReady") == ("False", "ImageUnavailable"), place.explain)
    place.until_read()
    assert set(place.owners().values()) == {"clicks-0"}
    assert place.pods()["clicks-0"] == pods["clicks-0"]
    place.patch("consumergroups", "clicks", {"spec": {"application": {"image": "example/clicks:2"}}})
    place.until_ready()
    place.until_read_by(2)
    tell(f"an image that cannot be had: the longest that a shard was not read: {place.pauses(begun):.1f} s")
    place.nothing_lost_or_repeated()


@long
def test_what_the_control_plane_makes_up_for_a_lost_node_proves_no_death_and_the_consumer_is_replaced(
    place: Place, tell: Tell
) -> None:
    """Nobody knows whether a consumer on a lost node still runs; this one does, until it hears that it is to go."""
    pods, begun = place.pods(), time.monotonic()
    lost = {"reason": "ContainerStatusUnknown", "exitCode": 137, "message": ""}
    status = {"name": "driver", "ready": False, "restartCount": 0, "image": "i", "imageID": "i", "state": {"terminated": lost}}
    conditions = [{"type": "Ready", "status": "False", "reason": "NodeLost"}]
    place.patch(
        "pods", "clicks-1/status", {"status": {"phase": "Failed", "containerStatuses": [status], "conditions": conditions}}
    )
    until(lambda: place.pods().get("clicks-1", pods["clicks-1"]) != pods["clicks-1"], place.explain, 90)
    place.until_read(within=120)
    place.until_ready(120)
    tell(f"a node gone: the longest that a shard was not read: {place.pauses(begun):.1f} s")
    assert f"of pod UID {pods['clicks-1']} is dead" not in place.operator.log.read_text()
    assert place.pods()["clicks-0"] == pods["clicks-0"]


@long
def test_a_node_that_is_gone_costs_its_shards_one_session_timeout(place: Place, tell: Tell) -> None:
    """Its consumer is cut off and reads on. Nobody can prove its end, and the control plane deletes its pod by force."""
    place.patch("consumergroups", "clicks", {"spec": {"sessionTimeout": "15s"}})
    place.until_ready()
    place.until_read()
    pods, begun = place.pods(), time.monotonic()
    place.far.faults.refuse = True
    place.far.cut()
    # There is no such node, so the control plane takes it for one that has gone.
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": FAR}, "target": {"kind": "Node", "name": "gone"}}
    place.operator.api.call("POST", place.path("pods", f"{FAR}/binding"), binding)
    place.until_read_by(1)
    place.until_read()
    tell(f"a node gone: the longest that a shard was not read: {place.pauses(begun):.1f} s")
    until(lambda: place.pods().get(FAR) != pods[FAR], place.explain, 180)
    place.far.faults.refuse = False
    place.until_read_by(2)
    place.until_ready()
    assert f"of pod UID {pods[FAR]} is dead" not in place.operator.log.read_text()
    assert place.pods()["clicks-0"] == pods["clicks-0"]
    place.nothing_lost_or_repeated()


@long
def test_a_group_can_be_deleted_although_neither_operator_nor_broker_is_there(place: Place, cluster: Cluster) -> None:
    """Nothing of ours keeps anything from being deleted: neither an operator that is gone, nor a broker."""
    assert place.find("consumergroups", "clicks")["metadata"].get("finalizers") is None
    assert place.find("statefulsets", "clicks")["metadata"].get("finalizers") is None
    place.operator.end(signal.SIGKILL)
    cluster.signal("kafka", signal.SIGSTOP)
    try:
        place.delete("consumergroups", "clicks")
        until(
            lambda: not place.find("consumergroups", "clicks") and not place.find("configmaps", "clicks-state"), place.explain
        )
        until(lambda: not place.find("statefulsets", "clicks") and not place.pods(), place.explain)
    finally:
        cluster.signal("kafka", signal.SIGCONT)
