"""One manifest of an application with executors, which the tests run on a cluster and on one machine."""

from __future__ import annotations

from pathlib import Path

MANIFEST = Path(__file__).with_name("executors.yaml")
"""Names no namespace: the one that it is applied in."""

NAME = "with-executors"
"""Of the group, and of its topic."""
