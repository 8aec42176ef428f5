"""Which tests take too long for every run: `make test-long` runs them too."""

from __future__ import annotations

import os

import pytest

LONG = bool(os.environ.get("SHARDHERD_LONG"))
"""Whether this run may take its time."""

REASON = "only with SHARDHERD_LONG=1"

long = pytest.mark.skipif(not LONG, reason=REASON)
"""Marks a test that only `make test-long` runs."""
