"""The operator, installed once for all end-to-end tests, with a namespace for each kind of them."""

from __future__ import annotations

import pytest

from dev.cluster import Cluster
from dev.demo.lab import SYSTEM, Lab
from tests.e2e.groups import NAMESPACES


@pytest.fixture(scope="session")
def installed(node_cluster: Cluster, lab: Lab) -> Lab:
    """The node with the chart installed."""
    for namespace in (SYSTEM, *NAMESPACES):
        lab.make_namespace(namespace)
    lab.install(NAMESPACES)
    return lab
