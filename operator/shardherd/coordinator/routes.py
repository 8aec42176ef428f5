"""Which call of the API a request is, by its method and its path: one look into a table.

Called by the API for every request. An aiohttp application tries regular expressions, and prepares for nested applications and
middlewares, of which this API has none: a tenth of what a heartbeat cost. Decides nothing else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from aiohttp import web

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@dataclass(slots=True)
class _Paths:
    """Those of one length: which of their parts are fixed, which part is named how, and by the fixed ones who answers."""

    fixed: tuple[int, ...]
    named: tuple[tuple[str, int], ...]
    handlers: dict[tuple[str, ...], dict[str, Handler]] = field(default_factory=dict)


class Routes:
    """The handlers of `calls`, each with its method and its path; a part of a path in braces is a name for whatever is there.

    Paths of as many parts must have their names in the same places. Raises ValueError if two have not.
    """

    def __init__(self, calls: Iterable[tuple[str, str, Handler]]) -> None:
        self._paths: dict[int, _Paths] = {}
        for method, path, handler in calls:
            parts = path.split("/")
            fixed = tuple(at for at, part in enumerate(parts) if not part.startswith("{"))
            named = tuple((part[1:-1], at) for at, part in enumerate(parts) if part.startswith("{"))
            paths = self._paths.setdefault(len(parts), _Paths(fixed, named))
            if paths.named != named:
                raise ValueError(f"{path} has its names elsewhere than another path of as many parts")
            paths.handlers.setdefault(tuple(parts[at] for at in fixed), {})[method] = handler

    def find(self, method: str, path: str) -> tuple[Handler, dict[str, str]]:
        """The handler of a request, and what its path names. Of `path` all is decoded but '/' and '%', as yarl's `path_safe`.

        Raises HTTPNotFound or HTTPMethodNotAllowed. A name is never empty: nothing is found, then.
        """
        parts = path.split("/")
        paths = self._paths.get(len(parts))
        handlers = paths.handlers.get(tuple([parts[at] for at in paths.fixed])) if paths is not None else None
        if paths is None or handlers is None:
            raise web.HTTPNotFound
        named = {name: _decoded(parts[at]) if "%" in parts[at] else parts[at] for name, at in paths.named}
        if not all(named.values()):
            raise web.HTTPNotFound
        handler = handlers.get(method)
        if handler is None:
            raise web.HTTPMethodNotAllowed(method, handlers)
        return handler, named


def _decoded(part: str) -> str:
    return part.replace("%2F", "/").replace("%25", "%")
