"""Decides how one plain Kafka broker runs on this machine by itself, without an instance. Called by the demo and by tests.

It is broker and controller, and listens on the loopback address alone. `remove` finds it by its record, whoever started it.
"""

from __future__ import annotations

import base64
import os
import shutil
import signal
import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path

from dev.cluster import daemons, probes
from dev.cluster.config import KEEPS_RECORDS
from dev.cluster.errors import ClusterError, tail
from dev.cluster.ports import HOST, free_ports
from dev.cluster.processes import ProcessRecord
from dev.cluster.tools import Tools
from dev.cluster.waiting import wait_for

HEAP = "384m"
START_TIMEOUT = 120.0
STOP_TIMEOUT = 30.0


class Broker:
    """One broker whose data, log and record are in `folder`. If it `outlives` us, it runs until it is removed."""

    def __init__(
        self,
        folder: Path,
        tools: Tools,
        *,
        outlives: bool = True,
        other: str = "",
        more: Mapping[str, str] | None = None,
        options: tuple[str, ...] = (),
    ) -> None:
        """`other`: the security protocol of one more listener, named OTHER. `more`: settings beside our own, or in their place.
        `options`: what Java is told."""
        self.folder = folder
        self._other = other
        self._more = dict(more or {})
        self._options = options
        self._tools = tools
        self._outlives = outlives

    @property
    def bootstrap(self) -> str:
        """Its address. ClusterError if it was never started."""
        try:
            return f"{HOST}:{(self.folder / 'port').read_text()}"
        except FileNotFoundError:
            raise ClusterError(f"no broker was started in {self.folder}") from None

    @property
    def other(self) -> str:
        """The address of its other listener."""
        return f"{HOST}:{(self.folder / 'other-port').read_text()}"

    @property
    def log(self) -> Path:
        return self.folder / "broker.log"

    @property
    def _record(self) -> Path:
        return self.folder / "process.json"

    def launch(self) -> None:
        """Start a new broker without any data; `ready` waits until it serves."""
        self.remove()
        self.folder.mkdir(parents=True)
        port, controller, other = free_ports(3)
        settings = self.folder / "broker.properties"
        settings.write_text(properties(self.folder / "data", port, controller, self._beside(other)))
        self.tool("kafka.tools.StorageTool", "format", "--config", str(settings), f"--cluster-id={identifier()}")
        (self.folder / "port").write_text(str(port))
        (self.folder / "other-port").write_text(str(other))
        self.start()

    def start(self) -> None:
        """Start it with the data and the addresses that it has; `ready` waits until it serves."""
        settings = self.folder / "broker.properties"
        command = daemons.java(self._tools, "kafka.Kafka", str(settings), heap=HEAP, options=self._options)
        if not self._outlives:
            command = ("setpriv", "--pdeathsig", "KILL", *command)
        with self.log.open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder, start_new_session=True)
        ProcessRecord.of(process.pid).write(self._record)

    def stop(self) -> None:
        """End it as an administrator does; its data and its addresses stay."""
        record = ProcessRecord.read(self._record)
        if record is not None and record.alive():
            os.kill(record.pid, signal.SIGTERM)
            wait_for("the end of the broker", lambda: "it runs" if record.alive() else None, self.log, STOP_TIMEOUT)

    def _beside(self, port: int) -> dict[str, str]:
        """Settings beside our own; a list in ours is gone on with where it has the same name and `+`."""
        if not self._other:
            return self._more
        address = f",OTHER://{HOST}:{port}"
        more = {"listeners+": address, "advertised.listeners+": address}
        return {**more, "listener.security.protocol.map+": f",OTHER:{self._other}", **self._more}

    def ready(self) -> None:
        """Wait until it serves. ClusterError with the end of its log if it does not."""
        record, port = ProcessRecord.read(self._record), int(self.bootstrap.rpartition(":")[2])

        def serves() -> str | None:
            reason = probes.broker_ready(HOST, port)
            if reason and (record is None or not record.alive()):
                raise ClusterError(f"the broker has ended\n{tail(self.log)}")
            return reason

        wait_for("readiness of the broker", serves, self.log, START_TIMEOUT)

    def alive(self) -> bool:
        record = ProcessRecord.read(self._record)
        return record is not None and record.alive()

    def remove(self) -> bool:
        """End it if it runs, and remove its data; whether there was anything."""
        record = ProcessRecord.read(self._record)
        if record is not None:
            record.kill()
            wait_for("the end of the broker", lambda: "it runs" if record.alive() else None, self.log, STOP_TIMEOUT)
        there = self.folder.exists()
        shutil.rmtree(self.folder, ignore_errors=True)
        return there

    def tool(self, main: str, *arguments: str) -> str:
        """Standard output of a program of Kafka's own; ClusterError with what it said on failure."""
        done = subprocess.run(
            daemons.java(self._tools, main, *arguments), capture_output=True, text=True, check=False, cwd=self.folder
        )
        if done.returncode != 0:
            raise ClusterError(f"{main} {' '.join(arguments)} ended with {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout


def properties(data: Path, port: int, controller: int, more: Mapping[str, str] | None = None) -> str:
    """The settings of one node that is broker and controller; `more` of them, or what goes on in one whose name has a `+`."""
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{HOST}:{controller}",
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": str(data),
        **KEEPS_RECORDS,
        "auto.create.topics.enable": "false",
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "2",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "2",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "share.coordinator.state.topic.num.partitions": "1",
        "group.initial.rebalance.delay.ms": "0",
        "log.cleaner.dedupe.buffer.size": str(4 << 20),
        "num.network.threads": "2",
        "num.io.threads": "2",
    }
    for name, value in (more or {}).items():
        key = name.removesuffix("+")
        settings[key] = settings[key] + value if name != key else value
    return "".join(f"{key}={value}\n" for key, value in settings.items())


def identifier() -> str:
    """A UUID as Kafka writes it; one that begins with a dash would be taken for an option."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        continue
    return text
