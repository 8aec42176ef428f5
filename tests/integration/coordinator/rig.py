"""A whole coordinator over a real API server and a real broker, and consumers that speak to it over HTTP with real tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from dev.cluster import Cluster
from shardherd.adapters.connector import Sources
from shardherd.adapters.kafka.connector import KafkaConnector
from shardherd.adapters.kinesis.connector import KinesisConnector
from shardherd.adapters.kubernetes.api import KubernetesApi
from shardherd.adapters.kubernetes.events import KubernetesEvents
from shardherd.adapters.kubernetes.groups import KubernetesGroups
from shardherd.adapters.kubernetes.ownership import ConfigMapOwnership
from shardherd.adapters.kubernetes.positions import ConfigMapPositions
from shardherd.adapters.kubernetes.secrets import KubernetesSecrets
from shardherd.adapters.kubernetes.tokens import KubernetesTokens
from shardherd.adapters.memory import MemoryLeadership
from shardherd.client import AsyncConsumerClient
from shardherd.clock import SystemClock
from shardherd.coordinator import CoordinatorPorts, CoordinatorServer, Tls
from shardherd.coordinator.mailbox import Mailbox
from shardherd.coordinator.metrics import OperatorCounters
from shardherd.core.model.nouns import (
    CheckpointOutcome,
    CheckpointRequest,
    ConsumerId,
    GroupIdentity,
    GroupSettings,
    GroupSpec,
    GroupView,
    Heartbeat,
    HeartbeatReply,
    HeldShard,
    Incarnation,
    KafkaSource,
    Leave,
    Offset,
    ShardCheckpoint,
    ShardId,
)
from shardherd.telemetry.operator_metrics import OperatorMetrics
from tests.integration.contract.labs import KafkaLab, KubernetesLab, eventually

SETTINGS = GroupSettings(heartbeat_interval=0.5, session_timeout=60.0, initial_assignment_delay=0.5)
"""Nobody expires by being slow on a busy machine; the test of expiry shortens the session."""


@dataclass
class Coordinator:
    """One coordinator process, as far as it can be told apart within this one."""

    server: CoordinatorServer
    leadership: MemoryLeadership
    connector: Sources
    api: KubernetesApi
    events: KubernetesEvents
    registry: CollectorRegistry

    @property
    def leads(self) -> bool:
        """Whether it takes itself for the leader."""
        return self.server._runtime.leading

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def view(self, group: GroupIdentity) -> GroupView:
        view = self.server.coordination.view(group)
        assert view is not None
        return view

    def parked(self, group: GroupIdentity, *consumers: ConsumerId) -> bool:
        """Whether heartbeats of all of these wait for news here."""
        return set(consumers) <= set(self._mailbox(group)._parking.everyone())

    def commits(self, group: GroupIdentity, shards: Iterable[ShardId]) -> bool:
        """Whether positions of all of these are being written."""
        return not self._mailbox(group).group.refreshable(shards)

    def _mailbox(self, group: GroupIdentity) -> Mailbox:
        mailbox = self.server._runtime.group(group.namespace, group.name).mailbox
        assert mailbox is not None
        return mailbox

    def counted(self, name: str, **labels: str) -> float:
        """A metric's value."""
        return self.registry.get_sample_value(name, labels) or 0.0

    async def stop(self) -> None:
        await self.server.stop()
        await self.connector.close()
        await asyncio.to_thread(self.events.close)
        self.api.close()


class Rig:
    """Makes coordinators, groups and consumers for one test, and removes them."""

    def __init__(self, cluster: Cluster, kubernetes: KubernetesLab, kafka: KafkaLab, namespace: str) -> None:
        self.cluster = cluster
        self.kubernetes = kubernetes
        self.kafka = kafka
        self.namespace = namespace
        self._coordinators: list[Coordinator] = []
        self._clients: list[AsyncConsumerClient] = []

    async def coordinator(self, *, unknown_group_grace: float = 0.0, tls: Tls | None = None) -> Coordinator:
        """A coordinator that leads. Several may: it is for them to find out that they do not."""
        clock, registry = SystemClock(), CollectorRegistry()
        api = KubernetesApi.from_kubeconfig(self.cluster.kubeconfig)
        leadership, events = MemoryLeadership(clock), KubernetesEvents(api, clock, "operator-0")
        connector = Sources(KafkaConnector(), KinesisConnector(KubernetesSecrets(api), ConfigMapPositions(api)))
        ports = CoordinatorPorts(
            clock=clock,
            leadership=leadership,
            ownership=ConfigMapOwnership(api),
            connector=connector,
            tokens=KubernetesTokens(api, "shardherd"),
            events=events,
            metrics=OperatorCounters(OperatorMetrics(registry)),
        )
        server = CoordinatorServer(
            ports,
            host="127.0.0.1",
            port=0,
            discovery_interval=0.2,
            unknown_group_grace=unknown_group_grace,
            tls=tls,
            exists=KubernetesGroups(api, clock).exists,
        )
        coordinator = Coordinator(server, leadership, connector, api, events, registry)
        self._coordinators.append(coordinator)
        await server.start()
        await server.lead()
        return coordinator

    async def group(self, name: str, topics: tuple[str, ...], consumers: int = 2, **source: Any) -> GroupSpec:
        """A ConsumerGroup with the pods of its consumers."""
        identity = await self.pods(name, consumers)
        group_id = f"{self.namespace}.{name}"
        kafka = KafkaSource(source.pop("servers", self.kafka.servers), topics, "", group_id, **source)
        return GroupSpec(identity, kafka, SETTINGS, wanted=consumers, service_account=name)

    async def pods(self, name: str, consumers: int) -> GroupIdentity:
        """A ConsumerGroup in the API server alone, with the pods and the account of its consumers."""
        identity = await asyncio.to_thread(self.kubernetes.consumer_group, self.namespace, name)
        await self.kubernetes.service_account(self.namespace, name)
        await self.kubernetes.stateful_set(self.namespace, name, name, consumers, identity)
        return identity

    async def consumer(self, coordinator: Coordinator, spec: GroupSpec, ordinal: int) -> Consumer:
        """The consumer in this pod of the group."""
        name = f"{spec.identity.name}-{ordinal}"
        pod = await self.kubernetes.api.acall("GET", f"/api/v1/namespaces/{self.namespace}/pods/{name}")
        token = await self.kubernetes.token(self.namespace, spec.service_account, pod)
        incarnation = Incarnation(pod["metadata"]["uid"], 1)
        return Consumer(self.client(coordinator, spec, token), ConsumerId(name), incarnation, spec.identity.uid)

    def client(self, coordinator: Coordinator, spec: GroupSpec, token: str) -> AsyncConsumerClient:
        client = AsyncConsumerClient(coordinator.url, self.namespace, spec.identity.name, lambda: token, timeout=30.0)
        self._clients.append(client)
        return client

    async def close(self) -> None:
        for client in self._clients:
            await client.close()
        for coordinator in self._coordinators:
            await coordinator.stop()


