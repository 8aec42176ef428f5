"""Two operators as processes of their own, on a real API server and a real broker: one leads, the other takes over.

Consumers are those of `shardherd.client`. There is no kubelet and no kube-proxy: the test writes what a kubelet would say of
the operators' pods, and `LeaderService` leads to the pod that has the leader's label. The figures are printed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from dev.cluster import Cluster
from shardherd.adapters.kubernetes.api import MERGE_PATCH, KubernetesApi
from shardherd.adapters.kubernetes.operators import LEADER_LABEL
from shardherd.client import AsyncConsumer, AsyncConsumerClient
from shardherd.core.model.errors import FencedEpochError, ShardherdError
from shardherd.core.model.nouns import ConsumerId, Incarnation, ShardId
from tests.harness.cluster import Names, Tell
from tests.harness.listening import AFTER_A_CRASH, AFTER_SIGTERM, Answers, Listening
from tests.harness.long import long
from tests.harness.service import LeaderService
from tests.integration.contract.labs import KafkaLab, eventually
from tests.integration.controller.bench import ROOT, install_rights, unique
from tests.integration.controller.process import free_port

Json = dict[str, Any]

SHARDS = 4
QUICK = {"DURATION": "8", "RENEW_DEADLINE": "6", "RETRY": "0.5", "LOOK": "0.25"}
"""A Lease that runs out soon, for what does not measure it; a leader that is only slow keeps it."""


@dataclass
class Operator:
    """One operator: its pod, which is only an object, and its process."""

    number: int
    uid: str
    folder: Path
    environment: dict[str, str]
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def pod(self) -> str:
        return f"operator-{self.number}"

    @property
    def log(self) -> Path:
        return self.folder / f"{self.pod}.log"

    @property
    def termination_log(self) -> Path:
        return self.folder / f"{self.pod}.termination"

    def start(self, **lease: str) -> None:
        environment = self.environment | {
            "SHARDHERD_POD_NAME": self.pod,
            "SHARDHERD_POD_UID": self.uid,
            "SHARDHERD_TERMINATION_LOG": str(self.termination_log),
            "SHARDHERD_API_PORT": str(self.port),
            "SHARDHERD_METRICS_PORT": str(free_port()),
            **{f"SHARDHERD_LEASE_{name}_S": value for name, value in lease.items()},
        }
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([sys.executable, "-m", "shardherd", "operator"], env=environment, stderr=log)

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)

    def wait(self, within: float = 60.0) -> int:
        assert self.process is not None
        return self.process.wait(within)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()


class Town:
    """Two operators, the Service before them, and a group with its topic."""

    def __init__(self, cluster: Cluster, namespace: str, folder: Path) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.api = KubernetesApi.from_kubeconfig(cluster.kubeconfig)
        self.kafka = KafkaLab(cluster.kafka_bootstrap)
        self.answers = Answers()
        self.topic = f"{namespace}-clicks"
        self.operators = [self._operator(number, folder) for number in (0, 1)]
        self.service = LeaderService(self.api, namespace, {each.pod: each.port for each in self.operators})
        self._clients: list[AsyncConsumerClient] = []

    def _operator(self, number: int, folder: Path) -> Operator:
        kubeconfig = folder / "kubeconfig"
        if number == 0:
            config = yaml.safe_load(self.cluster.kubeconfig.read_text())
            config["users"] = [{"name": "operator", "user": {"token": install_rights(self.cluster, self.namespace)}}]
            config["contexts"][0]["context"]["user"] = "operator"
            kubeconfig.write_text(yaml.safe_dump(config))
        labels = {f"app.kubernetes.io/{name}": "shardherd" for name in ("name", "instance")}
        spec = {"containers": [{"name": "operator", "image": "shardherd/operator:dev"}]}
        body = {"metadata": {"name": f"operator-{number}", "labels": labels}, "spec": spec}
        pod = self.api.call("POST", f"/api/v1/namespaces/{self.namespace}/pods", body)
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT / "operator"),
            "KUBECONFIG": str(kubeconfig),
            "SHARDHERD_NAMESPACE": self.namespace,
            "SHARDHERD_WATCH_NAMESPACES": self.namespace,
            "SHARDHERD_LEASE_NAME": f"{self.namespace}-shardherd",
        }
        return Operator(number, pod["metadata"]["uid"], folder, environment)

    def path(self, kind: str, name: str = "") -> str:
        return f"/api/v1/namespaces/{self.namespace}/{kind}/{name}".rstrip("/")

    async def start(self, **lease: str) -> None:
        """The first operator leads, the second stands by; the group is declared."""
        await self.kafka.create(self.topic, SHARDS)
        await self.service.start()
        for operator in self.operators:
            operator.start(**lease)
            await self.becomes(lambda: bool(self.leaders()), within=60)
        (leader,) = self.leaders()
        (self.first, self.second) = sorted(self.operators, key=lambda each: each.pod != leader)
        await self.becomes(lambda: "waiting for the lease" in self.second.log.read_text(), within=60)
        kafka = {"bootstrapServers": self.cluster.kafka_bootstrap, "topics": [self.topic]}
        body = {
            "apiVersion": "shardherd.dev/v1alpha1",
            "kind": "ConsumerGroup",
            "metadata": {"name": "clicks"},
            "spec": {
                "source": {"kafka": kafka},
                "scaling": {"shardsPerConsumer": 2},
                "heartbeatInterval": "1s",
                "initialAssignmentDelay": "1s",
                "application": {"image": "example/clicks:1", "mainApplicationFile": "/app.py"},
            },
        }
        path = f"/apis/shardherd.dev/v1alpha1/namespaces/{self.namespace}/consumergroups"
        await self.api.acall("POST", path, body)
        await self.becomes(lambda: {"clicks-0", "clicks-1"} <= self.pods(), within=60)

    async def close(self) -> None:
        for client in self._clients:
            await client.close()
        for operator in self.operators:
            operator.close()
        await self.service.close()
        await self.kafka.close()
        self.api.close()

    async def becomes(self, what: Callable[[], bool], within: float = 60.0) -> None:
        async def holds() -> bool:
            return await asyncio.to_thread(what)

        try:
            await eventually(holds, within)
        except AssertionError as error:
            logs = "\n".join(each.log.read_text()[-4000:] for each in self.operators if each.log.exists())
            raise AssertionError(f"{error}\n{logs}") from None

    def pods(self, selector: str = "") -> set[str]:
        found = self.api.call("GET", self.path("pods"), query={"labelSelector": selector})
        return {item["metadata"]["name"] for item in found["items"]}

    def leaders(self) -> set[str]:
        """The pods with the leader's label. After a takeover both have it for a moment, until the new leader takes it away."""
        return self.pods(f"{LEADER_LABEL}=true")

    async def leads(self, operator: Operator) -> None:
        """Until this one leads and no other."""
        await self.becomes(lambda: self.leaders() == {operator.pod})

    def holder(self) -> str:
        """Who holds the Lease."""
        path = f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases/{self.namespace}-shardherd"
        return str(self.api.call("GET", path)["spec"]["holderIdentity"])

    def kubelet_says_dead(self, operator: Operator) -> None:
        """What a kubelet writes of a container that was killed."""
        ended = {"exitCode": 137, "reason": "Error", "message": operator.termination_log.read_text()}
        status = {"name": "operator", "ready": False, "restartCount": 0, "image": "i", "imageID": "i"}
        body = {"status": {"containerStatuses": [{**status, "state": {"terminated": ended}}]}}
        self.api.call("PATCH", f"{self.path('pods', operator.pod)}/status", body, content_type=MERGE_PATCH)

    async def consumer(self, ordinal: int) -> AsyncConsumer:
        """The consumer of this pod of the group, which has not joined yet."""
        name = f"clicks-{ordinal}"
        pod = await self.api.acall("GET", self.path("pods", name))
        bound = {"kind": "Pod", "apiVersion": "v1", "name": name, "uid": pod["metadata"]["uid"]}
        path = f"{self.path('serviceaccounts', 'shardherd-spark')}/token"
        made = await self.api.acall("POST", path, {"spec": {"audiences": ["shardherd"], "boundObjectRef": bound}})
        token = str(made["status"]["token"])
        group = await self.api.acall("GET", f"/apis/shardherd.dev/v1alpha1/namespaces/{self.namespace}/consumergroups/clicks")
        client = AsyncConsumerClient(self.service.url, self.namespace, "clicks", lambda: token)
        self._clients.append(client)
        return AsyncConsumer(
            Listening(client, self.answers),
            ConsumerId(name),
            Incarnation(pod["metadata"]["uid"], 1),
            group_uid=group["metadata"]["uid"],
            drain_timeout=5.0,
        )

    async def committed(self) -> dict[ShardId, int]:
        """The durable positions, as Kafka has them."""
        said = await asyncio.to_thread(
            self.cluster.kafka_tool, "kafka-consumer-groups", "--describe", "--group", f"{self.namespace}.clicks"
        )
        rows = [line.split() for line in said.splitlines() if line.startswith(f"{self.namespace}.clicks")]
        return {ShardId(f"{row[1]}/{row[2]}"): int(row[3]) for row in rows if row[3].isdigit()}


