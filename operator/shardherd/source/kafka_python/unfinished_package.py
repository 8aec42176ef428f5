"""Leaves kafka-python's package unfinished until someone asks it for more than its parts.

`import kafka.errors` imports all of `kafka` first, the consumer, the producer and the admin client: 0.12 s of the processor for
nothing that the source uses. The package `shardherd.spark` calls it before anything imports `kafka`. An application sees no
difference but in time: the first attribute that is not there yet finishes the package.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
import threading
from types import ModuleType
from typing import Any

PACKAGE = "kafka"


_finishing = threading.RLock()
_begun = False


class _Unfinished(ModuleType):
    """The package with a place to find its parts in; its own code has not run."""

    def __getattr__(self, name: str) -> Any:
        # Called only for what is not there. Other threads wait until all is; the package's own code is answered as ever.
        with _finishing:
            if not _begun:
                _finish(self)
            return ModuleType.__getattribute__(self, name)


def _finish(package: ModuleType) -> None:
    global _begun
    spec = package.__spec__
    assert spec is not None
    assert spec.loader is not None
    _begun = True
    try:
        spec.loader.exec_module(package)
    except BaseException:
        _begun = False
        raise
    package.__class__ = ModuleType


def leave_unfinished() -> None:
    """Do so, unless it is imported already or is not there."""
    if PACKAGE in sys.modules:
        return
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.loader is None:
        return
    package = importlib.util.module_from_spec(spec)
    package.__class__ = _Unfinished
    sys.modules[PACKAGE] = package
    # As the package does itself.
    logging.getLogger(PACKAGE).addHandler(logging.NullHandler())
