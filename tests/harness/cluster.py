"""Fixtures of the real cluster: one instance for all tests of a run, started when the first test asks for it.

`cluster` has an API server and a broker, but no node; `node_cluster` adds the node, Prometheus and our images. The instance is
called `test` (SHARDHERD_TEST_CLUSTER), so that it never meets a demo that was left running; it is removed at the end, also
after a failure or Ctrl-C. Two runs at a time under one name take turns.
"""

from __future__ import annotations

import fcntl
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from dev.cluster import Cluster
from dev.cluster.everything import time_left
from dev.cluster.paths import cache
from dev.demo.lab import Lab
from dev.demo.report import Reporter
from tests.harness.beside import say

Tell = Callable[[str], None]


class Names:
    """Names that no other test of this run has."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def fresh(self, prefix: str) -> str:
        """`prefix` and a number."""
        return f"{prefix}-{next(self._numbers)}"


@pytest.fixture(scope="session")
def names() -> Names:
    """Fresh names of topics, groups and namespaces."""
    return Names()


@pytest.fixture(scope="session")
def tell(pytestconfig: pytest.Config) -> Tell:
    """Print a line on the terminal at once, past pytest's capturing: for what takes long."""
    return partial(say, pytestconfig)


@pytest.fixture(scope="session")
def _instance(pytestconfig: pytest.Config, tell: Tell) -> Iterator[Cluster]:
    """The instance of this run, not started yet; removed at the end unless --keep."""
    name = os.environ.get("SHARDHERD_TEST_CLUSTER", "test")
    keep = pytestconfig.getoption("--keep")
    with _turn(name, tell):
        instance = Cluster(name)
        if not keep:
            instance.down()
        try:
            yield instance
        finally:
            if not keep:
                instance.down()


def _first() -> str:
    """What a cold machine does before that, and how long it takes."""
    left = time_left()
    return f" (programs and images are being built first, all of them in {left})" if left else ""


@contextmanager
def _turn(name: str, tell: Tell) -> Iterator[None]:
    """One run at a time under one name."""
    path = cache() / f"tests-{name}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tell(f"waiting for another run of the tests to end ({path})")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def cluster(_instance: Cluster, tell: Tell) -> Cluster:
    """A real API server, controller manager and Kafka broker. No node: pods stay Pending."""
    tell(f"starting instance {_instance.name!r}: API server and Kafka{_first()}")
    _instance.up(node=False, kafka=True, prometheus=False)
    return _instance


@pytest.fixture(scope="session")
def kubeconfig(cluster: Cluster) -> Path:
    """The administrator's kubeconfig of `cluster`."""
    return cluster.kubeconfig


@pytest.fixture(scope="session")
def lab(_instance: Cluster, tell: Tell) -> Lab:
    """The instance as the demo sees it; start it with `node_cluster`."""
    return Lab(_instance.name, Reporter(tell))


@pytest.fixture(scope="session")
def node_cluster(_instance: Cluster, lab: Lab, tell: Tell) -> Cluster:
    """The same with a node, Prometheus and our two images."""
    tell(f"starting instance {_instance.name!r} with a node, Prometheus and the images{_first()}")
    lab.start()
    return _instance
