"""A connection to one Kafka cluster: finds it, sends requests, knows who leads, and says what failed.

`brokers` builds on it, for ordinary threads and for event loops. Connections, metadata, TLS and SASL are kafka-python's, driven
by a thread of their own. A broker that is away, or refuses our credentials, is tried again at every call, by its bootstrap
addresses if no other answers. It decides nothing but which errors are worth another try.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

import kafka.errors as kafka_errors
from kafka.structs import TopicPartition

from shardherd.core.model.nouns import ShardId
from shardherd.core.model.security import Security
from shardherd.source.kafka.connection_manager import error_text
from shardherd.source.kafka.leader_epochs import UNKNOWN
from shardherd.source.kafka.network_loop import network_loop
from shardherd.source.kafka.partitions import Partition, partition_of, shard_of
from shardherd.source.kafka.wide_reads import FetchManager
from shardherd.source.security.credentials import of_files

ANSWER_TIMEOUT = 15.0
"""Seconds after which a broker that does not answer is given up and its connection closed; less than callers wait."""

CONNECT_TIMEOUT = 5.0
"""Seconds to connect to a broker, TLS included; doubled after each failure, up to twice as long."""

BOOTSTRAP_TIMEOUT = 5.0
"""Seconds for the bootstrap addresses, until the brokers that were known before are tried again."""

RECONNECT_MAX = 1.0
"""Most seconds between two tries to connect: a broker is used soon after it is back."""

TRANSIENT = (
    kafka_errors.RetriableError,
    # UNKNOWN_SERVER_ERROR: as in Java's consumer, it may be over at the next try.
    kafka_errors.UnknownError,
    # A password is rotated at the broker and in our file one after the other.
    kafka_errors.SaslAuthenticationFailedError,
    kafka_errors.UnsupportedSaslMechanismError,
    kafka_errors.IllegalSaslStateError,
)

Leaders = dict[Partition, int]
"""The broker that leads each partition."""


class BrokersUnavailableError(Exception):
    """Kafka could not be reached, did not answer in time or refused our credentials. Names the brokers and the cause."""


class TopicGoneError(BrokersUnavailableError):
    """The brokers have no such topic, as they have just said themselves. Names it."""

    def __init__(self, said: str, topic: str) -> None:
        super().__init__(said)
        self.topic = topic


class SourceRefusedError(Exception):
    """Kafka refuses us a shard for good, for example for lack of rights. Names the shard and Kafka's reason."""


