"""The real adapters keep the contracts of the ports, on a real API server and a real broker."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import socket
import threading
import uuid
from collections.abc import AsyncIterator, Iterator

import pytest
from kubernetes.client.configuration import Configuration

from dev.cluster import Cluster
from shardherd.adapters.kafka.connector import KafkaConnector
from shardherd.adapters.kinesis.positions import TableOffsetStore
from shardherd.adapters.kubernetes.api import APPLY, MERGE_PATCH, KubernetesApi
from shardherd.adapters.kubernetes.events import KubernetesEvents
from shardherd.adapters.kubernetes.keys import PublishedKeysTokens
from shardherd.adapters.kubernetes.lease import LeaseLeadership, LeaseTimes
from shardherd.adapters.kubernetes.ownership import LATE, ConfigMapOwnership
from shardherd.adapters.kubernetes.parts import Parts
from shardherd.adapters.kubernetes.positions import ConfigMapPositions
from shardherd.adapters.kubernetes.secrets import KubernetesSecrets
from shardherd.adapters.kubernetes.tokens import KubernetesTokens
from shardherd.clock import SystemClock
from shardherd.core.group.records import PositionCopies
from shardherd.core.model.nouns import GroupIdentity, ShardId
from shardherd.ports import (
    Caller,
    OffsetStore,
    OutcomeUnknownError,
    OwnershipConflictError,
    OwnershipGoneError,
    OwnershipUnavailableError,
    SourceUnavailableError,
    StoredCopies,
    StoredOwnership,
    TokenReviewer,
)
from tests.contract.cluster import EventsContract, EventsLab, LeadershipContract, LeadershipLab, TokensContract
from tests.contract.offsets import OffsetsContract, Open, SourceOffsetsContract
from tests.contract.ownership import OwnershipContract
from tests.contract.secrets import SecretsContract, SecretsLab
from tests.contract.source import SourceContract
from tests.harness.cluster import Names
from tests.harness.definition import define_resource
from tests.integration.contract.labs import RUN, KafkaLab, KubernetesLab, eventually, spec_of


@pytest.fixture(scope="module")
def api(cluster: Cluster) -> Iterator[KubernetesApi]:
    define_resource(cluster)
    api = KubernetesApi.from_kubeconfig(cluster.kubeconfig)
    yield api
    api.close()


@pytest.fixture(scope="module")
def kubernetes(api: KubernetesApi) -> KubernetesLab:
    return KubernetesLab(api)


@pytest.fixture(scope="module")
def namespace(kubernetes: KubernetesLab, names: Names) -> Iterator[str]:
    name = kubernetes.namespace(names.fresh("contract"))
    yield name
    kubernetes.delete(f"/api/v1/namespaces/{name}")


@pytest.fixture
def group(kubernetes: KubernetesLab, namespace: str, names: Names) -> GroupIdentity:
    return kubernetes.consumer_group(namespace, names.fresh("clicks"))


class TestConfigMapPositions(OffsetsContract):
    """A table that does not know which shards there are refuses those of another stream."""

    def unwritable(self, topic: str) -> ShardId:
        return ShardId(f"{topic}-2/0")

    @pytest.fixture
    def topic(self) -> str:
        return "orders"

    @pytest.fixture
    def open_store(self, api: KubernetesApi, group: GroupIdentity, topic: str) -> Open:
        return lambda: TableOffsetStore(ConfigMapPositions(api), group, topic, interval=0.0)


class TestConfigMapOwnership(OwnershipContract):
    @pytest.fixture
    def store(self, api: KubernetesApi) -> ConfigMapOwnership:
        return ConfigMapOwnership(api)

    async def test_it_goes_with_its_group(self, store: ConfigMapOwnership, group: GroupIdentity, api: KubernetesApi) -> None:
        await store.save(group, b"first", None)

        found = await api.acall("GET", f"/api/v1/namespaces/{group.namespace}/configmaps/{group.name}-state")

        assert found["metadata"]["ownerReferences"] == [
            {
                "apiVersion": "shardherd.dev/v1alpha1",
                "kind": "ConsumerGroup",
                "name": group.name,
                "uid": group.uid,
                "controller": True,
                "blockOwnerDeletion": False,
            }
        ]

    async def test_what_a_deleted_group_of_the_same_name_left_is_not_taken_over(
        self, store: ConfigMapOwnership, group: GroupIdentity
    ) -> None:
        deleted = GroupIdentity(group.namespace, group.name, "00000000-0000-0000-0000-000000000001")
        await store.save(deleted, b"of the deleted group", None)

        assert await store.load(group) is None
        await store.save(group, b"of the new group", None)

        stored = await store.load(group)
        assert stored is not None
        assert stored.data == b"of the new group"

    @pytest.mark.parametrize("data", ["bm90IGd6aXA=", "H4sIAAAAAAAA", None])
    async def test_what_somebody_damaged_is_there_but_empty(
        self, store: ConfigMapOwnership, group: GroupIdentity, api: KubernetesApi, data: str | None
    ) -> None:
        await store.save(group, b"first", None)
        path = f"/api/v1/namespaces/{group.namespace}/configmaps/{group.name}-state"
        await api.acall("PATCH", path, {"binaryData": {"ownership.json.gz": data}}, content_type=MERGE_PATCH)

        stored = await store.load(group)

        assert stored is not None
        assert stored.data == b""
        await store.save(group, b"second", stored.version)

    async def test_parts_go_with_their_group_and_one_that_is_deleted_is_damage_and_named(
        self, store: ConfigMapOwnership, group: GroupIdentity, api: KubernetesApi
    ) -> None:
        version = await store.save(group, random.Random(1).randbytes(2_500_000), None)
        collection = f"/api/v1/namespaces/{group.namespace}/configmaps"

        def parts() -> dict[str, str]:
            found = api.call("GET", collection, query={"labelSelector": f"shardherd.dev/consumergroup={group.name}"})["items"]
            owners = {item["metadata"]["name"]: item["metadata"]["ownerReferences"][0]["uid"] for item in found}
            return {name: uid for name, uid in owners.items() if not name.endswith("-state")}

        written = parts()
        assert list(written.values()) == [group.uid] * 3
        lost = sorted(written)[1]
        await api.acall("DELETE", f"{collection}/{lost}")

        why = f"ConfigMap {lost}, one of the 3 parts of the ownership, was deleted or damaged"
        damage = f"the stored ownership is damaged: {why}"
        assert await ConfigMapOwnership(api).load(group) == StoredOwnership(b"", version, damage)
        await store.save(group, b"small", version)
        assert parts() == {}

    async def test_what_a_coordinator_left_when_it_ended_is_removed(
        self, store: ConfigMapOwnership, group: GroupIdentity, api: KubernetesApi
    ) -> None:
        version = await store.save(group, random.Random(1).randbytes(2_500_000), None)
        now = 1000.0
        second = ConfigMapOwnership(api, now=lambda: now)
        assert await second.load(group) is not None
        path = f"/api/v1/namespaces/{group.namespace}/configmaps/{group.name}-state"
        head = await api.acall("GET", path)
        following = json.loads(head["data"]["parts.json"])["announced"][0]
        await Parts(api).write(group, following, [b"begun", b"and not named"])

        now += LATE
        await second.save(group, b"small", version)

        labelled = {"labelSelector": f"shardherd.dev/consumergroup={group.name}"}
        left = await api.acall("GET", f"/api/v1/namespaces/{group.namespace}/configmaps", query=labelled)
        assert [item["metadata"]["name"] for item in left["items"]] == [f"{group.name}-state"]

    async def test_a_namespace_that_is_gone_is_no_rival(self, store: ConfigMapOwnership) -> None:
        nowhere = GroupIdentity("no-such-namespace", "clicks", "00000000-0000-0000-0000-000000000001")

        with pytest.raises(OwnershipUnavailableError, match="clicks"):
            await store.save(nowhere, b"first", None)
        with pytest.raises(OwnershipGoneError, match="clicks"):
            await store.save(nowhere, b"second", "12345")

    async def test_copies_of_a_deleted_group_of_the_same_name_are_not_taken_over(
        self, store: ConfigMapOwnership, group: GroupIdentity
    ) -> None:
        deleted = GroupIdentity(group.namespace, group.name, "00000000-0000-0000-0000-000000000001")
        left = await store.save_copies(deleted, PositionCopies({ShardId("clicks/0"): 5}), "")
        found = await store.load_copies(group)
        assert (found.copies, found.version in (left, "")) == (PositionCopies(), True)

        # The garbage collector removes them, too, as their owner is gone; if not before, then perhaps meanwhile.
        copies = PositionCopies({ShardId("clicks/0"): 2})
        try:
            version = await store.save_copies(group, copies, found.version)
        except OwnershipConflictError:
            version = await store.save_copies(group, copies, "")
        assert await store.load_copies(group) == StoredCopies(copies, version)

    async def test_a_damaged_copy_counts_as_none(
        self, store: ConfigMapOwnership, group: GroupIdentity, api: KubernetesApi
    ) -> None:
        await store.save_copies(group, PositionCopies({ShardId("clicks/0"): 5}), "")
        path = f"/api/v1/namespaces/{group.namespace}/configmaps/{group.name}-offsets-0"
        await api.acall("PATCH", path, {"binaryData": {"offsets.json.gz": "bm90IGd6aXA="}}, content_type=MERGE_PATCH)

        assert (await store.load_copies(group)).copies == PositionCopies()

    async def test_copies_that_were_deleted_meanwhile_are_a_conflict(
        self, store: ConfigMapOwnership, group: GroupIdentity, api: KubernetesApi
    ) -> None:
        version = await store.save_copies(group, PositionCopies({ShardId("clicks/0"): 5}), "")
        await api.acall("DELETE", f"/api/v1/namespaces/{group.namespace}/configmaps/{group.name}-offsets-0")

        with pytest.raises(OwnershipConflictError, match="were deleted"):
            await store.save_copies(group, PositionCopies({ShardId("clicks/0"): 6}), version)

    async def test_what_somebody_else_wrote_is_told_from_what_we_did_and_from_a_label(
        self, store: ConfigMapOwnership, group: GroupIdentity, api: KubernetesApi
    ) -> None:
        path = f"/api/v1/namespaces/{group.namespace}/configmaps/{group.name}-state"
        other = {"fieldManager": "kubectl-replace"}
        await store.save(group, b"older", None)
        older = await api.acall("GET", path)
        first = await store.load(group)
        assert first is not None
        await store.save(group, b"newer", first.version)
        label = {"metadata": {"labels": {"team": "clicks"}}}
        await api.acall("PATCH", path, label, content_type=MERGE_PATCH, query=other)
        ours = await store.load(group)
        assert ours is not None
        assert (ours.data, ours.foreign) == (b"newer", False)

        for field in ("resourceVersion", "managedFields"):
            older["metadata"].pop(field, None)
        await api.acall("PUT", path, older, query=other)

        theirs = await store.load(group)
        assert theirs is not None
        assert (theirs.data, theirs.foreign) == (b"older", True)
        await store.save(group, b"newest", theirs.version)
        again = await store.load(group)
        assert again is not None
        assert (again.data, again.foreign) == (b"newest", False)

    async def test_a_server_that_does_not_answer_leaves_a_write_unknown(self, group: GroupIdentity) -> None:
        nowhere = KubernetesApi(Configuration(host="http://127.0.0.1:1"))
        store = ConfigMapOwnership(nowhere)

        with pytest.raises(OwnershipUnavailableError, match=group.name):
            await store.load(group)
        with pytest.raises(OutcomeUnknownError, match=group.name):
            await store.save(group, b"first", None)
        nowhere.close()


class TestKubernetesSecrets(SecretsContract):
    @pytest.fixture
    def lab(self, cluster: Cluster, api: KubernetesApi, namespace: str) -> Iterator[SecretsLab]:
        ours = KubernetesApi.from_kubeconfig(cluster.kubeconfig)
        path = f"/api/v1/namespaces/{namespace}/secrets"

        async def put(name: str, data: dict[str, bytes], labelled: bool) -> None:
            labels = {"shardherd.dev/kafka-credentials": "true"} if labelled else {}
            body = {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": name, "labels": labels},
                "data": {key: base64.b64encode(value).decode() for key, value in data.items()},
            }
            query = {"fieldManager": "test", "force": "true"}
            await api.acall("PATCH", f"{path}/{name}", body, query=query, content_type=APPLY)

        yield SecretsLab(KubernetesSecrets(ours), namespace, put, lambda: cut_off(ours))
        ours.close()


class TestKafkaOffsets(SourceOffsetsContract):
    @pytest.fixture
    async def kafka(self, cluster: Cluster) -> AsyncIterator[KafkaLab]:
        lab = KafkaLab(cluster.kafka_bootstrap)
        yield lab
        await lab.close()

    @pytest.fixture
    async def topic(self, kafka: KafkaLab, names: Names) -> str:
        topic = names.fresh(f"offsets-{RUN}")
        await kafka.create(topic, 3)
        return topic

    @pytest.fixture
    async def open_store(self, kafka: KafkaLab, topic: str) -> AsyncIterator[Open]:
        connectors: list[KafkaConnector] = []

        def open_store() -> OffsetStore:
            connectors.append(KafkaConnector())
            return connectors[-1].offsets(spec_of((topic,), "", f"group-of-{topic}", kafka.servers))

        yield open_store
        for connector in connectors:
            await connector.close()

    async def test_more_positions_than_a_broker_stores_at_once_are_committed_together(
        self, kafka: KafkaLab, topic: str, open_store: Open
    ) -> None:
        """As of 2,000 topics: their positions and notes are larger than a broker's largest batch, which is 1 MiB."""
        await kafka.create(f"{topic}-wide", 300)
        shards = [ShardId(f"{topic}-wide/{number}") for number in range(300)]
        offsets, notes = dict.fromkeys(shards, 7), dict.fromkeys(shards, "1 u 2 3 " + "x" * 4000)
        store = open_store()
        await store.take_over()

        await store.commit(offsets, notes)

        assert (await store.read(shards), await store.notes(shards)) == (offsets, notes)
        with pytest.raises(SourceUnavailableError):
            await store.commit(dict.fromkeys(shards, 9) | {self.unwritable(topic): 1}, notes)
        assert await store.read(shards) == offsets, "all or nothing"