class Consumer:
    """A consumer that obeys at once: it holds what was confirmed, and lets go of all else."""

    def __init__(self, client: AsyncConsumerClient, name: ConsumerId, incarnation: Incarnation, group_uid: str) -> None:
        self.client = client
        self.group_uid = group_uid
        self.zone = ""
        self.name = name
        self.incarnation = incarnation
        self.revision = 0
        self.seq = 0
        self.held: dict[ShardId, int] = {}
        self.positions: dict[ShardId, Offset] = {}
        self.topic_ids: set[object] = set()

    async def heartbeat(self, wait: float = 0.0, *, draining: bool = False) -> HeartbeatReply:
        self.seq += 1
        held = tuple(HeldShard(shard, epoch) for shard, epoch in sorted(self.held.items()))
        beat = Heartbeat(
            self.name,
            self.incarnation,
            self.seq,
            self.revision,
            held,
            draining=draining,
            group_uid=self.group_uid,
            zone=self.zone,
        )
        reply = await self.client.heartbeat(beat, wait)
        self.revision = reply.revision
        self.held = {each.shard: each.owner_epoch for each in reply.confirmed}
        self.positions = {each.shard: each.position for each in reply.confirmed}
        self.topic_ids = {each.source_id for each in reply.confirmed}
        return reply

    async def commit(self, offsets: dict[ShardId, Offset], epoch: int | None = None) -> tuple[CheckpointOutcome, ...]:
        """Checkpoint under the epochs that are held, or under `epoch`."""
        wanted = tuple(
            ShardCheckpoint(shard, self.held.get(shard, 1) if epoch is None else epoch, offset)
            for shard, offset in offsets.items()
        )
        return (await self.client.checkpoint(CheckpointRequest(self.name, self.incarnation, wanted, self.group_uid))).outcomes

    async def leave(self) -> None:
        await self.client.leave(Leave(self.name, self.incarnation, self.group_uid))

    def restarted(self) -> Consumer:
        """The next start of the container."""
        return Consumer(self.client, self.name, replace(self.incarnation, start=self.incarnation.start + 1), self.group_uid)


async def settle(consumers: list[Consumer], until: Callable[[], bool], within: float = 60.0) -> None:
    """Let all heartbeat until `until` holds."""

    async def step() -> bool:
        await asyncio.gather(*(consumer.heartbeat() for consumer in consumers))
        return until()

    await eventually(step, within)


async def grant(rig: Rig, name: str, group: str, *verbs: str) -> str:
    """A token of an account that a Role allows these verbs on the checkpoints of the group."""
    api, space = rig.kubernetes.api, rig.namespace
    kinds = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{space}"
    rule = {
        "apiGroups": ["shardherd.dev"],
        "resources": ["consumergroups/checkpoints"],
        "resourceNames": [group],
        "verbs": list(verbs),
    }
    await api.acall("POST", f"/api/v1/namespaces/{space}/serviceaccounts", {"metadata": {"name": name}})
    await api.acall("POST", f"{kinds}/roles", {"metadata": {"name": name}, "rules": [rule]})
    binding = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": space}],
    }
    await api.acall("POST", f"{kinds}/rolebindings", binding)
    token = {"spec": {"audiences": ["shardherd"]}}
    made = await api.acall("POST", f"/api/v1/namespaces/{space}/serviceaccounts/{name}/token", token)
    reviewed = {"namespace": space, "group": "shardherd.dev", "resource": "consumergroups", "subresource": "checkpoints"}
    user = f"system:serviceaccount:{space}:{name}"

    async def hold() -> bool:
        """The API server authorizes by what it has heard of roles and bindings, which is a little later than it has them."""
        bodies = [{"spec": {"user": user, "resourceAttributes": {**reviewed, "name": group, "verb": verb}}} for verb in verbs]
        reviews = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        return all([(await api.acall("POST", reviews, body))["status"]["allowed"] for body in bodies])

    await eventually(hold)
    return str(made["status"]["token"])


def shards(topic: str, *partitions: int) -> list[ShardId]:
    return [ShardId(f"{topic}/{partition}") for partition in partitions]


async def becomes(what: Callable[[], bool], within: float = 60.0) -> None:
    """Wait until `what` holds."""

    async def holds() -> bool:
        return what()

    check: Callable[[], Awaitable[bool]] = holds
    await eventually(check, within)
