"""The place of the story on this machine: a broker, `shardherd local`, and drivers as its processes. No Kubernetes.

Called by `story` through `Place`. It acts by the commands that a user would type, and looks at groups and pods where those
commands keep them: in the state folder, which is here what an API server is on a cluster.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from kafka import KafkaAdminClient

from dev import class_archive
from dev.cluster.broker import Broker
from dev.cluster.cluster import KAFKA_TOOLS
from dev.cluster.tools import Tools
from dev.demo.figures import Sample, page
from dev.demo.kube import Json, is_true
from dev.demo.place import CLAIM, GROUP, MANIFEST, NAMESPACE, REPOSITORY, TOPIC, Place, Position, Run
from dev.demo.place import positions as described_positions
from dev.demo.report import DemoError, Reporter, await_that
from dev.demo.topic import positions
from shardherd.adapters.local.identity import holder
from shardherd.adapters.local.objects import GROUP as GROUP_KIND
from shardherd.adapters.local.objects import GROUP_LABEL, POD, Objects
from shardherd.cli import main as shardherd
from shardherd.local.operator import HOST, METRICS
from shardherd.local.state import State

KAFKA_GROUP = f"{NAMESPACE}.{GROUP}"
TRIGGER = "2 seconds"
"""Between two micro-batches: three drivers and all the rest share the cores of one machine."""

EVENTS = "LAST SEEN"
"""How the last table of `shardherd local status` begins."""

STOP_TIMEOUT = 60.0

LINES = 20
"""Of a log, where a step failed."""

COMPILE = "from shardherd.source.decoding.compiled_records import LIBRARIES\nfor library in LIBRARIES: library.prepare()"
"""A program that has the loops compiled which every worker of a driver needs."""


class MachinePlace(Place):
    """Everything below one folder, so that two of them do not meet."""

    name = "machine"
    backlog = 100_000
    rate = 1_000
    opening = "A real Kafka broker on this machine"
    preparing = "A topic of 8 partitions, and a producer of click events"
    metric = "the operator's metric"

    def __init__(self, folder: Path, reporter: Reporter) -> None:
        self.folder = folder
        self.reporter = reporter
        self._state = State(folder / "herd")
        self._manifest = MANIFEST
        self._found_objects: Objects | None = None
        self._java_options = ""

    @cached_property
    def broker(self) -> Broker:
        return Broker(self.folder / "kafka", Tools())

    @property
    def state(self) -> Path:
        return self.folder

    @property
    def rows(self) -> Path:
        return self._state.folder / "volumes" / NAMESPACE / CLAIM / "clickstream" / "rows"

    @property
    def kafka_bootstrap(self) -> str:
        return self.broker.bootstrap

    # ---- what is done

    def start(self) -> None:
        self.stop()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.broker.launch()
        # Compiled once for this machine, and not by every worker of the first drivers.
        compiled = subprocess.run([sys.executable, "-c", COMPILE], capture_output=True, text=True, check=False, cwd=REPOSITORY)
        if compiled.returncode != 0:
            raise DemoError(f"the loops of the source were not compiled: {compiled.stderr.strip()}")
        self._java_options = class_archive.options(self.reporter.say)
        self.broker.ready()
        self.reporter.say(f"it answers at {self.broker.bootstrap}; all of the demo is in {self.folder}")

    def clear(self) -> None:
        """Nothing is left: `start` begins with an empty folder."""

    def create_topic(self, partitions: int) -> None:
        self._admin.create_topics({TOPIC: {"num_partitions": partitions, "replication_factor": 1}})

    def grow_topic(self, partitions: int) -> None:
        self._admin.create_partitions({TOPIC: partitions})

    def prepare(self) -> None:
        """Nothing: there is no chart, and the group brings its volume."""

    def apply(self, within: float) -> None:
        where = ["--bootstrap", self.kafka_bootstrap, "--app-dir", str(MANIFEST.parent)]
        said = self._command("up", "-d", "-f", str(self._manifest), *where, apart=True)
        self.reporter.show("\n".join(line for line in said.splitlines() if not line.startswith("warning: ")))
        await_that("the group is Ready", self._ready, within=within, every=0.5, explain=self.explain)

    def limit(self, consumers: int) -> None:
        document = yaml.safe_load(self._manifest.read_text())
        document["spec"]["scaling"]["maxReplicas"] = consumers
        self._manifest = self.folder / MANIFEST.name
        self._manifest.write_text(yaml.safe_dump(document, sort_keys=False))
        where = ["--bootstrap", self.kafka_bootstrap, "--app-dir", str(MANIFEST.parent)]
        self.reporter.show(self._command("apply", "-f", str(self._manifest), *where))

    def kill(self, consumer: str, shards: int) -> tuple[float, float]:
        earliest = time.time()
        said = self._command("kill", consumer, note=f"(it holds {shards})")
        killed = time.time()
        self.reporter.show(said)
        return earliest, killed

    def kill_operator(self) -> None:
        """SIGKILL to the operator's process, and another one in its place."""
        pid = holder(self._state.lock)
        if pid is None:
            raise DemoError(f"no operator runs on {self._state.folder}")
        self.reporter.say(f"kill -9 {pid}    (the operator)")
        os.kill(pid, signal.SIGKILL)
        await_that("the operator has ended", lambda: holder(self._state.lock) != pid, within=STOP_TIMEOUT)
        self.reporter.show(self._command("up", "-d", apart=True))

    def stop(self) -> bool:
        """End everything and remove the folder; whether there was anything. The producer has ended."""
        there = self.folder.exists()
        self._end_operator()
        if self._found_objects is not None:
            self._found_objects.database.close()
        self._found_objects = None
        self.__dict__.pop("_admin", None)
        self._manifest = MANIFEST
        self.broker.remove()
        shutil.rmtree(self.folder, ignore_errors=True)
        return there

    def _end_operator(self) -> None:
        """Nothing that it keeps is wanted any more, so its consumers are killed: to let them drain takes longer."""
        if not (self._state.folder / "state.db").exists():
            return
        pid = holder(self._state.lock)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            await_that("the operator has ended", lambda: holder(self._state.lock) != pid, within=STOP_TIMEOUT)
        objects = self._state.objects()
        machine = self._state.machine(sys.executable, {})
        containers = [machine.container(pod["metadata"]["uid"]) for pod in objects.all(POD)]
        objects.database.close()

        def ended() -> bool:
            for container in containers:
                container.kill()
            return not any(container.processes() for container in containers)

        await_that("the drivers have ended", ended, within=STOP_TIMEOUT)
        self._state.remove()

    # ---- observations

    def calm(self) -> bool:
        resource = self._group()
        return is_true(resource, "Ready") and is_true(resource, "Balanced")

    def _ready(self) -> bool:
        return is_true(self._group(), "Ready")

    def _group(self) -> Json:
        found = self._objects.get((GROUP_KIND, NAMESPACE, GROUP))
        if found is None:
            raise DemoError(f"{self._state.folder} has no group {NAMESPACE}/{GROUP}")
        return found

    def _pods(self) -> list[Json]:
        pods = self._objects.all(POD)
        return [pod for pod in pods if pod["metadata"].get("labels", {}).get(GROUP_LABEL) == GROUP]

    def consumers(self) -> Sequence[str]:
        return [pod["metadata"]["name"] for pod in self._pods()]

    def runs(self) -> dict[str, Run]:
        found: dict[str, Run] = {}
        for pod in self._pods():
            for status in pod.get("status", {}).get("containerStatuses", []):
                if "running" in status["state"]:
                    found[pod["metadata"]["name"]] = (pod["metadata"]["uid"], status["restartCount"])
        return found

    def operator_run(self) -> str:
        pid = holder(self._state.lock)
        if pid is None:
            raise DemoError(f"no operator runs on {self._state.folder}")
        return str(pid)

    @property
    def metrics_url(self) -> str:
        return f"http://{HOST}:{self._objects.database.fact(METRICS)}/metrics"

    def metrics(self) -> list[Sample]:
        return page(self.metrics_url)

    def lag(self) -> int | None:
        wanted = {"namespace": NAMESPACE, "consumergroup": GROUP}
        samples = (sample for sample in self.metrics() if sample.name == "shardherd_group_lag_records")
        return next((int(sample.value) for sample in samples if wanted.items() <= sample.labels.items()), None)

    def committed(self) -> dict[str, int]:
        found = positions(self._admin, self.kafka_bootstrap, TOPIC, KAFKA_GROUP)
        return {f"{TOPIC}/{partition}": committed for partition, (committed, _) in found.items() if committed >= 0}

    def described(self) -> dict[str, Position]:
        arguments = ["--bootstrap-server", self.kafka_bootstrap, "--describe", "--group", KAFKA_GROUP]
        return described_positions(self.broker.tool(KAFKA_TOOLS["kafka-consumer-groups"], *arguments), KAFKA_GROUP)

    def show_group(self) -> None:
        self.reporter.show(self._command("status").partition(EVENTS)[0])

    def explain(self) -> str:
        parts: list[str] = []
        if (self._state.folder / "state.db").exists():
            parts.append(self._said("status"))
            for name in self.consumers():
                parts += [f"last lines of {name}:", *self._said("logs", name).splitlines()[-LINES:]]
        for what, log in (("operator", self._state.log), ("broker", self.broker.log)):
            if log.exists():
                parts += [f"last lines of the {what}:", *log.read_text(errors="replace").splitlines()[-LINES:]]
        return "\n".join(parts)

    def next_steps(self) -> str:
        program = f"{Path(sys.executable).parent.relative_to(REPOSITORY)}/shardherd"
        state = f"--state {self._state.folder}"
        return f"""
Everything still runs. To look around:

  {program} local status {state}
  {program} local logs {GROUP}-0 {state}
  {program} local kill {GROUP}-0 {state}
  {program} explain {GROUP} --local {state}
  {program} page --local {state}    says where all of it is in a browser

  metrics of the operator: {self.metrics_url}
  rows of the sink: {self.rows}

  make demo           run it again      make demo-down   remove all of it
  make demo-cluster   the same on a real Kubernetes, which is built here first: that takes tens of minutes
  docs/laptop.md      how to run an application of yours like this
"""

    # ---- how it is done

    @cached_property
    def _admin(self) -> Any:
        return KafkaAdminClient(bootstrap_servers=self.kafka_bootstrap)

    @property
    def _objects(self) -> Objects:
        if self._found_objects is None:
            self._found_objects = self._state.objects()
        return self._found_objects

    @property
    def _environment(self) -> dict[str, str]:
        """What drivers inherit beside their manifest's environment."""
        # What Spark keeps beside its own folders is left behind by a driver that is killed: here it goes with the demo.
        scratch = self.folder / "tmp"
        scratch.mkdir(exist_ok=True)
        given = os.environ.get("JAVA_TOOL_OPTIONS", "")
        return {"TRIGGER": TRIGGER, "JAVA_TOOL_OPTIONS": f"{self._java_options} -Djava.io.tmpdir={scratch} {given}".strip()}

    def _command(self, verb: str, *arguments: str, note: str = "", apart: bool = False) -> str:
        """Say which command it is, run it, and return what it printed. Raises DemoError."""
        before = [f"TRIGGER='{TRIGGER}'"] if apart else []
        shown = " ".join(_short(argument) for argument in (*before, "shardherd", "local", verb, *arguments))
        self.reporter.say(f"{shown}    {note}".rstrip())
        return self._run(verb, *arguments, apart=apart)

    def _said(self, verb: str, *arguments: str) -> str:
        """What a command printed, or why it could not: an explanation may not fail itself."""
        try:
            return self._run(verb, *arguments)
        except DemoError as error:
            return str(error)

    def _run(self, verb: str, *arguments: str, apart: bool = False) -> str:
        """A command of `shardherd local` on this folder: in this process, as its start takes a second, unless `apart`."""
        words = ["local", verb, *arguments, "--state", str(self._state.folder)]
        if apart:
            done = subprocess.run(
                [sys.executable, "-m", "shardherd", *words],
                env={**os.environ, **self._environment},
                capture_output=True,
                text=True,
                check=False,
                cwd=REPOSITORY,
            )
            code, printed, complained = done.returncode, done.stdout, done.stderr
        else:
            out, err = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = shardherd(words)
            printed, complained = out.getvalue(), err.getvalue()
        if code != 0:
            raise DemoError(f"`shardherd {' '.join(words)}` ended with {code}: {complained.strip() or printed.strip()}")
        return printed


def _short(argument: str) -> str:
    """A path of the repository as a user in its folder would type it."""
    prefix = f"{REPOSITORY}/"
    return argument.removeprefix(prefix)