@contextlib.asynccontextmanager
async def reading(*consumers: AsyncConsumer) -> AsyncIterator[None]:
    """The consumers, which have joined, take shard after shard and checkpoint each a little further while the block lasts."""

    async def read(consumer: AsyncConsumer) -> None:
        while True:
            async with consumer.take() as shard:
                with contextlib.suppress(FencedEpochError):
                    try:
                        await shard.save_checkpoint(shard.position + 10, now=True)
                    except ShardherdError as error:
                        if not error.retryable:
                            raise

    tasks = [asyncio.create_task(read(consumer)) for consumer in consumers]
    try:
        yield
        assert [task.exception() for task in tasks if task.done()] == []
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
def namespace(cluster: Cluster, names: Names) -> Iterator[str]:
    name = unique(names, "takeover")
    cluster.kubectl("create", "namespace", name)
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
async def town(cluster: Cluster, namespace: str, tmp_path: Path) -> AsyncIterator[Town]:
    town = await asyncio.to_thread(Town, cluster, namespace, tmp_path)
    try:
        yield town
    finally:
        await town.close()


def split(*consumers: AsyncConsumer) -> bool:
    """Whether each holds its part, and no shard is held twice."""
    held = [shard for consumer in consumers for shard in consumer.held()]
    return len(held) == len(set(held)) == SHARDS and all(len(consumer.held()) == 2 for consumer in consumers)


