"""Runs Kopf, and translates its events into calls of the controller. Holds no rule.

`cli` calls `run` in a thread of its own, because Kopf cancels every task of its loop when it ends. Only event handlers are
used: Kopf then adds no finalizer and no annotation to anything, so a group can be deleted while the operator is down.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import kopf

from shardherd.controller import names
from shardherd.controller.reconcile import Controller
from shardherd.controller.worklist import Key

logger = logging.getLogger(__name__)

See = Callable[[str, Mapping[str, Any], str | None], bool]
"""Is shown every object that a watch tells of: its kind, itself, and the type of the event. Whether that is news."""

DEAD_WATCH = 70.0
"""Seconds without any event or bookmark after which a watch is opened anew."""

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
) -> None:
    """Watch and reconcile until `stop` is set; `ready` is set once watching has begun. Raises whatever ends Kopf early.

    `make_controller` is called in the loop that the controller will live in, as is `see`. No namespaces means all.
    """
    asyncio.run(_operator(make_controller, login, namespaces, stop, ready, see))


async def _operator(
    make_controller: Callable[[], Controller],
    login: Callable[[], kopf.ConnectionInfo],
    namespaces: Sequence[str],
    stop: threading.Event,
    ready: threading.Event,
    see: See,
) -> None:
    controller = make_controller()
    # Made before Kopf starts, so that Kopf does not count it among its own tasks.
    ticker = asyncio.create_task(controller.run(), name="ticker")
    watching = asyncio.create_task(
        kopf.operator(
            registry=_registry(controller, login, see),
            settings=_settings(),
            standalone=True,
            clusterwide=not namespaces,
            namespaces=list(namespaces),
            stop_flag=stop,
            ready_flag=ready,
        ),
        name="kopf",
    )
    told = asyncio.get_running_loop().run_in_executor(None, stop.wait)
    ends: tuple[asyncio.Future[Any], ...] = (ticker, watching, told)
    try:
        done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for end in done:
            end.result()
    finally:
        stop.set()
        _be_quiet()
        # Our workers end first: Kopf waits for every task of its loop before it ends.
        ticker.cancel()
        await asyncio.gather(ticker, return_exceptions=True)
        await asyncio.gather(watching, told, return_exceptions=True)


def _be_quiet() -> None:
    """Once it is told to end, Kopf closes its connections under what still uses them, and complains of that."""
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


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.watching.inactivity_timeout = DEAD_WATCH
    settings.watching.server_timeout = 10 * 60
    settings.watching.chunk_size = PAGE
    settings.queueing.idle_timeout = IDLE
    settings.process.ultimate_exiting_timeout = None
    # Neither CustomResourceDefinitions nor Namespaces are watched, so the operator needs no right to.
    settings.scanning.disabled = True
    for resource in _OWNED:
        settings.watching.label_selectors[resource] = names.GROUP_LABEL
    return settings


def _registry(controller: Controller, login: Callable[[], kopf.ConnectionInfo], see: See) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    def note_listing(event: Mapping[str, Any]) -> None:
        # Kopf says None of what is there when a watch begins, also when it begins anew after the server has forgotten so much.
        if event["type"] is None:
            controller.watches_began()

    async def log_in(**_: Any) -> kopf.ConnectionInfo:
        return login()

    async def group(event: Mapping[str, Any], **_: Any) -> None:
        body, gone = event["object"], event["type"] == "DELETED"
        see(names.KIND, body, event["type"])
        note_listing(event)
        controller.saw_group(_key(body, body["metadata"]["name"]), body, gone=gone)

    async def owned(event: Mapping[str, Any], param: Any = None, **_: Any) -> None:
        body, gone = event["object"], event["type"] == "DELETED"
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
    return registry


def _key(body: Mapping[str, Any], name: str) -> Key:
    return body["metadata"]["namespace"], name
