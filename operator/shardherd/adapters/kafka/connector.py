"""Opens the Kafka side of a group's spec; groups with the same bootstrap servers share one connection.

Called by the coordinator through `SourceConnector`. Opening connects to nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardherd.adapters.kafka.catalogue import Catalogue
from shardherd.adapters.kafka.connection import KafkaConnection
from shardherd.adapters.kafka.offsets import KafkaOffsetStore
from shardherd.adapters.kafka.source import KafkaShardSource
from shardherd.core.model import GroupSpec


@dataclass
class _Cluster:
    connection: KafkaConnection
    catalogue: Catalogue


class KafkaConnector:
    """SourceConnector for Kafka. One object an operator; close it last."""

    def __init__(self) -> None:
        self._clusters: dict[str, _Cluster] = {}

    def source(self, spec: GroupSpec) -> KafkaShardSource:
        cluster = self._cluster(spec.source.bootstrap_servers)
        return KafkaShardSource(cluster.connection, cluster.catalogue, spec.source)

    def offsets(self, spec: GroupSpec) -> KafkaOffsetStore:
        return KafkaOffsetStore(self._cluster(spec.source.bootstrap_servers).connection, spec.source)

    def _cluster(self, servers: str) -> _Cluster:
        key = ",".join(server.strip() for server in servers.split(","))
        if key not in self._clusters:
            connection = KafkaConnection(key)
            self._clusters[key] = _Cluster(connection, Catalogue(connection))
        return self._clusters[key]

    async def close(self) -> None:
        """Close every connection; the sources and offset stores made here end with them."""
        clusters, self._clusters = list(self._clusters.values()), {}
        for cluster in clusters:
            await cluster.connection.close()
