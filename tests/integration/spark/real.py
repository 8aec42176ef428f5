"""The real coordinator over the real broker; what needs a cluster (leadership, ownership, tokens) is kept in memory."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry

from shardherd.adapters.kafka.connector import KafkaConnector
from shardherd.adapters.memory import MemoryEvents, MemoryLeadership, MemoryOwnership, MemoryTokens
from shardherd.cli.operator_process import watched
from shardherd.clock import SystemClock
from shardherd.coordinator import CoordinatorPorts, CoordinatorServer
from shardherd.coordinator.metrics import OperatorCounters
from shardherd.core.model.nouns import ConsumerId, GroupIdentity, GroupSettings, GroupSpec, GroupView, Incarnation, KafkaSource
from shardherd.ports import Caller
from shardherd.telemetry.operator_metrics import OperatorMetrics
from shardherd.telemetry.tracing import Tracing

IDENTITY = GroupIdentity("demo", "clicks", "group-uid")
SETTINGS = GroupSettings(heartbeat_interval=1.0, session_timeout=15.0, initial_assignment_delay=5.0)


class RealCoordinator:
    """One coordinator of one group, on a thread of its own."""

    def __init__(self, bootstrap: str, topic: str, traces: Tracing | None = None) -> None:
        self._traces = traces
        self._bootstrap = bootstrap
        self._topic = topic
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="coordinator", daemon=True)
        self._tokens = MemoryTokens()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.port}"

    def __enter__(self) -> RealCoordinator:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def admit(self, consumer: str) -> str:
        """The token of this consumer's pod."""
        token = f"token-of-{consumer}"
        self._tokens.callers[token] = Caller(
            "demo", "default", consumer, f"uid-of-{consumer}", "clicks", group_uid=IDENTITY.uid
        )
        return token

    def want(self, consumers: int) -> None:
        """What the controller would say."""
        group_id = f"demo.{self._topic}"
        source = KafkaSource(self._bootstrap, (self._topic,), "", group_id)
        self._server.coordination.apply(GroupSpec(IDENTITY, source, SETTINGS, wanted=consumers))

    def died(self, consumer: str, start: int) -> None:
        """The proof of death that the controller would find."""
        self._server.coordination.consumer_died(IDENTITY, ConsumerId(consumer), Incarnation(f"uid-of-{consumer}", start))

    def view(self) -> GroupView | None:
        return self._server.coordination.view(IDENTITY)

    def held(self) -> dict[str, str]:
        """Who holds each shard that is not in transfer."""
        view = self.view()
        shards = () if view is None else view.shards
        return {each.shard: str(each.holder) for each in shards if each.holder and not each.next_consumer}

    def wait_until(self, true: Callable[[], bool], what: str, timeout: float = 90.0) -> float:
        """Wait; returns the seconds that it took."""
        began = time.monotonic()
        while not true():
            if time.monotonic() - began > timeout:
                raise AssertionError(f"not within {timeout:g} s: {what}; the group is {self.view()}")
            time.sleep(0.02)
        return time.monotonic() - began

    async def _start(self) -> None:
        clock = SystemClock()
        self._connector = KafkaConnector()
        ports = CoordinatorPorts(
            clock=clock,
            leadership=MemoryLeadership(clock),
            tokens=self._tokens,
            events=MemoryEvents(),
            metrics=OperatorCounters(OperatorMetrics(CollectorRegistry())),
            **watched(MemoryOwnership(), self._connector, self._traces),
        )
        self._server = CoordinatorServer(ports, host="127.0.0.1", port=0, discovery_interval=0.2)
        await self._server.start()
        await self._server.lead()

    async def _stop(self) -> None:
        await self._server.stop()
        await self._connector.close()
