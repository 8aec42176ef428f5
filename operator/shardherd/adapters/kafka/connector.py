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
    users: int = 0


class KafkaConnector:
    """SourceConnector for Kafka. One object an operator; close it last."""

    def __init__(self) -> None:
        self._clusters: dict[str, _Cluster] = {}

    def source(self, spec: GroupSpec) -> KafkaShardSource:
        key, cluster = self._use(spec.source.bootstrap_servers)
        return KafkaShardSource(cluster.connection, cluster.catalogue, spec.source, lambda: self._leave(key, cluster))

    def offsets(self, spec: GroupSpec) -> KafkaOffsetStore:
        key, cluster = self._use(spec.source.bootstrap_servers)
        return KafkaOffsetStore(cluster.connection, spec.source, lambda: self._leave(key, cluster))

    def _use(self, servers: str) -> tuple[str, _Cluster]:
        key = ",".join(server.strip() for server in servers.split(","))
        if key not in self._clusters:
            connection = KafkaConnection(key)
            self._clusters[key] = _Cluster(connection, Catalogue(connection))
        self._clusters[key].users += 1
        return key, self._clusters[key]

    async def _leave(self, key: str, cluster: _Cluster) -> None:
        """One user less; the last one closes the connection."""
        cluster.users -= 1
        if cluster.users == 0 and self._clusters.get(key) is cluster:
            del self._clusters[key]
            await cluster.connection.close()

    async def close(self) -> None:
        """Close every connection; the sources and offset stores made here end with them."""
        clusters, self._clusters = list(self._clusters.values()), {}
        for cluster in clusters:
            await cluster.connection.close()
