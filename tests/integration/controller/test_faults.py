"""The control plane in trouble: the API server slow, wrong, forgetful or away, etcd killed; and consumers that read on.

One operator as a process of its own reaches the real API server through `ApiProxy`; its pods run plain consumers on the real
protocol, played by `PlayedKubelet`, which reaches the API server directly. A shard is never read by two, none is read from
behind its checkpoint, and after the trouble the group is as it is declared.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dev.cluster import Cluster
from shardherd.adapters.kubernetes.api import MERGE_PATCH, ApiError
from tests.harness.api_proxy import ApiProxy, Fault
from tests.harness.cluster import Names, Tell
from tests.harness.kubelet import PlayedKubelet
from tests.integration.controller.bench import unique, until
from tests.integration.controller.test_operator import OperatorProcess

SHARDS = 4
QUICK = {f"SHARDHERD_LEASE_{name}_S": value for name, value in {"DURATION": "3", "RENEW_DEADLINE": "2", "RETRY": "0.5"}.items()}
long = pytest.mark.skipif("SHARDHERD_LONG" not in os.environ, reason="only with SHARDHERD_LONG=1")

Json = dict[str, Any]


class Place:
    """An operator behind a proxy, a group of two consumers that read four shards, and what a test looks at."""

    def __init__(self, operator: OperatorProcess, proxy: ApiProxy, kubelet: PlayedKubelet, topic: str) -> None:
        self.operator = operator
        self.proxy = proxy
        self.kubelet = kubelet
        self.topic = topic
        self.shards = [f"{topic}/{number}" for number in range(SHARDS)]

    def path(self, kind: str, name: str = "") -> str:
        bases = {
            "statefulsets": "/apis/apps/v1",
            "poddisruptionbudgets": "/apis/policy/v1",
            "consumergroups": "/apis/shardherd.dev/v1alpha1",
        }
        return f"{bases.get(kind, '/api/v1')}/namespaces/{self.operator.namespace}/{kind}/{name}".rstrip("/")

    def find(self, kind: str, name: str) -> Json:
        """The object; empty if there is none."""
        try:
            found: Json = self.operator.api.call("GET", self.path(kind, name))
        except ApiError as error:
            if error.status == 404:
                return {}
            raise
        return found

    def patch(self, kind: str, name: str, change: Json) -> None:
        self.operator.api.call("PATCH", self.path(kind, name), change, content_type=MERGE_PATCH)

    def delete(self, kind: str, name: str) -> None:
        self.operator.api.call("DELETE", self.path(kind, name), {"propagationPolicy": "Background"})

    def ready(self) -> bool:
        """Whether the group says that it is, of the newest generation."""
        found = self.find("consumergroups", "clicks")
        status = found.get("status", {})
        current = status.get("observedGeneration") == found["metadata"]["generation"]
        return current and any(item["type"] == "Ready" and item["status"] == "True" for item in status.get("conditions", ()))

    def until_ready(self, within: float = 60.0) -> None:
        until(self.ready, self.explain, within)

    def until_read(self, since: float | None = None, within: float = 60.0) -> None:
        """Until every shard was read after that time, by default after now."""
        after = time.monotonic() if since is None else since
        until(
            lambda: all(any(each.at > after for each in self.kubelet.of(shard)) for shard in self.shards), self.explain, within
        )

    def owners(self) -> dict[str, str]:
        """Who read each shard last."""
        return {shard: self.kubelet.of(shard)[-1].consumer for shard in self.shards}

    def pods(self) -> dict[str, str]:
        """UIDs of the group's pods by name."""
        found = self.operator.api.call("GET", self.path("pods"))["items"]
        return {
            item["metadata"]["name"]: item["metadata"]["uid"] for item in found if "deletionTimestamp" not in item["metadata"]
        }

    def pauses(self, since: float) -> float:
        """The longest time that a shard was not read since then, up to now."""
        longest = 0.0
        for shard in self.shards:
            times = [since, *(each.at for each in self.kubelet.of(shard) if each.at > since), time.monotonic()]
            longest = max(longest, *(later - earlier for earlier, later in itertools.pairwise(times)))
        return longest

    def nothing_lost_or_repeated(self) -> None:
        """Every record was read; and none was checkpointed twice."""
        for shard in self.shards:
            durable = self.kubelet.of(shard)
            assert all(later.begin >= earlier.end for earlier, later in itertools.pairwise(durable)), (shard, durable)
            fenced = [each for each in list(self.kubelet.fenced) if each.shard == shard]
            read = {each.begin for each in (*durable, *fenced)}
            assert read == set(range(durable[-1].end)), (shard, durable, fenced)

    def explain(self) -> object:
        status = self.find("consumergroups", "clicks").get("status", {})
        return status, self.pods(), self.kubelet.failures, self.operator.log.read_text()[-6000:]


