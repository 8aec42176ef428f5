"""The same pictures of groups under the metric names and labels of kafka_exporter, for dashboards that are made for it.

Off unless the operator's settings ask for it; `cli` then registers `KafkaNames` beside the collector of our own names. Groups
are named as their groups in Kafka, and topics once, whoever reads them: it is meant for operators whose groups read one Kafka
cluster. As there, a group of too many shards is not shown by partition. Holds no state and decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from shardherd.core.model.nouns import GroupIdentity, ShardState, ShardView
from shardherd.core.model.reasons import GROUP_ID_TAKEN
from shardherd.telemetry.collector import Views
from shardherd.telemetry.gauges import family
from shardherd.telemetry.metrics import Metric

KafkaGroups = Callable[[], Mapping[GroupIdentity, str]]
"""The name in Kafka of every group."""

_PARTITION, _OF_GROUP = ("topic", "partition"), ("consumergroup", "topic")

OFFSET = Metric("kafka_consumergroup_current_offset", "The checkpoint of a partition.", ("consumergroup", *_PARTITION))
LAG = Metric("kafka_consumergroup_lag", "Records between checkpoint and end of a partition.", ("consumergroup", *_PARTITION))
OFFSETS = Metric("kafka_consumergroup_current_offset_sum", "Sum of the checkpoints of a topic.", _OF_GROUP)
LAGS = Metric("kafka_consumergroup_lag_sum", "Sum of the lags of a topic.", _OF_GROUP)
MEMBERS = Metric("kafka_consumergroup_members", "Consumers that heartbeat.", ("consumergroup",))
END = Metric("kafka_topic_partition_current_offset", "The end of a partition.", _PARTITION)
BEGIN = Metric("kafka_topic_partition_oldest_offset", "The first readable offset of a partition.", _PARTITION)
PARTITIONS = Metric("kafka_topic_partitions", "Partitions of a topic that a group reads.", ("topic",))
NAMES = (OFFSET, LAG, OFFSETS, LAGS, MEMBERS, END, BEGIN, PARTITIONS)


class KafkaNames(Collector):
    """A Prometheus collector over `views`, which is called once a scrape, as is `groups`."""

    def __init__(self, views: Views, groups: KafkaGroups, shard_series_limit: int) -> None:
        self._views = views
        self._groups = groups
        self._limit = shard_series_limit

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """No samples: registering must not need a view."""
        return []

    def collect(self) -> Iterable[GaugeMetricFamily]:
        found: dict[Metric, dict[tuple[str, ...], float]] = {metric: {} for metric in NAMES}
        names = self._groups()
        for identity, view in self._views().items():
            # Of two that name one group in Kafka only the older is served: it alone has the group's numbers.
            taken = any(cause.reason == GROUP_ID_TAKEN for cause in view.withheld)
            if view.source == "kafka" and identity in names and not taken:
                there = [shard for shard in view.shards if shard.present]
                _add(found, names[identity], there, by_partition=len(there) <= self._limit)
                found[MEMBERS][(names[identity],)] = len(view.consumers)
        for metric, values in found.items():
            yield family(metric, values.items())


def _add(
    found: dict[Metric, dict[tuple[str, ...], float]], group: str, shards: Iterable[ShardView], *, by_partition: bool
) -> None:
    topics: dict[str, int] = {}
    for shard in shards:
        topic, _, partition = shard.shard.rpartition("/")
        place = (topic, partition)
        topics[topic] = topics.get(topic, 0) + 1
        lag = 0 if shard.state is ShardState.OVER else shard.lag_records
        for metric, total, value in ((OFFSET, OFFSETS, shard.checkpoint), (LAG, LAGS, lag)):
            if value is not None:
                found[total][group, topic] = found[total].get((group, topic), 0) + value
                if by_partition:
                    found[metric][group, *place] = value
        for metric, value in ((END, shard.end), (BEGIN, shard.begin)):
            if value is not None and by_partition:
                # Two groups may have looked at different times.
                found[metric][place] = max(value, found[metric].get(place, 0))
    for topic, count in topics.items():
        found[PARTITIONS][(topic,)] = max(count, found[PARTITIONS].get((topic,), 0))
