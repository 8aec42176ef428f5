"""How many schedules the simulation's long searches run, and by how many processes. Nothing here runs anything."""

from __future__ import annotations

import os

from tests.harness.long import LONG

SCHEDULES = 100_000 if LONG else 2_500
"""Of fresh seeds, in one run of the tests."""

BUG_SEEDS = 1000
"""Among which every planted bug is found."""

WORKERS = os.cpu_count() or 1