async def answered_after(town: Town, since: float) -> float:
    """Seconds until consumers were answered again."""
    await town.becomes(lambda: town.answers.until_answered(since) is not None)
    found = town.answers.until_answered(since)
    assert found is not None
    return found


async def moved_on(town: Town) -> None:
    """Until every shard has been checkpointed again, by now."""
    seen = len(town.answers.acknowledged)
    await town.becomes(lambda: len({shard for shard, *_ in town.answers.acknowledged[seen:]}) == SHARDS)


async def test_at_sigterm_and_at_a_crash_the_other_one_leads_at_once(town: Town, tell: Tell) -> None:
    await town.start()
    first, second = await town.consumer(0), await town.consumer(1)
    async with first, second, reading(first, second):
        await town.becomes(lambda: split(first, second))
        before = first.held(), second.held()

        asked = time.monotonic()
        town.first.signal(signal.SIGTERM)
        shutdown = await answered_after(town, asked)
        assert await asyncio.to_thread(town.first.wait) == 0
        await moved_on(town)
        await town.leads(town.second)
        assert (first.held(), second.held()) == before

        town.first.start()
        await town.becomes(lambda: town.first.log.read_text().count("waiting for the lease") == 1)
        killed = time.monotonic()
        town.second.signal(signal.SIGKILL)
        town.second.wait()
        await asyncio.to_thread(town.kubelet_says_dead, town.second)
        crash = await answered_after(town, killed)
        await moved_on(town)
        await town.leads(town.first)
        assert (first.held(), second.held()) == before
    town.answers.check()
    tell(f"takeover: {shutdown:.2f} s after SIGTERM, {crash:.2f} s after a crash of the process")
    assert shutdown <= AFTER_SIGTERM
    assert crash <= AFTER_A_CRASH


