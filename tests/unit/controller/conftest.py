"""What the controller plans is checked as in the tests of planning."""

from __future__ import annotations

from tests.unit.core.planning.conftest import explained

__all__ = ["explained"]
