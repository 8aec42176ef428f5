"""Opens the Kinesis side of a group's spec; groups that read one stream with the same access share what is asked about it.

Called by the coordinator through `SourceConnector`. Opening connects to nothing.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from shardherd.adapters.kinesis.access import Access
from shardherd.adapters.kinesis.positions import COMMIT_INTERVAL, PositionTable, TableOffsetStore
from shardherd.adapters.kinesis.source import KinesisShardSource
from shardherd.adapters.kinesis.stream import KinesisStream
from shardherd.core.model.nouns import GroupIdentity, KinesisSource
from shardherd.ports import SecretReader
from shardherd.source.kinesis.client import Kinesis, StreamAccess

THREADS = 4
"""Questions that are asked at a time of one stream: one that does not answer keeps no other waiting."""

TIMEOUT = 5.0
"""Seconds for one call."""

OF_AWS = re.compile(
    r"https://([a-z0-9-]+\.)*((data|control)-)?kinesis(-fips)?\.[a-z0-9-]+\.(vpce\.)?(amazonaws\.com(\.cn)?|api\.aws)(:443)?/?"
)
"""Endpoints of Kinesis, VPC endpoints among them: names that nobody else is given."""

_Key = tuple[str, str, str, str, str]
"""Stream, region, endpoint, and the Secret with its namespace: another namespace's is never shared."""


@dataclass
class _Shared:
    stream: KinesisStream
    threads: ThreadPoolExecutor
    users: int = 0

    def close(self) -> None:
        """Ask nothing any more; calls under way end at their own deadline."""
        self.threads.shutdown(wait=False, cancel_futures=True)


class KinesisConnector:
    """SourceConnector for Kinesis, whose groups' positions are in `table`. One object an operator; close it last.

    `own_identity`: groups that name no Secret are served with the identity that this process has at AWS, and with
    `any_endpoint` also where the group names an endpoint that is not AWS's. The seconds are those between two commits of a
    group.
    """

    def __init__(
        self,
        secrets: SecretReader,
        table: PositionTable,
        *,
        own_identity: bool = False,
        any_endpoint: bool = False,
        commit_interval: float = COMMIT_INTERVAL,
    ) -> None:
        self._secrets = secrets
        self._table = table
        self._own_identity = own_identity
        self._any_endpoint = any_endpoint
        self._commit_interval = commit_interval
        self._streams: dict[_Key, _Shared] = {}

    def source(self, identity: GroupIdentity, source: KinesisSource) -> KinesisShardSource:
        namespace = identity.namespace
        key = (source.stream, source.region, source.endpoint, source.secret, namespace if source.secret else "")
        if key not in self._streams:
            known = self._any_endpoint or not source.endpoint or OF_AWS.fullmatch(source.endpoint)
            stranger = "" if known else source.endpoint
            access = Access(self._secrets, namespace, source.secret, own_identity=self._own_identity, stranger=stranger)
            keys = access.keys if source.secret else None
            kinesis = Kinesis(StreamAccess(source.stream, source.region, source.endpoint, keys), timeout=TIMEOUT)
            threads = ThreadPoolExecutor(THREADS, thread_name_prefix=f"kinesis {source.name}")
            self._streams[key] = _Shared(KinesisStream(kinesis, access, threads), threads)
        shared = self._streams[key]
        shared.users += 1
        return KinesisShardSource(shared.stream, source, lambda: self._leave(key, shared))

    def offsets(self, identity: GroupIdentity, source: KinesisSource) -> TableOffsetStore:
        return TableOffsetStore(self._table, identity, source.name, interval=self._commit_interval)

    async def _leave(self, key: _Key, shared: _Shared) -> None:
        """One user less; the last one forgets the stream."""
        shared.users -= 1
        if shared.users == 0 and self._streams.get(key) is shared:
            del self._streams[key]
            shared.close()

    async def close(self) -> None:
        """Forget every stream; the sources made here end with them."""
        streams, self._streams = list(self._streams.values()), {}
        for shared in streams:
            shared.close()
