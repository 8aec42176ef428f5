"""One rig for each test, stopped at its end."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.unit.coordinator.rig import Rig


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig()
    yield rig
    await rig.runtime.stop()
