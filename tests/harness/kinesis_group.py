"""A played group that reads Kinesis, which is played too: the real coordinator and its real view of the stream."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from shardherd.adapters.connector import Sources
from shardherd.adapters.kafka.connector import KafkaConnector
from shardherd.adapters.kinesis.connector import KinesisConnector
from shardherd.core.model.nouns import GrowthCutover, KinesisSource, Reset, ResetState, ResetTo, ShardId, ShardState, ShardView
from shardherd.ports import SourceConnector
from shardherd.testing.group import NAMESPACE, PlayedGroup
from tests.harness.kinesis import REGION, Service
from tests.harness.memory_positions import MemoryPositions
from tests.harness.memory_secrets import MemorySecrets


class KinesisGroup(PlayedGroup):
    """A group that reads this stream from its beginning. `discovery` is in seconds, between looks at the stream."""

    def __init__(
        self,
        service: Service,
        stream: str,
        *,
        consumers: int = 1,
        ordered: bool = True,
        discovery: float = 0.05,
        **more: Any,
    ) -> None:
        super().__init__(shards=0, topic=stream, ordered=ordered, **more)
        self._discovery = discovery
        source = KinesisSource(stream, REGION, service.url, "aws", "Earliest")
        settings = replace(self._spec.settings, growth_cutover=GrowthCutover.NEVER)
        self._spec = replace(self._spec, source=source, settings=settings, wanted=consumers)
        listed = service.client.list_shards(StreamName=stream)["Shards"]
        self.shards = tuple(ShardId(f"{stream}/{each['ShardId']}") for each in listed)
        self._service, self._stream = service, stream
        self._keys = tempfile.TemporaryDirectory(prefix="shardherd-keys-")
        for name in ("accessKeyId", "secretAccessKey"):
            Path(self._keys.name, name).write_text("played")

    def __enter__(self) -> KinesisGroup:
        super().__enter__()
        return self

    def _connector(self) -> SourceConnector:
        secrets = MemorySecrets()
        secrets.data[NAMESPACE, "aws"] = {"accessKeyId": b"played", "secretAccessKey": b"played"}
        kinesis = KinesisConnector(secrets, MemoryPositions(), commit_interval=0.01)
        return Sources(KafkaConnector(), kinesis)

    def environment(self, name: str) -> dict[str, str]:
        return super().environment(name) | {
            "SHARDHERD_KINESIS_STREAM": self._stream,
            "SHARDHERD_KINESIS_REGION": REGION,
            "SHARDHERD_KINESIS_ENDPOINT": self._service.url,
            "SHARDHERD_KINESIS_CREDENTIALS": self._keys.name,
        }

    def states(self) -> dict[str, ShardState]:
        """The state of every shard that the group knows."""
        return {str(row.shard): row.state for row in self._rows()}

    def checkpoints(self) -> dict[str, int]:
        return {str(row.shard): row.checkpoint for row in self._rows() if row.checkpoint is not None}

    def draining(self, name: str) -> bool:
        """Whether this consumer has asked to be rid of its shards."""
        view = self._coordination().view(self.identity)
        return view is not None and any(each.consumer == name and each.draining for each in view.consumers)

    def reset_to_the_beginning(self, reset: str, while_paused: Callable[[], None]) -> None:
        """As a user does: the group is paused, the reset is declared and made, and the group goes on."""
        declared = replace(self._spec, reset=Reset(reset, ResetTo.EARLIEST))
        self._coordination().apply(replace(declared, settings=replace(declared.settings, paused=True)))

        def made() -> bool:
            report = self._server._runtime.group(NAMESPACE, self.identity.name).reset() if self._server else None
            return report is not None and (report.id, report.state) == (reset, ResetState.DONE)

        self.until("the reset is made", made)
        while_paused()
        self._spec = declared
        self._coordination().apply(declared)

    def told(self, reason: str) -> list[str]:
        """What the Events of this reason say."""
        recorder: Any = self._server._ports.events if self._server else None
        return [each.message for each in recorder.events if each.reason == reason]

    def _known(self, shard: str) -> ShardId:
        return ShardId(shard)

    def _rows(self) -> tuple[ShardView, ...]:
        view = self._coordination().view(self.identity)
        return () if view is None else tuple(view.shards)

    def _end(self) -> None:
        try:
            super()._end()
        finally:
            self._keys.cleanup()
