"""One client of one Kafka cluster, shared by all groups with the same bootstrap servers and credentials.

kafka-python runs an event loop of its own in a thread; this is the bridge between it and asyncio. The rest of this package
hands it coroutines that run over there. It keeps every wait bounded and must never block the caller's event loop.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from kafka.cluster import collect_hosts
from kafka.errors import (
    BrokerResponseError,
    GroupAuthorizationFailedError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    SaslAuthenticationFailedError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailedError,
    UnsupportedSaslMechanismError,
)

from shardherd.adapters.kafka.access import Access
from shardherd.ports import SourceUnavailableError
from shardherd.source.kafka import coordinators
from shardherd.source.kafka.connection_manager import PLAINTEXT, ClientManager, Failure, error_text
from shardherd.source.kafka.network_loop import network_loop
from shardherd.source.kafka_python.private import crash_of
from shardherd.source.security.credential_errors import CredentialsError

log = logging.getLogger(__name__)

T = TypeVar("T")

CONNECT_TIMEOUT = 3.0
"""Seconds until a cluster that does not answer counts as unreachable: the condition should show while the user looks."""

REQUEST_TIMEOUT = 5.0
"""Seconds that one request may take; a busy broker on a small machine needs a few."""

HANG_MARGIN = 6.0
"""Seconds past its own deadline, longer than its last request may take, after which a piece of work is given up as hanging."""

MAX_IN_FLIGHT = 1000
"""Requests in flight on one broker connection; past it kafka-python refuses to send. The broker answers them in order."""

MOST_ANSWER = 100_000_000
"""Bytes of an answer; a larger one closes the connection."""

_TLS_TROUBLE = re.compile(r"Handshake failed|\[SSL|is it for TLS")

_NOT_AUTHENTICATED = (SaslAuthenticationFailedError, UnsupportedSaslMechanismError)

_REMEDIES = {
    TopicAuthorizationFailedError: "allow the operator's user READ on the group's topics",
    GroupAuthorizationFailedError: "allow the operator's user READ on this group",
    TransactionalIdAuthorizationFailedError: "allow the operator's user WRITE on this transactional id",
}


class Wire(coordinators.Wire):
    """What work on kafka-python's loop may use: its connection manager, and the time by which the work must end."""

    async def send(self, request: Any, node: int | str | None = None) -> Any:
        """The response to a request, from that broker or any. Raises a KafkaError, surely unsent when the time is over."""
        if self.expired():
            raise KafkaTimeoutError(f"no time left to send {type(request).__name__}")
        # A request that times out closes the connection under all groups, so none is given less than its full time.
        return await super().send(request, node)

    @property
    def version(self) -> str:
        """The version of Kafka that the first broker which answered is, as far as its requests and their versions tell."""
        return str(self._manager.broker_version_data.broker_version_str)

    def refused_by(self, node: int) -> bool:
        """Whether this broker is there, but one of the two sides did not accept the other when it was connected to last."""
        return any(failure.broker == node and _is_refusal(failure) for failure in self._manager.failures())


