"""What a node would do with the operators' own pods, where there is none: each runs the operator as a process of this machine.

The Deployment is the chart's, and the Deployment controller the real one: it makes a pod, waits until it is ready, and deletes
the one before. A process gets the variables that its pod declares, but ports of its own, and has the rights of the pod's
account.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from shardherd.adapters.kubernetes.api import KubernetesApi
from tests.harness.played import Json, PlayedNode

SELECTOR = "app.kubernetes.io/component=operator"


@dataclass
class _Running:
    process: subprocess.Popen[bytes]
    port: int
    draining: bool = False


class PlayedOperators(PlayedNode):
    """Runs the operators' pods of a namespace until it is closed. `ports` leads from a pod's name to where its API answers."""

    def __init__(
        self, api: KubernetesApi, namespace: str, kubeconfig: Path, folder: Path, free_port: Callable[[], int]
    ) -> None:
        super().__init__(api, namespace, SELECTOR)
        self.ports: dict[str, int] = {}
        self.images: list[str] = []
        """What each pod that was started declares, in their order."""
        self._kubeconfig = kubeconfig
        self._folder = folder
        self._free_port = free_port
        self._running: dict[str, _Running] = {}

    def _stop_all(self) -> None:
        for each in self._running.values():
            each.process.kill()
            each.process.wait()

    def said(self) -> str:
        """The ends of all logs, for a test that fails."""
        return "\n".join(f"{file.name}: {file.read_text()[-2000:]}" for file in sorted(self._folder.glob("*.log")))

    def _see(self, pod: Json) -> None:
        known = self._running.get(pod["metadata"]["uid"])
        deleting = "deletionTimestamp" in pod["metadata"]
        if known is None and not deleting:
            self._keep(pod)
            self._start(pod)
        elif known is not None and deleting and not known.draining:
            known.process.send_signal(signal.SIGTERM)
            known.draining = True
        elif deleting and (known is None or known.process.poll() is not None):
            if known is not None:
                assert known.process.returncode == 0, self.said()
            self._release(pod)
        elif known is not None and not deleting:
            assert known.process.poll() is None, self.said()
            self._show(pod, ready=_answers(known.port))

    def _start(self, pod: Json) -> None:
        metadata, container = pod["metadata"], pod["spec"]["containers"][0]
        fields = {
            "metadata.namespace": metadata["namespace"],
            "metadata.name": metadata["name"],
            "metadata.uid": metadata["uid"],
            "spec.serviceAccountName": pod["spec"]["serviceAccountName"],
        }
        declared = {
            item["name"]: item["value"] if "value" in item else fields[item["valueFrom"]["fieldRef"]["fieldPath"]]
            for item in container["env"]
            if "value" in item or "valueFrom" in item
        }
        port = self._free_port()
        changed = {
            "SHARDHERD_API_PORT": port,
            "SHARDHERD_METRICS_PORT": self._free_port(),
            "SHARDHERD_TLS_PORT": self._free_port(),
            "SHARDHERD_TERMINATION_LOG": self._folder / f"{metadata['name']}.termination",
            "KUBECONFIG": self._kubeconfig,
        }
        environment = {**os.environ, **declared, **{name: str(value) for name, value in changed.items()}}
        with (self._folder / f"{metadata['name']}.log").open("wb") as log:
            process = subprocess.Popen([sys.executable, "-m", "shardherd", "operator"], env=environment, stderr=log)
        self.ports[metadata["name"]] = port
        self.images.append(container["image"])
        self._running[metadata["uid"]] = _Running(process, port)

    def _show(self, pod: Json, *, ready: bool) -> None:
        shown = {item["type"]: item["status"] for item in pod["status"].get("conditions", ())}
        if (shown.get("Ready") == "True") != ready:
            conditions = [{"type": "Ready", "status": str(ready)}]
            self._patch(pod, {"status": {"phase": "Running", "conditions": conditions}}, "/status")


def _answers(port: int) -> bool:
    """Whether the readiness probe passes."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2) as response:
            return bool(response.status == 200)
    except (urllib.error.HTTPError, OSError):
        return False
