"""Runs the coordinator and the controller over this machine's adapters, without Kubernetes and without Kopf.

`commands` calls `operate`. One process, one event loop: where Kopf's handlers would tell the controller what changed, a feed of
the state folder's database does. On SIGTERM it ends its consumers; when it is killed they go on, and the next one
finds them. Holds no rule.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sqlite3
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, TypeVar

from shardherd.adapters.assignors import load_assignors
from shardherd.adapters.connector import Sources
from shardherd.adapters.kafka.connector import KafkaConnector
from shardherd.adapters.kinesis.connector import KinesisConnector
from shardherd.adapters.local.events import LocalSecrets, SqliteEvents
from shardherd.adapters.local.identity import FileLeadership, SignedTokens, secret_of
from shardherd.adapters.local.machine import Machine, free_port
from shardherd.adapters.local.node import Node
from shardherd.adapters.local.objects import GROUP, GROUP_LABEL, POD, Feed, Json, LocalCluster, Objects
from shardherd.adapters.local.ownership import SqliteOwnership
from shardherd.adapters.local.positions import SqlitePositions
from shardherd.clock import SystemClock
from shardherd.controller.manifests import Manifests
from shardherd.controller.reconcile import Controller
from shardherd.coordinator import CoordinatorPorts, CoordinatorServer
from shardherd.coordinator.metrics import OperatorCounters
from shardherd.local.state import State
from shardherd.page.history import History, Recorder
from shardherd.page.serving import LOOPBACK, PageServer, Views
from shardherd.ports import Coordination
from shardherd.telemetry.collector import GroupCollector, MetricsServer
from shardherd.telemetry.operator_metrics import OperatorMetrics

S = TypeVar("S", MetricsServer, PageServer)

logger = logging.getLogger(__name__)

HOST = "127.0.0.1"
AUDIENCE = "shardherd"
DISCOVERY, RESYNC = 1.0, 30.0
SERIES = 10_000

LOOK = 0.2
"""Seconds between looks whether another process, such as the command line, has changed something."""

API, METRICS, PAGE = "api-port", "metrics-port", "page-port"
"""The ports, as the database names them. Consumers that run know the first one, so the next operator must have it again."""


class CannotRunError(Exception):
    """The local operator cannot run. The message names why, and the remedy."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line asks for. A port of 0 is one that is free, which is then kept. `ready` is called once it leads."""

    port: int = 0
    metrics_port: int = 0
    page_port: int = 0
    down: bool = False
    ready: Callable[[str, str, str], None] = lambda _api, _metrics, _page: None


async def operate(state: State, objects: Objects, machine: Machine, leadership: FileLeadership, asked: Asked) -> bool:
    """Run until a stop is requested and all consumers have ended: True. False if this process lost the leadership.

    `leadership` is held already. Raises CannotRunError.
    """
    async with AsyncExitStack() as stack:
        return await _Local(state, objects, machine, leadership, asked).run(stack)


