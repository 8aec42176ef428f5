"""What a node does with pods, played by a thread: it looks at them ten times a second until it is closed.

Used where a test has no node. What becomes of a pod is for those who build on it to say.
"""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, Self

from shardherd.adapters.kubernetes.api import MERGE_PATCH, ApiError, KubernetesApi

Json = Mapping[str, Any]

FINALIZER = "tests.shardherd.dev/played"
"""A pod that has no node is gone as soon as it is deleted; one with this is kept until what it runs has ended."""


class PlayedNode(ABC):
    """Looks at the pods of a namespace that `selector` selects. What fails ends it, and fails the block that runs it."""

    def __init__(self, api: KubernetesApi, namespace: str, selector: str = "") -> None:
        self.failures: list[BaseException] = []
        self._api = api
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._query = {"labelSelector": selector} if selector else {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=type(self).__name__)

    @contextlib.contextmanager
    def running(self) -> Iterator[Self]:
        """Play until the block ends."""
        self._thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            self._thread.join()
            self._stop_all()
            for pod in self._pods():
                self._release(pod)
        assert self.failures == []

    @abstractmethod
    def _see(self, pod: Json) -> None:
        """Do what is due of a pod."""

    @abstractmethod
    def _stop_all(self) -> None:
        """End what the pods run, and wait for it."""

    def _watch(self) -> None:
        while not self._ended.wait(0.1):
            try:
                for pod in self._pods():
                    self._see(pod)
            except Exception as error:  # noqa: BLE001 - the test looks at it
                self.failures.append(error)
                return

    def _pods(self) -> list[Json]:
        found: list[Json] = self._api.call("GET", self._path, query=self._query)["items"]
        return found

    def _keep(self, pod: Json) -> None:
        """Keep a pod, also when it is deleted, until it is released."""
        self._patch(pod, {"metadata": {"finalizers": [FINALIZER]}})

    def _release(self, pod: Json) -> None:
        self._patch(pod, {"metadata": {"finalizers": None}})

    def _patch(self, pod: Json, change: Json, part: str = "") -> None:
        # Of this very pod: another one may have its name already.
        metadata = {**change.get("metadata", {}), "uid": pod["metadata"]["uid"]}
        path = f"{self._path}/{pod['metadata']['name']}{part}"
        try:
            self._api.call("PATCH", path, {**change, "metadata": metadata}, content_type=MERGE_PATCH)
        except ApiError as error:
            if error.status not in (404, 409):
                raise
