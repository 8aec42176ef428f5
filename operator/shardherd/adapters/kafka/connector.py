"""Opens the Kafka side of a group's spec; groups with equal bootstrap servers, credentials and isolation share a connection.

Called by the coordinator through `SourceConnector`. Opening connects to nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardherd.adapters.kafka.access import Access
from shardherd.adapters.kafka.catalogue import Catalogue, Interest
from shardherd.adapters.kafka.connection import KafkaConnection
from shardherd.adapters.kafka.offsets import KafkaOffsetStore
from shardherd.adapters.kafka.source import KafkaShardSource
from shardherd.adapters.kafka.survey import Survey, survey
from shardherd.core.model.nouns import GroupSpec
from shardherd.core.model.security import NO_SECURITY, KafkaSecurity
from shardherd.ports import SecretReader, SecretRefusedError

_Key = tuple[str, str, KafkaSecurity, bool]
"""Bootstrap servers, the namespace of the Secrets, what they are for, and whether only committed records are read. Another
namespace's Secrets are never shared; under another isolation level partitions end elsewhere."""


@dataclass
class _Cluster:
    connection: KafkaConnection
    catalogue: Catalogue
    users: int = 0


class NoSecrets:
    """SecretReader of a process that has no Secrets."""

    async def read(self, namespace: str, name: str) -> Mapping[str, bytes]:
        raise SecretRefusedError(f"Secret {name!r} in namespace {namespace!r}: this process reads no Secrets")


class KafkaConnector:
    """SourceConnector for Kafka. One object an operator; close it last. `own_identity`: see `Access`."""

    def __init__(self, secrets: SecretReader | None = None, *, own_identity: bool = False) -> None:
        self._secrets = secrets or NoSecrets()
        self._own_identity = own_identity
        self._clusters: dict[_Key, _Cluster] = {}

    def source(self, spec: GroupSpec) -> KafkaShardSource:
        key, cluster = self._use(spec)
        return KafkaShardSource(cluster.connection, cluster.catalogue, spec.kafka, lambda: self._leave(key, cluster))

    def offsets(self, spec: GroupSpec) -> KafkaOffsetStore:
        key, cluster = self._use(spec)
        return KafkaOffsetStore(cluster.connection, spec.kafka, lambda: self._leave(key, cluster))

    async def survey(self, spec: GroupSpec) -> Survey:
        """What the brokers say of the group's topics. Raises SourceUnavailableError."""
        key, cluster = self._use(spec)
        try:
            source = spec.kafka
            return await survey(cluster.connection, Interest(source.topics, source.topic_pattern))
        finally:
            await self._leave(key, cluster)

    def _use(self, spec: GroupSpec) -> tuple[_Key, _Cluster]:
        source = spec.kafka
        servers = ",".join(server.strip() for server in source.bootstrap_servers.split(","))
        security = source.security
        secured = security != NO_SECURITY
        key = (servers, spec.identity.namespace if secured else "", security, source.read_committed)
        if key not in self._clusters:
            namespace, own = spec.identity.namespace, self._own_identity
            access = Access(self._secrets, namespace, security, own_identity=own) if secured else None
            connection = KafkaConnection(servers, access)
            self._clusters[key] = _Cluster(connection, Catalogue(connection, read_committed=source.read_committed))
        self._clusters[key].users += 1
        return key, self._clusters[key]

    async def _leave(self, key: _Key, cluster: _Cluster) -> None:
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
