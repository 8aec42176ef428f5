"""Assignors that others wrote: Python distributions that are installed beside us and name them in `shardherd.assignors`.

Called once, where the program is put together. The core is given functions by name and does not know where they come from.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType

from shardherd.core.assignors import ASSIGNORS, Assignment, Assignor, Assignors, Problem

log = logging.getLogger(__name__)

ENTRY_POINTS = "shardherd.assignors"


def load_assignors(found: Iterable[EntryPoint] | None = None) -> Assignors:
    """Ours and those of plug-ins, by name.

    A plug-in whose name has no dot, or that another one has taken, is left out. One that cannot be imported is there, and fails
    when a group asks it: so the group says why, and other groups do not suffer.
    """
    assignors: dict[str, Assignor] = dict(ASSIGNORS)
    for plug_in in entry_points(group=ENTRY_POINTS) if found is None else found:
        if "." not in plug_in.name:
            log.error(
                "assignor %r of %s is left out: the name of a plug-in needs a dot, as in example.Name",
                plug_in.name,
                plug_in.value,
            )
        elif plug_in.name in assignors:
            log.error("assignor %r of %s is left out: another plug-in has the name", plug_in.name, plug_in.value)
        else:
            assignors[plug_in.name] = _loaded(plug_in)
            log.info("assignor %s is %s", plug_in.name, plug_in.value)
    return MappingProxyType(assignors)


def _loaded(plug_in: EntryPoint) -> Assignor:
    # Importing runs code of others, which may raise anything.
    try:
        assignor = plug_in.load()
    except Exception as error:
        log.exception("assignor %s cannot be loaded from %s", plug_in.name, plug_in.value)
        return _failing(f"{plug_in.value} cannot be loaded: {type(error).__name__}: {error}")
    if not callable(assignor):
        return _failing(f"{plug_in.value} is a {type(assignor).__name__}, not a function of a Problem")
    loaded: Assignor = assignor
    return loaded


def _failing(why: str) -> Assignor:
    def assignor(_: Problem) -> Assignment:
        raise RuntimeError(why)

    return assignor
