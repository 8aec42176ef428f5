"""Kafka's brokers as the source needs them: raw Fetch answers for many shards at once, and the ends of shards.

One `Brokers` serves a process: connections, metadata, TLS and SASL are kafka-python's, driven by a thread of their own.
`reader` fetches with it in Spark's Python workers, and `ends` watches the ends of shards in the agent. It knows nothing of
ownership, and decides nothing but which errors are worth another try.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import kafka.errors as kafka_errors
from kafka.net import KafkaConnectionManager, NetworkSelector
from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest
from kafka.structs import TopicPartition

from shardherd.core.model import Offset, ShardId

FETCH_BYTES = 16 * 1024 * 1024
"""Most bytes of one Fetch answer: enough to make a round trip cheap, small enough to hold two of them in a worker."""

SHARD_FETCH_BYTES = 4 * 1024 * 1024
"""Most bytes of one shard in a Fetch answer. A single larger batch still comes whole: Kafka always sends the first one."""

FETCH_WAIT = 0.5
"""Seconds that a broker holds a Fetch that has nothing to say."""

_FetchTopic = FetchRequest.FetchTopic
_FetchPartition = _FetchTopic.FetchPartition
_EndsTopic = ListOffsetsRequest.ListOffsetsTopic
_EndsPartition = _EndsTopic.ListOffsetsPartition


class BrokersUnavailableError(Exception):
    """Kafka could not be reached or did not answer in time. Names the brokers and the shards."""


class RangeLostError(Exception):
    """A shard no longer has records that it had: retention, an unclean election, or a topic made anew. Names the shard."""


class SourceRefusedError(Exception):
    """Kafka refuses us a shard for good, for example for lack of rights. Names the shard and Kafka's reason."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """One shard's part of a Fetch answer: raw batches, and the shard's end as its leader saw it."""

    shard: ShardId
    asked: Offset
    data: bytes
    end: Offset


def topic_partition(shard: ShardId) -> TopicPartition:
    """Kafka's name of a shard."""
    topic, _, partition = shard.rpartition("/")
    if not topic or not partition.isdigit():
        raise ValueError(f"shard {shard!r} is not of the form topic/partition")
    return TopicPartition(topic, int(partition))


