"""Runs Kopf, and translates its events into calls of the controller. Holds no rule.

`cli` calls `run` in a thread of its own, because Kopf cancels every task of its loop when it ends. The controller outlives
that. Only event handlers are used: Kopf then adds no finalizer and no annotation to anything, so a group can be deleted while
the operator is down.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import kopf

from shardherd.controller import names
from shardherd.controller.reconcile import Controller
from shardherd.controller.served import Served
from shardherd.controller.worklist import Key

logger = logging.getLogger(__name__)

See = Callable[[str, Mapping[str, Any], str | None], bool]
"""Is shown every object that a watch tells of: its kind, itself, and the type of the event. Whether that is news."""

DEAD_WATCH = 70.0
"""Seconds without any event or bookmark after which a watch is opened anew."""

CONNECTING, ANSWERING = 10.0, 60.0
"""Seconds for a connection to the API server, and for the answer to a listing."""

RETRIES = (0.5, 1, 1, 2, 2, *(3,) * 6)
"""Seconds between the attempts of one request, so that no watch stays closed for long once the API server answers again."""

PAUSE = 1.0
"""Seconds until watching begins anew after something has ended it."""

CANCELS = 10
"""So often is cancelled what Kopf leaves behind."""

ENDS, WITHIN = 5, 120.0
"""So many ends of watching within so many seconds are not the API server's doing: the process is better started anew."""

PAGE = 50
"""Objects that a watch lists at once when it begins; by itself Kopf asks for all, and holds them."""

IDLE = 0.1
"""Seconds for which Kopf keeps an object whole after its last event; by itself 5, so that a burst holds thousands of them."""


def run(
    make_controller: Callable[[], Controller],
    login: Callable[[], kopf.ConnectionInfo],
    namespaces: Sequence[str],
    stop: threading.Event,
    ready: threading.Event,
    see: See = lambda *_: True,
    served: Served | None = None,
) -> None:
    """Watch and reconcile until `stop` is set; `ready` is set once watching has begun. Raises what ends it early.

    `make_controller` is called in the loop that the controller will live in, as is `see`. No namespaces means all, or with
    `served` those that are in it at that moment; watching begins once these are known.

    Kopf ends by whatever answer it does not expect: that a watch which it opens would go on from what is forgotten (410), or an
    error of the server's in the middle of a watch. Consumers have nothing to do with that, so watching begins anew.
    """
    asyncio.run(_operator(make_controller, login, namespaces, stop, ready, see, served))


async def _operator(
    make_controller: Callable[[], Controller],
    login: Callable[[], kopf.ConnectionInfo],
    namespaces: Sequence[str],
    stop: threading.Event,
    ready: threading.Event,
    see: See,
    served: Served | None,
) -> None:
    loop = asyncio.get_running_loop()
    controller = make_controller()
    stop_requested = loop.run_in_executor(None, stop.wait)
    ends: deque[float] = deque(maxlen=ENDS)
    beside: list[asyncio.Task[None]] = []
    try:
        if served is not None:
            beside.append(asyncio.create_task(served.run(controller), name="namespaces"))
            await _known(served, beside, stop_requested)
        while not stop_requested.done():
            why = await _watch(controller, login, namespaces, stop_requested, ready, see, served, beside)
            if stop_requested.done():
                return
            ends.append(loop.time())
            if len(ends) == ENDS and ends[-1] - ends[0] < WITHIN:
                raise WatchingEndedError(f"watching ended {ENDS} times within {WITHIN:g} s, at last by {why!r}") from why
            logger.warning("watching ended by %r; it begins anew", why)
            await asyncio.wait({stop_requested}, timeout=PAUSE)
    finally:
        # Also for whoever waits for it in a thread, which would keep this loop from ending.
        stop.set()
        await stop_requested
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)


async def _known(served: Served, beside: Sequence[asyncio.Task[None]], stop_requested: asyncio.Future[bool]) -> None:
    """Wait until it is known which namespaces are served: nothing may be judged before. Raises what ended the looking."""
    known = asyncio.create_task(served.known.wait(), name="known")
    ends: tuple[asyncio.Future[Any], ...] = (known, stop_requested, *beside)
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    known.cancel()
    _check(beside)


def _check(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Raise what one of these failed with."""
    for task in tasks:
        if task.done():
            task.result()


class WatchingEndedError(Exception):
    """Watching ends again and again, or does not end once it has failed."""


async def _watch(
    controller: Controller,
    login: Callable[[], kopf.ConnectionInfo],
    namespaces: Sequence[str],
    stop_requested: asyncio.Future[bool],
    ready: threading.Event,
    see: See,
    served: Served | None,
    beside: Sequence[asyncio.Task[None]],
) -> BaseException | None:
    """Run Kopf until a stop is requested or Kopf fails; returns what it failed with. Raises errors of the controller, and of
    what runs `beside` it.
    """
    stop = asyncio.Event()
    # Made before Kopf starts, so that Kopf does not count it among its own tasks.
    ticker = asyncio.create_task(controller.run(), name="ticker")
    ours = asyncio.all_tasks()
    kopfs = await kopf.spawn_tasks(
        registry=_registry(controller, login, see, served),
        settings=_settings(served),
        standalone=True,
        clusterwide=not namespaces,
        namespaces=list(namespaces),
        stop_flag=stop,
        ready_flag=ready,
    )
    failed: list[asyncio.Task[Any]] = []
    ends: tuple[asyncio.Future[Any], ...] = (ticker, stop_requested, *beside, *kopfs)
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        failed = [task for task in kopfs if task.done()]
        _check((ticker, *beside))
    finally:
        if not failed:
            _be_quiet()
        stop.set()
        # Our workers end first: Kopf waits for every task of its loop before it ends.
        ticker.cancel()
        await asyncio.gather(ticker, return_exceptions=True)
        if failed:
            await _cancel(ours.union(kopfs))
        await asyncio.gather(kopf.run_tasks(kopfs, ignored=ours), return_exceptions=True)
    return next((error for task in failed if not task.cancelled() and (error := task.exception())), None)


async def _cancel(others: AbstractSet[asyncio.Task[Any]]) -> None:
    """Cancel the tasks that Kopf's own have started. It cancels them once, some go on nevertheless, and it waits for ever."""
    for _ in range(CANCELS):
        left = asyncio.all_tasks() - others
        if not left:
            return
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=PAUSE)
    raise WatchingEndedError(f"watching ended, but some of it goes on: {[task.get_name() for task in left]}")


