"""Kafka played over real connections: as many brokers as a test wants, one topic, leaders, epochs and racks as the test says.

A log is the same batch over and over with other offsets, so that it takes no memory however long it is. It answers as a broker
does where this source depends on it: bounds of an answer, fencing by leader epochs, ends of epochs, near replicas.
"""

from __future__ import annotations

import io
import socket
import struct
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, NamedTuple, Self

from kafka.protocol.api_header import RequestHeader
from kafka.protocol.consumer import (
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse, MetadataRequest, MetadataResponse

from tests.unit.source.kafka_bytes import Record, batch_of

TOPIC = "clicks"
TOPIC_ID = uuid.UUID(int=7)
NONE, OUT_OF_RANGE, UNKNOWN_TOPIC, NOT_LEADER, FENCED, UNKNOWN_EPOCH = 0, 1, 3, 6, 74, 75

_Meta = MetadataResponse
_MetaTopic = _Meta.MetadataResponseTopic
_FetchTopic = FetchResponse.FetchableTopicResponse
_EndsTopic = ListOffsetsResponse.ListOffsetsTopicResponse
_EpochTopic = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult


@dataclass(frozen=True)
class Log:
    """One partition. `reigns` are the leader epochs with the first offset of each; the last one is the present leader's.

    Brokers in `followers` have it up to `follower_end`, if that is given.
    """

    leader: int
    end: int
    reigns: tuple[tuple[int, int], ...] = ((0, 0),)
    followers: tuple[int, ...] = ()
    follower_end: int | None = None

    @property
    def epoch(self) -> int:
        return self.reigns[-1][0]

    def elected(self, leader: int, *, cut: int | None = None, end: int | None = None) -> Log:
        """The same with another leader, whose log ended at `cut` when it was elected, and ends at `end` now."""
        first = self.end if cut is None else cut
        return replace(
            self, leader=leader, reigns=(*self.reigns, (self.epoch + 1, first)), end=self.end if end is None else end
        )

    def end_of(self, epoch: int) -> tuple[int, int]:
        """The largest epoch up to this one, and where it ends; -1 for what nobody can know."""
        later = [first for other, first in self.reigns if other > epoch]
        up_to = [other for other, _ in self.reigns if other <= epoch]
        if epoch > self.epoch:
            return -1, -1
        return (up_to[-1] if up_to else epoch), (later[0] if later else self.end)


class Asked(NamedTuple):
    """A request that a broker was sent, decoded."""

    broker: int
    request: Any


@dataclass
class PlayedKafka:
    """`logs` by partition may be changed at any time. `racks` are the brokers. Use it in a `with`."""

    logs: dict[int, Log]
    racks: Mapping[int, str] = field(default_factory=lambda: {1: ""})
    records: int = 64
    record_bytes: int = 100
    topic_id: uuid.UUID = TOPIC_ID
    asked: list[Asked] = field(default_factory=list)
    record_limit: int | None = None
    """Most records of one partition in an answer."""
    broken: set[int] = field(default_factory=set)
    """Brokers that close every connection at its first Fetch."""
    deleted: bool = False
    """The topic is not there any more."""

    def __post_init__(self) -> None:
        self._batch = batch_of([Record(at, value=b"x" * self.record_bytes) for at in range(self.records)])
        self._listening = {node: socket.create_server(("127.0.0.1", 0)) for node in self.racks}
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        # One answer at a time, and made in one thread: what is in memory beside it is the source's.
        self._one = threading.Lock()
        self._making = ThreadPoolExecutor(1, "played-kafka")

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self._port(min(self.racks))}"

    def fetched_from(self) -> list[int]:
        """Which brokers were asked for records, in order."""
        return [each.broker for each in self.asked if isinstance(each.request, FetchRequest)]

    def __enter__(self) -> Self:
        for node, listening in self._listening.items():
            self._run(self._accept, node, listening)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for each in (*self._listening.values(), *self._open):
            # A thread that waits in it wakes up.
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # its other end was faster
            finally:
                each.close()
        for thread in self._threads:
            thread.join()
        self._making.shutdown()

    def _port(self, node: int) -> int:
        return int(self._listening[node].getsockname()[1])

    def _run(self, target: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, node: int, listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return  # closed
            self._open.append(connection)
            self._run(self._serve, node, connection)

    def _serve(self, node: int, connection: socket.socket) -> None:
        try:
            while size := connection.recv(4, socket.MSG_WAITALL):
                body = connection.recv(struct.unpack(">i", size)[0], socket.MSG_WAITALL)
                with self._one:
                    answer = self._making.submit(self._answer, node, body).result()
                    if answer is None:
                        connection.close()
                        return
                    connection.sendall(answer)
                    del answer
        except OSError:
            return  # the other end is gone

    def _answer(self, node: int, body: bytes) -> bytes | None:
        key, version, correlation = struct.unpack_from(">hhi", body)
        kind, respond, _ = self.answers()[key]
        stream = io.BytesIO(body)
        RequestHeader.decode(stream, flexible=kind.flexible_version_q(version))
        request = kind.decode(memoryview(body)[stream.tell() :], version=version)
        self.asked.append(Asked(node, request))
        if key == 1 and node in self.broken:
            return None
        response = respond(node, request)
        response.API_VERSION = version
        response.with_header(correlation_id=correlation)
        encoded: bytes = response.encode(framed=True, header=True)
        return encoded

    def answers(self) -> dict[int, tuple[Any, Callable[[int, Any], Any], tuple[int, int]]]:
        """By the number of each request that is answered: what it is, by whom, and its versions."""
        return {
            1: (FetchRequest, self._fetch, (4, 13)),
            2: (ListOffsetsRequest, self._end_offsets, (1, 7)),
            3: (MetadataRequest, self._metadata, (1, 12)),
            18: (ApiVersionsRequest, self._versions, (0, 3)),
            23: (OffsetForLeaderEpochRequest, self._epoch_ends, (2, 4)),
        }

    def _versions(self, _node: int, _request: Any) -> Any:
        keys = [
            ApiVersionsResponse.ApiVersion(api_key=key, min_version=least, max_version=most)
            for key, (_, _, (least, most)) in self.answers().items()
        ]
        return ApiVersionsResponse(error_code=0, api_keys=keys, throttle_time_ms=0)

    def _metadata(self, _node: int, _request: Any) -> Any:
        brokers = [
            _Meta.MetadataResponseBroker(node_id=node, host="127.0.0.1", port=self._port(node), rack=rack or None)
            for node, rack in self.racks.items()
        ]
        partitions = [
            _MetaTopic.MetadataResponsePartition(
                error_code=0,
                partition_index=number,
                leader_id=log.leader,
                leader_epoch=log.epoch,
                replica_nodes=[log.leader, *log.followers],
                isr_nodes=[log.leader, *log.followers],
                offline_replicas=[],
            )
            for number, log in self.logs.items()
        ]
        topic = _MetaTopic(error_code=0, name=TOPIC, topic_id=self.topic_id, is_internal=False, partitions=partitions)
        if self.deleted:
            topic = _MetaTopic(
                error_code=UNKNOWN_TOPIC, name=TOPIC, topic_id=uuid.UUID(int=0), is_internal=False, partitions=[]
            )
        return _Meta(throttle_time_ms=0, brokers=brokers, cluster_id="played", controller_id=1, topics=[topic])

    def _fetch(self, node: int, request: Any) -> Any:
        left = request.max_bytes
        found = []
        for topic in request.topics:
            for each in topic.partitions:
                part = self._read(node, each, request.rack_id, left, first=left == request.max_bytes)
                left -= len(part.records)
                found.append(part)
        if left == request.max_bytes:
            threading.Event().wait(0.005)  # a broker waits for longer
        topics = [_FetchTopic(topic=TOPIC, topic_id=self.topic_id, partitions=found)]
        return FetchResponse(throttle_time_ms=0, error_code=0, session_id=0, responses=topics)

    def _read(self, node: int, asked: Any, rack: str, left: int, *, first: bool) -> Any:
        log = self.logs[asked.partition]
        code = self._refused(node, log, asked.current_leader_epoch)
        end = log.end if node == log.leader or log.follower_end is None else log.follower_end
        if code == NONE and not 0 <= asked.fetch_offset <= end:
            code = OUT_OF_RANGE
        near = next((each for each in log.followers if rack and self.racks[each] == rack), -1)
        redirected = code == NONE and node == log.leader and near >= 0 and self.racks[node] != rack
        records = b""
        if code == NONE and not redirected:
            records = self._records(asked.fetch_offset, end, log, min(asked.partition_max_bytes, left), whole=first)
        return _FetchTopic.PartitionData(
            partition_index=asked.partition,
            error_code=code,
            high_watermark=-1 if code else end,
            last_stable_offset=-1 if code else end,
            log_start_offset=0,
            aborted_transactions=None,
            preferred_read_replica=near if redirected else -1,
            records=records,
        )

    def _refused(self, node: int, log: Log, epoch: int) -> int:
        if self.deleted:
            return UNKNOWN_TOPIC
        if node != log.leader and node not in log.followers:
            return NOT_LEADER
        if epoch >= 0 and epoch != log.epoch:
            return FENCED if epoch < log.epoch else UNKNOWN_EPOCH
        return NONE

    def _records(self, offset: int, end: int, log: Log, most: int, *, whole: bool) -> bytes:
        """Whole batches from the one with this offset on; what is cut off at the end a broker would send too."""
        first = offset // self.records * self.records
        fit = most // len(self._batch)
        if self.record_limit is not None:
            fit = min(fit, self.record_limit // self.records)
        last = min(end // self.records, first // self.records + max(fit, int(whole)))
        out = bytearray()
        for base in range(first, last * self.records, self.records):
            epoch = max(epoch for epoch, begins in log.reigns if begins <= base)
            # Of a batch's header its base and its leader's epoch are not in the checksum.
            out += struct.pack(">q", base) + self._batch[8:12] + struct.pack(">i", epoch) + self._batch[16:]
        return bytes(out)

    def _end_offsets(self, node: int, request: Any) -> Any:
        def answer(asked: Any) -> Any:
            log = self.logs[asked.partition_index]
            return _EndsTopic.ListOffsetsPartitionResponse(
                partition_index=asked.partition_index,
                error_code=NONE if node == log.leader else NOT_LEADER,
                timestamp=-1,
                offset=log.end if asked.timestamp == -1 else 0,
                leader_epoch=log.epoch,
            )

        topics = [_EndsTopic(name=TOPIC, partitions=[answer(each) for each in topic.partitions]) for topic in request.topics]
        return ListOffsetsResponse(throttle_time_ms=0, topics=topics)

    def _epoch_ends(self, node: int, request: Any) -> Any:
        def answer(asked: Any) -> Any:
            log = self.logs[asked.partition]
            code = NOT_LEADER if node != log.leader else self._refused(node, log, asked.current_leader_epoch)
            epoch, end = log.end_of(asked.leader_epoch)
            return _EpochTopic.EpochEndOffset(error_code=code, partition=asked.partition, leader_epoch=epoch, end_offset=end)

        topics = [_EpochTopic(topic=TOPIC, partitions=[answer(each) for each in topic.partitions]) for topic in request.topics]
        return OffsetForLeaderEpochResponse(throttle_time_ms=0, topics=topics)


def spread(brokers: int, partitions: int, end: int) -> dict[int, Log]:
    """So many partitions, led by the brokers 1, 2, ... in turn."""
    return {number: Log(1 + number % brokers, end) for number in range(partitions)}


def offsets_of(asked: Sequence[Asked]) -> list[dict[int, int]]:
    """Which partitions each Fetch asked for, and from which offset on."""
    return [
        {each.partition: each.fetch_offset for topic in request.topics for each in topic.partitions}
        for _, request in asked
        if isinstance(request, FetchRequest)
    ]
