"""The chart, to be rendered, and a cluster that is left without a definition of ours."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dev.cluster import Cluster
from tests.chart.rendering import Chart
from tests.harness.definition import RESOURCE


@pytest.fixture(scope="session")
def chart(_instance: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Chart:
    return Chart(_instance, tmp_path_factory.mktemp("chart"))


@pytest.fixture(scope="module", autouse=True)
def _definition_goes_at_the_end(cluster: Cluster) -> Iterator[None]:
    """A definition that no release owns would be in the way of the next test that installs the chart."""
    yield
    cluster.kubectl("delete", "crd", RESOURCE, "--ignore-not-found")
