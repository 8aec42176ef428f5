"""Gauges of many groups, of which a series costs little more than its number. Filled by the controller, shown at each scrape.

prometheus_client's own gauges take about a kilobyte a series, for a lock, a value and dictionaries each; a thousand groups have
some seventeen thousand. Decides nothing. `show` and `forget` are called in one thread, `collect` in another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from shardherd.telemetry.metrics import GROUP, Metric

Key = tuple[str, str]
"""Namespace and name of a group."""


def family(metric: Metric, series: Iterable[tuple[Sequence[str], float]]) -> GaugeMetricFamily:
    """A gauge with the labels and the value of each of its series."""
    found = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, value in series:
        found.add_metric(labels, value)
    return found


class GroupGauge(Collector):
    """One metric of groups, with at most one label besides those of the group."""

    def __init__(self, metric: Metric, registry: CollectorRegistry) -> None:
        assert metric.labels[: len(GROUP)] == GROUP
        assert len(metric.labels) <= len(GROUP) + 1
        self._metric = metric
        self._values: dict[Key, dict[str, float]] = {}
        registry.register(self)

    def show(self, group: Key, values: Mapping[str, float]) -> None:
        """Show these values of a group and no others. Their keys are those of the label besides the group's, or ""."""
        self._values[group] = dict(values)

    def forget(self, group: Key) -> None:
        """Drop a group's series."""
        self._values.pop(group, None)

    def describe(self) -> Iterable[GaugeMetricFamily]:
        return [family(self._metric, ())]

    def collect(self) -> Iterable[GaugeMetricFamily]:
        more = len(self._metric.labels) > len(GROUP)
        # Copied in one step each: the other thread may change them meanwhile.
        groups = ((group, list(values.items())) for group, values in list(self._values.items()))
        yield family(
            self._metric, (((*group, label) if more else group, value) for group, values in groups for label, value in values)
        )
