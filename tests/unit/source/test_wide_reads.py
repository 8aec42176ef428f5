"""Large answers are read widely and copied once, and mean what kafka-python takes them for."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import kafka.errors as errors
import pytest
from kafka.protocol.consumer import FetchRequest, FetchResponse
from kafka.protocol.frame import KafkaBytes

from shardherd.source.kafka import wide_reads
from shardherd.source.kafka.wide_reads import RawFetch

_Topic = FetchRequest.FetchTopic
_Answer = FetchResponse.FetchableTopicResponse
_Shard = _Answer.PartitionData


def request(of: Any) -> Any:
    shard = _Topic.FetchPartition(
        partition=3, current_leader_epoch=-1, fetch_offset=5, last_fetched_epoch=-1, partition_max_bytes=1000
    )
    made = of(
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=1,
        session_id=0,
        session_epoch=-1,
        topics=[_Topic(topic="clicks", partitions=[shard])],
        forgotten_topics_data=[],
        rack_id="",
        min_version=4,
        max_version=12,
    )
    made.API_VERSION = 12
    made.with_header(correlation_id=7, client_id="shardherd")
    return made


def test_the_request_on_the_wire_is_kafka_pythons() -> None:
    assert request(RawFetch).encode(framed=True, header=True) == request(FetchRequest).encode(framed=True, header=True)


def test_the_answer_is_what_kafka_python_takes_it_for() -> None:
    aborted = _Shard.AbortedTransaction(producer_id=4, first_offset=2)
    shard = _Shard(
        partition_index=3,
        error_code=0,
        high_watermark=9,
        last_stable_offset=8,
        log_start_offset=0,
        aborted_transactions=[aborted],
        preferred_read_replica=-1,
        records=b"a few batches",
    )
    sent = FetchResponse(
        throttle_time_ms=0, error_code=0, session_id=0, responses=[_Answer(topic="clicks", partitions=[shard])], version=12
    )
    sent.with_header(correlation_id=7)
    raw = sent.encode(header=True)

    def received() -> KafkaBytes:
        data = KafkaBytes(len(raw))
        data.write(raw)
        data.seek(0)
        return data

    def read(asked: Any) -> tuple[Any, Any]:
        data, kind = received(), asked.header.get_response_class()
        return kind.parse_header(data), kind.decode(data)

    ours, theirs = read(request(RawFetch)), read(request(FetchRequest))

    assert repr(ours) == repr(theirs)
    assert ours[1].responses[0].partitions[0].records == b"a few batches"


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, Any]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    yield theirs, ours
    ours.close()
    theirs.close()


def received(sock: Any) -> tuple[bytes, Exception | None]:
    data, error = wide_reads.receive(sock)
    return bytes(data), error


def test_what_has_arrived_is_read_at_once(pair: tuple[socket.socket, Any]) -> None:
    peer, sock = pair
    peer.sendall(b"x" * 100_000)

    assert received(sock) == (b"x" * 100_000, None)
    assert received(sock) == (b"", None)


def test_one_read_ends_even_if_more_keeps_arriving(pair: tuple[socket.socket, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wide_reads, "READ_BYTES", 1000)
    peer, sock = pair
    peer.sendall(b"x" * 5000)

    assert [len(wide_reads.receive(sock)[0]) for _ in range(6)] == [1000, 1000, 1000, 1000, 1000, 0]


def test_a_closed_connection_is_an_error_after_its_last_bytes(pair: tuple[socket.socket, Any]) -> None:
    peer, sock = pair
    peer.sendall(b"last")
    peer.close()

    data, error = received(sock)

    assert (data, type(error)) == (b"last", errors.KafkaConnectionError)
