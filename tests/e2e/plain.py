"""A group of plain Python consumers on the real node, and what a test sees of it: who holds what, what was read, when, by whom.

Its application is `plain_consumer`, so its pods are ready in seconds. Used where a fault is the control plane's or the node's,
and Spark is not needed. Asserts nothing but what it says.
"""

from __future__ import annotations

import itertools
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dev.demo.kube import Json, is_ready, is_true
from dev.demo.lab import SPARK_IMAGE, Lab
from dev.demo.traffic import Traffic
from shardherd.core.model.nouns import ShardId
from tests.e2e import plain_consumer
from tests.e2e.groups import FAULTS, RESOURCE, Deployed, group

IMAGE = SPARK_IMAGE
SAME_IMAGE = f"docker.io/{SPARK_IMAGE}"
"""The very same by another name, so that it is another declaration."""

CLAIM = "notes"
CODE = "plain-consumer"
FOLDER = "/opt/plain"
RATE = 60
"""Records a second, over all shards."""

READY_S = 120


@dataclass(frozen=True)
class Read:
    """Records of a shard that a run of a consumer (its pod's UID and which start) read, and when (seconds since 1970)."""

    shard: ShardId
    begin: int
    end: int
    consumer: str
    run: str
    at: float


@dataclass(frozen=True)
class Plain(Deployed):
    """One such group with its producer."""

    traffic: Traffic
    notes: Path

    def reads(self) -> list[Read]:
        """All that was read so far, in the order of time."""
        return reads_in(self.notes)

    def shards_of(self, consumer: str) -> set[ShardId]:
        """What this consumer holds."""
        return {shard for shard, (holder, _, _) in self.grants().items() if holder == consumer}

    def spread(self) -> dict[str | None, int]:
        """How many shards each holds."""
        return dict(Counter(holder for holder, _, _ in self.grants().values()))

    def runs(self) -> dict[str, tuple[str, int]]:
        """UID of each pod that is not about to go, and how often its container was started again."""
        return {
            pod["metadata"]["name"]: (pod["metadata"]["uid"], _restarts(pod))
            for pod in self.pods()
            if "deletionTimestamp" not in pod["metadata"]
        }

    def await_condition(self, kind: str, status: str, reason: str, within: float = 60.0) -> str:
        """The message of the condition once it has this status and reason."""

        def found() -> str | None:
            now = self.condition(kind)
            return now[2] if now[:2] == (status, reason) else None

        return str(self.until(f"has {kind}={status} for {reason}", found, within, every=0.3))

    def await_calm(self, spread: Mapping[str, int]) -> None:
        """Wait until the group is Ready and Balanced, and these hold so many shards each."""

        def calm() -> bool:
            resource = self.resource()
            return is_true(resource, "Ready") and is_true(resource, "Balanced") and self.spread() == spread

        self.until(f"is read by {dict(spread)}", calm, READY_S, every=0.5)

    def await_read_since(self, moment: float, by: set[str]) -> None:
        """Wait until every shard was read after that moment by one of these."""
        shards = set(self.grants())

        def read() -> bool:
            return {each.shard for each in self.reads() if each.at > moment and each.consumer in by} == shards

        self.until(f"is read by {sorted(by)}", read, 60, every=0.5)

    def await_replaced(self, pod: str, uid: str) -> None:
        """Wait until another pod of that name is ready."""

        def replaced() -> bool:
            return any(
                each["metadata"]["name"] == pod and each["metadata"]["uid"] != uid and is_ready(each) for each in self.pods()
            )

        self.until(f"has another {pod}", replaced, READY_S, every=0.5)

    def finish(self) -> list[Read]:
        """End the producer; once all that it wrote was read, all reads."""
        produced = self.traffic.stop()

        def done() -> bool:
            ends: dict[str, int] = {}
            for read in self.reads():
                ends[read.shard] = max(read.end, ends.get(read.shard, 0))
            return ends == {shard: end for shard, end in produced.items() if end}

        self.until(f"has read {produced}", done, 60, every=0.5)
        return self.reads()


