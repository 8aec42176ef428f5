"""Watches what becomes of the groups: when each is right, and when its pods were made. Called by __main__.

A group is right once its StatefulSet has the wanted replicas and belongs to it, its Service belongs to it, and its status is of
the current generation and says how many shards and consumers there are. All is read from watches of the API server, so that
looking costs little; times are those of the arrival here.
"""

from __future__ import annotations

import http.client
import json
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.operator.town import GROUPS, NAMESPACE

METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
WATCHED = {
    "group": (GROUPS, "application/json"),
    "set": (f"/apis/apps/v1/namespaces/{NAMESPACE}/statefulsets", "application/json"),
    "service": (f"/api/v1/namespaces/{NAMESPACE}/services", METADATA_ONLY),
    "pod": (f"/api/v1/namespaces/{NAMESPACE}/pods", METADATA_ONLY),
}


class Watching:
    """What was seen since `start`. `right` and `pods` are times (monotonic) by name."""

    def __init__(self, url: str, certificates: Path, shards: int, consumers: int) -> None:
        self.right: dict[str, float] = {}
        self.pods: dict[str, float] = {}
        self.failures: list[BaseException] = []
        self._url = urlsplit(url)
        self._tls = ssl.create_default_context(cafile=str(certificates / "ca.crt"))
        self._tls.load_cert_chain(str(certificates / "admin.crt"), str(certificates / "admin.key"))
        self._wanted = (shards, consumers)
        self._uids: dict[str, str] = {}
        self._parts: dict[str, set[str]] = {}
        self._lock = threading.Lock()
        self._ended = False

    def start(self) -> None:
        """Begin to watch; returns once all watches are open."""
        looks: dict[str, Callable[[dict[str, Any]], None]] = {
            "group": self._group,
            "set": self._set,
            "service": self._service,
            "pod": self._pod,
        }
        opened = []
        for kind, (path, accept) in WATCHED.items():
            event = threading.Event()
            opened.append(event)
            threading.Thread(
                target=self._watch, args=(path, accept, looks[kind], event), name=f"watch {kind}", daemon=True
            ).start()
        for event in opened:
            if not event.wait(20):
                raise RuntimeError(f"a watch did not open: {self.failures}")

    def stop(self) -> None:
        self._ended = True

    def check(self) -> Watching:
        """Itself. Raises RuntimeError if a watch failed, after which what is not seen may be there."""
        if self.failures:
            raise RuntimeError("a watch of the API server failed") from self.failures[0]
        return self

    def _watch(self, path: str, accept: str, look: Callable[[dict[str, Any]], None], opened: threading.Event) -> None:
        try:
            while not self._ended:
                # The API server ends a watch that is read too slowly. The next one begins with all that there is.
                self._watch_once(path, accept, look, opened)
        except Exception as error:  # noqa: BLE001 - `check` raises it
            self.failures.append(error)

    def _watch_once(self, path: str, accept: str, look: Callable[[dict[str, Any]], None], opened: threading.Event) -> None:
        connection = http.client.HTTPSConnection(str(self._url.hostname), self._url.port, context=self._tls)
        try:
            connection.request("GET", f"{path}?watch=true&timeoutSeconds=7200", headers={"Accept": accept})
            response = connection.getresponse()
            if response.status != 200:
                raise RuntimeError(f"watch of {path}: {response.status}")
            opened.set()
            while not self._ended and (line := response.readline()):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    return
                with self._lock:
                    look(event["object"])
        finally:
            connection.close()

    def _group(self, body: dict[str, Any]) -> None:
        metadata, status = body["metadata"], body.get("status", {})
        self._uids[metadata["name"]] = metadata["uid"]
        shown = (status.get("shards", {}).get("total"), status.get("desiredReplicas"))
        if status.get("observedGeneration") == metadata["generation"] and shown == self._wanted:
            self._note(metadata["name"], "status")

    def _set(self, body: dict[str, Any]) -> None:
        if body["spec"]["replicas"] == self._wanted[1]:
            self._note_if_owned(body, "set")

    def _service(self, body: dict[str, Any]) -> None:
        self._note_if_owned(body, "service")

    def _pod(self, body: dict[str, Any]) -> None:
        if "shardherd.dev/consumergroup" in (body["metadata"].get("labels") or {}):
            self.pods.setdefault(body["metadata"]["name"], time.monotonic())

    def _note_if_owned(self, body: dict[str, Any], part: str) -> None:
        for owner in body["metadata"].get("ownerReferences", ()):
            if owner["kind"] == "ConsumerGroup" and owner["uid"] == self._uids.get(owner["name"], owner["uid"]):
                self._note(owner["name"], part)

    def _note(self, group: str, part: str) -> None:
        parts = self._parts.setdefault(group, set())
        parts.add(part)
        if len(parts) == 3:
            self.right.setdefault(group, time.monotonic())