class TestKafkaSource(SourceContract):
    @pytest.fixture
    async def lab(self, cluster: Cluster) -> AsyncIterator[KafkaLab]:
        lab = KafkaLab(cluster.kafka_bootstrap)
        yield lab
        await lab.close()

    @pytest.fixture
    def prefix(self, names: Names) -> str:
        return names.fresh(f"source-{RUN}") + "-"


class TestLease(LeadershipContract):
    @pytest.fixture
    async def lab(self, api: KubernetesApi, namespace: str, names: Names) -> LeadershipLab:
        clock, name = SystemClock(), names.fresh("lease")
        times = LeaseTimes(duration=30.0, renew_deadline=20.0, retry=0.2)
        leadership = LeaseLeadership(api, clock, namespace, name, "pod-uid-ours", times)
        other = LeaseLeadership(api, clock, namespace, name, "pod-uid-other", times)
        path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}"

        async def take_away() -> None:
            found = await api.acall("GET", path)
            spec = {**found["spec"], "holderIdentity": "pod-uid-other"}
            await api.acall("PATCH", path, {"spec": spec}, content_type=MERGE_PATCH)

        return LeadershipLab(leadership, clock, other.acquire, other.release, take_away)

    async def test_a_lease_that_is_not_renewed_is_taken_over_after_its_duration(
        self, api: KubernetesApi, namespace: str, names: Names
    ) -> None:
        clock, name = SystemClock(), names.fresh("lease")
        # Ours are longer than the dead one's, so that the new holder is not late itself.
        times = LeaseTimes(duration=30.0, renew_deadline=20.0, retry=0.5, look=0.1)
        path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        spec = {"holderIdentity": "a-dead-pod", "leaseDurationSeconds": 1, "renewTime": "2020-01-01T00:00:00.000000Z"}
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}, "spec": spec}
        await api.acall("POST", path, body)
        leadership = LeaseLeadership(api, clock, namespace, name, "pod-uid-ours", times)

        started = clock.now()
        await asyncio.wait_for(leadership.acquire(), 60)

        assert clock.now() - started >= 1.0, "another holder's clock is not to be trusted, only what we watched"
        await leadership.release()
        assert (await api.acall("GET", f"{path}/{name}"))["spec"]["holderIdentity"] == ""

    async def test_a_leader_that_cannot_renew_stops_being_certain_and_loses(
        self, cluster: Cluster, namespace: str, names: Names
    ) -> None:
        clock = SystemClock()
        own = KubernetesApi.from_kubeconfig(cluster.kubeconfig)
        times = LeaseTimes(duration=1.5, renew_deadline=1.0, retry=0.1)
        leadership = LeaseLeadership(own, clock, namespace, names.fresh("lease"), "pod-uid-ours", times)
        await leadership.acquire()

        cut_off(own)
        certain = leadership.deadline()
        assert certain <= clock.now() + times.renew_deadline
        await asyncio.wait_for(leadership.lost(), 60)

        assert clock.now() >= certain, "what was certain has run out"
        assert leadership.deadline() <= clock.now()
        own.close()


