"""Has every Python process that Spark's JVM starts import `launch.sitecustomize` first: its folder is on PYTHONPATH meanwhile.

`application`, `alone` and `cells.forked` use it while they start the JVM, which keeps the environment that it is started with.
Says nothing of what is imported there.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from shardherd.spark.launch import sitecustomize

LAUNCH = Path(sitecustomize.__file__).parent
"""The folder on PYTHONPATH of what the JVM starts."""


@contextlib.contextmanager
def launched(more: Mapping[str, str] | None = None) -> Iterator[None]:
    """What is started meanwhile, the JVM above all, has that folder and these variables. Afterwards they are as they were."""
    path = os.pathsep.join(filter(None, (str(LAUNCH), os.environ.get("PYTHONPATH"))))
    ours = {"PYTHONPATH": path, **(more or {})}
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name, text in before.items():
            if text is None:
                del os.environ[name]
            else:
                os.environ[name] = text
