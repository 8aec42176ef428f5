"""Kafka's brokers as the source needs them: raw Fetch answers for many shards at once, and the ends of shards.

One `Brokers` serves a process: connections, metadata, TLS and SASL are kafka-python's, driven by a thread of their own. A
broker that is away, or refuses our credentials, is tried again at every call, by its bootstrap addresses if no other answers.
`range_reader` fetches with it in Spark's Python workers, and `end_offsets` watches the ends of shards in the agent. It knows
nothing of ownership, and decides nothing but which errors are worth another try. It is long because its requests share the
connections, the leaders, and what an error means.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import kafka.errors as kafka_errors
from kafka.net import NetworkSelector
from kafka.structs import TopicPartition

from shardherd.clock import boot_time
from shardherd.core.model.nouns import Offset, ShardId
from shardherd.core.model.security import Security
from shardherd.source.kafka import lookup
from shardherd.source.kafka.connection_manager import told
from shardherd.source.kafka.fetch_memory import Room, Turns
from shardherd.source.kafka.fetching import Asked, Fetched, fetched, request_for
from shardherd.source.kafka.leader_epochs import UNKNOWN, Diverged, Ends, Lineage, Mark
from shardherd.source.kafka.partitions import EARLIEST, LATEST, Partition, partition_of, shard_of
from shardherd.source.kafka.replicas import BEHIND_FOR, Replicas
from shardherd.source.kafka.wide_reads import FetchManager
from shardherd.source.security.credentials import of_files

log = logging.getLogger(__name__)

SHARD_FETCH_BYTES = 4 * 1024 * 1024
"""Most bytes of one shard in a Fetch answer. A single larger batch still comes whole: Kafka always sends the first one."""

ANSWER_TIMEOUT = 15.0
"""Seconds after which a broker that does not answer is given up and its connection closed; less than callers wait."""

CONNECT_TIMEOUT = 5.0
"""Seconds to connect to a broker, TLS included; doubled after each failure, up to twice as long."""

BOOTSTRAP_TIMEOUT = 5.0
"""Seconds for the bootstrap addresses, until the brokers that were known before are tried again."""

RECONNECT_MAX = 1.0
"""Most seconds between two tries to connect: a broker is used soon after it is back."""

_TRANSIENT = (
    kafka_errors.RetriableError,
    # UNKNOWN_SERVER_ERROR: as in Java's consumer, it may be over at the next try.
    kafka_errors.UnknownError,
    # A password is rotated at the broker and in our file one after the other.
    kafka_errors.SaslAuthenticationFailedError,
    kafka_errors.UnsupportedSaslMechanismError,
    kafka_errors.IllegalSaslStateError,
)

_Leaders = dict[Partition, int]
"""The broker that leads each partition."""


class BrokersUnavailableError(Exception):
    """Kafka could not be reached, did not answer in time or refused our credentials. Names the brokers and the cause."""


class RangeLostError(Exception):
    """A shard no longer has records that it had: retention, an unclean election, or a topic made anew. Names the shard."""


class SourceRefusedError(Exception):
    """Kafka refuses us a shard for good, for example for lack of rights. Names the shard and Kafka's reason."""


