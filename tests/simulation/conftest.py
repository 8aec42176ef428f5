"""Lets the long searches begin beside the quick tests that run before them."""

from __future__ import annotations

import pytest

from tests.simulation import ahead

SEARCHES = {"test_every_promise_is_kept_in_every_schedule", "test_every_planted_bug_is_found_within_a_thousand_seeds"}
MANY = 1000
"""So many tests before a search are worth beginning it ahead of its turn."""


def pytest_collection_finish(session: pytest.Session) -> None:
    names = [item.name for item in session.items]
    if session.config.option.collectonly or not {*names} >= SEARCHES:
        return
    if min(names.index(search) for search in SEARCHES) >= MANY:
        ahead.begin()
