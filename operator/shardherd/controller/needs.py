"""How much memory and CPU a consumer's container needs: what it requests, and what it may not exceed.

Called by `manifests`. Spark makes the executors' pods; it gets the same figures from `spark.application`. Pure. The figures are
explained, and laid out as a table, in docs/sizing.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardherd.controller.declared import executors

FACTOR = 0.4
"""Of the heap, beside it: what the JVM and Python need grows with what they work on."""

DRIVER = 768
"""MiB beside a driver's heap: the JVM's own, the application's process, and those in which Spark plans what to read."""

TASK = 384
"""MiB for a task that runs: a Python worker with numba and Arrow, and what Kafka has answered (64 MiB by default)."""

WORKER = 512
"""MiB of a worker's container: its process, 64 MiB of what is fetched, more once it is decompressed, and the program's own."""

CPU_REQUEST = 250
"""Thousandths of a core that are requested for each: what is idle may be used by others."""


def driver(application: Mapping[str, Any]) -> dict[str, Any]:
    """The resources of a driver's container. Memory is never overcommitted: its limit is what it requests."""
    declared = application["driver"]
    tasks = 0 if executors(application) else declared["cores"]
    heap = mebibytes(declared["memory"])
    memory = f"{heap + max(int(heap * FACTOR), DRIVER + TASK * tasks)}Mi"
    limits = {"cpu": str(declared["cpuLimit"])} if "cpuLimit" in declared else {}
    return {
        "requests": {"cpu": f"{CPU_REQUEST * declared['cores']}m", "memory": memory},
        "limits": {"memory": memory, **limits},
    }


def worker(application: Mapping[str, Any]) -> dict[str, Any]:
    """The resources of a worker's container, a plain Python process: what is declared, or enough for the usual options."""
    declared = application.get("worker", {})
    memory = declared.get("memory", f"{WORKER}Mi")
    return {"requests": {"cpu": declared.get("cpu", f"{CPU_REQUEST}m"), "memory": memory}, "limits": {"memory": memory}}


def agreed(resources: Mapping[str, Any], template: Mapping[str, Any]) -> dict[str, Any]:
    """`resources` with a user's template merged in. A template that says a request or a limit of memory means both.

    Otherwise the API server would refuse a pod whose template requests more than our limit, or allows less than our request.
    """
    said = {kind: values["memory"] for kind, values in template.items() if values and "memory" in values}
    if len(said) != 1 or None in said.values():
        return dict(resources)
    ((kind, memory),) = said.items()
    other = "limits" if kind == "requests" else "requests"
    return {**resources, other: {**resources.get(other, {}), "memory": memory}}


def mebibytes(heap: str) -> int:
    """A heap as Spark writes it."""
    return int(heap[:-1]) * (1024 if heap[-1] in "gG" else 1)
