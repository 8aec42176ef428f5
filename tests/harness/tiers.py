"""The order of the tiers, and the rule that a failure in one stops before the next: hooks of pytest, which `conftest` has."""

from __future__ import annotations

import pytest

TIERS = ("unit", "property", "simulation", "contract", "integration", "chart", "e2e")


class TierGate:
    """Remembers the quickest tier in which a test failed."""

    failed: int | None = None


def tier_of(nodeid: str) -> int:
    """Position of a test's tier; -1 for a test outside of them."""
    folder = "".join(nodeid.split("/")[1:2])
    return TIERS.index(folder) if folder in TIERS else -1


def closed(item: pytest.Item) -> str:
    """Why this test is not run; empty if it is."""
    if TierGate.failed is None or tier_of(item.nodeid) <= TierGate.failed:
        return ""
    return f"tests of tier {TIERS[TierGate.failed]!r} failed: the later tiers were not run"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: tier_of(item.nodeid))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if why := closed(item):
        item.session.shouldfail = why
        pytest.fail(why, pytrace=False)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        tier = tier_of(report.nodeid)
        TierGate.failed = tier if TierGate.failed is None else min(TierGate.failed, tier)
