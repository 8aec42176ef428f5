"""Which namespaces are served where a label selector chooses them, as far as is known now.

Told of changes by the watch (`handlers`), and put right by listings, as a watch that was cut off says nothing of what ceased to
match meanwhile. Tells the cache and the controller what begins and ends, and the coordinator what to answer for a group that it
does not have. Writes nothing: of a namespace that is not served any more everything stays as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Any

from shardherd.controller.reconcile import Controller
from shardherd.core.model.errors import CoordinatorUnavailableError, ShardherdError, UnknownGroupError
from shardherd.ports import Clock, ClusterRefusedError, ClusterUnavailableError, Namespaces

logger = logging.getLogger(__name__)

LISTED_AGAIN = 10.0
"""Seconds from one listing of the namespaces to the next: at most so long is one served that lost its label unseen."""

RETRY = 1.0
"""Seconds until a listing that failed is tried again."""

GRACE = 15.0
"""Seconds for which a group may not be known yet in a namespace that has just begun to be served."""


class Served:
    """The namespaces that `selector` chooses. All calls but `in` and `refusal` come from the controller's loop.

    `began` and `ended` are called with a namespace, before the controller hears of it.
    """

    def __init__(
        self,
        selector: str,
        namespaces: Namespaces,
        clock: Clock,
        *,
        began: Callable[[str], None] = lambda _: None,
        ended: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.selector = selector
        self.known = asyncio.Event()
        """Set once it is known which namespaces are served. Until then none is."""
        self._namespaces = namespaces
        self._clock = clock
        self._began = began
        self._ended = ended
        self._since: dict[str, float] = {}
        self._unsearched: set[str] = set()
        self._version = -1
        self._versions: dict[str, int] = {}  # of the namespaces, as the watch had them
        self._due = asyncio.Event()
        self._problem = ""
        self._controller: Controller | None = None

    def __contains__(self, namespace: str) -> bool:
        """Whether its groups are served. From any thread."""
        return namespace in self._since

    def refusal(self, namespace: str, name: str) -> ShardherdError | None:
        """What to answer for a group that the coordinator does not have; None if nothing is to be said of its namespace.

        From any thread.
        """
        group = f"{namespace}/{name}"
        if not self.known.is_set():
            message = f"group {group} is not known yet: the operator does not know yet which namespaces it serves; ask again"
            return CoordinatorUnavailableError(message, group=group)
        since = self._since.get(namespace)
        if since is None:
            return UnknownGroupError(
                f"group {group} is not served by this operator: it serves namespaces with labels that match {self.selector!r},"
                f" and those of {namespace!r} do not; label the namespace, or have the operator that serves it replace this"
                " pod",
                group=group,
            )
        if self._clock.now() - since < GRACE:
            message = f"group {group} is not known yet: its namespace has just begun to be served; ask again"
            return CoordinatorUnavailableError(message, group=group)
        return None

    def saw(self, namespace: Mapping[str, Any], event: str | None) -> None:
        """The watch tells of a namespace: that it matches (None: as one that was there when the watch began), or no more."""
        metadata = namespace["metadata"]
        name, version = metadata["name"], int(metadata["resourceVersion"])
        if event is None:
            # What ceased to match before the watch began, it does not tell.
            self._due.set()
        if version <= max(self._version, self._versions.get(name, -1)):
            return  # a listing has told of it already and perhaps of more, or it is of one that had this name before
        self._versions[name] = version
        if event == "DELETED":
            self._end(name)
        else:
            self._begin(name)

    async def run(self, controller: Controller) -> None:
        """Keep what is known right, for ever. Cancel to stop."""
        self._controller = controller
        while True:
            try:
                await self._look()
                self._problem = ""
                wait = LISTED_AGAIN
            except (ClusterUnavailableError, ClusterRefusedError) as error:
                self._complain(error)
                wait = RETRY
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._due.wait()
            self._due.clear()

    async def _look(self) -> None:
        first = not self.known.is_set()
        found, version = await self._namespaces.chosen()
        # Of what the watch has told since then, it knows more.
        newer = {name for name, each in self._versions.items() if each > version}
        for name in sorted(self._since.keys() - found - newer):
            self._end(name)
        for name in sorted(found - self._since.keys() - newer):
            self._begin(name)
        self._version = version
        self._versions = {name: each for name, each in self._versions.items() if each > version}
        if first:
            # The watches of groups, which begin now, tell of all that are in these.
            self._unsearched.clear()
            self.known.set()
        for name in sorted(self._unsearched):
            await self._search(name)

    async def _search(self, namespace: str) -> None:
        """Have the groups looked at that were there before their namespace was served: the watches told of them before."""
        names = await self._namespaces.groups(namespace)
        if namespace not in self._unsearched:
            return
        self._unsearched.discard(namespace)
        for name in names:
            self._to_controller().found_group((namespace, name))

    def _begin(self, namespace: str) -> None:
        if namespace in self._since:
            return
        logger.info("serving namespace %s: its labels match %s", namespace, self.selector)
        self._began(namespace)
        self._since[namespace] = self._clock.now()
        self._unsearched.add(namespace)
        self._due.set()

    def _end(self, namespace: str) -> None:
        if namespace not in self._since:
            return
        logger.info("namespace %s is not served any more: it is gone, or its labels do not match %s", namespace, self.selector)
        del self._since[namespace]
        self._unsearched.discard(namespace)
        self._to_controller().let_go(namespace)
        self._ended(namespace)

    def _to_controller(self) -> Controller:
        assert self._controller is not None
        return self._controller

    def _complain(self, error: Exception) -> None:
        """Once for each reason."""
        if (message := str(error)) == self._problem:
            return
        self._problem = message
        if isinstance(error, ClusterRefusedError):
            logger.error("which namespaces match %s is not known: %s; the chart gives the right", self.selector, message)
        else:
            logger.warning("which namespaces match %s is not known: %s", self.selector, message)