class Brokers:
    """Connections to one Kafka. `config` goes to kafka-python's connection manager (security_protocol, ssl_*, sasl_*)."""

    def __init__(self, bootstrap_servers: str, config: Mapping[str, Any] | None = None, *, name: str = "shardherd") -> None:
        self.bootstrap_servers = bootstrap_servers
        settings = dict(config or {})
        self._net = NetworkSelector(client_id=name)
        self._manager = KafkaConnectionManager(
            self._net,
            bootstrap_servers=bootstrap_servers.split(","),
            client_id=name,
            receive_message_max_bytes=1 << 30,
            **settings,
        )
        self._net.start()
        self._topics: set[str] = set()

    def close(self) -> None:
        self._net.run(self._manager.close)
        self._net.close()

    def connect(self, timeout: float) -> None:
        """Learn of the brokers, so that the first Fetch is not the one that pays. Raises BrokersUnavailableError."""
        self._begin(self._connect, timeout, ())()

    def begin_fetch(self, positions: Mapping[ShardId, Offset], timeout: float) -> Callable[[], list[Fetched]]:
        """Send one Fetch a broker for these shards, and return a function that waits for all the answers.

        Shards with nothing to say are left out. Errors come from the returned function: BrokersUnavailableError when nothing
        came within `timeout` seconds, RangeLostError when a position is outside its shard, SourceRefusedError.
        """
        return self._begin(lambda: self._fetch(positions), timeout, positions)

    def ends(self, shards: Iterable[ShardId], timeout: float) -> dict[ShardId, Offset]:
        """The end of each shard whose leader answered. Raises BrokersUnavailableError, SourceRefusedError."""
        wanted = tuple(shards)
        found: dict[ShardId, Offset] = self._begin(lambda: self._ends(wanted), timeout, wanted)()
        return found

    def _begin(self, coroutine: Callable[[], Any], timeout: float, shards: Iterable[ShardId]) -> Callable[[], Any]:
        done = threading.Event()
        future = self._manager.call_soon(coroutine)
        future.add_both(lambda _: done.set())

        def wait() -> Any:
            if not done.wait(timeout):
                names = ", ".join(sorted(shards)[:5])
                raise BrokersUnavailableError(
                    f"Kafka at {self.bootstrap_servers} did not answer within {timeout:g} s ({names or 'connecting'}): "
                    "check that the brokers and their advertised listeners can be reached from this pod"
                )
            if isinstance(future.exception, kafka_errors.RetriableError):
                raise BrokersUnavailableError(f"Kafka at {self.bootstrap_servers}: {future.exception}") from future.exception
            if isinstance(future.exception, kafka_errors.KafkaError):
                refusal = f"Kafka at {self.bootstrap_servers} refuses: {type(future.exception).__name__}: {future.exception}"
                raise SourceRefusedError(refusal) from future.exception
            if future.exception is not None:
                raise future.exception
            return future.value

        return wait

    async def _connect(self) -> None:
        if not self._manager.bootstrapped:
            await self._manager.bootstrap_async(refresh=False)

    async def _by_leader(self, shards: Iterable[ShardId]) -> dict[int, list[tuple[ShardId, TopicPartition]]]:
        """Shards by the broker that leads them. Raises LeaderNotAvailableError, UnknownTopicOrPartitionError (retriable)."""
        named = [(shard, topic_partition(shard)) for shard in shards]
        cluster = self._manager.cluster
        if not self._manager.bootstrapped:
            self._topics.update(tp.topic for _, tp in named)
            cluster.set_topics(sorted(self._topics))
            await self._connect()
        if missing := {tp.topic for _, tp in named} - self._topics:
            self._topics |= missing
            await cluster.set_topics(sorted(self._topics))
        leaders: dict[int, list[tuple[ShardId, TopicPartition]]] = {}
        for shard, tp in named:
            leader = cluster.leader_for_partition(tp)
            if leader is None or leader == -1:
                await cluster.refresh_metadata()
                leader = cluster.leader_for_partition(tp)
            if leader is None or leader == -1:
                raise kafka_errors.LeaderNotAvailableError(f"shard {shard} has no leader now")
            leaders.setdefault(leader, []).append((shard, tp))
        return leaders

    async def _fetch(self, positions: Mapping[ShardId, Offset]) -> list[Fetched]:
        leaders = await self._by_leader(positions)
        futures = []
        for node, shards in leaders.items():
            topics: dict[str, list[Any]] = {}
            for shard, tp in shards:
                topics.setdefault(tp.topic, []).append(
                    _FetchPartition(
                        partition=tp.partition,
                        current_leader_epoch=-1,
                        fetch_offset=positions[shard],
                        last_fetched_epoch=-1,
                        partition_max_bytes=SHARD_FETCH_BYTES,
                    )
                )
            request = FetchRequest(
                max_wait_ms=int(FETCH_WAIT * 1000),
                min_bytes=1,
                max_bytes=FETCH_BYTES,
                isolation_level=0,
                session_id=0,
                session_epoch=-1,
                topics=[_FetchTopic(topic=topic, partitions=parts) for topic, parts in topics.items()],
                forgotten_topics_data=[],
                rack_id="",
                min_version=4,
                max_version=12,  # the last that names topics
            )
            futures.append(self._manager.send(request, node_id=node))
        found: list[Fetched] = []
        stale = False
        for future in futures:
            try:
                response = await future
            except kafka_errors.RetriableError:
                stale = True
                continue
            for topic in response.responses:
                for part in topic.partitions:
                    shard = ShardId(f"{topic.topic}/{part.partition_index}")
                    error = kafka_errors.for_code(part.error_code)
                    if error is kafka_errors.NoError:
                        if part.records:
                            found.append(Fetched(shard, positions[shard], part.records, part.high_watermark))
                        elif part.high_watermark <= positions[shard]:
                            found.append(Fetched(shard, positions[shard], b"", part.high_watermark))
                    elif error is kafka_errors.OffsetOutOfRangeError:
                        raise RangeLostError(
                            f"shard {shard}: offset {positions[shard]} is outside the shard, whose records now end at "
                            f"{part.high_watermark} and start at {part.log_start_offset}: it was deleted by retention or by an "
                            "unclean election; move the group's checkpoint by force, and check retention.ms of the topic"
                        )
                    elif issubclass(error, kafka_errors.RetriableError):
                        stale = True
                    else:
                        raise SourceRefusedError(
                            f"shard {shard}: Kafka refuses to read it: {error.__name__}: {error.description}"
                        )
        if stale:
            await self._manager.cluster.request_update()
        return found

    async def _ends(self, shards: Iterable[ShardId]) -> dict[ShardId, Offset]:
        leaders = await self._by_leader(shards)
        futures = []
        for node, named in leaders.items():
            topics: dict[str, list[Any]] = {}
            for _, tp in named:
                topics.setdefault(tp.topic, []).append(
                    _EndsPartition(partition_index=tp.partition, current_leader_epoch=-1, timestamp=-1)
                )
            request = ListOffsetsRequest(
                isolation_level=0,
                topics=[_EndsTopic(name=topic, partitions=parts) for topic, parts in topics.items()],
                min_version=1,
            )
            futures.append(self._manager.send(request, node_id=node))
        found: dict[ShardId, Offset] = {}
        stale = False
        for future in futures:
            response = await future
            for topic in response.topics:
                for part in topic.partitions:
                    shard = ShardId(f"{topic.name}/{part.partition_index}")
                    error = kafka_errors.for_code(part.error_code)
                    if error is kafka_errors.NoError:
                        found[shard] = part.offset
                    elif issubclass(error, kafka_errors.RetriableError):
                        stale = True
                    else:
                        raise SourceRefusedError(f"shard {shard}: Kafka refuses its end: {error.__name__}: {error.description}")
        if stale:
            await self._manager.cluster.request_update()
        return found