class ClusterConnection:
    """One client of one cluster, as `security` says. Its methods may be called by any thread, but for the coroutines."""

    def __init__(self, bootstrap_servers: str, security: Security | None = None, *, name: str = "shardherd") -> None:
        self.bootstrap_servers = bootstrap_servers
        self._net = network_loop(name)
        self._manager = FetchManager(
            self._net,
            of_files(security or Security()),
            bootstrap_servers=bootstrap_servers.split(","),
            client_id=name,
            receive_message_max_bytes=1 << 30,
            request_timeout_ms=int(ANSWER_TIMEOUT * 1000),
            socket_connection_setup_timeout_ms=int(CONNECT_TIMEOUT * 1000),
            socket_connection_setup_timeout_max_ms=int(2 * CONNECT_TIMEOUT * 1000),
            reconnect_backoff_max_ms=int(RECONNECT_MAX * 1000),
        )
        self._net.start()
        self._topics: set[str] = set()
        self._found = False

    def close(self) -> None:
        self._net.run(self._manager.close)
        self._net.close()

    def connect(self, timeout: float) -> None:
        """Learn of the brokers, so that the first Fetch is not the one that pays. Raises BrokersUnavailableError."""
        self.begin(self._connect, timeout, ())()

    def send(self, request: Any, timeout: float) -> Any:
        """Any broker's response to a request. Raises BrokersUnavailableError, SourceRefusedError."""

        async def asked() -> Any:
            await self._connect()
            return await self._manager.send(request)

        return self.begin(asked, timeout, ())()

    def begin(self, coroutine: Callable[[], Any], timeout: float, shards: Iterable[ShardId]) -> Callable[[], Any]:
        """Start work on kafka-python's loop that is about these shards; a function that waits for its result.

        That raises BrokersUnavailableError, SourceRefusedError.
        """
        done = threading.Event()
        future = self._manager.call_soon(coroutine)
        future.add_both(lambda _: done.set())

        def wait() -> Any:
            if not done.wait(timeout):
                raise self._unanswered(timeout, shards)
            return self._result(future)

        return wait

    async def ask(self, coroutine: Callable[[], Any], timeout: float, shards: Iterable[ShardId]) -> Any:
        """The result of such work, for an event loop, which goes on meanwhile. Raises what `begin` does."""
        done: Future[None] = Future()
        done.set_running_or_notify_cancel()  # who does not wait any more cancels nothing
        future = self._manager.call_soon(coroutine)
        future.add_both(lambda _: done.set_result(None))
        try:
            async with asyncio.timeout(timeout):
                await asyncio.wrap_future(done)
        except TimeoutError:
            raise self._unanswered(timeout, shards) from None
        return self._result(future)

    def _unanswered(self, timeout: float, shards: Iterable[ShardId]) -> BrokersUnavailableError:
        self._found = False
        names = ", ".join(sorted(shards)[:5])
        return BrokersUnavailableError(
            f"Kafka at {self.bootstrap_servers} did not answer within {timeout:g} s ({names or 'connecting'})"
            f"{self._why()}: check that the brokers and their advertised listeners can be reached from this pod"
        )

    def _result(self, future: Any) -> Any:
        error = future.exception
        if isinstance(error, TRANSIENT):
            self._found &= isinstance(error, kafka_errors.BrokerResponseError)
            said = f"Kafka at {self.bootstrap_servers}: {error_text(error)}{self._why(error)}"
            if topic := getattr(error, "gone", ""):
                raise TopicGoneError(said, topic) from error
            raise BrokersUnavailableError(said) from error
        if isinstance(error, kafka_errors.KafkaError):
            raise SourceRefusedError(f"Kafka at {self.bootstrap_servers} refuses: {error_text(error)}") from error
        if error is not None:
            raise error
        return future.value

    def _why(self, known: BaseException | None = None) -> str:
        """Which addresses could not be reached, each with its cause."""
        failures = [str(each) for each in self._manager.failures() if known is None or each.error is not known or each.broker]
        return f" ({'; '.join(sorted(failures))})" if failures else ""

    async def _connect(self) -> None:
        """Find the cluster, at first and after a failure: by the brokers that are known, else by the bootstrap addresses."""
        cluster = self._manager.cluster
        if self._found:
            return
        for node in (None, *(broker.node_id for broker in cluster.brokers())) if cluster.brokers() else ():
            with contextlib.suppress(*TRANSIENT):
                await cluster.refresh_metadata(node)  # None: the one that is likely to answer
                self._found = True
                return
        await self._manager.bootstrap_async(int(BOOTSTRAP_TIMEOUT * 1000))
        self._found = True

    async def by_leader(self, shards: Iterable[ShardId]) -> tuple[Leaders, list[Any]]:
        """The brokers that lead these shards, and what is wrong with the others. Raises SourceRefusedError."""
        partitions = [partition_of(shard) for shard in shards]
        cluster = self._manager.cluster
        self._topics.update(topic for topic, _ in partitions)
        cluster.set_topics(sorted(self._topics))
        await self._connect()
        led = {each: _leader(cluster, each) for each in partitions}
        looked = False
        if None in led.values():
            # Should that fail too, the shards that have a leader are still read.
            with contextlib.suppress(*TRANSIENT):
                await cluster.refresh_metadata()
                looked = True
            led = {each: _leader(cluster, each) for each in partitions}
        leaders: Leaders = {}
        troubles: list[Any] = []
        for each, leader in led.items():
            if leader is not None:
                leaders[each] = leader
                continue
            topic, shard = each[0], shard_of(*each)
            if topic in cluster.unauthorized_topics:
                raise SourceRefusedError(
                    f"shard {shard}: Kafka does not show its topic to this client: allow it READ on topic {topic!r}"
                )
            if cluster.partitions_for_topic(topic) is None:
                what = "does not exist" if looked else "is not known yet"
                unknown = kafka_errors.UnknownTopicOrPartitionError(f"topic {topic!r} of shard {shard} {what}")
                unknown.gone = topic if looked else ""  # for `_result`: the metadata were just looked up
                troubles.append(unknown)
            else:
                troubles.append(kafka_errors.LeaderNotAvailableError(f"shard {shard} has no leader now"))
        return leaders, troubles

    def send_to(self, request: Any, node: int) -> Any:
        """This broker's response to a request, to be awaited on kafka-python's loop."""
        return self._manager.send(request, node_id=node)

    def has_replica(self, shard: ShardId, node: int) -> bool:
        """Whether a broker is part of the cluster and has a replica of a shard, as far as the metadata says."""
        return self._manager.cluster.is_replica_node(TopicPartition(*partition_of(shard)), node) is not None

    def epoch_of(self, partition: Partition) -> int:
        """Under which epoch a partition is led, as far as the metadata says."""
        epoch = self._manager.cluster.leader_epoch_for_partition(TopicPartition(*partition))
        return UNKNOWN if epoch is None else int(epoch)

    def topic_id(self, name: str) -> uuid.UUID | None:
        """The topic's id; None from a broker that is too old to have one."""
        found: uuid.UUID | None = self._manager.cluster.topic_id(name)
        return found if found is not None and found.int else None

    def finish_round(self, troubles: list[Any], answered: bool) -> None:
        """After a round: what went wrong is the caller's to know if nothing else came; the leaders are looked up."""
        if troubles:
            self._manager.cluster.request_update()
        if troubles and not answered:
            raise troubles[0]


def _leader(cluster: Any, partition: Partition) -> int | None:
    leader = cluster.leader_for_partition(TopicPartition(*partition))
    return None if leader is None or leader < 0 else int(leader)


def explained(error: Any, topic: str) -> str:
    """An error of a broker about a topic, with what to do where that is known."""
    remedy = f"; allow this client READ on topic {topic!r}" if error is kafka_errors.TopicAuthorizationFailedError else ""
    return f"{error.__name__}: {error.description}{remedy}"