class _Local:
    def __init__(self, state: State, objects: Objects, machine: Machine, leadership: FileLeadership, asked: Asked) -> None:
        self._asked = asked
        self._objects = objects
        self._database = objects.database
        self._leadership = leadership
        self._clock = SystemClock()
        self._history = History(self._clock.wall)
        self._tokens = SignedTokens(secret_of(state.folder), objects)
        self._feed = Feed(objects)
        self._ownership, self._positions = SqliteOwnership(self._database), SqlitePositions(self._database)
        self._node = Node(objects, machine, self._tokens.of_pod, self._look, self._forget)
        self._controller: Controller | None = None
        self._emptied = asyncio.Event()
        self._stop_requested = asyncio.Event()
        self._hurried = False

    def _forget(self, uid: str) -> None:
        """The group with this UID was deleted."""
        self._ownership.forget(uid)
        self._positions.forget(uid)

    async def run(self, stack: AsyncExitStack) -> bool:
        """Everything is closed in the reverse order of its making."""
        from prometheus_client import CollectorRegistry

        registry = CollectorRegistry()
        metrics = OperatorMetrics(registry)
        metrics.built(version("shardherd"))
        events = SqliteEvents(self._database, self._clock)
        stack.push_async_callback(events.flush)
        secrets = LocalSecrets(self._objects)
        kinesis = KinesisConnector(secrets, self._positions, own_identity=True, any_endpoint=True)
        connector = Sources(KafkaConnector(secrets, own_identity=True), kinesis)
        stack.push_async_callback(connector.close)
        ports = CoordinatorPorts(
            clock=self._clock,
            leadership=self._leadership,
            ownership=self._ownership,
            connector=connector,
            tokens=self._tokens,
            events=events,
            metrics=OperatorCounters(metrics, self._history.rebalanced),
            assignors=load_assignors(),
        )
        server = await self._listen(ports)
        stack.push_async_callback(server.stop)
        exporter = self._export(registry)
        stack.callback(exporter.close)
        self._heed_signals()
        await server.lead()
        metrics.leader.set(1)
        registry.register(GroupCollector(server.coordination.views, SERIES))
        page = self._show(server.coordination)
        stack.callback(page.close)
        stack.callback(Recorder(self._history, server.coordination.views).close)
        self._controller = Controller(
            LocalCluster(self._objects, self._look, self._node.logs),
            server.coordination,
            events,
            self._clock,
            metrics,
            Manifests(f"http://{HOST}:{server.port}", AUDIENCE),
            resync_interval=RESYNC,
        )
        self._look()
        working: list[asyncio.Task[Any]] = [
            asyncio.create_task(self._controller.run(), name="controller"),
            asyncio.create_task(self._node.run(), name="node"),
            asyncio.create_task(self._look_at_others(), name="feed"),
        ]
        stack.push_async_callback(_ended, working)
        self._asked.ready(
            f"http://{HOST}:{server.port}", f"http://{HOST}:{exporter.port}/metrics", f"http://{HOST}:{page.port}/"
        )
        lost = asyncio.create_task(server.lost(), name="lost")
        down = asyncio.create_task(self._down(), name="down")
        working += [lost, down]
        done, _ = await asyncio.wait(working, return_when=asyncio.FIRST_COMPLETED)
        for task in done - {down, lost}:
            task.result()
        if lost in done:
            logger.error("this process may not go on: %s", lost.result())
        await server.resign()
        return down in done

    # --- ports ---------------------------------------------------------------------------------------------------------------

    async def _listen(self, ports: CoordinatorPorts) -> CoordinatorServer:
        """The coordinator, listening where consumers that run look for it. Raises CannotRunError."""
        known = self._asked.port or int(self._database.fact(API) or 0)
        runs = any("deletionTimestamp" not in pod["metadata"] for pod in self._objects.all(POD))
        port = known or free_port()
        while True:
            server = CoordinatorServer(ports, host=HOST, port=port, discovery_interval=DISCOVERY)
            try:
                await server.start()
            except OSError as error:
                if self._asked.port or runs:
                    why = "which --port names" if self._asked.port else "which consumers that run look for"
                    raise CannotRunError(f"port {port}, {why}, is taken ({error.strerror}): end what listens there") from error
                port = free_port()
                continue
            self._database.note(API, str(server.port))
            return server

    def _export(self, registry: Any) -> MetricsServer:
        """The metrics, where they were before. Raises CannotRunError."""
        return self._where_before(
            METRICS, self._asked.metrics_port, "--metrics-port", lambda port: MetricsServer(port, registry, HOST)
        )

    def _show(self, coordination: Coordination) -> PageServer:
        """The page, where it was before. Raises CannotRunError."""
        made = Views(lambda: self._objects.all(GROUP), coordination.view, self._history, self._clock, version("shardherd"))
        return self._where_before(
            PAGE, self._asked.page_port, "--page-port", lambda port: PageServer(port, made, HOST, LOOPBACK)
        )

    def _where_before(self, name: str, asked: int, option: str, serve: Callable[[int], S]) -> S:
        port = asked or int(self._database.fact(name) or 0)
        try:
            server = serve(port)
        except OSError as error:
            if asked:
                raise CannotRunError(f"port {port}, which {option} names, is taken ({error.strerror})") from error
            server = serve(0)
        self._database.note(name, str(server.port))
        return server

    # --- what changes --------------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Something was written: tell of all that differs."""
        for kind, body, gone in self._feed.look():
            self._tell(kind, body, gone)
        self._node.wake()
        if self._node.closing and self._node.empty:
            self._emptied.set()

    def _tell(self, kind: str, body: Json, gone: bool) -> None:
        controller, metadata = self._controller, body["metadata"]
        if controller is None:
            return
        if kind == GROUP:
            controller.saw_group((metadata["namespace"], metadata["name"]), body, gone=gone)
        elif (name := (metadata.get("labels") or {}).get(GROUP_LABEL)) is None:
            return
        elif kind == POD:
            controller.saw_pod((metadata["namespace"], name), body, gone=gone)
        else:
            controller.saw_object((metadata["namespace"], name))

    async def _look_at_others(self) -> None:
        while True:
            try:
                if self._feed.changed_by_others():
                    self._look()
            except sqlite3.Error as error:
                logger.warning("the state folder cannot be read now, trying on: %s", error)
            await asyncio.sleep(LOOK)

    # --- the end -------------------------------------------------------------------------------------------------------------

    def _heed_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, self._signalled)

    def _signalled(self) -> None:
        if self._stop_requested.is_set() and not self._hurried:
            self._hurried = True
            logger.warning("a second stop was requested: killing the consumers")
            self._node.kill_all()
        self._stop_requested.set()

    async def _down(self) -> None:
        """Once a stop is requested: have every consumer drain, and wait for the last."""
        if not self._asked.down:
            await self._stop_requested.wait()
        self._stop_requested.set()
        logger.info("stop requested: the consumers drain")
        self._node.closing = True
        self._look()
        await self._emptied.wait()


async def _ended(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
