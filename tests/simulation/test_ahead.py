"""The long searches begin beside the tests before them, and say where they are asked what went wrong."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.simulation import ahead, campaign
from tests.simulation.campaign import Report
from tests.simulation.conftest import MANY, SEARCHES, pytest_collection_finish


@pytest.fixture(autouse=True)
def _as_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was begun for this very run stays as it is."""
    monkeypatch.setattr(ahead, "_schedules", None)
    monkeypatch.setattr(ahead, "_bugs", None)


@pytest.mark.parametrize(
    ("before", "searches", "begins"),
    [(MANY, SEARCHES, True), (MANY - 1, SEARCHES, False), (MANY, set(list(SEARCHES)[:1]), False)],
)
def test_the_searches_begin_ahead_if_both_will_run_after_many_other_tests(
    before: int, searches: set[str], begins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[bool] = []
    monkeypatch.setattr(ahead, "begin", lambda: begun.append(True))
    items = [SimpleNamespace(name=name) for name in [*("quick" for _ in range(before)), *searches]]
    option = SimpleNamespace(collectonly=False)
    pytest_collection_finish(cast("Any", SimpleNamespace(items=items, config=SimpleNamespace(option=option))))
    assert bool(begun) is begins


def test_a_search_that_was_begun_is_waited_for_and_one_that_was_not_runs_now(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[tuple[str, bool]] = []

    def spread(*_: object, niced: bool, **__: object) -> Report:
        runs.append(("schedules", niced))
        return Report(schedules=7)

    def find_bugs(*_: object, niced: bool, **__: object) -> campaign.Found:
        runs.append(("bugs", niced))
        return {"a bug": None}

    monkeypatch.setattr(campaign, "spread", spread)
    monkeypatch.setattr(campaign, "find_bugs", find_bugs)
    assert (ahead.report().schedules, ahead.bugs()) == (7, {"a bug": None})
    ahead.begin()
    assert (ahead.report().schedules, ahead.bugs()) == (7, {"a bug": None})
    assert runs == [("schedules", False), ("bugs", False), ("schedules", True), ("bugs", True)]


def test_what_goes_wrong_in_a_search_that_was_begun_is_raised_where_its_result_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object, **__: object) -> Report:
        raise RuntimeError("a worker of the simulation ended with 1")

    monkeypatch.setattr(campaign, "spread", broken)
    monkeypatch.setattr(campaign, "find_bugs", lambda *_, **__: {})
    ahead.begin()
    with pytest.raises(RuntimeError, match="ended with 1"):
        ahead.report()
    assert ahead.bugs() == {}
