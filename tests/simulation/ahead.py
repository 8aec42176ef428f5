"""Runs the simulation's two long searches beside the quick tests that come before them.

Called by `conftest` when both searches and many other tests are about to run, and by the tests of the searches, which wait for
what was begun. The quick tests take one processor; the searches run niced on what they leave over. Whoever runs a search by
itself begins it where it stands. It must not decide how large a search is, nor what its result means.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

from tests.simulation import campaign, seeds
from tests.simulation.bugs import BUGS
from tests.simulation.campaign import Found, Report
from tests.simulation.sizes import BUG_SEEDS, SCHEDULES, WORKERS

Result = TypeVar("Result")

_schedules: Future[Report] | None = None
_bugs: Future[Found] | None = None


def begin() -> None:
    """Begin both, one after the other, in a thread that does not keep this process from ending; their workers end with it."""
    global _schedules, _bugs
    _schedules, _bugs = Future(), Future()
    searches = partial(_run_schedules, campaign.spread, niced=True), partial(_find_bugs, campaign.find_bugs, niced=True)
    threading.Thread(
        target=_search, args=(_schedules, _bugs, *searches), name="searches of the simulation", daemon=True
    ).start()


def report() -> Report:
    """What the fresh schedules and those that once failed did. Raises what their search raised."""
    return _schedules.result() if _schedules is not None else _run_schedules(campaign.spread, niced=False)


def bugs() -> Found:
    """Of each planted bug a seed that shows it. Raises what their search raised."""
    return _bugs.result() if _bugs is not None else _find_bugs(campaign.find_bugs, niced=False)


def _run_schedules(spread: Callable[..., Report], *, niced: bool) -> Report:
    start, _ = seeds.of_commit()
    return spread(SCHEDULES, start, WORKERS, also=seeds.failed(), niced=niced)


def _find_bugs(find_bugs: Callable[..., Found], *, niced: bool) -> Found:
    return find_bugs(list(BUGS), BUG_SEEDS, WORKERS, known=seeds.of_bugs(), niced=niced)


def _search(
    schedules: Future[Report], bugs: Future[Found], run_schedules: Callable[[], Report], find_bugs: Callable[[], Found]
) -> None:
    _fulfil(schedules, run_schedules)
    _fulfil(bugs, find_bugs)


def _fulfil(future: Future[Result], search: Callable[[], Result]) -> None:
    try:
        future.set_result(search())
    except BaseException as error:  # noqa: BLE001
        # Raised where the result is asked for.
        future.set_exception(error)
