"""One worker for each key, woken by `add`: many wakings become one run, runs of one key never overlap, failures back off.

`reconcile.Controller` puts groups in. Knows nothing of groups. All of it runs in one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from shardherd.telemetry.logs import fields

logger = logging.getLogger(__name__)

Key = tuple[str, str]
"""Namespace and name."""

MIN_INTERVAL = 0.2
"""Seconds between two runs of one key: a burst of events costs one run."""

FIRST_RETRY, LAST_RETRY = 1.0, 60.0
"""Seconds until a failed run is tried again; doubled with each failure."""


@dataclass
class _Worker:
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    @property
    def works(self) -> bool:
        """Whether its task goes on. Kopf's end cancels every task of the loop, and so perhaps this one."""
        return self.task is not None and not self.task.done()


class Worklist:
    """Calls `work(key)` for keys that were added.

    `work` returns False once the key is gone. `failed` hears of every failure.
    """

    def __init__(
        self,
        work: Callable[[Key], Awaitable[bool]],
        failed: Callable[[Key], None],
        *,
        min_interval: float = MIN_INTERVAL,
        first_retry: float = FIRST_RETRY,
    ) -> None:
        self._work = work
        self._failed = failed
        self._min_interval = min_interval
        self._first_retry = first_retry
        self._workers: dict[Key, _Worker] = {}

    def add(self, key: Key, *, news: bool = False) -> None:
        """Have this key worked on soon; with `news` also if a failure is being waited out: a death must not wait for it."""
        worker = self._workers.setdefault(key, _Worker())
        worker.woken.set()
        if news:
            worker.news.set()
        if not worker.works:
            worker.task = asyncio.create_task(self._run(key, worker), name=f"reconcile {key[0]}/{key[1]}")

    def drop(self, key: Key) -> None:
        """Forget this key; a run under way goes no further than it is."""
        worker = self._workers.pop(key, None)
        if worker is not None and worker.task is not None:
            worker.task.cancel()

    async def close(self) -> None:
        """Stop all workers, also those that are begun meanwhile; a run under way is cancelled."""
        while self._workers:
            tasks = [worker.task for worker in self._workers.values() if worker.task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._workers = {key: worker for key, worker in self._workers.items() if worker.works}

    async def _run(self, key: Key, worker: _Worker) -> None:
        retry = self._first_retry
        while True:
            await worker.woken.wait()
            worker.woken.clear()
            worker.news.clear()
            try:
                remains = await self._work(key)
            except Exception:
                logger.exception("reconciling failed; next attempt in %g s", retry, extra=fields(group="/".join(key)))
                self._failed(key)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(retry):
                        await worker.news.wait()
                        # News come in bursts, and each may fail again.
                        await asyncio.sleep(self._min_interval)
                retry = min(2 * retry, LAST_RETRY)
                worker.woken.set()
                continue
            retry = self._first_retry
            if not remains and not worker.woken.is_set():
                del self._workers[key]
                return
            await asyncio.sleep(self._min_interval)
