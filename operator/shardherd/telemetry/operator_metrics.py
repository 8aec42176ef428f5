"""The operator's instruments: what the coordinator and the controller count and show, by the names of `metrics`.

Made once a process, by whoever has its registry. Decides nothing.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from shardherd.telemetry.gauges import GroupGauge
from shardherd.telemetry.metrics import (
    AUTHORITY_UNTIL,
    BUILD_INFO,
    CALLERS_REFUSED,
    CERTIFICATE_UNTIL,
    CHECKPOINTS,
    CONDITION,
    CONSUMER_RATE,
    GROUP_CONSUMED,
    GROUP_LAG_SECONDS,
    GROUP_PRODUCED,
    HEARTBEATS,
    KUBERNETES_REQUESTS,
    LEADER,
    MOVES,
    REBALANCES,
    RECONCILE_DURATION,
    RECONCILE_ERRORS,
    RECONCILES,
    REPLICAS,
    SCALE_DECISIONS,
    SOURCE_DURATION,
    SOURCE_ERRORS,
    Metric,
)

_RECONCILE_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class OperatorMetrics:
    """The operator's counters and histograms, in this registry. Their labels are in the order of the definitions above."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(metric: Metric) -> Counter:
            return Counter(metric.name, metric.help, metric.labels, registry=registry)

        def gauge(metric: Metric) -> Gauge:
            return Gauge(metric.name, metric.help, metric.labels, registry=registry)

        self.heartbeats = counter(HEARTBEATS)
        self.checkpoints = counter(CHECKPOINTS)
        self.rebalances = counter(REBALANCES)
        self.moves = counter(MOVES)
        self.callers_refused = counter(CALLERS_REFUSED)
        self.source_errors = counter(SOURCE_ERRORS)
        self.source_duration = Histogram(SOURCE_DURATION.name, SOURCE_DURATION.help, SOURCE_DURATION.labels, registry=registry)
        self.reconciles = counter(RECONCILES)
        self.reconcile_errors = counter(RECONCILE_ERRORS)
        self.reconcile_duration = Histogram(
            RECONCILE_DURATION.name, RECONCILE_DURATION.help, buckets=_RECONCILE_BUCKETS, registry=registry
        )
        self.kubernetes_requests = counter(KUBERNETES_REQUESTS)
        self.scale_decisions = counter(SCALE_DECISIONS)
        self.replicas = GroupGauge(REPLICAS, registry)
        self.lag_seconds = GroupGauge(GROUP_LAG_SECONDS, registry)
        self.produced = GroupGauge(GROUP_PRODUCED, registry)
        self.consumed = GroupGauge(GROUP_CONSUMED, registry)
        self.consumer_rate = GroupGauge(CONSUMER_RATE, registry)
        self.conditions = GroupGauge(CONDITION, registry)
        self.leader = Gauge(LEADER.name, LEADER.help, registry=registry)
        self.certificate_until = gauge(CERTIFICATE_UNTIL)
        self.authority_until = gauge(AUTHORITY_UNTIL)
        self._build = Gauge(BUILD_INFO.name, BUILD_INFO.help, BUILD_INFO.labels, registry=registry)
        # Counters whose series go with their group, and how many label values follow the group's two.
        self._of_groups = (
            self.heartbeats,
            self.checkpoints,
            self.rebalances,
            self.moves,
            self.source_errors,
            self.reconciles,
            self.reconcile_errors,
            self.scale_decisions,
        )
        self._gauges_of_groups = (
            self.replicas,
            self.lag_seconds,
            self.produced,
            self.consumed,
            self.consumer_rate,
            self.conditions,
        )

    def built(self, version: str) -> None:
        """Say which version this is."""
        self._build.labels(version).set(1)

    def forget(self, namespace: str, group: str) -> None:
        """Drop every series of a deleted group, or they would be exported for ever."""
        for metric in self._of_groups:
            metric.remove_by_labels({"namespace": namespace, "consumergroup": group})
        for gauge in self._gauges_of_groups:
            gauge.forget((namespace, group))
