"""Java's options for the drivers that tests start as processes: they start often, and run for seconds."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from dev import class_archive
from tests.harness.cluster import Tell

OPTIONS = "SPARK_SUBMIT_OPTS"


def inherited() -> dict[str, str]:
    """The environment of a process whose drivers inherit nothing that is Spark's: they are told by Java's own variable."""
    return {**os.environ, "JAVA_TOOL_OPTIONS": os.environ[OPTIONS]}


@pytest.fixture(scope="session", autouse=True)
def _quick_spark(tell: Tell) -> Iterator[None]:
    """For every driver of this process and of those that it starts, in the folders whose conftest names it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(OPTIONS, class_archive.options(tell))
        yield
