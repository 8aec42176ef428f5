"""Gauges of many groups, of which a series costs little more than its number. Filled by the controller, shown at each scrape.

prometheus_client's own gauges take about a kilobyte a series, for a lock, a value and dictionaries each; a thousand groups have
some seventeen thousand. Decides nothing. `set` and `forget` are called in one thread, `collect` in another.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from shardherd.telemetry.metrics import GROUP, Metric

Key = tuple[str, str]
"""Namespace and name of a group."""


class GroupGauge(Collector):
    """One metric of groups, with at most one label besides those of the group."""

    def __init__(self, metric: Metric, registry: CollectorRegistry) -> None:
        assert metric.labels[: len(GROUP)] == GROUP
        assert len(metric.labels) <= len(GROUP) + 1
        self._metric = metric
        self._values: dict[Key, dict[str, float]] = {}
        registry.register(self)

    def set(self, group: Key, value: float, label: str = "") -> None:
        """Show this value of a group; `label` is that of the label besides the group's, if there is one."""
        self._values.setdefault(group, {})[label] = value

    def forget(self, group: Key) -> None:
        """Drop a group's series."""
        self._values.pop(group, None)

    def describe(self) -> Iterable[GaugeMetricFamily]:
        return [self._family()]

    def collect(self) -> Iterable[GaugeMetricFamily]:
        family, more = self._family(), len(self._metric.labels) > len(GROUP)
        # Copied in one step each: the other thread may change them meanwhile.
        for group, values in list(self._values.items()):
            for label, value in list(values.items()):
                family.add_metric((*group, label) if more else group, value)
        yield family

    def _family(self) -> GaugeMetricFamily:
        return GaugeMetricFamily(self._metric.name, self._metric.help, labels=self._metric.labels)