class Brokers:
    """Connections to one Kafka, as `security` says.

    `committed` is read_committed: shards end, and are read, before the first transaction that is still open. `rack` is where we
    are: records are read from a replica there, if the brokers name one.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        security: Security | None = None,
        *,
        name: str = "shardherd",
        committed: bool = False,
        rack: str = "",
    ) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.committed = committed
        self._net = NetworkSelector(client_id=name)
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
        self._silent: frozenset[ShardId] = frozenset()
        self._turns = Turns()
        self._replicas = Replicas(rack)

    def close(self) -> None:
        self._net.run(self._manager.close)
        self._net.close()

    def connect(self, timeout: float) -> None:
        """Learn of the brokers, so that the first Fetch is not the one that pays. Raises BrokersUnavailableError."""
        self._begin(self._connect, timeout, ())()

    def begin_fetch(
        self,
        positions: Mapping[ShardId, Offset],
        timeout: float,
        *,
        shard_bytes: int | Mapping[ShardId, int] = SHARD_FETCH_BYTES,
        room: Room = Room(),  # noqa: B008 - it cannot be changed
        lineage: Lineage | None = None,
    ) -> Callable[[], list[Fetched]]:
        """Send one Fetch a broker for these shards, and return a function that waits for all the answers.

        `shard_bytes` bounds what comes of each shard; a single larger batch still comes whole for the first one. As many
        brokers are asked as there is `room` for, the others at the next call. `lineage` is what must hold of the logs.

        Shards that were not asked for are left out, and so are those whose leader cannot be reached while another answers.
        Errors come from the returned function: BrokersUnavailableError when nothing came within `timeout` seconds,
        SourceRefusedError.
        """
        known = Lineage() if lineage is None else lineage
        return self._begin(lambda: self._fetch(positions, shard_bytes, room, known), timeout, positions)

    def cuts(self, marks: Mapping[ShardId, Mark], timeout: float) -> dict[ShardId, Offset]:
        """Where each log ended under epochs up to its mark's, of every shard whose leader answered; -1 if it cannot say.

        Below the mark's offset, the log was cut off there. Raises BrokersUnavailableError, SourceRefusedError.
        """
        found: dict[ShardId, Offset] = self._begin(lambda: self._cuts(marks), timeout, marks)()
        return found

    def ends(self, shards: Iterable[ShardId], timeout: float) -> Ends:
        """The end of each shard whose leader answered. Raises BrokersUnavailableError, SourceRefusedError."""
        wanted = tuple(shards)
        found: Ends = self._begin(lambda: self._ends(wanted), timeout, wanted)()
        return found

    def offsets(self, times: Mapping[ShardId, int], timeout: float) -> dict[ShardId, Offset]:
        """The first offset at or after each time (milliseconds, EARLIEST or LATEST), of every shard whose leader answered.

        It is -1 where no record has reached that time. Raises BrokersUnavailableError, SourceRefusedError.
        """
        found: dict[ShardId, Offset] = self._begin(lambda: self._offsets(times), timeout, times)()
        return found

    def send(self, request: Any, timeout: float) -> Any:
        """Any broker's response to a request. Raises BrokersUnavailableError, SourceRefusedError."""

        async def asked() -> Any:
            await self._connect()
            return await self._manager.send(request)

        return self._begin(asked, timeout, ())()

    def _begin(self, coroutine: Callable[[], Any], timeout: float, shards: Iterable[ShardId]) -> Callable[[], Any]:
        done = threading.Event()
        future = self._manager.call_soon(coroutine)
        future.add_both(lambda _: done.set())

        def wait() -> Any:
            if not done.wait(timeout):
                self._found = False
                names = ", ".join(sorted(shards)[:5])
                raise BrokersUnavailableError(
                    f"Kafka at {self.bootstrap_servers} did not answer within {timeout:g} s ({names or 'connecting'})"
                    f"{self._why()}: check that the brokers and their advertised listeners can be reached from this pod"
                )
            error = future.exception
            if isinstance(error, _TRANSIENT):
                self._found &= isinstance(error, kafka_errors.BrokerResponseError)
                raise BrokersUnavailableError(f"Kafka at {self.bootstrap_servers}: {told(error)}{self._why(error)}") from error
            if isinstance(error, kafka_errors.KafkaError):
                raise SourceRefusedError(f"Kafka at {self.bootstrap_servers} refuses: {told(error)}") from error
            if error is not None:
                raise error
            return future.value

        return wait

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
            with contextlib.suppress(*_TRANSIENT):
                await cluster.refresh_metadata(node)  # None: the one that is likely to answer
                self._found = True
                return
        await self._manager.bootstrap_async(int(BOOTSTRAP_TIMEOUT * 1000))
        self._found = True

    async def _by_leader(self, shards: Iterable[ShardId]) -> tuple[_Leaders, list[Any]]:
        """The brokers that lead these shards, and what is wrong with the others. Raises SourceRefusedError."""
        partitions = [partition_of(shard) for shard in shards]
        cluster = self._manager.cluster
        self._topics.update(topic for topic, _ in partitions)
        cluster.set_topics(sorted(self._topics))
        await self._connect()
        if any(_leader(cluster, each) is None for each in partitions):
            # Should that fail too, the shards that have a leader are still read.
            with contextlib.suppress(*_TRANSIENT):
                await cluster.refresh_metadata()
        leaders: _Leaders = {}
        troubles: list[Any] = []
        for each in partitions:
            leader, (topic, _) = _leader(cluster, each), each
            shard = shard_of(*each)
            if leader is not None:
                leaders[each] = leader
            elif topic in cluster.unauthorized_topics:
                raise SourceRefusedError(
                    f"shard {shard}: Kafka does not show its topic to this client: allow it READ on topic {topic!r}"
                )
            elif cluster.partitions_for_topic(topic) is None:
                troubles.append(kafka_errors.UnknownTopicOrPartitionError(f"topic {topic!r} of shard {shard} does not exist"))
            else:
                troubles.append(kafka_errors.LeaderNotAvailableError(f"shard {shard} has no leader now"))
        return leaders, troubles

    async def _fetch(
        self, positions: Mapping[ShardId, Offset], shard_bytes: int | Mapping[ShardId, int], room: Room, lineage: Lineage
    ) -> list[Fetched]:
        leaders, troubles = await self._by_leader(positions)
        leader_of = {shard: leaders[led] for shard in positions if (led := partition_of(shard)) in leaders}
        route = self._replicas.route(leader_of, self._has, boot_time())
        at_once, answer_bytes = room.among(len(route.shards))
        turn = {node: route.shards[node] for node in self._turns.next(route.shards, at_once)}
        # One look at the epochs for all that follows: what is read is what was verified.
        epochs = {shard: self._epoch(partition_of(shard)) for shards in turn.values() for shard in shards}
        unread = await self._verify(leaders, epochs, positions, lineage, troubles)
        found = [part for part in unread.values() if part is not None]
        futures = []
        for node, shards in turn.items():
            most = {shard: shard_bytes if isinstance(shard_bytes, int) else shard_bytes[shard] for shard in shards}
            wanted = [shard for shard in shards if shard not in unread]
            asked = [Asked(partition_of(shard), positions[shard], most[shard], epochs[shard]) for shard in wanted]
            if asked:
                ids = {topic: self._topic_id(topic) for topic in {each.partition[0] for each in asked}}
                rack = self._replicas.rack_for(node, route)
                request = request_for(asked, ids, answer_bytes, committed=self.committed, rack=rack)
                names = {topic_id: name for name, topic_id in ids.items()}
                futures.append((node, wanted, names, self._manager.send(request, node_id=node)))
        outside: dict[Partition, int] = {}
        for node, wanted, names, future in futures:
            followed = [shard for shard in wanted if leader_of[shard] != node]
            try:
                response = await future
            except _TRANSIENT as error:
                troubles.append(error)
                for shard in followed:
                    self._replicas.failed(shard, boot_time())
                continue
            if response.error_code:
                troubles.append(kafka_errors.for_code(response.error_code)("the whole Fetch"))
                continue
            for topic in response.responses:
                name = topic.topic or names[topic.topic_id]
                topic_id = str(topic.topic_id) if not topic.topic else ""
                for part in topic.partitions:
                    shard = ShardId(f"{name}/{part.partition_index}")
                    code = kafka_errors.for_code(part.error_code)
                    if code is kafka_errors.NoError:
                        each = fetched(shard, positions[shard], part, topic_id, committed=self.committed)
                        if shard in followed and not each.data and each.said:
                            # That there is nothing only the leader knows.
                            self._replicas.failed(shard, boot_time(), BEHIND_FOR)
                        elif part.preferred_read_replica in (-1, node):
                            found.append(each)
                        else:
                            self._replicas.named(shard, part.preferred_read_replica, boot_time())
                    elif shard in followed:
                        # Its leader is asked the same, and what that one says counts.
                        self._replicas.failed(shard, boot_time())
                    elif code is kafka_errors.OffsetOutOfRangeError:
                        outside[name, part.partition_index] = node
                    elif issubclass(code, _TRANSIENT):
                        troubles.append(code(f"shard {shard}"))
                    else:
                        raise SourceRefusedError(f"shard {shard}: Kafka refuses to read it: {_refusal(code, name)}")
        if outside:
            starts, start_troubles = await self._list(outside, EARLIEST)
            ends, end_troubles = await self._list(outside, LATEST)
            troubles += start_troubles + end_troubles
            for shard in starts.keys() & ends.keys():
                found.append(Fetched(shard, positions[shard], b"", ends[shard], start=starts[shard]))
        self._settle(troubles, any(part.said for part in found))
        return found

    def _has(self, shard: ShardId, node: int) -> bool:
        """Whether a broker is part of the cluster and has a replica of a shard, as far as the metadata says."""
        return self._manager.cluster.is_replica_node(TopicPartition(*partition_of(shard)), node) is not None

    async def _verify(
        self,
        leaders: _Leaders,
        epochs: Mapping[ShardId, int],
        positions: Mapping[ShardId, Offset],
        lineage: Lineage,
        troubles: list[Any],
    ) -> dict[ShardId, Fetched | None]:
        """The shards that are not to be read now: their logs are not those of `lineage`, or nobody said so (None)."""
        found: dict[ShardId, Fetched | None] = {}
        marks: dict[ShardId, tuple[Mark, ...]] = {}
        for shard, epoch in epochs.items():
            if (ahead := lineage.ahead(shard, epoch)) is not None:
                # We may be behind: the leaders are looked up.
                troubles.append(kafka_errors.FencedLeaderEpochError(f"shard {shard}"))
                found[shard] = self._diverged(shard, positions[shard], Diverged(ahead.epoch, epoch))
            elif doubts := lineage.doubtful(shard, epoch):
                marks[shard] = doubts
        while marks:
            asked = {shard: doubts[0] for shard, doubts in marks.items()}
            told, more = await self._ends_of_epochs(leaders, epochs, asked)
            troubles += more
            for shard, mark in asked.items():
                if shard not in told:
                    found[shard] = None
                    continue
                if 0 <= told[shard] < mark.offset:
                    diverged = Diverged(mark.epoch, epochs[shard], told[shard])
                    found[shard] = self._diverged(shard, positions[shard], diverged)
                if shard in found or len(marks[shard]) == 1:
                    lineage.verified(shard, epochs[shard])
            marks = {shard: doubts[1:] for shard, doubts in marks.items() if doubts[1:] and shard not in found}
        return found

    def _diverged(self, shard: ShardId, at: Offset, diverged: Diverged) -> Fetched:
        topic_id = self._topic_id(partition_of(shard)[0])
        return Fetched(shard, at, b"", at, str(topic_id) if topic_id else "", diverged=diverged)

    async def _cuts(self, marks: Mapping[ShardId, Mark]) -> dict[ShardId, Offset]:
        leaders, troubles = await self._by_leader(marks)
        epochs = {shard_of(*partition): self._epoch(partition) for partition in leaders}
        told, more = await self._ends_of_epochs(leaders, epochs, marks)
        self._settle(troubles + more, bool(told))
        return told

    async def _ends_of_epochs(
        self, leaders: _Leaders, epochs: Mapping[ShardId, int], marks: Mapping[ShardId, Mark]
    ) -> tuple[dict[ShardId, Offset], list[Any]]:
        """Where each log ended under epochs up to its mark's, as its leader says; -1 if that cannot be known.

        `epochs` are those under which they are led, as far as we know.

        Raises SourceRefusedError.
        """
        found = await lookup.ends_of_epochs(
            self._send,
            leaders,
            {partition_of(shard): epoch for shard, epoch in epochs.items()},
            {partition_of(shard): mark.epoch for shard, mark in marks.items()},
        )
        return {shard_of(*partition): offset for partition, offset in found.offsets.items()}, self._troubles_in(found)

    def _send(self, request: Any, node: int) -> Any:
        return self._manager.send(request, node_id=node)

    def _troubles_in(self, found: lookup.Answers) -> list[Any]:
        """What is wrong with what was not answered. Raises what is not over at the next try."""
        for error in found.failed.values():
            if not isinstance(error, _TRANSIENT):
                raise error
        for (topic, number), refusal in found.refused.items():
            if not issubclass(refusal, _TRANSIENT):
                raise SourceRefusedError(f"shard {shard_of(topic, number)}: Kafka refuses its end: {_refusal(refusal, topic)}")
        refused = (refusal(f"shard {shard_of(*partition)}") for partition, refusal in found.refused.items())
        return [*found.failed.values(), *refused]

    def _epoch(self, partition: Partition) -> int:
        """Under which epoch a partition is led, as far as the metadata says."""
        epoch = self._manager.cluster.leader_epoch_for_partition(TopicPartition(*partition))
        return UNKNOWN if epoch is None else int(epoch)

    async def _ends(self, shards: Iterable[ShardId]) -> Ends:
        leaders, troubles = await self._by_leader(shards)
        found, more = await self._list(leaders, LATEST)
        self._settle(troubles + more, bool(found))
        silent = frozenset(shards) - found.keys()
        if silent != self._silent:
            self._silent = silent
            if silent:
                log.warning("Kafka does not say where %s end, trying on: %s", ", ".join(sorted(silent)[:5]), troubles + more)
        return found

    async def _offsets(self, times: Mapping[ShardId, int]) -> dict[ShardId, Offset]:
        leaders, troubles = await self._by_leader(times)
        found, more = await self._list(leaders, {partition_of(shard): at for shard, at in times.items()})
        self._settle(troubles + more, bool(found))
        return found

    async def _list(self, leaders: _Leaders, at: int | Mapping[Partition, int]) -> tuple[Ends, list[Any]]:
        """The first offsets at a time (EARLIEST and LATEST too), and what is wrong with the missing ones.

        Raises SourceRefusedError.
        """
        found = await lookup.offsets(self._send, leaders, at, committed=self.committed)
        ends = Ends(
            {shard_of(*partition): offset for partition, offset in found.offsets.items()},
            {shard_of(*partition): epoch for partition, epoch in found.epochs.items()},
        )
        return ends, self._troubles_in(found)

    def _topic_id(self, name: str) -> uuid.UUID | None:
        """The topic's id; None from a broker that is too old to have one."""
        found: uuid.UUID | None = self._manager.cluster.topic_id(name)
        return found if found is not None and found.int else None

    def _settle(self, troubles: list[Any], answered: bool) -> None:
        """After a round: what went wrong is the caller's to know if nothing else came; the leaders are looked up."""
        if troubles:
            self._manager.cluster.request_update()
        if troubles and not answered:
            raise troubles[0]


def _leader(cluster: Any, partition: Partition) -> int | None:
    leader = cluster.leader_for_partition(TopicPartition(*partition))
    return None if leader is None or leader < 0 else int(leader)


def _refusal(error: Any, topic: str) -> str:
    remedy = f"; allow this client READ on topic {topic!r}" if error is kafka_errors.TopicAuthorizationFailedError else ""
    return f"{error.__name__}: {error.description}{remedy}"
