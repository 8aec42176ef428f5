"""Runs a module of the tests in a process of its own in which numba runs the compiled loops, with bounds checks.

An access outside of an array is an IndexError there, which ends the process if nobody expects it. In use nothing is checked.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from dev.cluster import paths
from shardherd.source.compiled.compiling import libraries
from shardherd.source.compiled.processors import here

ROOT = Path(__file__).resolve().parents[2]


def run_checked(module: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """`python -m module ARGUMENTS`, to its end."""
    # numba's cache does not see that a piece in another file has changed; the names of the object files do.
    sources = hashlib.sha256("/".join(each.file_name(here()) for each in libraries()).encode()).hexdigest()[:20]
    folder = paths.cache() / "numba-boundscheck" / sources
    return subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        cwd=ROOT,
        env={
            **os.environ,
            "NUMBA_BOUNDSCHECK": "1",
            "NUMBA_CACHE_DIR": str(folder),
            "PYTHONPATH": f"{ROOT}:{ROOT / 'operator'}",
        },
        capture_output=True,
        text=True,
        check=False,
    )
