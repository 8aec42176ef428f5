"""Every condition that any test here has planned is one that the documentation explains."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shardherd.core.model.reasons import REASONS
from shardherd.core.planning import conditions

EXPLAINED = {(place, reason.value) for reason in REASONS for place in reason.places}
Finding = conditions.Finding


@pytest.fixture(autouse=True)
def explained(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No reason stands in a condition that `reasons` does not list for it."""
    unexplained = set()

    def checked(type_: str, status: str, reason: str, message: str) -> conditions.Finding:
        if (type_, reason) not in EXPLAINED:
            unexplained.add((type_, reason))
        return Finding(type_, status, reason, message)

    monkeypatch.setattr(conditions, "Finding", checked)
    yield
    assert unexplained == set()
