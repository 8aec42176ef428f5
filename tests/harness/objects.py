"""The object files of the compiled loops for every processor that is shipped: made once for each state of their sources.

They are kept beside what else takes long to build, so that another checkout of the same sources compiles nothing.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from dev.cluster import paths

FOLDER = paths.cache() / "objects"
"""Where all tests keep what workers compile, too."""


@cache
def objects() -> Path:
    """The folder with all of them."""
    # Every test reads FOLDER; few need what compiles.
    from shardherd.source.compiled.compiling import build

    build(FOLDER)
    return FOLDER
