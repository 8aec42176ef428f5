"""A consumer from the environment of its pod, as the controller sets it: for an application of a group that is not of Spark.

`consumer_of_pod` joins the group under the pod's name, answers the readiness probe, and drains at SIGTERM. Decides nothing.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from shardherd.client.aio import AsyncConsumerClient
from shardherd.client.consumer import LOSS_LIMIT, AsyncConsumer
from shardherd.consumer.gauges import Gauges, Measure, OwnGauge, measure_of
from shardherd.consumer.ports import Coordinator
from shardherd.consumer.settings_given import LARGEST, MOST_MILLIS, MOST_PORT, whole_in
from shardherd.core.model.errors import InvalidRequestError
from shardherd.core.model.nouns import ConsumerId, Incarnation
from shardherd.settings import can_be_called
from shardherd.telemetry.scrapers import HEAD_WITHIN, REFUSAL, Scrapers, digest_in
from shardherd.telemetry.tracing import Tracing, instance, started

_HANDLED: set[int] = set()
"""The signals that are noted by an event loop of this process now."""

NEEDED = tuple(
    f"SHARDHERD_{name}"
    for name in ("COORDINATOR_URL", "NAMESPACE", "GROUP", "GROUP_UID", "CONSUMER", "POD_UID", "START", "TOKEN_FILE")
)


@asynccontextmanager
async def consumer_of_pod(
    environment: Mapping[str, str] | None = None,
    *,
    signals: Collection[int] = (signal.SIGTERM,),
    metrics: Callable[[], tuple[bytes, str]] | None = None,
    gauge: OwnGauge | None = None,
    **options: Any,
) -> AsyncIterator[AsyncConsumer]:
    """The consumer that this pod is. Must be entered in the main thread, where signals arrive, or without `signals`.

    After a signal `take` raises ConsumerStoppedError, and the end of the block drains. `metrics` gives what a
    scrape of /metrics is answered with, and its content type. `gauge` says how full the program is by its own measure, from 0
    to 1; its disks (SHARDHERD_DISKS) and memory are measured anyhow. `options` are AsyncConsumer's that the environment does
    not say. Raises InvalidRequestError that names the variables which are not set, or wrong.
    """
    found = dict(os.environ if environment is None else environment)
    if missing := [name for name in NEEDED if not found.get(name)]:
        raise InvalidRequestError(
            f"not set in the environment: {', '.join(missing)}; run this as a ConsumerGroup's"
            " application, whose pods have them, or set them by hand"
        )
    url, namespace, group, group_uid, name, pod_uid, _, token = (found[needed] for needed in NEEDED)
    # Set where the operator keeps an authority of its own, which it does unless TLS was turned off.
    ca = found.get("SHARDHERD_COORDINATOR_CA_FILE")
    stop_requested = asyncio.Event()
    if not can_be_called(url):
        raise InvalidRequestError(f"SHARDHERD_COORDINATOR_URL must be as https://host:port, or http://host:port, not {url!r}")
    incarnation = Incarnation(pod_uid, _number(found, "SHARDHERD_START", 1, least=1))
    capacity = _number(found, "SHARDHERD_CAPACITY", 1, least=1)
    loss_limit = _number(found, "SHARDHERD_COORDINATOR_LOSS_LIMIT_MS", round(LOSS_LIMIT * 1000), most=MOST_MILLIS) / 1000
    drain_timeout = _number(found, "SHARDHERD_DRAIN_TIMEOUT_MS", 60_000, most=MOST_MILLIS) / 1000
    port = _number(found, "SHARDHERD_METRICS_PORT", 0, most=MOST_PORT)
    async with (
        _measured(measure_of(found, gauge)) as gauges,
        _signals_set(stop_requested, signals),
        _coordinator(
            (url, namespace, group, Path(token).read_text),
            Path(ca) if ca else None,
            started(found, group, instance(namespace, name)),
        ) as coordinator,
        AsyncConsumer(
            coordinator,
            ConsumerId(name),
            incarnation,
            group_uid=group_uid,
            zone=found.get("SHARDHERD_ZONE", ""),
            capacity=capacity,
            loss_limit=loss_limit,
            drain_timeout=drain_timeout,
            gauges=gauges,
            **options,
        ) as consumer,
        _served(consumer, port, metrics, _scrapers(found)),
    ):
        draining = asyncio.create_task(_drain_when_requested(stop_requested, consumer, drain_timeout))
        try:
            yield consumer
        finally:
            if stop_requested.is_set():
                await draining
            draining.cancel()


def _number(environment: Mapping[str, str], name: str, default: int, *, least: int = 0, most: int = LARGEST) -> int:
    """What a variable says; the default if it is not set. Raises InvalidRequestError."""
    try:
        return whole_in(environment, name, default, least=least, most=most)
    except ValueError as error:
        raise InvalidRequestError(str(error)) from None


@asynccontextmanager
async def _measured(measure: Measure) -> AsyncIterator[Gauges]:
    """How full this process is, measured as long as this lasts."""
    gauges = await asyncio.to_thread(Gauges, measure)
    try:
        yield gauges
    finally:
        gauges.close()


@asynccontextmanager
async def _coordinator(
    place: tuple[str, str, str, Callable[[], str]], ca_file: Path | None, traces: Tracing | None
) -> AsyncIterator[Coordinator]:
    """The coordinator, with a span for each call if there are `traces`, which end with it."""
    if traces is None:
        async with AsyncConsumerClient(*place, ca_file=ca_file) as client:
            yield client
        return
    # Nothing of OpenTelemetry is imported where traces are off.
    from shardherd.client.traced import CarriesNothing, TracedCoordinator, headers

    try:
        async with AsyncConsumerClient(*place, ca_file=ca_file, headers=headers) as client:
            yield TracedCoordinator(client, traces.tracer, f"{place[1]}/{place[2]}", CarriesNothing())
    finally:
        await asyncio.to_thread(traces.close)


def _scrapers(environment: Mapping[str, str]) -> Scrapers | None:
    """Who may scrape; None if anybody may."""
    file = environment.get("SHARDHERD_METRICS_DIGEST_FILE")
    return Scrapers(digest_in(Path(file))) if file else None


@asynccontextmanager
async def _signals_set(stop_requested: asyncio.Event, signals: Collection[int]) -> AsyncIterator[None]:
    """A signal is noted, until the consumer has left: another one, or one that comes during a drain, must not cut it short."""
    loop = asyncio.get_running_loop()
    for number in signals:
        loop.add_signal_handler(number, stop_requested.set)
        _HANDLED.add(number)
    try:
        yield
    finally:
        for number in signals:
            _HANDLED.discard(number)
            loop.remove_signal_handler(number)


def _end_as_others_do() -> None:
    """In a process that was forked from this one, as by `multiprocessing`: a signal ends it.

    With what it has inherited it would go on, and the event loop of this one would take the signal for its own: both write to
    one pipe.
    """
    if _HANDLED:
        signal.set_wakeup_fd(-1)
    for number in _HANDLED:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


os.register_at_fork(after_in_child=_end_as_others_do)


async def _drain_when_requested(stop_requested: asyncio.Event, consumer: AsyncConsumer, timeout: float) -> None:
    await stop_requested.wait()
    await consumer.drain(timeout)


@asynccontextmanager
async def _served(
    consumer: AsyncConsumer, port: int, metrics: Callable[[], tuple[bytes, str]] | None, scrapers: Scrapers | None
) -> AsyncIterator[None]:
    """/readyz on this port, 200 once the coordinator has answered, and /metrics, for `scrapers` alone; no port, nothing."""

    async def ready(_request: web.Request) -> web.Response:
        if consumer.stopped or not consumer.joined:
            return web.Response(status=503, text=f"{consumer.stopped or 'the coordinator has not answered yet'}\n")
        return web.Response(text="ready\n")

    async def scrape(request: web.Request) -> web.Response:
        if metrics is None:
            return web.Response(status=404, text="this application has no metrics of its own\n")
        if scrapers is not None and not scrapers.admits(request.headers.get("Authorization")):
            return web.Response(status=401, text=REFUSAL, headers={"WWW-Authenticate": "Bearer"})
        body, content_type = metrics()
        return web.Response(body=body, headers={"Content-Type": content_type})

    application = web.Application()
    application.add_routes([web.get("/readyz", ready), web.get("/metrics", scrape)])
    runner = web.AppRunner(application, access_log=None, keepalive_timeout=HEAD_WITHIN)
    await runner.setup()
    try:
        if port:
            await web.TCPSite(runner, "0.0.0.0", port).start()
        yield
    finally:
        await runner.cleanup()
