"""One browser for all tests of the page, and groups that a test plays."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness.browser import Browser, chromium
from tests.harness.played_page import Pages


@pytest.fixture(scope="session")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("chromium")) as found:
        yield found


@pytest.fixture
def browser(started: Browser) -> Browser:
    """The browser as it is when a user has said nothing, except that nothing is to move by itself."""
    started.prefers(color_scheme="light", reduced_motion="reduce")
    return started


@pytest.fixture
def pages() -> Iterator[Pages]:
    """Nothing is served yet."""
    found = Pages()
    yield found
    found.away()
