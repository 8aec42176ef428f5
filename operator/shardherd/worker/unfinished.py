"""What a function returned in place of having done its work: a coroutine that nobody awaits, a generator that nobody iterates.

Asked wherever a method of the program is called whose callers would take such a call for done. Decides nothing else.
"""

from __future__ import annotations

import asyncio
import inspect


def check_done(method: str, result: object, *, may_be_async: bool = False) -> None:
    """Raise TypeError for a result that says that the work of this method is still to be done, as nobody would do it.

    `may_be_async`: the method may be a coroutine, and was not known to be one, as where a decorator hides it. Then a future is
    nothing of that kind: somebody does its work.
    """
    if result is None or not (inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result)):
        return
    if may_be_async and asyncio.isfuture(result):
        return
    if inspect.iscoroutine(result):
        result.close()  # it is known by now that it was not awaited
    raise TypeError(
        f"what {method} returned is a {type(result).__name__}, which nobody awaits or iterates: make it a plain function, which"
        " returns when its work is done"
        + (", or `async def`, which a lambda or a decorator around it hides" if may_be_async else "")
    )
