"""What the real adapters' contract tests do to a real API server and a real broker."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import TopicAlreadyExistsError

from dev.cluster.config import BROKER_RACK
from shardherd.adapters.kafka.connector import KafkaConnector
from shardherd.adapters.kubernetes.api import ApiError, KubernetesApi
from shardherd.core.model.nouns import GroupIdentity, GroupSettings, GroupSpec, KafkaSource
from shardherd.ports import ShardSource
from tests.harness.member import live_member

RUN = f"{time.time_ns():x}"[-7:]
"""Part of the names of this run's topics: a kept instance has those of the runs before."""

GROUP = GroupIdentity("demo", "clicks", "uid-1")


def spec_of(topics: tuple[str, ...], pattern: str, group_id: str, servers: str, **more: Any) -> GroupSpec:
    source = KafkaSource(servers, topics, pattern, group_id, **more)
    return GroupSpec(GROUP, source, GroupSettings(), wanted=1)


async def eventually(what: Callable[[], Awaitable[bool]], within: float = 60.0) -> None:
    """Wait until `what` holds; fails after `within` seconds, which a test that fails waits for and no other."""
    deadline = time.monotonic() + within
    while not await what():
        assert time.monotonic() < deadline, f"did not become true within {within} s"
        await asyncio.sleep(0.05)


class KafkaLab:
    """A real broker as the source's contract wants to use it."""

    def __init__(self, servers: str) -> None:
        self.servers = servers
        self.rack = BROKER_RACK
        self.connector = KafkaConnector()
        self._admin = KafkaAdminClient(bootstrap_servers=servers)
        self._reader = KafkaConsumer(bootstrap_servers=servers, group_id=None)
        self._made: set[str] = set()
        self._producer: Any = None
        self._producing = threading.Lock()

    async def close(self) -> None:
        await self.connector.close()
        await asyncio.to_thread(self._admin.close)
        await asyncio.to_thread(self._reader.close)
        if self._producer is not None:
            await asyncio.to_thread(self._producer.close)

    async def create(self, topic: str, partitions: int) -> None:
        wanted = {topic: {"num_partitions": partitions, "replication_factor": 1}}

        async def created() -> bool:
            try:
                await asyncio.to_thread(self._admin.create_topics, wanted, wait_for_metadata=True)
            except TopicAlreadyExistsError:
                if topic in self._made:
                    return False  # deleting is not over yet
                # Ours: the answer to the first attempt was lost.
                await asyncio.to_thread(self._admin.wait_for_topics, [topic])
            return True

        await eventually(created)
        # A broker tells who leads a partition before it leads it.
        made = [TopicPartition(topic, number) for number in range(partitions)]
        await asyncio.to_thread(self._reader.end_offsets, made)
        self._made.add(topic)

    async def grow(self, topic: str, partitions: int) -> None:
        await asyncio.to_thread(self._admin.create_partitions, {topic: partitions})

    async def delete(self, topic: str) -> None:
        await asyncio.to_thread(self._admin.delete_topics, [topic])

    async def recreate(self, topic: str, partitions: int) -> None:
        await self.delete(topic)
        await self.create(topic, partitions)

    async def append(self, topic: str, partition: int, records: int, since: float | None = None) -> None:
        begin = time.time() if since is None else since

        def send() -> None:
            with self._producing:
                if self._producer is None:
                    self._producer = KafkaProducer(bootstrap_servers=self.servers, metadata_max_age_ms=200)
            for number in range(records):
                at = round((begin + number) * 1000)
                self._producer.send(topic, value=b"%d" % number, partition=partition, timestamp_ms=at)
            self._producer.flush()

        async def sent() -> bool:
            try:
                await asyncio.to_thread(send)
            except (ValueError, AssertionError):
                # The producer has not heard of a new partition yet.
                return False
            return True

        await eventually(sent)

    @asynccontextmanager
    async def transaction(self, topic: str, partition: int, records: int, since: float | None = None) -> AsyncIterator[None]:
        first = time.time() if since is None else since
        producer = KafkaProducer(bootstrap_servers=self.servers, transactional_id=f"{topic}-{partition}")

        def begin() -> None:
            producer.init_transactions()
            producer.begin_transaction()
            for number in range(records):
                at = round((first + number) * 1000)
                producer.send(topic, value=b"%d" % number, partition=partition, timestamp_ms=at)
            producer.flush()

        try:
            await asyncio.to_thread(begin)
            yield
            await asyncio.to_thread(producer.commit_transaction)
        finally:
            await asyncio.to_thread(producer.close)

    def open(self, topics: tuple[str, ...], pattern: str, group_id: str, **more: Any) -> ShardSource:
        return self.connector.source(spec_of(topics, pattern, group_id, self.servers, **more))

    def open_unreachable(self) -> tuple[ShardSource, str]:
        return self.connector.source(spec_of(("a",), "", "g", "127.0.0.1:1")), "127.0.0.1:1"

    @asynccontextmanager
    async def member(self, topic: str, group_id: str) -> AsyncIterator[str]:
        member = live_member(self.servers, topic, group_id)
        client = await asyncio.to_thread(member.__enter__)
        try:
            yield client
        finally:
            await asyncio.to_thread(member.__exit__, None, None, None)

    async def eventually(self, what: Callable[[], Awaitable[bool]]) -> None:
        await eventually(what)


