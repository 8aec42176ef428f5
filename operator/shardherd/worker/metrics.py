"""A worker's own metrics, made at each scrape from what was counted and from what it holds now. Made by `worker` in a pod.

Names and labels are in `telemetry.metrics`; where they mean the same they are those of a Spark application. The Prometheus
client is imported by the first scrape. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from shardherd.clock import boot_time
from shardherd.core.model.nouns import Offset, ShardId
from shardherd.telemetry import metrics as names
from shardherd.worker.counts import Counts

if TYPE_CHECKING:
    from prometheus_client.core import Metric


@dataclass(frozen=True, slots=True)
class Held:
    """A shard that is held: up to where it is done, where it ends as far as is known, and whether its last try failed.

    `queued` records, of so many bytes, wait for outputs. Where positions count no records both are None, and records follow
    what was fetched for `seconds_behind`.
    """

    shard: ShardId
    done: Offset | None
    end: Offset | None
    in_hand: int
    failing: bool
    queued: int = 0
    queued_bytes: int = 0
    seconds_behind: float | None = None


@dataclass(frozen=True, slots=True)
class Picture:
    """A worker now: its shards, the bytes that wait to be processed, and when its last heartbeat was acknowledged."""

    held: tuple[Held, ...]
    fetched: int
    acknowledged_at: float | None


class WorkerMetrics:
    """Shows a worker's counts and its picture. A collector of the Prometheus client."""

    def __init__(self, namespace: str, group: str, consumer: str, counts: Counts, picture: Callable[[], Picture]) -> None:
        self._labels = (namespace, group, consumer)
        self._counts = counts
        self._picture = picture

    def page(self) -> tuple[bytes, str]:
        """What a scrape is answered with, and its content type."""
        from prometheus_client import CollectorRegistry
        from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return generate_latest(registry), CONTENT_TYPE_LATEST

    def collect(self) -> Iterator[Metric]:
        """For the Prometheus client."""
        from prometheus_client.core import HistogramMetricFamily

        from shardherd.telemetry.gauges import family

        counts, now = self._counts, self._picture()
        yield self._counter(names.AGENT_HEARTBEATS, counts.heartbeats)
        yield self._counter(names.AGENT_CHECKPOINTS, counts.checkpoints)
        yield self._counter(names.SOURCE_RECORDS, {"": counts.records})
        yield self._counter(names.SOURCE_BATCHES, {"": counts.batches})
        yield self._counter(names.WORKER_FAILURES, counts.failures)
        yield self._counter(names.WORKER_OUTPUT_RECORDS, counts.taken)
        yield self._counter(names.WORKER_OUTPUT_RETRIED, counts.retried)
        yield self._counter(names.WORKER_OUTPUT_DROPPED, counts.dropped)
        yield self._counter(names.WORKER_BAD_RECORDS, counts.bad_records)
        duration = names.SOURCE_BATCH_DURATION
        buckets = zip((*map(str, names.BATCH_BOUNDS), "+Inf"), accumulate(counts.durations), strict=True)
        histogram = HistogramMetricFamily(duration.name, duration.help, labels=duration.labels)
        histogram.add_metric(self._labels, [(bound, float(total)) for bound, total in buckets], counts.seconds)
        yield histogram

        def gauge(metric: names.Metric, series: Iterable[tuple[tuple[str, ...], float]]) -> Metric:
            return family(metric, (((*self._labels, *labels), value) for labels, value in series))

        yield gauge(names.AGENT_SHARDS, [((), len(now.held))])
        if now.acknowledged_at is not None:
            yield gauge(names.AGENT_HEARTBEAT_AGE, [((), boot_time() - now.acknowledged_at)])
        counted = [(each.shard, each.done, each.end) for each in now.held if each.done is not None]
        seconds = [each.seconds_behind for each in now.held if each.seconds_behind is not None]
        yield gauge(names.SOURCE_POSITION, [((shard,), done) for shard, done, _ in counted])
        yield gauge(names.SOURCE_IN_FLIGHT, [((), sum(each.in_hand for each in now.held))])
        if seconds:
            yield gauge(names.WORKER_SECONDS_BEHIND, [((), max(seconds))])
        if counted or not now.held:
            yield gauge(names.WORKER_LAG, [((), sum(max(0, end - done) for _, done, end in counted if end is not None))])
        yield gauge(names.WORKER_FAILING, [((), sum(each.failing for each in now.held))])
        yield gauge(names.WORKER_QUEUED, [((), sum(each.queued for each in now.held))])
        yield gauge(names.WORKER_QUEUED_BYTES, [((), sum(each.queued_bytes for each in now.held))])
        yield gauge(names.WORKER_FETCHED, [((), now.fetched)])

    def _counter(self, metric: names.Metric, values: Mapping[str, int]) -> Metric:
        from prometheus_client.core import CounterMetricFamily

        found = CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
        for label, value in values.items():
            found.add_metric((*self._labels, *((label,) if len(metric.labels) > len(self._labels) else ())), value)
        return found
