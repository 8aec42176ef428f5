"""Workers as processes, with a real broker, a real API server and the real coordinator: nothing that is written is lost."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardherd.core.model.nouns import ConsumerId, GroupSpec, Incarnation
from tests.integration.coordinator.rig import Coordinator, Rig, becomes, shards

HERE = Path(__file__).parent
OPERATOR = HERE.parents[2] / "operator"

RECORDS = 500
"""How many are written to each shard at a time."""


class Workers:
    """The workers of one group, one to a pod; a container that is started again has the next number."""

    def __init__(self, rig: Rig, coordinator: Coordinator, spec: GroupSpec, folder: Path) -> None:
        self.rig, self.coordinator, self.spec = rig, coordinator, spec
        self.notes = folder / "notes"
        self.notes.mkdir()
        self._folder = folder
        self._processes: dict[str, tuple[Incarnation, subprocess.Popen[bytes]]] = {}

    async def start(self, ordinal: int, start: int = 1) -> str:
        """A worker in this pod, as `shardherd run` starts it."""
        name, namespace = f"{self.spec.identity.name}-{ordinal}", self.rig.namespace
        pod = await self.rig.kubernetes.api.acall("GET", f"/api/v1/namespaces/{namespace}/pods/{name}")
        token = self._folder / f"{name}.token"
        token.write_text(await self.rig.kubernetes.token(namespace, self.spec.service_account, pod))
        run = Incarnation(pod["metadata"]["uid"], start)
        words = {
            "bootstrap": self.rig.kafka.servers,
            "coordinator": self.coordinator.url,
            "group": f"{namespace}/{self.spec.identity.name}",
            "group-uid": self.spec.identity.uid,
            "consumer": name,
            "pod-uid": run.pod_uid,
            "token-file": str(token),
        }
        command = [sys.executable, "-m", "shardherd", "run", *(f"--{each}={value}" for each, value in words.items())]
        # Positions are saved often, so that a kill is not always before the first one.
        command += ["--option=save_interval=0.2", "--option=batch_size=50", "worker_program:Notes"]
        variables = {"PYTHONPATH": f"{OPERATOR}:{HERE}", "NOTES": str(self.notes), "SHARDHERD_START": str(start)}
        with (self._folder / f"{name}.{start}.log").open("wb") as log:
            process = await asyncio.to_thread(subprocess.Popen, command, env=os.environ | variables, stderr=log, stdout=log)
        self._processes[name] = (run, process)
        return name

    async def kill(self, name: str) -> None:
        """kill -9, and the proof of it."""
        run, process = self._processes.pop(name)
        process.kill()
        await asyncio.to_thread(process.wait)
        died = self.coordinator.server.coordination.consumer_died
        await asyncio.to_thread(died, self.spec.identity, ConsumerId(name), run)

    async def drain_all(self) -> dict[str, int]:
        """SIGTERM to each; how they ended."""
        for _, process in self._processes.values():
            process.send_signal(signal.SIGTERM)
        codes = {name: await asyncio.to_thread(process.wait, 60) for name, (_, process) in self._processes.items()}
        self._processes.clear()
        return codes

    def held(self, name: str) -> int:
        """How many shards it holds."""
        return sum(row.holder == name for row in self.coordinator.view(self.spec.identity).shards)

    def checkpoints(self) -> list[int | None]:
        return [row.checkpoint for row in self.coordinator.view(self.spec.identity).shards]

    def noted(self, run: str = "*") -> list[tuple[str, int, int]]:
        """All that was noted, as (shard, offset, value): by this run, or by all."""
        lines = [line.split() for file in sorted(self.notes.glob(run)) for line in file.read_text().splitlines()]
        return [(shard, int(offset), int(value)) for shard, offset, value in lines]

    def close(self) -> None:
        for _, process in self._processes.values():
            process.kill()
            process.wait()


@pytest.fixture
def opened() -> Iterator[list[Workers]]:
    """Workers that are ended with the test, however it ends."""
    opened: list[Workers] = []
    yield opened
    for workers in opened:
        workers.close()


async def test_two_workers_share_a_topic_and_lose_nothing_by_a_kill_and_rebalances(
    rig: Rig, name: str, topic: str, tmp_path: Path, opened: list[Workers]
) -> None:
    coordinator = await rig.coordinator()
    spec = await rig.group(name, (topic,))
    coordinator.server.coordination.apply(spec)
    workers = Workers(rig, coordinator, spec, tmp_path)
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
    await workers.start(1, start=2)
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
