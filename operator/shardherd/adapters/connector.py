"""Opens what a group's spec names, with the connector of its kind of source. Called by the coordinator. Decides no more."""

from __future__ import annotations

from shardherd.adapters.kafka.connector import KafkaConnector
from shardherd.adapters.kinesis.connector import KinesisConnector
from shardherd.core.model.nouns import GroupSpec, KinesisSource
from shardherd.ports import OffsetStore, ShardSource


class Sources:
    """SourceConnector for every kind of source. Close it last: the connectors end with it."""

    def __init__(self, kafka: KafkaConnector, kinesis: KinesisConnector) -> None:
        self._kafka = kafka
        self._kinesis = kinesis

    def source(self, spec: GroupSpec) -> ShardSource:
        if isinstance(spec.source, KinesisSource):
            return self._kinesis.source(spec.identity, spec.source)
        return self._kafka.source(spec)

    def offsets(self, spec: GroupSpec) -> OffsetStore:
        if isinstance(spec.source, KinesisSource):
            return self._kinesis.offsets(spec.identity, spec.source)
        return self._kafka.offsets(spec)

    async def close(self) -> None:
        await self._kafka.close()
        await self._kinesis.close()
