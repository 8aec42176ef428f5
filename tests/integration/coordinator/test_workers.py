"""Workers as processes, with a real broker, a real API server and the real coordinator: nothing that is written is lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

from tests.integration.coordinator.rig import Rig, becomes, shards
from tests.integration.coordinator.workers import NOTES, Workers

RECORDS = 500
"""How many are written to each shard at a time."""


async def test_two_workers_share_a_topic_and_lose_nothing_by_a_kill_and_rebalances(
    rig: Rig, name: str, topic: str, tmp_path: Path, opened: list[Workers]
) -> None:
    coordinator = await rig.coordinator()
    spec = await rig.group(name, (topic,))
    coordinator.server.coordination.apply(spec)
    workers = Workers(rig, coordinator, spec, tmp_path, NOTES)
    opened.append(workers)

    async def write() -> None:
        for partition in range(4):
            await rig.kafka.append(topic, partition, RECORDS)

    await write()
    first = await workers.start(0)
    await becomes(lambda: workers.held(first) == 4)
    second = await workers.start(1)
    await becomes(lambda: (workers.held(first), workers.held(second)) == (2, 2))
    await write()
    await becomes(lambda: len(workers.noted(f"{second}.*")) >= RECORDS)
    writing = asyncio.create_task(write())
    await workers.kill(second)
    await becomes(lambda: workers.held(first) == 4)
    await writing
    await workers.start(1)
    await becomes(lambda: (workers.held(first), workers.held(second)) == (2, 2))
    await write()
    await becomes(lambda: workers.checkpoints() == [4 * RECORDS] * 4)

    assert await workers.drain_all() == {first: 0, second: 0}
    times = Counter((shard, offset) for shard, offset, _ in workers.noted())
    assert set(times) == {(shard, offset) for shard in shards(topic, 0, 1, 2, 3) for offset in range(4 * RECORDS)}
    assert {value for _, offset, value in workers.noted() if offset % RECORDS == 7} == {7}
    killed = {(shard, offset) for shard, offset, _ in workers.noted(f"{second}.1")}
    assert {each for each, count in times.items() if count > 1} <= killed, "only what the killed one had may be there twice"
    for run in ("1", "2"):
        for worker in (first, second):
            for shard in shards(topic, 0, 1, 2, 3):
                offsets = [offset for noted, offset, _ in workers.noted(f"{worker}.{run}") if noted == shard]
                assert offsets == sorted(set(offsets)), f"{worker} has processed {shard} out of order"
