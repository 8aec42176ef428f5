"""One real Kafka broker of a test run, without security and without a cluster around it: it starts in some seconds."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dev.cluster import daemons, probes
from dev.cluster.errors import ClusterError, tail
from dev.cluster.tools import Tools
from dev.cluster.waiting import wait_for
from tests.harness.cluster import Tell

HOST = "127.0.0.1"
START_TIMEOUT = 120.0


class Broker:
    """A broker that is its own controller, with its state in `folder`. `start` first, `close` at the end."""

    def __init__(self, folder: Path, tools: Tools) -> None:
        self._folder = folder
        self._tools = tools
        with socket.socket() as first, socket.socket() as second:
            first.bind((HOST, 0))
            second.bind((HOST, 0))
            self._port, self._controller = first.getsockname()[1], second.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        """Where clients reach it."""
        return f"{HOST}:{self._port}"

    def start(self) -> None:
        """Format its storage and wait until it serves."""
        self._folder.mkdir(parents=True, exist_ok=True)
        properties = self._folder / "broker.properties"
        properties.write_text(self._properties())
        format_it = ("format", "--standalone", "--config", str(properties), "--cluster-id", "AAAAAAAAAAAAAAAAAAAAAA")
        command = daemons.java(self._tools, "kafka.tools.StorageTool", *format_it)
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=self._folder)
        if done.returncode != 0:
            raise ClusterError(f"Kafka's storage was not formatted: {done.stdout}{done.stderr}")
        log = self._folder / "broker.log"
        with log.open("ab") as output:
            # Whatever happens to us, no broker outlives us.
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *daemons.java(self._tools, "kafka.Kafka", str(properties), heap="320m")],
                stdout=output,
                stderr=output,
                cwd=self._folder,
                start_new_session=True,
            )

        def ready() -> str | None:
            reason = probes.broker_ready(HOST, self._port, 1)
            if reason and self._process is not None and self._process.poll() is not None:
                raise ClusterError(f"the broker ended with {self._process.poll()}\n{tail(log)}")
            return reason

        wait_for("readiness of the broker", ready, log, START_TIMEOUT)

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _properties(self) -> str:
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.bootstrap.servers": f"{HOST}:{self._controller}",
            "listeners": f"PLAINTEXT://{HOST}:{self._port},CONTROLLER://{HOST}:{self._controller}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self._folder / "data"),
            "offsets.topic.num.partitions": "1",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.num.partitions": "1",
            "group.initial.rebalance.delay.ms": "0",
            "log.cleaner.dedupe.buffer.size": str(4 << 20),
            "num.network.threads": "1",
            "num.io.threads": "2",
        }
        return "".join(f"{key}={value}\n" for key, value in settings.items())


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory, tell: Tell) -> Iterator[Broker]:
    """One broker for all tests of a run."""
    tell("starting a Kafka broker")
    tools = Tools()
    _ = tools.packages
    found = Broker(tmp_path_factory.mktemp("broker"), tools)
    try:
        found.start()
        yield found
    finally:
        found.close()
