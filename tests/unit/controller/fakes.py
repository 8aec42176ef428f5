"""A coordinator that a test tells what to show, and a controller over twins of all ports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry

from shardherd.adapters.memory.cluster import MemoryEvents
from shardherd.controller.manifests import Manifests
from shardherd.controller.reconcile import Controller
from shardherd.controller.worklist import Key, Worklist
from shardherd.core.model.nouns import ConsumerId, GroupIdentity, GroupSpec, GroupView, Incarnation
from shardherd.telemetry.operator_metrics import OperatorMetrics
from tests.harness.memory_cluster import MemoryCluster
from tests.harness.simulated_clock import SimulatedClock
from tests.unit.controller.builders import MANIFESTS

KEY = ("shop", "clicks")


class FakeCoordination:
    """Coordination that shows what the test put in `pictures`, and remembers what it was told."""

    def __init__(self) -> None:
        self.pictures: dict[GroupIdentity, GroupView] = {}
        self.specs: list[GroupSpec] = []
        self.forgotten: list[GroupIdentity] = []
        self.deaths: list[tuple[GroupIdentity, ConsumerId, Incarnation]] = []

    def apply(self, spec: GroupSpec, *, new: bool = False) -> None:
        if not self.specs or self.specs[-1] != spec:
            self.specs.append(spec)

    def forget(self, group: GroupIdentity) -> None:
        self.forgotten.append(group)
        self.pictures.pop(group, None)

    def view(self, group: GroupIdentity) -> GroupView | None:
        return self.pictures.get(group)

    def views(self) -> Mapping[GroupIdentity, GroupView]:
        return dict(self.pictures)

    def consumer_died(self, group: GroupIdentity, consumer: ConsumerId, incarnation: Incarnation) -> None:
        assert group in self.pictures
        self.deaths.append((group, consumer, incarnation))


class ByHand(Worklist):
    """A worklist that only notes what was added: the test reconciles."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.added: list[Key] = []

    def add(self, key: Key, *, news: bool = False) -> None:
        """`Bench.reconcile` is called instead of the work."""
        self.added.append(key)


class Bench:
    """A controller, and everything around it to look at."""

    def __init__(self, manifests: Manifests = MANIFESTS) -> None:
        self.bundle = ""
        self.cluster = MemoryCluster()
        self.coordination = FakeCoordination()
        self.events = MemoryEvents()
        self.clock = SimulatedClock()
        self.registry = CollectorRegistry()
        self.metrics = OperatorMetrics(self.registry)
        self.controller = Controller(
            self.cluster,
            self.coordination,
            self.events,
            self.clock,
            self.metrics,
            manifests,
            bundle=lambda: self.bundle,
            worklist=self._make_worklist,
        )

    def _make_worklist(self, *arguments: Any) -> ByHand:
        self.worklist = ByHand(*arguments)
        return self.worklist

    def metric(self, name: str, **labels: str) -> float | None:
        """The value of one series."""
        return self.registry.get_sample_value(name, {"namespace": "shop", "consumergroup": "clicks", **labels})

    async def reconcile(self, *, after: float = 0.0) -> bool:
        """Let time pass, then reconcile the one group."""
        self.clock.advance(after)
        return await self.controller.reconcile(KEY)

    def status(self) -> dict[str, Any]:
        """The status as it was written last."""
        found: dict[str, Any] = self.cluster.objects["ConsumerGroup", *KEY].get("status", {})
        return found

    def condition(self, kind: str) -> tuple[str, str]:
        """Status and reason of a condition as it was written last."""
        return next((item["status"], item["reason"]) for item in self.status()["conditions"] if item["type"] == kind)
