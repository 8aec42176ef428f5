"""What a Service and kube-proxy do, for processes on this machine: one address that leads to the pod with the leader's label.

A connection keeps to the process that it was made to, as on a real node. While no pod has the label, connections are refused.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Mapping

from shardherd.adapters.kubernetes.api import KubernetesApi
from shardherd.adapters.kubernetes.operators import LEADER_LABEL

LOOK = 0.05
"""Seconds between looks at the labels; kube-proxy needs up to a second to hear of a change."""


class LeaderService:
    """Listens on `url`. `ports` says which process of this machine plays which pod."""

    def __init__(self, api: KubernetesApi, namespace: str, ports: Mapping[str, int]) -> None:
        self._api = api
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        self._ports = ports
        self._leader = ""
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._tasks.add(asyncio.create_task(self._follow()))

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _follow(self) -> None:
        while True:
            found = await self._api.acall("GET", self._pods, query={"labelSelector": f"{LEADER_LABEL}=true"})
            self._leader = next((item["metadata"]["name"] for item in found["items"]), "")
            await asyncio.sleep(LOOK)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        with contextlib.suppress(OSError):
            if self._leader:
                there, back = await asyncio.open_connection("127.0.0.1", self._ports[self._leader])
                await _first(_pump(reader, back), _pump(there, writer))
                back.close()
        writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


async def _first(*works: Coroutine[None, None, None]) -> None:
    """Run these until one ends; the connection is over then."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
