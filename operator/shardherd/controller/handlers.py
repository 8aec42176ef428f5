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

DEAD_WATCH = 70.0
"""Seconds without any event or bookmark after which a watch is opened anew."""


def run(
    make_controller: Callable[[], Controller],
    login: Callable[[], kopf.ConnectionInfo],
    namespaces: Sequence[str],
    stop: threading.Event,
    ready: threading.Event,
) -> None:
    """Watch and reconcile until `stop` is set; `ready` is set once watching has begun. Raises whatever ends Kopf early.

    `make_controller` is called in the loop that the controller will live in. No namespaces means all.
    """
    asyncio.run(_operator(make_controller, login, namespaces, stop, ready))


async def _operator(
    make_controller: Callable[[], Controller],
    login: Callable[[], kopf.ConnectionInfo],
    namespaces: Sequence[str],
    stop: threading.Event,
    ready: threading.Event,
) -> None:
    controller = make_controller()
    # Made before Kopf starts, so that Kopf does not count it among its own tasks.
    ticker = asyncio.create_task(controller.run(), name="ticker")
    watching = asyncio.create_task(
        kopf.operator(
            registry=_registry(controller, login),
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
        # Our workers end first: Kopf waits for every task of its loop before it ends.
        ticker.cancel()
        await asyncio.gather(ticker, return_exceptions=True)
        await asyncio.gather(watching, told, return_exceptions=True)


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.watching.inactivity_timeout = DEAD_WATCH
    settings.watching.server_timeout = 10 * 60
    settings.process.ultimate_exiting_timeout = None
    # Neither CustomResourceDefinitions nor Namespaces are watched, so the operator needs no right to.
    settings.scanning.disabled = True
    settings.watching.label_selectors["v1", "pods"] = names.GROUP_LABEL
    settings.watching.label_selectors["apps/v1", "statefulsets"] = names.GROUP_LABEL
    return settings


def _registry(controller: Controller, login: Callable[[], kopf.ConnectionInfo]) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    async def log_in(**_: Any) -> kopf.ConnectionInfo:
        return login()

    async def group(event: Mapping[str, Any], **_: Any) -> None:
        resource = event["object"]
        controller.saw_group(_key(resource, resource["metadata"]["name"]), resource, gone=event["type"] == "DELETED")

    async def pod(event: Mapping[str, Any], **_: Any) -> None:
        body = event["object"]
        name = names.group_of(body["metadata"].get("labels", {}))
        if name is not None:
            controller.saw_pod(_key(body, name), body, gone=event["type"] == "DELETED")

    async def stateful_set(event: Mapping[str, Any], **_: Any) -> None:
        body = event["object"]
        name = names.group_of(body["metadata"].get("labels", {}))
        if name is not None:
            controller.saw_object(_key(body, name))

    kopf.on.login(registry=registry)(log_in)
    kopf.on.event(names.API_GROUP, names.API_VERSION, names.PLURAL, registry=registry)(group)
    kopf.on.event("v1", "pods", registry=registry, labels={names.GROUP_LABEL: kopf.PRESENT})(pod)
    kopf.on.event("apps/v1", "statefulsets", registry=registry, labels={names.GROUP_LABEL: kopf.PRESENT})(stateful_set)
    return registry


def _key(body: Mapping[str, Any], name: str) -> Key:
    return body["metadata"]["namespace"], name
