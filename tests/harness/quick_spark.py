"""How the drivers that tests start as processes run: they start often, run for seconds, and share two cores with others."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dev import class_archive
from tests.harness.cluster import Tell

OPTIONS = "SPARK_SUBMIT_OPTS"
"""Java's options for a driver."""
WORKERS = "PYSPARK_PYTHON"
"""The Python of Spark's workers."""


def inherited() -> dict[str, str]:
    """The environment of a process whose drivers inherit nothing that is Spark's: they are told by Java's own variable."""
    return {**os.environ, "JAVA_TOOL_OPTIONS": os.environ[OPTIONS]}


def workers_python(folder: Path) -> Path:
    """A program in `folder`: this Python, which runs before all that is not real-time, where that may be had.

    Spark ends a query whose Python worker has not called back within 10 s, which no setting changes. It needs a second of a
    core for that, and here many sessions of processes share two: the kernel gives each session its part, whatever the
    priorities of its processes are. What the worker forks to run tasks is like any other process.
    """
    program = folder / "python"
    program.write_text(
        f'#!/bin/sh\nchrt --reset-on-fork --rr --pid 1 $$ 2>/dev/null\nexec {shlex.quote(sys.executable)} "$@"\n'
    )
    program.chmod(0o755)
    return program


@pytest.fixture(scope="session", autouse=True)
def _quick_spark(tell: Tell, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """For every driver of this process and of those that it starts, in the folders whose conftest names it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(OPTIONS, class_archive.options(tell))
        patch.setenv(WORKERS, str(workers_python(tmp_path_factory.mktemp("workers"))))
        yield
