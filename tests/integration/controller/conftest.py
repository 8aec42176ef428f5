"""The controller on the real API server, one for a module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dev.cluster import Cluster
from tests.harness.cluster import Names
from tests.integration.controller.bench import ControllerBench, unique
from tests.integration.controller.fault_lab import FaultLab, reading


@pytest.fixture(scope="module")
def bench(cluster: Cluster, names: Names) -> Iterator[ControllerBench]:
    """A running controller in a namespace that enforces the restricted standard."""
    namespace = unique(names, "controller")
    cluster.kubectl("create", "namespace", namespace)
    cluster.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    bench = ControllerBench(cluster, namespace)
    bench.start()
    try:
        yield bench
    finally:
        bench.stop()
        cluster.kubectl("delete", "namespace", namespace, "--wait=false")


@pytest.fixture
def lab(cluster: Cluster, names: Names, tmp_path: Path) -> Iterator[FaultLab]:
    """A group that is read, behind a proxy of its own."""
    with reading(cluster, unique(names, "faults"), tmp_path) as lab:
        yield lab