def reads_in(notes: Path) -> list[Read]:
    """All that consumers have noted in this folder, in the order of time."""
    found = []
    for file in notes.glob("*"):
        consumer, _, run = file.name.partition(".")
        lines = [json.loads(line) for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]
        found += [Read(ShardId(line.pop("shard")), consumer=consumer, run=run, **line) for line in lines]
    return sorted(found, key=lambda read: read.at)


def skipped(reads: list[Read]) -> list[Read]:
    """What was read although nobody had read what stands before it."""
    ends: Counter[str] = Counter()
    found = []
    for read in reads:
        if read.begin > ends[read.shard]:
            found.append(read)
        ends[read.shard] = max(ends[read.shard], read.end)
    return found


def repeated(reads: list[Read]) -> list[Read]:
    """What had been read before, all of it or some."""
    ends: Counter[str] = Counter()
    found = []
    for read in reads:
        if read.begin < ends[read.shard]:
            found.append(read)
        ends[read.shard] = max(ends[read.shard], read.end)
    return found


def longest_pause(reads: list[Read], since: float, until: float) -> float:
    """The longest time in seconds, between these moments, in which some shard was not read."""
    longest = 0.0
    for shard in {read.shard for read in reads}:
        times = [since, *(read.at for read in reads if read.shard == shard and since < read.at < until), until]
        longest = max(longest, *(later - earlier for earlier, later in itertools.pairwise(times)))
    return longest


def prepare(lab: Lab, namespace: str = FAULTS) -> None:
    """What groups of plain consumers need in their namespace: their code, and the folder for their notes."""
    lab.make_volume(namespace, CLAIM)
    code = Path(plain_consumer.__file__)
    metadata = {"name": CODE, "namespace": namespace}
    lab.kube.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {code.name: code.read_text()}})


@contextmanager
def reading(
    lab: Lab,
    name: str,
    *,
    consumers: int,
    shards: int,
    namespace: str = FAULTS,
    image: str = IMAGE,
    limits: Json | None = None,
    **changes: Any,
) -> Iterator[Plain]:
    """A group of so many consumers, not awaited, whose topic is being written to; it is deleted afterwards.

    Its name begins with `name`, and is that of no group of an earlier run. `limits` are those of its
    container. `changes` are those of `group`.
    """
    name = f"{name}-{os.getpid()}"
    lab.create_topic(name, shards)
    traffic = Traffic(lab, name)
    traffic.start(backlog=0, rate=RATE)
    lab.kube.apply(_manifest(name, namespace, consumers, image, limits or {}, **changes))
    notes = lab.shared / namespace / CLAIM / name
    try:
        yield Plain(lab, namespace, name, traffic, notes)
    finally:
        traffic.end()
        lab.kube.run("delete", RESOURCE, name, "-n", namespace, "--wait=false")


def _manifest(name: str, namespace: str, consumers: int, image: str, limits: Json, **changes: Any) -> Json:
    mounts = [{"name": "notes", "mountPath": "/notes"}, {"name": "code", "mountPath": FOLDER}]
    template = {
        "spec": {
            "containers": [{"name": "driver", "volumeMounts": mounts, "resources": {"limits": limits}}],
            "volumes": [
                {"name": "notes", "persistentVolumeClaim": {"claimName": CLAIM}},
                {"name": "code", "configMap": {"name": CODE}},
            ],
        }
    }
    return group(
        name,
        namespace,
        **{
            "source__kafka": {"bootstrapServers": "kafka:9092", "topics": [name]},
            "heartbeatInterval": "1s",
            "replicas": consumers,
            "scaling": {"mode": "Fixed"},
            "application": {
                "image": image,
                "mainApplicationFile": f"{FOLDER}/{Path(plain_consumer.__file__).name}",
                "arguments": [f"/notes/{name}"],
                "driver": {"cores": 1, "memory": "128m", "template": template},
                "executor": {"instances": 0},
            },
            **changes,
        },
    )


def _restarts(pod: Json) -> int:
    return sum(status["restartCount"] for status in pod["status"].get("containerStatuses", ()))
