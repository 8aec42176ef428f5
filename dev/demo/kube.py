"""kubectl for the demo and the end-to-end tests: one cluster, named by an environment, never the caller's own.

Called by the steps. It decides nothing; it runs kubectl, reads JSON, and collects what explains a failure.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dev.demo.report import DemoError

Json = dict[str, Any]


@dataclass(frozen=True)
class Kube:
    """Runs `kubectl` with an environment that names the cluster."""

    kubectl: Path
    environment: Mapping[str, str]

    def attempt(self, *arguments: str, stdin: str | None = None, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Run kubectl and return how it ended, whatever that was."""
        return subprocess.run(
            [str(self.kubectl), *arguments],
            input=stdin,
            env=dict(self.environment),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def run(self, *arguments: str, stdin: str | None = None, timeout: float = 60) -> str:
        """Run kubectl and return what it printed. Raises DemoError with its error output."""
        done = self.attempt(*arguments, stdin=stdin, timeout=timeout)
        if done.returncode != 0:
            raise DemoError(
                f"kubectl {' '.join(arguments)} failed ({done.returncode}): {done.stderr.strip() or done.stdout.strip()}"
            )
        return done.stdout

    def get(self, *arguments: str) -> Json:
        """`kubectl get ... -o json`. Raises DemoError if there is no such object."""
        found: Json = json.loads(self.run("get", *arguments, "-o", "json"))
        return found

    def find(self, *arguments: str) -> Json | None:
        """Like `get`, or None if there is no such object."""
        out = self.run("get", *arguments, "--ignore-not-found", "-o", "json").strip()
        return json.loads(out) if out else None

    def items(self, *arguments: str) -> list[Json]:
        """The items of a `kubectl get` of many."""
        found: list[Json] = self.get(*arguments).get("items", [])
        return found

    def apply(self, *manifests: Mapping[str, Any]) -> str:
        """`kubectl apply` of objects."""
        body = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(manifests)})
        return self.run("apply", "-f", "-", stdin=body)

    def pods(self, namespace: str, selector: str) -> list[Json]:
        """Pods by label."""
        return self.items("pods", "-n", namespace, "-l", selector)

    def shell(self, namespace: str, pod: str, script: str, container: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run a line of shell in a pod."""
        where: Sequence[str] = ("-c", container) if container else ()
        return self.attempt("exec", "-n", namespace, pod, *where, "--", "sh", "-c", script)

    def explain(self, namespace: str, group: str | None = None) -> str:
        """What to show when something did not come true: the group's conditions, its pods, the last events and logs."""
        parts: list[str] = []
        if group is not None:
            found = self.attempt("get", "consumergroups.shardherd.dev", group, "-n", namespace, "-o", "json")
            if found.returncode == 0:
                status = json.loads(found.stdout).get("status", {})
                parts.append(f"status of {namespace}/{group}:")
                parts.extend(
                    f"  {c['type']}={c['status']} {c.get('reason', '')}: {c.get('message', '')}"
                    for c in status.pop("conditions", [])
                )
                parts.append(f"  {json.dumps(status)}")
            else:
                parts.append(found.stderr.strip())
        parts.append(self.attempt("get", "pods", "-n", namespace, "-o", "wide").stdout.rstrip())
        events = self.attempt("get", "events", "-n", namespace, "--sort-by=.lastTimestamp").stdout.rstrip().splitlines()
        parts.extend(["events:", *events[-15:]])
        pods = json.loads(self.attempt("get", "pods", "-n", namespace, "-o", "json").stdout or "{}").get("items", [])
        for pod in pods:
            ready = any(c["type"] == "Ready" and c["status"] == "True" for c in pod.get("status", {}).get("conditions", []))
            if not ready:
                name = pod["metadata"]["name"]
                logs = self.attempt("logs", "-n", namespace, name, "--all-containers", "--tail=30")
                parts.extend([f"log of {name}:", (logs.stdout or logs.stderr).rstrip()])
        return "\n".join(part for part in parts if part)


def condition(resource: Json, kind: str) -> Json | None:
    """One condition of a resource's status, or None if it has none of that type."""
    conditions: list[Json] = resource.get("status", {}).get("conditions", [])
    return next((c for c in conditions if c["type"] == kind), None)


def is_true(resource: Json, kind: str) -> bool:
    """Whether a condition is True for the resource as it is specified now."""
    found = condition(resource, kind)
    if found is None or found["status"] != "True":
        return False
    return bool(found.get("observedGeneration", resource["metadata"]["generation"]) >= resource["metadata"]["generation"])


def is_ready(pod: Json) -> bool:
    """Whether a pod is ready and not on its way out."""
    return "deletionTimestamp" not in pod["metadata"] and is_true({**pod, "metadata": {"generation": 0}}, "Ready")
