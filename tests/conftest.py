"""What every tier shares: the order of the tiers, the rule on skips, and the real cluster.

Tiers run quick first; when a test of one tier has failed, the later tiers are not run. A skipped test counts as a failure with
`--no-skips`, which continuous integration sets, unless its reason is on the allow-list.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.harness.cluster import _instance, cluster, kubeconfig, lab, names, node_cluster, tell
from tests.harness.kafka import _trio, kafka, trio
from tests.harness.kinesis_fixtures import _kinesis, kinesis
from tests.harness.long import REASON
from tests.harness.objects import FOLDER
from tests.harness.postgresql import postgresql

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
    "tell",
    "trio",
]

# How long an example takes says something of the machine, not of what is tested.
settings.register_profile("shardherd", deadline=None)
settings.load_profile("shardherd")

# What one checkout has compiled another one of the same sources need not.
os.environ.setdefault("NUMBA_CACHE_DIR", str(FOLDER))

TIERS = ("unit", "property", "simulation", "contract", "integration", "chart", "e2e")
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


def tier_of(item: pytest.Item) -> int:
    """Position of a test's tier; -1 for a test outside of them."""
    parts = item.path.relative_to(Path(__file__).parent).parts
    return TIERS.index(parts[0]) if parts[0] in TIERS else -1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=tier_of)


class TierGate:
    """Remembers the tier of the first failure."""

    failed: int | None = None


def pytest_runtest_setup(item: pytest.Item) -> None:
    if TierGate.failed is not None and tier_of(item) > TierGate.failed:
        item.session.shouldfail = f"tests of tier {TIERS[TierGate.failed]!r} failed: the later tiers were not run"
        pytest.fail(str(item.session.shouldfail), pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and item.config.getoption("--no-skips") and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2].removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if reason not in ALLOWED_SKIPS:
            report.outcome = "failed"
            report.longrepr = f"skipped, and that is not allowed here: {reason}"
    if report.failed and TierGate.failed is None:
        TierGate.failed = tier_of(item)
    return report
