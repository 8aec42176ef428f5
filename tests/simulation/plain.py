"""One run of a plain Python consumer: the real `AsyncConsumer` of `shardherd.client`, and a program that reads with it.

Its readers take a shard each, write what they read to the sink, and save the position: some at once, some when it suits the
client. It stands where a run with the Spark agent does, and meets the same faults.
"""

from __future__ import annotations

import asyncio

from shardherd.client.consumer import AsyncConsumer
from shardherd.client.in_hand import ShardInHand
from shardherd.core.model.errors import ConsumerStoppedError, CoordinatorUnavailableError, FencedEpochError
from shardherd.core.model.nouns import ShardId
from tests.simulation.consumer import ConsumerRun


class _FailedError(Exception):
    """The program fails with a shard in hand, and goes on."""


class PlainRun(ConsumerRun):
    """One run. See ConsumerRun."""

    _consumer: AsyncConsumer | None = None
    _fails = False

    def reading(self) -> list[ShardId]:
        """The shards that are in hand."""
        grants = self._consumer.holdings._grants if self._consumer is not None else {}
        return [shard for shard, grant in grants.items() if grant.in_hand]

    def holds(self) -> tuple[ShardId, ...]:
        return self._consumer.held() if self._consumer is not None else ()

    def grants(self) -> dict[ShardId, int]:
        assert self._consumer is not None
        return {shard: grant.epoch for shard, grant in self._consumer.holdings._grants.items()}

    def unsaved(self) -> frozenset[ShardId]:
        assert self._consumer is not None
        return frozenset(each.shard for each in self._consumer.holdings.uncommitted())

    def _boot(self) -> None:
        world, run = self.world, self.run
        self._consumer = AsyncConsumer(
            self._client,
            run.consumer,
            run.incarnation,
            group_uid=self._settings.group_uid,
            save_interval=world.rng.choice((5.0, 60.0)) * world.plan.time_scale,
            loss_limit=self._settings.coordinator_loss_limit,
            now=self.process.loop.time,
            gauges=lambda: world.gauges(run.consumer),
        )
        self.process.loop.create_task(self._main(self._consumer))

    async def _main(self, consumer: AsyncConsumer) -> None:
        async with consumer:
            await asyncio.gather(*(self._reader(consumer) for _ in range(self.world.rng.randint(1, 2))))
            if consumer.stopped and not consumer.draining:
                self.run.violent = self.run.violent or consumer.stopped
        if not self.process.dead:
            self.exit("drained" if consumer.draining else f"stopped itself: {consumer.stopped}")

    async def _reader(self, consumer: AsyncConsumer) -> None:
        idle = 0
        while True:
            try:
                async with consumer.take() as shard:
                    idle = 0 if await self._read(shard) else idle + 1
            except ConsumerStoppedError:
                return
            except (FencedEpochError, CoordinatorUnavailableError, _FailedError):
                continue
            if idle > len(consumer.held()):
                await asyncio.sleep(self._trigger)
                idle = 0

    async def _read(self, shard: ShardInHand) -> bool:
        """Whether there was anything to read."""
        rng, world, name, start = self.world.rng, self.world, shard.name, shard.position
        end = world.end_of(name) if world.reaches(self.process.name, "kafka") else None
        if end is None or end <= start:
            return False
        stop = min(end, start + rng.randint(10, 1000))
        if not world.reads(name, start, stop, self.run):
            self.exit(f"failed: {name} has no records {start} to {stop}")
            return False
        await asyncio.sleep(rng.uniform(0.05, 3.0) if rng.random() < 0.9 else rng.uniform(3.0, 12.0))
        while self.hang_until > world.time or not world.reaches(self.process.name, "kafka"):  # noqa: ASYNC110
            await asyncio.sleep(2.0 * world.plan.time_scale)
        world.writes(name, start, stop, shard.epoch, self.run)
        world.history.counts["records written by plain consumers"] += stop - start
        if self._fails:
            self._fails = False
            raise _FailedError
        await shard.save_checkpoint(stop, now=rng.random() < 0.5)
        return True

    def cut_off(self) -> None:
        if self._consumer is not None:
            # What is unwound of a process that is gone must not wait for an answer.
            self._consumer.session.over, self._consumer.session.draining = "killed", False

    def _query_again(self) -> None:
        """Its program fails with the next shard that it has written, and begins it again."""
        self.run.violent = self.run.violent or "its program failed"
        self._fails = True

    async def _drain(self) -> None:
        if self._consumer is None:
            self.exit("drained")
            return
        clean = await self._consumer.drain(60.0)
        if not clean:
            self.run.violent = self.run.violent or "drained with work left over"
        self.exit("drained")

    def _leaves(self) -> None:
        if self._consumer is not None and not self._consumer.session.clean:
            self.run.violent = self.run.violent or "drained with work left over"