@contextlib.contextmanager
def reading(cluster: Cluster, namespace: str, folder: Path, **settings: str) -> Iterator[Place]:
    proxy = ApiProxy(cluster.api_url, cluster.layout.certificates)
    proxy.start()
    operator = OperatorProcess(cluster, namespace, folder)
    kubeconfig = folder / "kubeconfig"
    content = yaml.safe_load(kubeconfig.read_text())
    content["clusters"][0]["cluster"] = {"server": proxy.url}
    kubeconfig.write_text(yaml.safe_dump(content))
    try:
        operator.start(**settings)
        topic = f"{namespace}-clicks"
        cluster.kafka_tool("kafka-topics", "--create", "--topic", topic, "--partitions", str(SHARDS))
        address = f"http://127.0.0.1:{operator.api_port}"
        with PlayedKubelet(operator.api, namespace, address, starting=0.2).running() as kubelet:
            place = Place(operator, proxy, kubelet, topic)
            operator.group("clicks", topic)
            place.until_ready()
            place.until_read()
            yield place
    finally:
        operator.close()
        proxy.close()


@pytest.fixture
def namespace(cluster: Cluster, names: Names) -> Iterator[str]:
    name = unique(names, "faults")
    cluster.kubectl("create", "namespace", name)
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def place(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[Place]:
    with reading(cluster, namespace, tmp_path) as place:
        yield place


def undisturbed(place: Place, trouble: Callable[[], None], tell: Tell, what: str) -> None:
    """Trouble during which every shard is read on by who held it, and after which the group is as it was."""
    owners, pods, begun = place.owners(), place.pods(), time.monotonic()
    trouble()
    place.until_read()
    tell(f"{what}: for {time.monotonic() - begun:.1f} s; the longest that a shard was not read: {place.pauses(begun):.1f} s")
    assert (place.owners(), place.pods()) == (owners, pods)
    place.until_ready()
    place.nothing_lost_or_repeated()


@long
def test_while_the_api_server_is_away_for_less_than_the_lease_checkpoints_go_on(place: Place, tell: Tell) -> None:
    def away() -> None:
        place.proxy.faults.refuse = True
        place.proxy.cut()
        for _ in range(3):
            # Checkpoints are acknowledged meanwhile: they are Kafka's.
            place.until_read(within=6.0)
            time.sleep(1.5)  # the trouble itself has to last
        place.proxy.faults.refuse = False

    undisturbed(place, away, tell, "the API server away")
    assert place.operator.http(place.operator.api_port, "/readyz") == 200


@long
def test_when_the_api_server_is_away_for_longer_the_operator_steps_down_and_its_next_start_goes_on(
    cluster: Cluster, namespace: str, tmp_path: Path, tell: Tell
) -> None:
    with reading(cluster, namespace, tmp_path, **QUICK) as place:
        port = place.operator.api_port
        owners, pods, begun = place.owners(), place.pods(), time.monotonic()
        place.proxy.faults.refuse = True
        place.proxy.cut()
        assert place.operator.wait(30) == 1
        assert "may not go on" in place.operator.log.read_text()
        place.proxy.faults.refuse = False
        place.operator.start(**QUICK, SHARDHERD_API_PORT=str(port))
        place.operator.api_port = port
        place.until_read()
        tell(f"the API server away past the Lease: the longest that a shard was not read: {place.pauses(begun):.1f} s")
        assert (place.owners(), place.pods()) == (owners, pods)
        place.until_ready()
        place.nothing_lost_or_repeated()


@long
def test_a_slow_api_server_slows_nobody_who_reads(place: Place, tell: Tell) -> None:
    def slow() -> None:
        place.proxy.faults.delay = 1.5
        place.patch("consumergroups", "clicks", {"metadata": {"annotations": {"touched": "yes"}}})
        for _ in range(4):
            place.until_read(within=6.0)
            time.sleep(1.0)  # the trouble itself has to last
        place.proxy.faults.delay = 0.0

    undisturbed(place, slow, tell, "the API server slow")


@long
@pytest.mark.parametrize("status", [409, 410, 429, 500])
def test_an_error_of_the_api_server_is_tried_again(place: Place, status: int, tell: Tell) -> None:
    faults = [
        Fault("PATCH", r"/statefulsets/clicks$", status, times=2),
        Fault("PATCH", r"/consumergroups/clicks/status$", status, times=2),
        Fault("PUT", r"/configmaps/clicks-state$", status, times=2),
        Fault("GET", r"/leases/", status, times=2),
        Fault("GET", r"/(pods|services|statefulsets)", status, times=3),
        Fault("DELETE", r"/pods/", status, times=1),
    ]
    place.proxy.faults.answers.extend(faults)
    place.proxy.cut()
    # A third consumer, and back to two: everything is written.
    place.patch("consumergroups", "clicks", {"spec": {"scaling": {"shardsPerConsumer": 1}}})
    until(lambda: place.find("statefulsets", "clicks")["spec"]["replicas"] == 4, place.explain, 90)
    until(lambda: set(place.owners().values()) == {f"clicks-{number}" for number in range(4)}, place.explain, 90)
    place.patch("consumergroups", "clicks", {"spec": {"scaling": {"shardsPerConsumer": 2}}})
    until(lambda: set(place.pods()) == {"clicks-0", "clicks-1"}, place.explain, 90)
    place.until_ready(120)
    place.until_read()
    tell(f"{status}: " + ", ".join(f"{each.method} {each.path} {each.met}x" for each in faults))
    assert all(each.met for each in faults[:5])
    place.nothing_lost_or_repeated()


@long
def test_a_write_that_was_carried_out_although_its_answer_was_an_error_is_not_done_twice(place: Place) -> None:
    faults = [
        Fault("PATCH", r"/statefulsets/clicks$", 500, carried_out=True),
        Fault("PUT", r"/configmaps/clicks-state$", 500, carried_out=True),
        Fault("PATCH", r"/consumergroups/clicks/status$", 500, carried_out=True),
    ]
    place.proxy.faults.answers.extend(faults)
    place.patch("consumergroups", "clicks", {"spec": {"scaling": {"shardsPerConsumer": 1}}})
    until(lambda: set(place.owners().values()) == {f"clicks-{number}" for number in range(4)}, place.explain, 90)
    place.until_ready()
    assert all(each.met == 1 for each in faults)
    place.nothing_lost_or_repeated()


def test_watches_that_were_cut_off_and_forgotten_miss_nothing_in_the_end(place: Place) -> None:
    """What is deleted while no watch is open, and the server has forgotten it when they begin anew, is noticed."""
    place.proxy.faults.refuse_watches = True
    place.proxy.cut()
    place.delete("services", "clicks")
    place.delete("poddisruptionbudgets", "clicks")
    place.operator.group("gone", place.topic, groupId=f"{place.operator.namespace}.gone")
    place.delete("consumergroups", "gone")
    place.until_read()
    place.proxy.faults.refuse_watches = False
    until(lambda: place.find("services", "clicks") and place.find("poddisruptionbudgets", "clicks"), place.explain)
    until(lambda: not place.find("statefulsets", "gone"), place.explain)
    place.until_ready()
    place.nothing_lost_or_repeated()


@long
def test_a_killed_etcd_disturbs_nobody(place: Place, cluster: Cluster, tell: Tell) -> None:
    def killed() -> None:
        cluster.signal("etcd", signal.SIGKILL)
        place.until_read(within=10.0)
        cluster.up(node=False, kafka=True, prometheus=False)

    undisturbed(place, killed, tell, "etcd killed")


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


@pytest.mark.parametrize("damage", ["deleted", "corrupted", "put back"])
@long
def test_a_snapshot_that_somebody_damages_is_rebuilt_and_moves_no_shard(place: Place, damage: str, tell: Tell) -> None:
    """While it runs, the operator writes what it knows; while none runs, it is found out from Kafka and from heartbeats."""
    older = place.find("configmaps", "clicks-state")["binaryData"]
    port = place.operator.api_port

    def harm() -> None:
        if damage == "deleted":
            place.delete("configmaps", "clicks-state")
        else:
            data = older if damage == "put back" else {"ownership.json.gz": "bm90IGdpdmVuIHRvIGd6aXA="}
            place.patch("configmaps", "clicks-state", {"binaryData": data})

    def restarted() -> None:
        assert place.operator.end() == 0
        harm()
        place.operator.start(SHARDHERD_API_PORT=str(port))
        place.operator.api_port = port

    undisturbed(place, restarted, tell, f"snapshot {damage} while no operator ran")
    harm()
    # The next change of ownership is written over it.
    place.patch("consumergroups", "clicks", {"spec": {"scaling": {"shardsPerConsumer": 1}}})
    until(lambda: set(place.owners().values()) == {f"clicks-{number}" for number in range(4)}, place.explain, 90)
    place.until_ready()
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
