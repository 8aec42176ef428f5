"""Counts what the coordinator does in the operator's instruments. Made by the composition root; decides nothing."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import Histogram

from shardherd.core.model.nouns import GroupIdentity
from shardherd.telemetry.operator_metrics import OperatorMetrics


class OperatorCounters:
    """CoordinatorMetrics over the operator's instruments."""

    def __init__(
        self, metrics: OperatorMetrics, rebalanced: Callable[[GroupIdentity, str, int], None] = lambda *_: None
    ) -> None:
        """`rebalanced` is told of each rebalance, too."""
        self._metrics = metrics
        self._rebalanced = rebalanced
        self._durations: dict[str, Histogram] = {}

    def heartbeat(self, group: GroupIdentity, result: str) -> None:
        self._metrics.heartbeats.labels(group.namespace, group.name, result).inc()

    def checkpoints(self, group: GroupIdentity, result: str, count: int) -> None:
        self._metrics.checkpoints.labels(group.namespace, group.name, result).inc(count)

    def rebalance(self, group: GroupIdentity, reason: str, moved: int) -> None:
        self._metrics.rebalances.labels(group.namespace, group.name, reason).inc()
        self._metrics.moves.labels(group.namespace, group.name).inc(moved)
        self._rebalanced(group, reason, moved)

    def refused(self, reason: str) -> None:
        self._metrics.callers_refused.labels(reason).inc()

    def source_request(self, operation: str, seconds: float) -> None:
        # A thousand groups are looked at every second: to find the series costs as much as to count in it.
        durations = self._durations.get(operation)
        if durations is None:
            durations = self._durations[operation] = self._metrics.source_duration.labels(operation)
        durations.observe(seconds)

    def source_error(self, group: GroupIdentity, operation: str) -> None:
        self._metrics.source_errors.labels(group.namespace, group.name, operation).inc()