def _be_quiet() -> None:
    """When it is stopped, Kopf closes connections that its own tasks still use, and logs errors about that."""
    logging.getLogger("kopf").setLevel(logging.CRITICAL)
    asyncio.get_running_loop().set_exception_handler(
        lambda _loop, context: logger.debug("while Kopf ends: %s", context.get("message"))
    )


_OWNED = {
    ("v1", "pods"): "Pod",
    ("apps/v1", "statefulsets"): "StatefulSet",
    ("v1", "services"): "Service",
    ("policy/v1", "poddisruptionbudgets"): "PodDisruptionBudget",
}
"""What is watched of a group's objects, and its kind."""


_NAMESPACES = ("v1", "namespaces")


class _Stateless(kopf.DiffBaseStorage):
    """What Kopf compares an object with to find out what changed in it.

    No handler of ours asks for that. To have it, Kopf would copy every object of every event several times, which is more than
    half of what watching costs.
    """

    def build(self, **_: Any) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, **_: Any) -> kopf.BodyEssence | None:
        return None

    def store(self, **_: Any) -> None:
        raise NotImplementedError("event handlers leave nothing on objects")


def _settings(served: Served | None) -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.persistence.diffbase_storage = _Stateless()
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.watching.inactivity_timeout = DEAD_WATCH
    settings.watching.server_timeout = 10 * 60
    settings.networking.connect_timeout = CONNECTING
    settings.networking.request_timeout = ANSWERING
    settings.networking.error_backoffs = RETRIES
    settings.watching.chunk_size = PAGE
    settings.queueing.idle_timeout = IDLE
    settings.process.ultimate_exiting_timeout = None
    # Neither CustomResourceDefinitions nor Namespaces are watched by Kopf itself, so the operator needs no right to.
    settings.scanning.disabled = True
    for resource in _OWNED:
        settings.watching.label_selectors[resource] = names.GROUP_LABEL
    if served is not None:
        # The API server tells of one that ceases to match as of one that is deleted, and of others nothing.
        settings.watching.label_selectors[_NAMESPACES] = served.selector
    return settings


def _registry(
    controller: Controller, login: Callable[[], kopf.ConnectionInfo], see: See, served: Served | None
) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    def elsewhere(body: Mapping[str, Any]) -> bool:
        return served is not None and body["metadata"]["namespace"] not in served

    def note_listing(event: Mapping[str, Any]) -> None:
        # Kopf says None of what is there when a watch begins, also when it begins anew after the server has forgotten so much.
        if event["type"] is None:
            controller.watches_began()

    async def log_in(**_: Any) -> kopf.ConnectionInfo:
        return login()

    async def group(event: Mapping[str, Any], **_: Any) -> None:
        body, gone = event["object"], event["type"] == "DELETED"
        if elsewhere(body):
            return
        see(names.KIND, body, event["type"])
        note_listing(event)
        controller.saw_group(_key(body, body["metadata"]["name"]), body, gone=gone)

    async def owned(event: Mapping[str, Any], param: Any = None, **_: Any) -> None:
        body, gone = event["object"], event["type"] == "DELETED"
        if elsewhere(body):
            return
        name = names.group_of(body["metadata"].get("labels", {}))
        note_listing(event)
        if name is None or not see(param, body, event["type"]):
            return
        if param == "Pod":
            controller.saw_pod(_key(body, name), body, gone=gone)
        else:
            controller.saw_object(_key(body, name))

    kopf.on.login(registry=registry)(log_in)
    kopf.on.event(names.API_GROUP, names.API_VERSION, names.PLURAL, registry=registry)(group)
    for (version, plural), kind in _OWNED.items():
        kopf.on.event(
            version, plural, registry=registry, id=f"owned-{plural}", param=kind, labels={names.GROUP_LABEL: kopf.PRESENT}
        )(owned)
    if served is not None:
        kopf.on.event(*_NAMESPACES, registry=registry, id="namespaces")(_namespace(served))
    return registry


def _namespace(served: Served) -> Callable[..., Any]:
    async def namespace(event: Mapping[str, Any], **_: Any) -> None:
        served.saw(event["object"], event["type"])

    return namespace


def _key(body: Mapping[str, Any], name: str) -> Key:
    return body["metadata"]["namespace"], name