class KubernetesLab:
    """Objects that the tests need around the adapters."""

    def __init__(self, api: KubernetesApi) -> None:
        self.api = api

    def namespace(self, name: str) -> str:
        """Create a namespace; the server completes its name, since a kept instance may still have the last run's."""
        created = self.api.call("POST", "/api/v1/namespaces", {"metadata": {"generateName": f"{name}-"}})
        return str(created["metadata"]["name"])

    def consumer_group(self, namespace: str, name: str) -> GroupIdentity:
        """Create a ConsumerGroup; its definition must be there."""
        source = {"kafka": {"bootstrapServers": "kafka:9092", "topics": ["clicks"]}}
        application = {"image": "shardherd/spark:dev", "mainApplicationFile": "/app.py"}
        created = self.api.call(
            "POST",
            f"/apis/shardherd.dev/v1alpha1/namespaces/{namespace}/consumergroups",
            {
                "apiVersion": "shardherd.dev/v1alpha1",
                "kind": "ConsumerGroup",
                "metadata": {"name": name, "namespace": namespace},
                "spec": {"source": source, "application": application},
            },
        )
        return GroupIdentity(namespace, name, created["metadata"]["uid"])

    async def service_account(self, namespace: str, name: str) -> None:
        await self.api.acall("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": name}})

    async def stateful_set(
        self, namespace: str, name: str, service_account: str, replicas: int = 1, group: GroupIdentity | None = None
    ) -> list[Any]:
        """Create a StatefulSet, which `group` controls; its pods, which stay pending without a node."""
        owner = {"apiVersion": "shardherd.dev/v1alpha1", "kind": "ConsumerGroup", "controller": True}
        owners = [] if group is None else [{**owner, "name": group.name, "uid": group.uid}]
        template = {
            "metadata": {"labels": {"app": name}},
            "spec": {
                "serviceAccountName": service_account,
                "automountServiceAccountToken": False,
                "containers": [{"name": "driver", "image": "nothing:dev"}],
            },
        }
        await self.api.acall(
            "POST",
            f"/apis/apps/v1/namespaces/{namespace}/statefulsets",
            {
                "metadata": {"name": name, "ownerReferences": owners},
                "spec": {
                    "replicas": replicas,
                    "serviceName": name,
                    "podManagementPolicy": "Parallel",
                    "selector": {"matchLabels": {"app": name}},
                    "template": template,
                },
            },
        )
        pods: list[Any] = []

        async def there() -> bool:
            found = await self.api.acall("GET", f"/api/v1/namespaces/{namespace}/pods", query={"labelSelector": f"app={name}"})
            pods[:] = sorted(found["items"], key=lambda pod: str(pod["metadata"]["name"]))
            return len(pods) == replicas

        await eventually(there)
        return pods

    async def pod(self, namespace: str, name: str, service_account: str, *owners: Any) -> Any:
        """Create a pod of these owners, by default nobody's."""
        spec = {
            "serviceAccountName": service_account,
            "automountServiceAccountToken": False,
            "containers": [{"name": "driver", "image": "nothing:dev"}],
        }
        return await self.api.acall(
            "POST",
            f"/api/v1/namespaces/{namespace}/pods",
            {"metadata": {"name": name, "ownerReferences": owners}, "spec": spec},
        )

    async def token(self, namespace: str, service_account: str, pod: Any | None, audience: str = "shardherd") -> str:
        """A token of the service account, bound to the pod if there is one."""
        spec: dict[str, Any] = {"audiences": [audience], "expirationSeconds": 3600}
        if pod is not None:
            metadata = pod["metadata"]
            spec["boundObjectRef"] = {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": metadata["name"],
                "uid": metadata["uid"],
            }
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{service_account}/token"
        answer = await self.api.acall(
            "POST", path, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        )
        return str(answer["status"]["token"])

    def events(self, group: GroupIdentity) -> list[tuple[str, str, bool, int]]:
        """Events about the group: (reason, message, is a warning, count)."""
        found = self.api.call("GET", f"/api/v1/namespaces/{group.namespace}/events")
        return [
            (event["reason"], event["message"], event["type"] == "Warning", event["count"])
            for event in found["items"]
            if event["involvedObject"].get("uid") == group.uid
        ]

    def delete(self, path: str) -> None:
        """Delete an object; does nothing if it is gone."""
        try:
            self.api.call("DELETE", path)
        except ApiError as error:
            if error.status != 404:
                raise