class RealTokensLab:
    """A reviewer with an API client of its own."""

    def __init__(self, api: KubernetesApi, reviewer: TokenReviewer, valid: str, caller: Caller) -> None:
        self._api = api
        self.reviewer = reviewer
        self.valid = valid
        self.caller = caller

    def cut_off(self) -> None:
        cut_off(self._api)


def caller_of(
    namespace: str, account: str, pod: str = "", uid: str = "", stateful_set: str = "", group_uid: str = ""
) -> Caller:
    """A service account's caller, with the names that Kubernetes knows it by."""
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
    return Caller(namespace, account, pod, uid, stateful_set, f"system:serviceaccount:{namespace}:{account}", groups, group_uid)


class TestTokens(TokensContract):
    def reviewer(self, api: KubernetesApi, namespace: str) -> TokenReviewer:
        return KubernetesTokens(api, "shardherd")

    @pytest.fixture
    async def lab(
        self, cluster: Cluster, kubernetes: KubernetesLab, namespace: str, names: Names
    ) -> AsyncIterator[RealTokensLab]:
        name = names.fresh("clicks")
        group = await asyncio.to_thread(kubernetes.consumer_group, namespace, name)
        await kubernetes.service_account(namespace, name)
        pod = (await kubernetes.stateful_set(namespace, name, name, group=group))[0]
        token = await kubernetes.token(namespace, name, pod)
        own = KubernetesApi.from_kubeconfig(cluster.kubeconfig)
        caller = caller_of(namespace, name, f"{name}-0", pod["metadata"]["uid"], name, group.uid)
        yield RealTokensLab(own, self.reviewer(own, namespace), token, caller)
        own.close()

    async def test_a_pod_with_a_forged_controller_is_of_no_group(
        self, lab: RealTokensLab, kubernetes: KubernetesLab, namespace: str
    ) -> None:
        name = lab.caller.stateful_set
        # Whoever may make pods may write this. A UID that nothing has would have the pod collected as garbage.
        group = {"apiVersion": "shardherd.dev/v1alpha1", "kind": "ConsumerGroup", "name": name, "uid": lab.caller.group_uid}
        owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": name, "uid": str(uuid.uuid4()), "controller": True}
        pod = await kubernetes.pod(namespace, f"{name}-9", lab.caller.service_account, owner, group)
        token = await kubernetes.token(namespace, lab.caller.service_account, pod)

        caller = await lab.reviewer.review(token)

        # The garbage collector may have taken the forged owner away by now.
        assert caller is not None
        assert (caller.pod, caller.group_uid) == (f"{name}-9", "")

    async def test_the_pod_of_a_stateful_set_that_no_group_controls_is_of_no_group(
        self, lab: RealTokensLab, kubernetes: KubernetesLab, namespace: str, names: Names
    ) -> None:
        name = names.fresh("by-hand")
        pod = (await kubernetes.stateful_set(namespace, name, lab.caller.service_account))[0]
        token = await kubernetes.token(namespace, lab.caller.service_account, pod)

        assert await lab.reviewer.review(token) == caller_of(
            namespace, lab.caller.service_account, f"{name}-0", pod["metadata"]["uid"], name
        )

    async def test_a_pod_that_drains_is_believed_although_its_stateful_set_went_before_it(
        self, lab: RealTokensLab, kubernetes: KubernetesLab, namespace: str
    ) -> None:
        assert await lab.reviewer.review(lab.valid) == lab.caller
        path = f"/apis/apps/v1/namespaces/{namespace}/statefulsets/{lab.caller.stateful_set}"
        await kubernetes.api.acall("DELETE", path, {"propagationPolicy": "Orphan"})

        assert await lab.reviewer.review(lab.valid) == lab.caller

    async def test_a_token_for_another_audience_is_nobodys(
        self, lab: RealTokensLab, kubernetes: KubernetesLab, namespace: str
    ) -> None:
        token = await kubernetes.token(namespace, lab.caller.service_account, None, audience="another")

        assert await lab.reviewer.review(token) is None

    async def test_the_token_of_a_pod_that_is_gone_is_nobodys(
        self, lab: RealTokensLab, kubernetes: KubernetesLab, namespace: str
    ) -> None:
        kubernetes.delete(f"/api/v1/namespaces/{namespace}/pods/{lab.caller.pod}?gracePeriodSeconds=0")

        async def refused() -> bool:
            return await lab.reviewer.review(lab.valid) is None

        await eventually(refused)

    async def test_a_token_that_is_not_bound_to_a_pod_has_no_pod(
        self, lab: RealTokensLab, kubernetes: KubernetesLab, namespace: str
    ) -> None:
        token = await kubernetes.token(namespace, lab.caller.service_account, None)

        assert await lab.reviewer.review(token) == caller_of(namespace, lab.caller.service_account)

    async def test_a_pod_of_no_stateful_set_says_so(
        self, lab: RealTokensLab, kubernetes: KubernetesLab, namespace: str, names: Names
    ) -> None:
        name = names.fresh("stray")
        pod = await kubernetes.pod(namespace, name, lab.caller.service_account)
        token = await kubernetes.token(namespace, lab.caller.service_account, pod)

        assert await lab.reviewer.review(token) == caller_of(
            namespace, lab.caller.service_account, name, pod["metadata"]["uid"]
        )

    async def test_a_deleted_pods_token_is_nobodys(
        self, lab: RealTokensLab, kubernetes: KubernetesLab, namespace: str, names: Names
    ) -> None:
        name = names.fresh("gone")
        pod = await kubernetes.pod(namespace, name, lab.caller.service_account)
        token = await kubernetes.token(namespace, lab.caller.service_account, pod)

        await kubernetes.api.acall("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}", {"gracePeriodSeconds": 0})

        async def refused() -> bool:
            return await lab.reviewer.review(token) is None

        await eventually(refused)  # the API server looks in what it has heard of pods


