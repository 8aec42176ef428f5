"""The coordinator as the composition root sees it: start, lead, wait until it may not go on, stop."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from aiohttp import web

from shardherd.coordinator.api import MAX_BODY, make_api
from shardherd.coordinator.auth import Authenticator
from shardherd.coordinator.coordination import ThreadSafeCoordination
from shardherd.coordinator.limits import ServerLog
from shardherd.coordinator.ports import CoordinatorPorts, Exists
from shardherd.coordinator.runtime import Runtime
from shardherd.core.model.errors import ShardherdError
from shardherd.core.model.nouns import GroupIdentity
from shardherd.ports import Coordination

__all__ = ["CoordinatorPorts", "CoordinatorServer", "Tls"]

log = logging.getLogger(__name__)

STOP_TIMEOUT = 5.0
"""Seconds that requests under way are given when the server stops."""

HEAD_WITHIN = 75.0
"""Seconds within which the head of the next request has to arrive whole, or the connection is closed."""

LINGER = 1.0
"""Seconds for which the rest of a refused body is taken, so that its sender reads why, until the connection is closed."""


@dataclass(frozen=True, slots=True)
class Tls:
    """How to serve over TLS: with what, on which port, whether it has a certificate by now, and if plain HTTP is served too.

    The context may change its certificate while it is listened with.
    """

    context: ssl.SSLContext
    port: int
    certified: Callable[[], bool]
    accept_plain: bool


class CoordinatorServer:
    """One coordinator process: its HTTP server and its groups.

    `await start()` serves at once (not ready, refusing as not leading), `await lead()` waits for leadership and then answers,
    `await lost()` returns the reason why this process may not go on, `await resign()` lets another lead at once, `await stop()`
    ends everything.
    All on one event loop; `coordination` may be called from any thread once started.
    """

    def __init__(
        self,
        ports: CoordinatorPorts,
        *,
        host: str = "0.0.0.0",
        port: int = 8080,
        discovery_interval: float = 1.0,
        unknown_group_grace: float = 15.0,
        max_body: int = MAX_BODY,
        max_groups_per_source: int = 0,
        requests_per_second: float = 0.0,
        tls: Tls | None = None,
        refusal: Callable[[str, str], ShardherdError | None] = lambda *_: None,
        exists: Exists | None = None,
    ) -> None:
        self._ports = ports
        self._tls = tls
        self._host = host
        self._port = port
        self._max_body = max_body
        self._requests_per_second = requests_per_second
        self._runtime = Runtime(
            ports,
            discovery_interval=discovery_interval,
            unknown_group_grace=unknown_group_grace,
            max_groups_per_source=max_groups_per_source,
            refusal=refusal,
            exists=exists,
        )
        self._runner: web.ServerRunner | None = None
        self._coordination: ThreadSafeCoordination | None = None
        self._watching: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The port that is really listened on (of interest when 0 was asked for)."""
        if self._runner is None:
            raise RuntimeError("the coordinator is not started")
        return int(self._runner.addresses[0][1])

    @property
    def tls_port(self) -> int:
        """The port that TLS is really listened on (of interest when 0 was asked for)."""
        if self._runner is None or self._tls is None:
            raise RuntimeError("the coordinator is not started, or does not serve over TLS")
        return int(self._runner.addresses[1][1])

    @property
    def coordination(self) -> Coordination:
        """What the controller calls, from any thread."""
        if self._coordination is None:
            raise RuntimeError("the coordinator is not started")
        return self._coordination

    def kafka_groups(self) -> Mapping[GroupIdentity, str]:
        """The groups' names in Kafka. From any thread."""
        return self._runtime.kafka_groups()

    async def start(self) -> None:
        """Listen. Raises OSError if the port is taken."""
        loop = asyncio.get_running_loop()
        self._coordination = ThreadSafeCoordination(self._runtime, loop)
        authenticator = Authenticator(self._ports.tokens, self._ports.clock, self._ports.metrics)
        tls = self._tls
        answer = make_api(
            self._runtime,
            authenticator,
            self._max_body,
            requests_per_second=self._requests_per_second,
            accept_plain=tls is None or tls.accept_plain,
            certified=tls.certified if tls is not None else lambda: True,
        )
        server = web.Server(
            self._ports.observer.answering(answer),
            request_factory=lambda message, body, protocol, writer, task: web.BaseRequest(
                message, body, protocol, writer, task, loop, client_max_size=self._max_body
            ),
            handler_cancellation=True,
            access_log=None,
            # What is to be unpacked is refused, by the API: a few bytes of it could become any number.
            auto_decompress=False,
            logger=ServerLog(log, self._ports.clock),
            keepalive_timeout=HEAD_WITHIN,
            lingering_time=LINGER,
        )
        self._runner = web.ServerRunner(server, shutdown_timeout=STOP_TIMEOUT)
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, self._port).start()
        log.info("the coordinator listens on %s:%s", self._host, self.port)
        if tls is not None:
            await web.TCPSite(self._runner, self._host, tls.port, ssl_context=tls.context).start()
            log.info("the coordinator listens on %s:%s with TLS", self._host, self.tls_port)

    async def lead(self) -> None:
        """Wait for leadership, then take the groups over as they are applied."""
        await self._ports.leadership.acquire()
        self._runtime.lead()
        self._watching = asyncio.create_task(self._watch_leadership(), name="leadership")

    async def lost(self) -> str:
        """Wait until this process may not answer any more; the reason, for the log. The caller ends the process, non-zero."""
        return await self._runtime.lost()

    async def resign(self) -> None:
        """Answer nothing more, give the lease back, and close the groups meanwhile.

        What is on its way need not be waited for: the next leader's first writes fence it.
        """
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        self._runtime.resign()
        await asyncio.gather(self._ports.leadership.release(), self._runtime.stop())

    async def stop(self) -> None:
        """Resign, if that has not been done, and close the server."""
        await self.resign()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _watch_leadership(self) -> None:
        await self._ports.leadership.lost()
        self._runtime.step_down("the lease could not be renewed in time, or another process holds it")
