"""A request is on the wire when it is sent, and what a socket does not take follows in order."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import kafka.errors as errors
import pytest
from kafka.net.transport import KafkaTCPTransport

from shardherd.source.kafka.network_loop import network_loop
from shardherd.source.kafka_python.private import written_at_once


class Protocol:
    """Hears of the end of its connection, as kafka-python's does."""

    _sensors = None

    def __init__(self) -> None:
        self.lost: list[BaseException | None] = []

    def connection_lost(self, error: BaseException | None) -> None:
        self.lost.append(error)


class Line:
    """A transport of kafka-python, whose loop turns only when it is told to, and the other end of its connection."""

    def __init__(self) -> None:
        self.net = network_loop("test")
        ours, self.peer = socket.socketpair()
        ours.setblocking(False)
        self.peer.setblocking(False)
        self.transport = KafkaTCPTransport(self.net, ours)
        self.protocol = Protocol()
        self.transport.set_protocol(self.protocol)
        self.transport.write = written_at_once(self.transport)

    def arrived(self, turns: int = 0) -> bytes:
        """What the other end has after so many turns of the loop, each of which may make room for more."""
        found = self._taken()
        for _ in range(turns):
            self.net.poll(timeout_ms=0)
            found += self._taken()
        return found

    def _taken(self) -> bytes:
        found = bytearray()
        try:
            while data := self.peer.recv(1 << 20):
                found += data
        except BlockingIOError:
            pass
        return bytes(found)


@pytest.fixture
def line() -> Iterator[Line]:
    made = Line()
    yield made
    made.transport.abort()
    made.peer.close()
    made.net.close()


def test_a_request_is_on_the_wire_before_the_loop_turns(line: Line) -> None:
    line.transport.write(b"one")
    line.transport.write(b"two")

    assert line.arrived() == b"onetwo"


def test_what_the_socket_does_not_take_follows_and_what_is_written_then_comes_after_it(line: Line) -> None:
    large, next_ = b"x" * (8 << 20), b"next"
    line.transport.write(large)
    line.transport.write(next_)

    assert line.arrived(turns=200) == large + next_


def test_a_connection_that_is_gone_is_lost_by_kafka_pythons_own_way(line: Line) -> None:
    line.peer.close()
    line.transport.write(b"one")
    for _ in range(3):
        line.net.poll(timeout_ms=0)

    assert [type(each) for each in line.protocol.lost] == [errors.KafkaConnectionError]


def test_a_transport_that_was_closed_takes_nothing(line: Line) -> None:
    line.transport.abort()

    with pytest.raises(RuntimeError, match="closed"):
        line.transport.write(b"one")
    assert line.arrived() == b""
