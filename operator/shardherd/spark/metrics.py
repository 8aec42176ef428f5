"""The application's own metrics and readiness, on the port that the pod declares.

`runtime` starts it beside the agent. Names and labels are in `telemetry.metrics`. The Prometheus client is imported when an
application starts, not when Spark's processes import this package.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from aiohttp import web

from shardherd.clock import boot_time
from shardherd.core.consumer.tracker import ReadRange
from shardherd.core.model.naming import is_of_kinesis
from shardherd.core.model.nouns import Offset, ShardId
from shardherd.spark.counting import records_in
from shardherd.spark.decode_stats import PATH, Counts, ReceivedCounts
from shardherd.telemetry import metrics as names
from shardherd.telemetry.scrapers import HEAD_WITHIN, REFUSAL, Scrapers

if TYPE_CHECKING:
    from prometheus_client.core import GaugeMetricFamily

    from shardherd.spark.consumer_run import ConsumerRun


LONGEST_COUNT = 4096
"""Bytes of a worker's message."""


class AgentMetrics:
    """Counts what the agent reports, and shows its present state at each scrape. Implements the agent's Observer."""

    def __init__(self, namespace: str, group: str, consumer: str) -> None:
        from prometheus_client import CollectorRegistry, Counter, Histogram

        self.registry = CollectorRegistry(auto_describe=False)
        self._labels = (namespace, group, consumer)
        self._agent: ConsumerRun[Any] | None = None

        def counter(metric: names.Metric) -> Any:
            return Counter(metric.name, metric.help, metric.labels, registry=self.registry)

        self._heartbeats = counter(names.AGENT_HEARTBEATS)
        self._checkpoints = counter(names.AGENT_CHECKPOINTS)
        self._records = counter(names.SOURCE_RECORDS).labels(*self._labels)
        self._batches = counter(names.SOURCE_BATCHES).labels(*self._labels)
        duration = names.SOURCE_BATCH_DURATION
        self._duration = Histogram(
            duration.name, duration.help, duration.labels, registry=self.registry, buckets=names.BATCH_BOUNDS
        ).labels(*self._labels)
        self._rows = counter(names.SOURCE_ROWS).labels(*self._labels)
        self._phases = counter(names.SOURCE_PHASES)
        self._values = counter(names.SOURCE_VALUES)
        self._malformed = counter(names.SOURCE_MALFORMED).labels(*self._labels)
        self._finished: dict[ShardId, Offset] = {}
        self._event_times: dict[ShardId, float] = {}
        self.registry.register(self)

    def heartbeat(self, result: str) -> None:
        self._heartbeats.labels(*self._labels, result).inc()

    def checkpoint(self, result: str) -> None:
        self._checkpoints.labels(*self._labels, result).inc()

    def began(self, ranges: Mapping[ShardId, ReadRange], asked_at: float) -> None:
        """Counted when it is finished."""

    def batch(self, ranges: Mapping[ShardId, ReadRange], seconds: float) -> None:
        self._batches.inc()
        self._records.inc(records_in(ranges))
        self._duration.observe(seconds)
        self._finished.update({shard: each.stop for shard, each in ranges.items() if not is_of_kinesis(shard)})

    def trigger(self, rows: int, phases: Mapping[str, int]) -> None:
        """A trigger with a micro-batch ended, as Spark tells it; `phases` in milliseconds."""
        self._rows.inc(rows)
        for phase, took in phases.items():
            if phase != "triggerExecution":  # the sum of the others
                self._phases.labels(*self._labels, phase).inc(took / 1000)

    def values(self, counts: Counts) -> None:
        """So many more typed values were decoded."""
        self._values.labels(*self._labels, "fast").inc(counts.values - counts.slow)
        self._values.labels(*self._labels, "slow").inc(counts.slow)
        self._malformed.inc(counts.malformed)

    def last_records(self) -> dict[ShardId, Offset]:
        """The offset of the last finished record of every shard that is held."""
        held = self._agent.tracker.shards if self._agent is not None else ()
        return {shard: stop - 1 for shard, stop in self._finished.items() if shard in held and stop > 0}

    def event_times(self, found: Mapping[ShardId, float]) -> None:
        """The times of those records, as seconds since 1970."""
        self._event_times = dict(found)

    def watch(self, agent: ConsumerRun[Any]) -> None:
        """Show this agent's state from now on."""
        self._agent = agent

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """For the Prometheus client, at each scrape."""
        from shardherd.telemetry.gauges import family

        agent = self._agent
        if agent is None:
            return

        def gauge(metric: names.Metric, values: Mapping[tuple[str, ...], float]) -> GaugeMetricFamily:
            return family(metric, (((*self._labels, *labels), value) for labels, value in values.items()))

        held = agent.tracker.shards
        yield gauge(names.AGENT_SHARDS, {(): len(held)})
        if agent.acknowledged_at is not None:
            yield gauge(names.AGENT_HEARTBEAT_AGE, {(): boot_time() - agent.acknowledged_at})
        # Only of shards that are held: another consumer shows the ones that moved away.
        finished = {shard: stop for shard, stop in self._finished.items() if shard in held}
        yield gauge(names.SOURCE_POSITION, {(shard,): stop for shard, stop in finished.items()})
        times: dict[tuple[str, ...], float] = {(shard,): at for shard, at in self._event_times.items() if shard in held}
        yield gauge(names.SOURCE_EVENT_TIME, times)
        yield gauge(names.SOURCE_IN_FLIGHT, {(): records_in(agent.tracker.in_flight)})


async def serve_http(
    agent: ConsumerRun[Any], metrics: AgentMetrics, port: int, received: ReceivedCounts, scrapers: Scrapers | None = None
) -> web.AppRunner:
    """Serve /metrics, and /readyz: 200 once the coordinator has answered and the consumer is warm; and take workers' counts.

    With `scrapers` metrics are shown to them alone; the kubelet, which asks for /readyz, has no token.
    """
    from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

    async def scrape(request: web.Request) -> web.Response:
        if scrapers is not None and not scrapers.admits(request.headers.get("Authorization")):
            return web.Response(status=401, text=REFUSAL, headers={"WWW-Authenticate": "Bearer"})
        return web.Response(body=generate_latest(metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def ready(_request: web.Request) -> web.Response:
        if agent.draining:
            return web.Response(status=503, text="draining\n")
        if agent.acknowledged_at is None:
            why = f": {agent.trouble}" if agent.trouble else ""
            return web.Response(status=503, text=f"no heartbeat was acknowledged yet{why}\n")
        if not agent.ready:
            return web.Response(status=503, text=f"not warm yet: {agent.cold}\n")
        return web.Response(text=f"ready, but {agent.trouble}\n" if agent.trouble else "ready\n")

    async def count(request: web.Request) -> web.Response:
        if not received.admits(request.headers.get("Authorization", "")):
            return web.Response(status=403, text="only this application's own workers tell their counts here\n")
        try:
            metrics.values(received.take(await request.json()))
        except ValueError as error:
            return web.Response(status=400, text=f"{error}\n")
        return web.Response(status=204)

    application = web.Application(client_max_size=LONGEST_COUNT)
    application.add_routes([web.get("/metrics", scrape), web.get("/readyz", ready), web.post(PATH, count)])
    runner = web.AppRunner(application, access_log=None, keepalive_timeout=HEAD_WITHIN)
    await runner.setup()
    await web.TCPSite(runner, port=port).start()
    return runner
