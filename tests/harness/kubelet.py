"""What a node would do with a group's pods, where there is none: each pod runs a plain Python consumer on the real protocol.

A pod starts, becomes ready after a while, and when it is deleted its consumer drains, leaves, and the pod goes. A consumer that
ends by itself is started again. They read no records: they move their shards' positions on and note what they moved, so that a
test can tell what was read when and by whom.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from shardherd.adapters.kubernetes.api import KubernetesApi
from shardherd.client.sync import Consumer, ConsumerClient, ShardBeingRead
from shardherd.core.model.errors import FencedEpochError, ShardherdError
from shardherd.core.model.nouns import ConsumerId, Incarnation
from tests.harness.played import Json, PlayedNode


@dataclass(frozen=True)
class Range:
    """Records of a shard that a consumer has read and checkpointed, and when (monotonic seconds)."""

    shard: str
    begin: int
    end: int
    consumer: str
    at: float


@dataclass(frozen=True)
class Life:
    """When a pod was seen to be deleted, or to be ready, or its consumer ended by itself (`stopped`)."""

    pod: str
    event: str
    at: float


class PlayedKubelet(PlayedNode):
    """Runs the pods of a namespace's groups until it is closed.

    `coordinator` is where consumers call; empty: each where its pod says. `broken` are images whose pods never become ready,
    `missing` those that it cannot get. `ways` leads pods of these names to the coordinator by another address. `end` says how
    many records a shard has; by default there is always one more. A pod that was deleted and made again starts once
    `may_return` says so of its name and of when it was deleted (monotonic seconds). With `save_interval` in seconds consumers
    read on while a checkpoint is under way or withheld, and send the next so much later. A consumer that ends by one of
    `survives` is started again.
    """

    def __init__(
        self,
        api: KubernetesApi,
        namespace: str,
        coordinator: str,
        *,
        starting: float = 1.0,
        broken: tuple[str, ...] = (),
        missing: tuple[str, ...] = (),
        ways: Mapping[str, str] | None = None,
        end: Callable[[str], float] = lambda _: math.inf,
        may_return: Callable[[str, float], bool] = lambda _name, _since: True,
        save_interval: float = 0.0,
        survives: tuple[type[ShardherdError], ...] = (),
    ) -> None:
        super().__init__(api, namespace)
        self.ranges: list[Range] = []
        self.fenced: list[Range] = []
        """What was read, but maybe not checkpointed: another consumer may have read it again."""
        self.lives: list[Life] = []
        self._namespace = namespace
        self._coordinator = coordinator
        self._starting = starting
        self._broken = broken
        self._missing = missing
        self._ways = dict(ways or {})
        self._end = end
        self._may_return = may_return
        self._save_interval = save_interval
        self._survives = survives
        self._running: dict[str, tuple[threading.Thread, threading.Event]] = {}

    def _stop_all(self) -> None:
        for _, stopping in self._running.values():
            stopping.set()
        for thread, _ in self._running.values():
            thread.join()

    def of(self, shard: str) -> list[Range]:
        """What was read of a shard, in the order of its records."""
        return sorted((item for item in list(self.ranges) if item.shard == shard), key=lambda item: item.begin)

    def down(self) -> list[tuple[str, float, float]]:
        """Every time in which a pod was replaced: its name, from when and until when."""
        found, since = [], {}
        for life in list(self.lives):
            if life.event == "deleted":
                since[life.pod] = life.at
            elif life.event == "ready" and life.pod in since:
                found.append((life.pod, since.pop(life.pod), life.at))
        return found

    def _see(self, pod: Json) -> None:
        uid = pod["metadata"]["uid"]
        known = self._running.get(uid)
        deleting = "deletionTimestamp" in pod["metadata"]
        if known is None and not deleting:
            stopping = threading.Event()
            thread = threading.Thread(target=self._run, args=(pod, stopping), name=pod["metadata"]["name"])
            self._running[uid] = (thread, stopping)
            thread.start()
        elif deleting and known is not None and not known[1].is_set():
            self.lives.append(Life(pod["metadata"]["name"], "deleted", time.monotonic()))
            known[1].set()

    def _run(self, pod: Json, stopping: threading.Event) -> None:
        try:
            self._keep(pod)
            image = pod["spec"]["containers"][0]["image"]
            if image in self._missing:
                self._waits(pod, "ImagePullBackOff")
            else:
                for start in itertools.count(1):
                    if (
                        stopping.wait(self._starting)
                        or image in self._broken
                        or not self._returns(pod["metadata"]["name"], stopping)
                    ):
                        break
                    with contextlib.suppress(*self._survives):
                        self._consume(pod, stopping, start)
            stopping.wait()
            if not self._ended.is_set():
                self._release(pod)
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.failures.append(error)

    def _returns(self, name: str, stopping: threading.Event) -> bool:
        """Wait until a pod of this name may be back, if one was deleted; False if it is to go before."""
        deleted = [life.at for life in list(self.lives) if (life.pod, life.event) == (name, "deleted")]
        while deleted and not self._may_return(name, deleted[-1]):
            if stopping.wait(0.1):
                return False
        return True

    def _consume(self, pod: Json, stopping: threading.Event, start: int) -> None:
        """Run the consumer until it is told to drain, or ends by itself."""
        name, group = pod["metadata"]["name"], pod["metadata"]["labels"]["shardherd.dev/consumergroup"]
        token = self._token(pod)
        way = self._ways.get(name, self._coordinator) or _variable(pod, "SHARDHERD_COORDINATOR_URL")
        with ConsumerClient(way, self._namespace, group, lambda: token) as client:
            options = {"save_interval": self._save_interval} if self._save_interval else {}
            incarnation = Incarnation(pod["metadata"]["uid"], start)
            consumer = Consumer(client, ConsumerId(name), incarnation, drain_timeout=10.0, group_uid=_group_uid(pod), **options)
            with consumer:
                # Before anybody sees that it is: who has seen it looks for this.
                self.lives.append(Life(name, "ready", time.monotonic()))
                self._ready(pod)
                reader = threading.Thread(target=self._read, args=(consumer, name), name=f"{name} reads")
                reader.start()
                while reader.is_alive() and not stopping.wait(0.1):
                    pass
                if stopping.is_set():
                    consumer.drain(10.0)
                else:
                    self.lives.append(Life(name, "stopped", time.monotonic()))
            reader.join()

    def _read(self, consumer: Consumer, name: str) -> None:
        with contextlib.suppress(ShardherdError):
            # `take` raises once the consumer drains or was stopped: that ends the reading.
            while True:
                with consumer.take() as shard:
                    time.sleep(0.05)  # the work on one record; what it takes is of no interest
                    if shard.position >= self._end(str(shard.name)):
                        continue
                    saved = self._save(shard)
                    found = Range(str(shard.name), shard.position, shard.position + 1, name, time.monotonic())
                    (self.ranges if saved else self.fenced).append(found)

    def _save(self, shard: ShardBeingRead) -> bool:
        """Checkpoint one record, for as long as there is no coordinator to ask; False if somebody else holds the shard now."""
        while True:
            try:
                shard.save_checkpoint(shard.position + 1, now=not self._save_interval)
            except FencedEpochError:
                return False
            except ShardherdError as error:
                if not error.retryable or self._ended.wait(0.1):
                    raise
            else:
                return True

    def _token(self, pod: Json) -> str:
        metadata = pod["metadata"]
        bound = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
        path = f"/api/v1/namespaces/{self._namespace}/serviceaccounts/{pod['spec']['serviceAccountName']}/token"
        answer = self._api.call("POST", path, {"spec": {"audiences": ["shardherd"], "boundObjectRef": bound}})
        return str(answer["status"]["token"])

    def _ready(self, pod: Json) -> None:
        image = pod["spec"]["containers"][0]["image"]
        container = {"name": "driver", "ready": True, "restartCount": 0, "image": image, "imageID": image}
        running = {**container, "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}], "containerStatuses": [running]}
        self._patch(pod, {"status": status}, "/status")

    def _waits(self, pod: Json, reason: str) -> None:
        image = pod["spec"]["containers"][0]["image"]
        waiting = {"reason": reason, "message": f'Back-off pulling image "{image}"'}
        container = {"name": "driver", "ready": False, "restartCount": 0, "image": image, "imageID": ""}
        self._patch(pod, {"status": {"containerStatuses": [{**container, "state": {"waiting": waiting}}]}}, "/status")


def _group_uid(pod: Json) -> str:
    """The UID of the group that this pod was made for, as its application reads it."""
    return _variable(pod, "SHARDHERD_GROUP_UID")


def _variable(pod: Json, name: str) -> str:
    """A variable of the consumer's environment."""
    return next(str(item["value"]) for item in pod["spec"]["containers"][0]["env"] if item["name"] == name)
