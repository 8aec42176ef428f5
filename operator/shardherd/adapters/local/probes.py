"""Asks a driver whether it is ready, as a kubelet's readiness probe does. Used by `node`, one object for each start."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp

OFTENER = 4.0
"""The manifest's period is divided by this: on one machine somebody waits for the result."""


class Probe:
    """Asks over and over from `start` to `stop`; `turned` is called whenever `ready` has changed.

    The port stands in a file, since on one machine every driver has another one. Without a probe it is ready at once.
    """

    def __init__(self, probe: Mapping[str, Any] | None, port: Path, turned: Callable[[], None]) -> None:
        # A program that is to be run for it, say, is in an image. There are none here.
        self._probe = probe if probe and probe.get("httpGet") else {}
        self.ready = not self._probe
        self._port = port
        self._turned = turned
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._probe:
            self._task = asyncio.create_task(self._ask(), name="probe")

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _ask(self) -> None:
        probe, failures = self._probe, 0
        url = f"http://127.0.0.1:{self._port.read_text()}{probe['httpGet'].get('path', '/')}"
        timeout = aiohttp.ClientTimeout(total=probe.get("timeoutSeconds", 1))
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                try:
                    async with session.get(url) as answer:
                        well = answer.status < 400
                except (aiohttp.ClientError, TimeoutError):
                    well = False
                failures = 0 if well else failures + 1
                ready = well or (self.ready and failures < probe.get("failureThreshold", 3))
                if ready != self.ready:
                    self.ready = ready
                    self._turned()
                await asyncio.sleep(probe.get("periodSeconds", 10) / OFTENER)
