"""Workers as processes, as `shardherd run` starts them in the pods of a group, and what they note of their work."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from dev.cluster.ports import free_ports
from shardherd.core.model.nouns import ConsumerId, GroupSpec, Incarnation, KafkaSource, ShardId
from tests.harness.tcp_proxy import TcpProxy
from tests.integration.coordinator.rig import Coordinator, Rig

HERE = Path(__file__).parent
OPERATOR = HERE.parents[2] / "operator"
NOTES = "worker_program:Notes"
SEQUENCES = "worker_program:Sequences"


class Workers:
    """The workers of one group, one to a pod; a container that is started again has the next number.

    They find the coordinator as by a Service: whoever leads now is behind one address. `environment` is what a pod's says of a
    source that is not Kafka.
    """

    def __init__(
        self,
        rig: Rig,
        coordinator: Coordinator,
        spec: GroupSpec,
        folder: Path,
        program: str,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.rig, self.coordinator, self.spec = rig, coordinator, spec
        self.notes = folder / "notes"
        self.notes.mkdir()
        self._folder, self._program, self._environment = folder, program, dict(environment or {})
        self._processes: dict[str, tuple[Incarnation, subprocess.Popen[bytes]]] = {}
        self._starts: dict[str, int] = defaultdict(int)
        (port,) = free_ports(1)
        self._service = f"127.0.0.1:{port}"
        self._way = TcpProxy(self._service, coordinator.address)
        self._way.start()

    async def start(self, ordinal: int) -> str:
        """A worker in this pod, as `shardherd run` starts it."""
        name, namespace = f"{self.spec.identity.name}-{ordinal}", self.rig.namespace
        self._starts[name] += 1
        start = self._starts[name]
        pod = await self.rig.kubernetes.api.acall("GET", f"/api/v1/namespaces/{namespace}/pods/{name}")
        token = self._folder / f"{name}.token"
        token.write_text(await self.rig.kubernetes.token(namespace, self.spec.service_account, pod))
        run = Incarnation(pod["metadata"]["uid"], start)
        words = {
            "coordinator": f"http://{self._service}",
            "group": f"{namespace}/{self.spec.identity.name}",
            "group-uid": self.spec.identity.uid,
            "consumer": name,
            "pod-uid": run.pod_uid,
            "token-file": str(token),
        }
        if isinstance(self.spec.source, KafkaSource):
            words["bootstrap"] = self.spec.source.bootstrap_servers
        command = [sys.executable, "-m", "shardherd", "run", *(f"--{each}={value}" for each, value in words.items())]
        # Positions are saved often, so that a kill is not always before the first one.
        command += ["--option=save_interval=0.2", "--option=batch_size=50", "--option=threads=8", self._program]
        own = {"PYTHONPATH": f"{OPERATOR}:{HERE}", "NOTES": str(self.notes), "SHARDHERD_START": str(start)}
        with (self._folder / f"{name}.{start}.log").open("wb") as log:
            process = await asyncio.to_thread(
                subprocess.Popen, command, env=os.environ | self._environment | own, stderr=log, stdout=log
            )
        self._processes[name] = (run, process)
        return name

    async def kill(self, name: str) -> None:
        """kill -9, and the proof of it."""
        run, process = self._processes.pop(name)
        process.kill()
        await asyncio.to_thread(process.wait)
        died = self.coordinator.server.coordination.consumer_died
        await asyncio.to_thread(died, self.spec.identity, ConsumerId(name), run)

    def follow(self, coordinator: Coordinator) -> None:
        """This coordinator leads now. Connections to the one before end, whatever becomes of that."""
        self.coordinator = coordinator
        self._way.turn_to(coordinator.address)

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

    def hold_up(self, *shards: ShardId) -> None:
        """Let `Sequences` stand still at the next records of these, and of no others."""
        (self.notes / "held-up.new").write_text("".join(f"{shard}\n" for shard in shards))
        (self.notes / "held-up.new").replace(self.notes / "held-up")

    def close(self) -> None:
        for _, process in self._processes.values():
            process.kill()
            process.wait()
        self._way.close()


class ReadSequences:
    """What the workers of the program SEQUENCES have processed: the numbers of each key, in the order in which they came."""

    def __init__(self, notes: Path) -> None:
        self._path = notes / "sequences"
        self._read = 0
        self._of: dict[str, list[int]] = defaultdict(list)

    @property
    def of(self) -> Mapping[str, list[int]]:
        """All up to now, of all workers."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._read)
                whole = file.read().rpartition(b"\n")[0]
            for line in whole.decode().splitlines():
                key, number = line.split()
                self._of[key].append(int(number))
            self._read += len(whole) + bool(whole)
        return self._of

    def disorder(self) -> list[str]:
        """The keys of which a number came before a smaller one that had not come yet."""
        found = []
        for key, numbers in sorted(self.of.items()):
            highest = -1
            for number in numbers:
                if number > highest + 1:
                    found.append(key)
                    break
                highest = max(highest, number)
        return found
