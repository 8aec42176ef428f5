"""What of kafka-python's inside is relied upon, and why. Nothing else of the product touches a name of it with an underscore.

`kafka.connection_manager`, `kafka.wide_reads` and `security.kerberos` build on it. VERSION is what it was written for; a test
fails with another version of the library, and where one of RELIED_UPON is not there or takes other arguments. Decides nothing.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import kafka.errors as errors
from kafka.future import Future
from kafka.net.inet import KafkaNetSocket
from kafka.net.manager import KafkaConnectionManager
from kafka.net.sasl.gssapi import SaslMechanismGSSAPI
from kafka.net.selector import NetworkSelector

VERSION = "3.0.12"


@dataclass(frozen=True, slots=True)
class Private:
    """A name with an underscore, of a class by its full name; why it is used. `takes` are a method's arguments."""

    owner: str
    name: str
    why: str
    takes: str = ""


_MANAGER = "kafka.net.manager.KafkaConnectionManager"
_TRANSPORT = "kafka.net.transport.KafkaTCPTransport"
_GSSAPI = "kafka.net.sasl.gssapi.SaslMechanismGSSAPI"
_NO_CONTEXT = "it takes no security context, and its constructor would look for a ticket by itself"

DIRECT = "direct://"
"""No proxy, by kafka-python's registry of ways to connect."""

RELIED_UPON = (
    Private(_MANAGER, "_conns", "nobody says whether a connection will be made anew: then the credentials are read again"),
    Private(
        _MANAGER,
        "_build_transport",
        "credentials that expire must be there before a connection is made, and a TLS handshake has no deadline of its own",
        "(self, node, timeout_at=None)",
    ),
    Private(
        _TRANSPORT,
        "_sock_recv",
        "it reads 4 KiB at a time, and drops what comes together with the end of a connection: why a broker refuses us",
        "(self)",
    ),
    Private(_TRANSPORT, "_sock", "what `_sock_recv` reads from, and what is written to at once"),
    Private(_TRANSPORT, "_writing", "what is still to be written goes before what is written at once"),
    Private(
        "kafka.protocol.parser.KafkaProtocol",
        "_max_frame_size",
        "one limit is for a connection's whole life: what TLS says to plain text reads like an answer of 352 MB",
    ),
    Private("kafka.net.selector.NetworkSelector", "_exception", "nobody says that the loop has crashed until it is used again"),
    Private(_GSSAPI, "_is_done", _NO_CONTEXT),
    Private(_GSSAPI, "_is_authenticated", _NO_CONTEXT),
    Private(_GSSAPI, "_client_ctx", _NO_CONTEXT),
    Private(_GSSAPI, "_next_token", _NO_CONTEXT),
)

Received = tuple[Any, Exception | None]
"""What a socket has now, and what is wrong with it. The bytes need to be there only until the next read."""


class HookedManager(KafkaConnectionManager):  # type: ignore[misc]  # kafka-python has no types
    """kafka-python's connection manager, with what a subclass of it has no public way to."""

    def __init__(self, net: NetworkSelector, **configuration: Any) -> None:
        super().__init__(net, **configuration)
        self.net = net

    def connection_to(self, node_id: Any) -> Any | None:
        """The connection that there is or that is being made; without one the next that is asked for is made anew."""
        return self._conns.get(node_id)

    def receive(self, sock: Any, own: Callable[[], Received]) -> Received:  # noqa: ARG002
        """Read a socket; by `own` as kafka-python does it."""
        return own()

    async def before_connecting(self, host: str, timeout_at: float | None) -> None:
        """Called before a connection is made; what it raises is why there is none."""

    async def _build_transport(self, node: Any, timeout_at: float | None = None) -> Any:
        """As kafka-python does it, but a peer that accepts and says nothing during the TLS handshake does not hang us."""
        await self.before_connecting(node.host, timeout_at)
        own, built = super()._build_transport, Future()

        async def build() -> None:
            try:
                built.success(await own(node, timeout_at))
            except Exception as error:  # noqa: BLE001 - whoever waits for it raises it
                built.failure(error)

        building = self.net.call_soon(build)
        try:
            transport = await self.wait_for(built, milliseconds_until(timeout_at))
        except errors.KafkaTimeoutError as error:
            # Else it would wait for the handshake for ever, and keep its socket open.
            self.net.cancel(building)
            raise errors.KafkaConnectionError("no connection was made in time") from error
        transport._sock_recv = _data_before_close(transport, self.receive)
        transport.write = written_at_once(transport)
        return transport


class ClosingSockets(KafkaNetSocket):  # type: ignore[misc]
    """Sockets that are closed when no connection comes of them. A client has them whose `proxy_url` is DIRECT.

    kafka-python leaves one that is refused, or that times out, to the garbage collector, which may take minutes to come by:
    while a broker is away, each attempt keeps a file open.
    """

    SCHEMES = ("direct",)

    async def sock_connect(self, net: Any, sock: Any, sockaddr: Any, timeout_at: float | None = None) -> Any:
        """The socket, connected. Raises what kafka-python raises, and OSError."""
        try:
            return await super().sock_connect(net, sock, sockaddr, timeout_at=timeout_at)
        except BaseException:
            sock.close()
            raise


def milliseconds_until(timeout_at: float | None) -> float | None:
    """What is left of a deadline of kafka-python's, which counts by this clock; None: no deadline."""
    return None if timeout_at is None else max(0.0, timeout_at - time.monotonic()) * 1000


def _data_before_close(transport: Any, receive: Callable[[Any, Callable[[], Received]], Received]) -> Callable[[], Received]:
    """A broker says why it refuses us and closes at once; kafka-python drops what comes together with the end of a connection.

    What was received is handed on first, and the end is met again by the next read.
    """
    own = transport._sock_recv

    def read() -> Received:
        data, error = receive(transport._sock, own)
        return (data, None) if data else (data, error)

    return read


def written_at_once(transport: Any) -> Callable[[Any], None]:
    """kafka-python waits until a socket can be written to before it writes, in two more turns of its loop for each request.

    It can be, mostly. What a socket does not take now, and what is wrong with it, is kafka-python's to see to.
    """
    own = transport.write

    def write(data: Any) -> None:
        if not data or transport._writing or transport.is_closing():
            own(data)
            return
        left = memoryview(data)
        with contextlib.suppress(OSError):
            left = left[transport._sock.send(left) :]
            transport.last_write = time.monotonic()
        if left:
            own(left)

    return write


def allow_answers(connection: Any, size: int) -> None:
    """Take answers of so many bytes from now on, on a connection that is made."""
    connection.parser._max_frame_size = size


def crash_of(net: NetworkSelector) -> BaseException | None:
    """What ended kafka-python's loop, if it was an error: nothing runs on it any more."""
    found: BaseException | None = net._exception
    return found


class BegunGssapi(SaslMechanismGSSAPI):  # type: ignore[misc]
    """kafka-python's mechanism on a security context that was made elsewhere. Its own constructor is passed by."""

    def __init__(self, name: Any, auth_id: str, context: Any) -> None:
        self._is_done = self._is_authenticated = False
        self.gssapi_name, self.auth_id = name, auth_id
        self._client_ctx = context
        self._next_token = context.step(None)
