"""A coordinator whose decisions the test makes: real HTTP and the real codec, a few lines of protocol behind it.

It grants what `grant` says, waits for a release before it moves a shard, fences checkpoints by epoch, and lets a new run keep
what its name held; the real coordinator's rules are tested elsewhere. It runs on a thread of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from dataclasses import dataclass, field
from typing import Any, TypeVar

from aiohttp import web
from msgspec import UNSET

from shardherd import protocol
from shardherd.core.model.messages import Seconds
from shardherd.core.model.nouns import (
    CheckpointOutcome,
    CheckpointReply,
    CheckpointRequest,
    CheckpointResult,
    ConfirmedShard,
    Heartbeat,
    HeartbeatReply,
    Incarnation,
    Leave,
)

T = TypeVar("T")


@dataclass
class Shard:
    """One shard's ownership. `target` differs from `holder` while it is in transfer."""

    position: int = 0
    holder: str | None = None
    target: str | None = None
    epoch: int = 0
    held_since: int = 0
    known_to: str | None = None  # who was told that it is the holder, and keeps it when it starts anew
    checkpoints: list[int] = field(default_factory=list)


class ScriptedCoordinator:
    """Holds the shards of one group. Thread-safe for the test; `url` is set once it was started."""

    def __init__(self) -> None:
        self.shards: dict[str, Shard] = {}
        self.heartbeats: dict[str, Heartbeat] = {}
        self.all_heartbeats: dict[str, list[Heartbeat]] = {}  # all of them: what was over soon is still there
        self.left: list[str] = []
        self.revision = 1
        self.releases: dict[str, float] = {}
        self.paused = False
        self.cells = 0
        self.generation = 0
        self.commits = True
        self.silent = False
        self.url = ""
        self._incarnations: dict[str, Incarnation] = {}
        self._epoch = 0
        self._loop = asyncio.new_event_loop()
        self._changed = asyncio.Condition()
        self._thread = threading.Thread(target=self._loop.run_forever, name="scripted-coordinator", daemon=True)

    # --- for the test ----------------------------------------------------------------------------------------------------

    def __enter__(self) -> ScriptedCoordinator:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._serve(), self._loop).result()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def grant(self, consumer: str, *shards: str) -> None:
        """From now on these shards are wanted at this consumer; one that is held moves when it is released."""
        asyncio.run_coroutine_threadsafe(self._grant(consumer, shards), self._loop).result()

    def died(self, consumer: str) -> None:
        """Proof of death: all its shards are free at once."""
        asyncio.run_coroutine_threadsafe(self._died(consumer), self._loop).result()

    def wait_until(self, said: Any, what: str, timeout: float = 90.0) -> None:
        """Wait until `said()` is true; it is asked on the coordinator's own thread."""

        async def until() -> None:
            async with self._changed:
                await asyncio.wait_for(self._changed.wait_for(said), timeout)

        try:
            asyncio.run_coroutine_threadsafe(until(), self._loop).result()
        except TimeoutError:
            state = {name: (s.holder, s.target, s.epoch, s.position) for name, s in self.shards.items()}
            raise AssertionError(f"not within {timeout} s: {what}; shards {state}, heartbeats {self.heartbeats}") from None

    def positions(self) -> dict[str, int]:
        return {name: shard.position for name, shard in self.shards.items()}

    # --- the protocol ----------------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        application = web.Application()
        base = "/v1/namespaces/{namespace}/consumergroups/{group}"
        application.add_routes(
            [
                web.post(f"{base}/heartbeat", self._heartbeat),
                web.post(f"{base}/checkpoints", self._checkpoint),
                web.post(f"{base}/leave", self._leave),
            ]
        )
        self._runner = web.AppRunner(application)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"

    async def _grant(self, consumer: str, shards: tuple[str, ...]) -> None:
        async with self._changed:
            for name in shards:
                shard = self.shards.setdefault(name, Shard())
                shard.target = consumer
                if shard.holder is None:
                    self._own(shard, consumer)
            self.revision += 1
            self._changed.notify_all()

    def _own(self, shard: Shard, consumer: str) -> None:
        self._epoch += 1
        shard.holder, shard.epoch, shard.held_since, shard.known_to = consumer, self._epoch, self._epoch, None

    async def _died(self, consumer: str) -> None:
        async with self._changed:
            self.heartbeats.pop(consumer, None)
            for shard in self.shards.values():
                if shard.holder == consumer:
                    shard.holder = shard.known_to = None
                    if shard.target not in (None, consumer):
                        self._own(shard, str(shard.target))
            self.revision += 1
            self._changed.notify_all()

    def _confirmed(self, consumer: str) -> tuple[ConfirmedShard, ...]:
        if (beat := self.heartbeats.get(consumer)) is None:
            return ()  # it has left while its heartbeat waited
        ready = beat.ready
        return tuple(
            ConfirmedShard(name, shard.epoch, shard.held_since, shard.position, start=0 if self.cells else UNSET)  # type: ignore[arg-type]
            for name, shard in sorted(self.shards.items())
            if shard.holder == consumer and shard.target == consumer and (ready or shard.known_to == consumer)
        )

    async def _heartbeat(self, request: web.Request) -> web.Response:
        if self.silent:
            return web.Response(status=503)
        beat = protocol.loads(Heartbeat, await request.read())
        consumer = str(beat.consumer)
        async with self._changed:
            if self._incarnations.get(consumer) != beat.incarnation:
                self._incarnations[consumer] = beat.incarnation
                for shard in self.shards.values():
                    if shard.holder == consumer:  # the newer run takes over, and goes on with what its name held
                        self._epoch += 1
                        shard.epoch = self._epoch
            self.heartbeats[consumer] = beat
            self.all_heartbeats.setdefault(consumer, []).append(beat)
            held = {each.shard for each in beat.held}
            for name, shard in self.shards.items():
                gone = name not in held and beat.revision >= self.revision
                if shard.holder == consumer and shard.target != consumer and gone:
                    self.releases[name] = time.monotonic()
                    self._own(shard, str(shard.target))
                    self.revision += 1
            self._changed.notify_all()
            named = {(each.shard, each.owner_epoch) for each in beat.held}
            deadline = self._loop.time() + int(request.query["waitMs"]) / 1000

            def news() -> bool:
                confirmed = {(each.shard, each.owner_epoch) for each in self._confirmed(consumer)}
                return self.revision != beat.revision or confirmed != named

            left = deadline - self._loop.time()
            if not news() and left > 0:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait_for(news), left)
            confirmed = self._confirmed(consumer)
            for each in confirmed:
                self.shards[each.shard].known_to = consumer
            reply = HeartbeatReply(
                self.revision,
                confirmed,
                paused=self.paused,
                heartbeat_interval=Seconds(1.0),
                cells=self.cells,
                state_generation=self.generation,
            )
        return web.Response(body=protocol.dumps(reply), content_type="application/json")

    async def _checkpoint(self, request: web.Request) -> web.Response:
        asked = protocol.loads(CheckpointRequest, await request.read())
        if not self.commits:
            return web.Response(status=503)
        outcomes = []
        async with self._changed:
            for each in asked.checkpoints:
                shard = self.shards[each.shard]
                fits = (shard.holder, shard.epoch) == (asked.consumer, each.owner_epoch)
                current = fits and self._incarnations[asked.consumer] == asked.incarnation
                result = CheckpointResult.OK if current else CheckpointResult.FENCED
                if current:
                    shard.position = each.offset
                    shard.checkpoints.append(each.offset)
                outcomes.append(CheckpointOutcome(each.shard, result, shard.position, each.owner_epoch, shard.epoch))
            self._changed.notify_all()
        return web.Response(body=protocol.dumps(CheckpointReply(tuple(outcomes))), content_type="application/json")

    async def _leave(self, request: web.Request) -> web.Response:
        leaving = protocol.loads(Leave, await request.read())
        await self._died(str(leaving.consumer))
        async with self._changed:
            self.left.append(str(leaving.consumer))
            self._changed.notify_all()
        return web.Response(status=204)