class TestTokensByPublishedKeys(TestTokens):
    """Without a TokenReview, by the same tests."""

    def reviewer(self, api: KubernetesApi, namespace: str) -> TokenReviewer:
        return PublishedKeysTokens(api, "shardherd", SystemClock(), [namespace])


class TestEvents(EventsContract):
    @pytest.fixture
    def lab(self, api: KubernetesApi, kubernetes: KubernetesLab, group: GroupIdentity) -> EventsLab:
        recorder = KubernetesEvents(api, SystemClock(), "the-operator-pod")

        async def recorded() -> list[tuple[str, str, bool, int]]:
            return await asyncio.to_thread(kubernetes.events, group)

        async def flush() -> None:
            await asyncio.to_thread(recorder.close, 60.0)

        return EventsLab(recorder, group, recorded, flush)

    async def test_a_flood_is_held_back(self, lab: EventsLab) -> None:
        for number in range(40):
            lab.recorder.record(lab.group, "Rebalanced", f"step {number}")
        await lab.flush()

        assert len(await lab.recorded()) == 25


def cut_off(api: KubernetesApi) -> None:
    """Let this client talk to nobody from now on."""
    api._configuration.host = "http://127.0.0.1:1"


async def test_a_member_of_kafkas_newer_protocol_is_seen_and_described_by_what_its_broker_lists(
    cluster: Cluster, names: Names
) -> None:
    topic = names.fresh("newer")
    lab = KafkaLab(cluster.kafka_bootstrap)
    await lab.create(topic, 1)
    source = lab.open((topic,), "", topic)
    assert await source.live_members() == ()

    # It is there until it has read the record that is written once it was seen.
    ends = ("--from-beginning", "--max-messages", "1", "--timeout-ms", "120000")
    options = ("--topic", topic, "--group", topic, "--consumer-property", "group.protocol=consumer", *ends)
    reading = asyncio.create_task(asyncio.to_thread(cluster.kafka_tool, "kafka-console-consumer", *options))

    async def seen() -> bool:
        return await source.live_members() == ("a group of type consumer in state Stable",)

    await eventually(seen)
    await lab.append(topic, 0, 1)
    await reading

    async def gone() -> bool:
        return await source.live_members() == ()

    await eventually(gone)
    await source.close()
    await lab.close()


