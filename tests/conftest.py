"""What every tier shares: the order of the tiers, the rule on skips, and the real cluster.

Tiers run quick first; when a test of one tier has failed, the later tiers are not run. A skipped test counts as a failure with
`--no-skips`, which continuous integration sets, unless its reason is on the allow-list.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Generator, Iterator

import pytest
from hypothesis import settings

from tests.harness.cluster import _instance, cluster, kubeconfig, lab, names, node_cluster, tell
from tests.harness.kafka import _trio, kafka, trio
from tests.harness.kinesis_fixtures import _kinesis, kinesis
from tests.harness.long import REASON
from tests.harness.objects import FOLDER
from tests.harness.postgresql import postgresql
from tests.harness.tiers import pytest_collection_modifyitems, pytest_runtest_logreport, pytest_runtest_setup

__all__ = [
    "_instance",
    "_kinesis",
    "_trio",
    "cluster",
    "kafka",
    "kinesis",
    "kubeconfig",
    "lab",
    "names",
    "node_cluster",
    "postgresql",
    "pytest_collection_modifyitems",
    "pytest_runtest_logreport",
    "pytest_runtest_setup",
    "tell",
    "trio",
]

# How long an example takes says something of the machine, not of what is tested.
settings.register_profile("shardherd", deadline=None)
settings.load_profile("shardherd")

# What one checkout has compiled another one of the same sources need not.
os.environ.setdefault("NUMBA_CACHE_DIR", str(FOLDER))

ALLOWED_SKIPS = (REASON,)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-skips", action="store_true", help="a skipped test is a failure, unless its reason is allowed")
    parser.addoption("--keep", action="store_true", help="leave the cluster of the tests running, and use it the next time")


def pytest_configure(config: pytest.Config) -> None:
    # A run that is told to end still removes the cluster that it started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """What a test does to the handler of SIGTERM ends with it: a run that is told to end must hear it."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    if signal.getsignal(signal.SIGTERM) is not before:
        signal.signal(signal.SIGTERM, before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and item.config.getoption("--no-skips") and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2].removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if reason not in ALLOWED_SKIPS:
            report.outcome = "failed"
            report.longrepr = f"skipped, and that is not allowed here: {reason}"
    return report