async def test_a_process_that_is_started_again_in_its_pod_leads_at_once(town: Town, tell: Tell) -> None:
    await town.start()
    town.second.signal(signal.SIGTERM)
    assert town.second.wait() == 0
    first, second = await town.consumer(0), await town.consumer(1)
    async with first, second, reading(first, second):
        await town.becomes(lambda: split(first, second))
        killed = time.monotonic()
        town.first.signal(signal.SIGKILL)
        town.first.wait()
        town.first.start()
        crash = await answered_after(town, killed)
        await moved_on(town)
    town.answers.check()
    tell(f"takeover: {crash:.2f} s after a crash of the process, by the same pod")


async def paused_leader(town: Town, act: Callable[[], Awaitable[None]]) -> float:
    """Pause the leader past its Lease, `act`, and wait until the other one leads; seconds until consumers were answered."""
    paused = time.monotonic()
    town.first.signal(signal.SIGSTOP)
    await act()
    answered = await answered_after(town, paused)
    await town.leads(town.second)
    return answered


async def resume(town: Town) -> None:
    """Let the paused leader go on beside the new one: it must end by itself."""
    town.first.signal(signal.SIGCONT)
    assert await asyncio.to_thread(town.first.wait) == 1
    assert "may not go on" in town.first.log.read_text()
    assert await asyncio.to_thread(town.holder) == f"{town.second.pod}_{town.second.uid}"
    await town.leads(town.second)


async def nothing() -> None:
    """Only the pause."""


async def test_a_leader_that_was_paused_in_the_middle_of_a_rebalance_harms_nothing(town: Town, tell: Tell) -> None:
    await town.start(**QUICK)
    first, second = await town.consumer(0), await town.consumer(1)
    async with first, contextlib.AsyncExitStack() as joined:
        await town.becomes(lambda: len(first.held()) == SHARDS)
        async with contextlib.AsyncExitStack() as hand:
            # All four are in hand, so none is given up: the rebalance that the second one starts stays half-way.
            taken = [await hand.enter_async_context(first.take()) for _ in range(SHARDS)]
            await joined.enter_async_context(second)
            await town.becomes(lambda: sum(shard.wanted for shard in taken) == 2)

            answered = await paused_leader(town, nothing)
            assert second.held() == ()
            for shard in taken:
                await shard.save_checkpoint(10, now=True)
        await town.becomes(lambda: split(first, second))
        await resume(town)
        async with reading(first, second):
            await moved_on(town)
        assert split(first, second)
    town.answers.check()
    tell(f"takeover: {answered:.2f} s after the leader was paused, with a Lease of {QUICK['DURATION']} s")


@long
async def test_a_leader_that_was_paused_in_the_middle_of_a_checkpoint_harms_nothing(town: Town) -> None:
    await town.start(**QUICK)
    first, second = await town.consumer(0), await town.consumer(1)
    async with first, second, reading(first, second):
        await town.becomes(lambda: split(first, second))
        await moved_on(town)
        # The broker hangs, so the leader's next commits are on their way when it is paused.
        town.cluster.signal("kafka", signal.SIGSTOP)
        seen = len(town.answers.acknowledged)
        await town.becomes(lambda: first.holdings.busy > 0 and second.holdings.busy > 0)

        async def broker_goes_on() -> None:
            town.cluster.signal("kafka", signal.SIGCONT)

        await paused_leader(town, broker_goes_on)
        await moved_on(town)
        assert len(town.answers.acknowledged) > seen
        await resume(town)
        await moved_on(town)
    town.answers.check()
    last = {shard: offset for shard, _, offset in town.answers.acknowledged}
    assert await town.committed() == last


@long
async def test_a_leader_that_falls_silent_is_replaced_within_22_seconds(town: Town, tell: Tell) -> None:
    await town.start()
    first, second = await town.consumer(0), await town.consumer(1)
    async with first, second, reading(first, second):
        await town.becomes(lambda: split(first, second))
        answered = await paused_leader(town, nothing)
        await moved_on(town)
        assert split(first, second)
    town.answers.check()
    tell(f"takeover: {answered:.2f} s after the leader fell silent")
    assert answered <= 22.0
