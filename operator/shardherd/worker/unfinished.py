"""What a function returned in place of having done its work: a coroutine that nobody awaits, a generator that nobody iterates.

Asked by `trees` and `database_output`, whose callers would take such a call for done. Decides nothing else.
"""

from __future__ import annotations

import inspect


def check_done(method: str, result: object) -> None:
    """Raise TypeError for a result that says that the work of this method is still to be done, as nobody would do it."""
    if result is None or not (inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result)):
        return
    if inspect.iscoroutine(result):
        result.close()  # it is known by now that it was not awaited
    raise TypeError(
        f"what {method} returned is a {type(result).__name__}, which nobody awaits or iterates: make it a plain function, which"
        " returns when its work is done"
    )