class KafkaConnection:
    """A lazily connected client of the cluster at `servers` (comma-separated host:port), with the credentials of `access`."""

    def __init__(self, servers: str, access: Access | None = None) -> None:
        self.servers = servers
        self._access = access
        self._net: Any = None
        self._manager: Any = None
        self._coordinators: dict[tuple[int, str], int] = {}
        self._failed = False
        self._waiting: set[asyncio.Future[Any]] = set()
        self._opening = asyncio.Lock()
        self._closed = False

    async def run(self, what: str, work: Callable[[Wire], Awaitable[T]], timeout: float) -> T:
        """The result of `work`, run on kafka-python's loop with a deadline `timeout` seconds from now.

        `what` completes the sentence "Kafka at <servers>: cannot <what>". A KafkaError of the work, or a cluster that cannot be
        reached, raises SourceUnavailableError; its other exceptions come through.
        """
        manager = await self._open()
        try:
            wire = Wire(manager, self._coordinators, timeout)
            result: T = await self._call(lambda: work(wire), timeout + HANG_MARGIN)
            return result
        except (KafkaError, TimeoutError) as error:
            answered = isinstance(error, BrokerResponseError) and not isinstance(error, _NOT_AUTHENTICATED)
            self._failed = not answered
            why = "" if answered else _why(manager.failures())
            remedy = next((f"; {text}" for kind, text in _REMEDIES.items() if isinstance(error, kind)), "")
            raise SourceUnavailableError(f"Kafka at {self.servers}: cannot {what}: {error_text(error)}{why}{remedy}") from error

    async def _open(self) -> Any:
        async with self._opening:
            if self._closed:
                raise SourceUnavailableError(f"Kafka at {self.servers}: the connection was closed")
            if self._net is not None and (crash := crash_of(self._net)) is not None:
                log.error("kafka-python's loop for %s has crashed (%r); starting another", self.servers, crash)
                self._net.close()
                self._net, self._manager = None, None
            if self._access is not None:
                await self._access.ready(failing=self._failed)
            if self._manager is None:
                # The constructors look names up, which blocks.
                self._net, self._manager = await asyncio.to_thread(_client, self.servers, self._access)
            if self._failed or not self._manager.bootstrapped:
                await self._bootstrap()
        return self._manager

    async def _bootstrap(self) -> None:
        manager = self._manager
        try:
            await self._call(lambda: manager.bootstrap_async(int(CONNECT_TIMEOUT * 1000)), CONNECT_TIMEOUT + HANG_MARGIN)
        except (KafkaError, TimeoutError) as error:
            self._failed = True
            failures = manager.failures()
            if any(_is_refusal(failure) for failure in failures):
                raise SourceUnavailableError(
                    f"Kafka at {self.servers} and the operator do not accept each other{_why(failures)}; check"
                    " spec.source.kafka.security and the Secrets that it names"
                ) from error
            unknown = await asyncio.to_thread(_unresolved, self.servers)
            cause = f" (the name {unknown!r} does not resolve)" if unknown else _why(failures)
            if not isinstance(error, KafkaTimeoutError | TimeoutError):
                cause = f" ({error_text(error)})"
            raise SourceUnavailableError(
                f"no Kafka broker answers at {self.servers} within {CONNECT_TIMEOUT:g} s{cause}; check"
                " spec.source.kafka.bootstrapServers, and that the brokers run and can be reached from the operator's pod"
            ) from error
        self._failed = False

    async def _call(self, work: Callable[[], Any], timeout: float) -> Any:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()
        self._waiting.add(done)
        done.add_done_callback(self._waiting.discard)

        def settle(value: object, error: BaseException | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(value)
            else:
                done.set_exception(error)

        def deliver(value: object, error: BaseException | None) -> None:
            try:
                loop.call_soon_threadsafe(settle, value, error)
            except RuntimeError:
                log.debug("an answer of Kafka at %s came after the event loop had closed", self.servers)

        async def started() -> Any:
            return await work()

        future = self._net.call_soon_with_future(started)
        future.add_callback(lambda value: deliver(value, None))
        future.add_errback(lambda error: deliver(None, error))
        async with asyncio.timeout(timeout):
            return await done

    async def close(self) -> None:
        """Drop the connection now; work that is under way fails."""
        self._closed = True
        for done in list(self._waiting):
            done.set_exception(KafkaConnectionError("the connection was closed"))
        async with self._opening:
            net, manager, self._net, self._manager = self._net, self._manager, None, None
        if self._access is not None:
            await self._access.close()
        if net is not None:
            await asyncio.to_thread(_shut, net, manager)


def _client(servers: str, access: Access | None) -> tuple[Any, Any]:
    # Every failure is reported by us, with the address, once; kafka-python would log each attempt as an error.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    net = network_loop("shardherd")
    manager = ClientManager(
        net,
        PLAINTEXT if access is None else access.settings,
        bootstrap_servers=servers.split(","),
        client_id="shardherd",
        request_timeout_ms=int(REQUEST_TIMEOUT * 1000),
        reconnect_backoff_ms=50,
        reconnect_backoff_max_ms=1000,
        socket_connection_setup_timeout_ms=int(CONNECT_TIMEOUT * 1000),
        socket_connection_setup_timeout_max_ms=int(CONNECT_TIMEOUT * 1000),
        max_in_flight_requests_per_connection=MAX_IN_FLIGHT,
        receive_message_max_bytes=MOST_ANSWER,
    )
    net.start()
    return net, manager


def _shut(net: Any, manager: Any) -> None:
    if crash_of(net) is None:
        manager.call_soon(manager.close)
    # A name that resolves slowly can hold the thread; it is a daemon and may end later.
    net.stop(timeout_ms=1000)
    net.close()


def _unresolved(servers: str) -> str:
    """The first host of the list that has no address, or an empty string."""
    for host, port, _ in collect_hosts(servers, randomize=False):
        try:
            socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError:
            return str(host)
    return ""


def _is_refusal(failure: Failure) -> bool:
    """Whether somebody answered at that address, but one of the two sides did not accept the other."""
    return isinstance(failure.error, (*_NOT_AUTHENTICATED, CredentialsError)) or bool(_TLS_TROUBLE.search(str(failure.error)))


def _why(failures: tuple[Failure, ...]) -> str:
    """The addresses that could not be used, each with its cause."""
    return f" ({'; '.join(sorted(map(str, failures)))})" if failures else ""
