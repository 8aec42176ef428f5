"""The chart, to be rendered without a cluster."""

from __future__ import annotations

import pytest

from dev.cluster import Cluster
from tests.chart.rendering import Chart


@pytest.fixture(scope="session")
def chart(_instance: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Chart:
    return Chart(_instance, tmp_path_factory.mktemp("chart"))
