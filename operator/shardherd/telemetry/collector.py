"""Turns the coordinator's views of all groups into metrics, at each scrape; and serves them.

`cli` registers `GroupCollector` and starts `MetricsServer`. Series of shards that are OVER are left out, and those of single
shards altogether where a group has too many of them. Holds no state: what a scrape shows is one consistent view a group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus

from prometheus_client import CollectorRegistry, MetricsHandler
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from shardherd.core.model.nouns import GroupIdentity, GroupView, ShardState
from shardherd.core.model.verdicts import Verdict
from shardherd.telemetry import metrics
from shardherd.telemetry.background import BackgroundServer, BoundedServer
from shardherd.telemetry.gauges import family
from shardherd.telemetry.metrics import Metric
from shardherd.telemetry.scrapers import REFUSAL, Scrapers

Views = Callable[[], Mapping[GroupIdentity, GroupView]]

SCRAPE_WITHIN = 60.0
"""Seconds that a scrape may take, its request and the answer together. Prometheus waits ten, if nobody says anything else."""

_GAUGES = (
    metrics.SHARD_LAG,
    metrics.SHARD_CHECKPOINT,
    metrics.SHARD_END,
    metrics.SHARD_OWNER,
    metrics.SHARD_STATE_AGE,
    metrics.SHARD_VERDICT,
    metrics.GROUP_LAG,
    metrics.GROUP_MAX_LAG,
    metrics.GROUP_END,
    metrics.GROUP_CHECKPOINT,
    metrics.GROUP_UNOWNED,
    metrics.GROUP_WAITING,
    metrics.GROUP_TRANSFER,
    metrics.GROUP_SERIES_OMITTED,
    metrics.GROUP_SHARDS,
    metrics.GROUP_VERDICTS,
    metrics.GROUP_EPOCH,
    metrics.GROUP_CONSUMERS,
    metrics.GROUP_SOURCE_REACHABLE,
    metrics.CONSUMER_SHARDS,
    metrics.HEARTBEAT_AGE,
    metrics.CONSUMER_STAGE,
    metrics.CONSUMER_USED,
)


class GroupCollector(Collector):
    """A Prometheus collector over `views`, which is called once a scrape.

    A group of more than `shard_series_limit` shards is shown as a whole only.
    """

    def __init__(self, views: Views, shard_series_limit: int) -> None:
        self._views = views
        self._limit = shard_series_limit

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """No samples: registering must not need a view."""
        return []

    def collect(self) -> Iterable[GaugeMetricFamily]:
        found: Found = {gauge.name: [] for gauge in _GAUGES}
        for identity, view in self._views().items():
            _add_group(found, (identity.namespace, identity.name, view.source), view, self._limit)
        # One family after the other: as samples, all of them together would take five times as much.
        for gauge in _GAUGES:
            yield family(gauge, found.pop(gauge.name))


Found = dict[str, list[tuple[tuple[str, ...], float]]]
"""The labels and the value of each series, by the name of its metric."""


def _add_group(found: Found, group: tuple[str, str, str], view: GroupView, limit: int) -> None:
    def add(metric: Metric, value: float, *labels: str) -> None:
        found[metric.name].append(((*group, *labels), value))

    there = [shard for shard in view.shards if shard.present]
    read = [shard for shard in there if shard.state is not ShardState.OVER]
    shown = read if len(read) <= limit else []
    for shard in shown:
        if shard.lag_records is not None:
            add(metrics.SHARD_LAG, max(0, shard.lag_records), shard.shard)
        if shard.checkpoint is not None and view.counts_records:
            add(metrics.SHARD_CHECKPOINT, shard.checkpoint, shard.shard)
        if shard.end is not None and view.counts_records:
            add(metrics.SHARD_END, shard.end, shard.shard)
        if shard.holder is not None:
            add(metrics.SHARD_OWNER, 1, shard.shard, shard.holder)
        if shard.state is ShardState.NOT_ALLOC:
            add(metrics.SHARD_STATE_AGE, shard.state_age, shard.shard)
    if view.counts_records and view.discovered:
        # Before, ends and positions are not known: sums of 0 would say that nothing waits, and then that all was written now.
        lags = [max(0, shard.lag_records or 0) for shard in there]
        add(metrics.GROUP_LAG, sum(lags))
        add(metrics.GROUP_MAX_LAG, max(lags, default=0))
        add(metrics.GROUP_END, sum(shard.end or 0 for shard in there))
        add(metrics.GROUP_CHECKPOINT, sum(shard.checkpoint or 0 for shard in there))
    for metric, state in (
        (metrics.GROUP_UNOWNED, ShardState.NOT_ALLOC),
        (metrics.GROUP_WAITING, ShardState.WAIT),
        (metrics.GROUP_TRANSFER, ShardState.TRANSFER),
    ):
        add(metric, max((shard.state_age for shard in there if shard.state is state), default=0.0))
    add(metrics.GROUP_SERIES_OMITTED, len(read) - len(shown))
    for state in ShardState:
        add(metrics.GROUP_SHARDS, view.shards_in(state), state.value)
    verdicts = view.verdicts_of(shard.shard for shard in read)
    for shard in shown:
        if (verdict := verdicts[shard.shard]) not in (Verdict.OK, Verdict.UNKNOWN):
            add(metrics.SHARD_VERDICT, 1, shard.shard, verdict.value)
    counts = Counter(verdicts.values())
    for verdict in Verdict:
        add(metrics.GROUP_VERDICTS, counts[verdict], verdict.value)
    add(metrics.GROUP_EPOCH, view.group_epoch)
    add(metrics.GROUP_CONSUMERS, len(view.consumers))
    add(metrics.GROUP_SOURCE_REACHABLE, 1 if view.source_reachable else 0)
    for consumer in view.consumers:
        add(metrics.CONSUMER_SHARDS, consumer.shards, consumer.consumer)
        add(metrics.HEARTBEAT_AGE, consumer.heartbeat_age, consumer.consumer)
        if consumer.gauges:
            add(metrics.CONSUMER_STAGE, consumer.stage.rank, consumer.consumer)
        for gauge in consumer.gauges:
            add(metrics.CONSUMER_USED, gauge.used / gauge.total, consumer.consumer, gauge.kind.value, gauge.name)


class MetricsServer(BackgroundServer):
    """Serves a registry from a thread of its own, so that a busy event loop does not lose scrapes.

    With `scrapers` to them alone.
    """

    def __init__(
        self, port: int, registry: CollectorRegistry, address: str = "0.0.0.0", scrapers: Scrapers | None = None
    ) -> None:
        class Handler(MetricsHandler):
            def do_GET(self) -> None:  # noqa: N802 - the base class names it
                if scrapers is None or scrapers.admits(self.headers.get("Authorization")):
                    super().do_GET()
                    return
                self.send_response(HTTPStatus.UNAUTHORIZED)
                self.send_header("WWW-Authenticate", "Bearer")
                self.end_headers()
                self.wfile.write(REFUSAL.encode())

        Handler.registry = registry
        super().__init__(BoundedServer((address, port), Handler, SCRAPE_WITHIN), "metrics")