async def test_groups_of_one_cluster_share_a_connection_until_the_last_is_closed(cluster: Cluster) -> None:
    others = kafka_threads()

    def ours() -> int:
        return len(kafka_threads() - others)

    async def ended() -> bool:
        return ours() == 0

    connector = KafkaConnector()
    spec = spec_of((), ".*", "g", cluster.kafka_bootstrap)
    first, second, offsets = connector.source(spec), connector.source(spec), connector.offsets(spec)

    await offsets.take_over()
    await asyncio.gather(first.live_members(), second.live_members())
    assert ours() == 1

    await first.close()
    await first.close()
    await offsets.close()
    assert await second.live_members() == ()
    await second.close()

    await eventually(ended)
    await connector.close()


async def test_closing_ends_what_hangs() -> None:
    connector = KafkaConnector()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host, port = silent.getsockname()
        source = connector.source(spec_of(("a",), "", "g", f"{host}:{port}"))
        hanging = asyncio.create_task(source.discover())
        called, _ = await asyncio.to_thread(silent.accept)
        with called:
            await asyncio.wait_for(connector.close(), 30)

            # By closing, not because nobody answered in time.
            with pytest.raises(SourceUnavailableError, match="closed"):
                await asyncio.wait_for(hanging, 30)


def kafka_threads() -> frozenset[threading.Thread]:
    """The threads of clients of Kafka that run now; those of other tests may be about to end."""
    return frozenset(thread for thread in threading.enumerate() if thread.name.startswith("kafka-io"))
