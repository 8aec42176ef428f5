"""The process of the operator, and its composition root: the one place that knows which adapter serves which port.

`shardherd operator` runs the coordinator in the main thread's event loop and, once it leads, Kopf in a thread of its own. Until
then it stands by with everything imported and connected. It ends with 0 on SIGTERM or SIGINT, having handed over to another one
that stands by, and with another code when it may not or cannot go on, so that Kubernetes starts a new one. Called by
`command_line`, which has read the settings.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import signal
import threading
import uuid
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from shardherd.ports import ClusterRefusedError, ClusterUnavailableError
from shardherd.settings import Settings

if TYPE_CHECKING:
    from kubernetes.client.configuration import Configuration

    from shardherd.adapters.kubernetes.api import KubernetesApi
    from shardherd.adapters.kubernetes.cluster import KubernetesCluster
    from shardherd.adapters.kubernetes.serving import ServingCertificate
    from shardherd.ports import Clock, OwnershipStore, SourceConnector, TokenReviewer
    from shardherd.telemetry.tracing import Tracing

logger = logging.getLogger(__name__)

GC_THRESHOLDS = (100_000, 50, 100)
"""Allocations until Python looks for cycles, and how rarely for older ones. A batch of checkpoints makes a hundred thousand
short-lived values and no cycle; with Python's own 700, a busy coordinator spends up to a fifth of its time on looking."""

FAILED = 1
"""Exit code: it may not or cannot go on."""

DEFINITION_INTERVAL = 1.0
"""Seconds between looks whether ConsumerGroups are defined, while they are not."""

REVIEWS = 8
"""Tokens that are reviewed at a time."""

KOPF_STOP_TIMEOUT = 10.0
"""Seconds that Kopf is given to end its watches."""


async def operate(settings: Settings, configuration: Configuration | None = None, traces: Tracing | None = None) -> int:
    """Run the operator until a signal stops it (0), or it loses its lease or fails (FAILED).

    `configuration` says where the API server is and who we are; by default the pod's service account, else the kubeconfig.
    With `traces` it makes spans, which the caller has sent.
    """
    gc.set_threshold(*GC_THRESHOLDS)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    logger.info("shardherd %s starts", version("shardherd"))
    async with AsyncExitStack() as stack:
        return await _run(settings, configuration or _configuration(), stop, stack, traces)


def _configuration() -> Configuration:
    from kubernetes import config
    from kubernetes.client.configuration import Configuration

    configuration = Configuration()
    loader: Any = config  # the client has no types
    try:
        loader.load_incluster_config(client_configuration=configuration)
    except config.ConfigException:
        loader.load_kube_config(client_configuration=configuration)
    return configuration


async def _run(
    settings: Settings, configuration: Configuration, stop: asyncio.Event, stack: AsyncExitStack, traces: Tracing | None
) -> int:
    """Everything is closed in the reverse order of its making: the coordinator before what it stands on."""
    import prometheus_client
    from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

    from shardherd.adapters.assignors import load_assignors
    from shardherd.adapters.connector import Sources
    from shardherd.adapters.kafka.connector import KafkaConnector
    from shardherd.adapters.kinesis.connector import KinesisConnector
    from shardherd.adapters.kubernetes.api import KubernetesApi
    from shardherd.adapters.kubernetes.cluster import KubernetesCluster
    from shardherd.adapters.kubernetes.events import KubernetesEvents
    from shardherd.adapters.kubernetes.groups import KubernetesGroups
    from shardherd.adapters.kubernetes.leading import LeadersApi
    from shardherd.adapters.kubernetes.lease import LeaseLeadership, LeaseTimes
    from shardherd.adapters.kubernetes.login import connection
    from shardherd.adapters.kubernetes.namespaces import LabelledNamespaces
    from shardherd.adapters.kubernetes.object_cache import ObjectCache
    from shardherd.adapters.kubernetes.operators import OperatorPods, holder_of
    from shardherd.adapters.kubernetes.ownership import ConfigMapOwnership
    from shardherd.adapters.kubernetes.positions import ConfigMapPositions
    from shardherd.adapters.kubernetes.secrets import KubernetesSecrets
    from shardherd.clock import SystemClock
    from shardherd.controller import handlers
    from shardherd.controller.guard import Guard
    from shardherd.controller.manifests import Manifests
    from shardherd.controller.reconcile import Controller
    from shardherd.controller.served import Served
    from shardherd.coordinator import CoordinatorPorts, CoordinatorServer, Tls
    from shardherd.coordinator.metrics import OperatorCounters
    from shardherd.page.history import History, Recorder
    from shardherd.page.serving import PageServer, PageUnavailableError, Views, Wanted
    from shardherd.telemetry.collector import GroupCollector, MetricsServer
    from shardherd.telemetry.kafka_names import KafkaNames
    from shardherd.telemetry.operator_metrics import OperatorMetrics
    from shardherd.telemetry.scrapers import Scrapers, token_in

    identity, lease = settings.identity, settings.lease
    # A time of creation beside every series is of no use here and doubles the scrape.
    untyped: Any = prometheus_client
    untyped.disable_created_metrics()
    registry = CollectorRegistry()
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    metrics = OperatorMetrics(registry)
    metrics.built(version("shardherd"))
    clock = SystemClock()
    history = History(clock.wall)

    def count(method: str, resource: str) -> None:
        metrics.kubernetes_requests.labels(method, resource).inc()

    api = KubernetesApi(configuration, count=count)
    stack.callback(api.close)
    events = KubernetesEvents(api, clock, identity.pod_name)
    stack.callback(events.close)
    secrets, own = KubernetesSecrets(api), settings.own_aws_identity
    connector = Sources(
        KafkaConnector(secrets, own_identity=own), KinesisConnector(secrets, ConfigMapPositions(api), own_identity=own)
    )
    stack.push_async_callback(connector.close)
    # What keeps us leading must not wait behind what many groups ask for at once.
    lease_api = KubernetesApi(configuration, connections=2, count=count)
    stack.callback(lease_api.close)
    # Nor may who holds what be written behind the tokens that anybody sends.
    reviews_api = KubernetesApi(configuration, connections=REVIEWS, count=count)
    stack.callback(reviews_api.close)
    # What is asked for whoever names a group that nobody knows keeps nothing else waiting.
    groups_api = KubernetesApi(configuration, connections=2, count=count)
    stack.callback(groups_api.close)
    pods = OperatorPods(lease_api, identity.namespace, identity.pod_name, identity.pod_uid)
    leadership = LeaseLeadership(
        lease_api,
        clock,
        identity.namespace,
        lease.name,
        holder_of(identity.pod_name, identity.pod_uid),
        LeaseTimes(lease.duration, lease.renew_deadline, lease.retry, lease.look),
        start=_announce_start(identity.termination_log),
        obituaries=pods,
    )

    def certain() -> bool:
        return clock.now() < leadership.deadline()

    leaders_api = LeadersApi(configuration, certain, count)
    stack.callback(leaders_api.close)
    cache, served = ObjectCache(), None
    if selector := settings.watch_namespace_selector:
        served = Served(selector, LabelledNamespaces(leaders_api, selector), clock, began=cache.joined, ended=cache.left)
    cluster = KubernetesCluster(leaders_api, cache, settings.watch_namespaces, lambda name: served is None or name in served)
    certificate = _serving(settings, api, clock)
    tls = None
    if certificate is not None:
        tls = Tls(certificate.context, settings.tls.port, lambda: certificate.ready, settings.tls.accept_plain)
    server = CoordinatorServer(
        CoordinatorPorts(
            clock=clock,
            leadership=leadership,
            tokens=_tokens(settings, reviews_api, clock),
            events=events,
            metrics=OperatorCounters(metrics, *((history.rebalanced,) if settings.page_port else ())),
            assignors=load_assignors(),
            **watched(ConfigMapOwnership(api), connector, traces),
        ),
        port=settings.api.port,
        discovery_interval=settings.discovery_interval,
        max_body=settings.api.max_body,
        max_groups_per_source=settings.api.max_groups_per_source,
        requests_per_second=settings.api.requests_per_second,
        tls=tls,
        refusal=served.refusal if served is not None else lambda *_: None,
        exists=KubernetesGroups(groups_api, clock, settings.watch_namespaces).exists,
    )
    await server.start()
    stack.push_async_callback(server.stop)
    file = settings.telemetry.metrics_token_file
    token = token_in(Path(file)) if file else None
    exporter = MetricsServer(settings.telemetry.metrics_port, registry, scrapers=Scrapers(token) if token else None)
    stack.callback(exporter.close)
    if settings.page_port:
        made = Views(cache.groups, server.coordination.view, history, clock, version("shardherd"))

        def document(wanted: Wanted) -> bytes:
            if not certain():
                raise PageUnavailableError("This operator does not lead: ask the one that does.")
            return made(wanted)

        stack.callback(PageServer(settings.page_port, document, "0.0.0.0").close)
    if certificate is not None:
        stack.callback(asyncio.create_task(certificate.run(), name="certificate").cancel)
        # Who could not be called must not lead.
        if not await _before(stop, certificate.available()):
            return 0
        metrics.certificate_until.set_function(lambda: certificate.until)
        metrics.authority_until.set_function(lambda: certificate.authority_until)
    if not await _before(stop, server.lead()):
        return 0
    metrics.leader.set(1)
    if identity.pod_uid:
        stack.callback(asyncio.create_task(pods.lead(certain), name="label").cancel)
    coordination, limit = server.coordination, settings.telemetry.shard_series_limit
    registry.register(GroupCollector(coordination.views, limit))
    if settings.telemetry.kafka_names:
        registry.register(KafkaNames(coordination.views, server.kafka_groups, limit))
    if settings.page_port:
        stack.callback(Recorder(history, coordination.views).close)
    logger.info("leading")
    if not await _before(stop, _definition(cluster, settings.watch_namespaces)):
        return 0

    def make_controller() -> Controller:
        return Controller(
            cluster,
            server.coordination,
            events,
            clock,
            metrics,
            Manifests(
                settings.api.coordinator_url,
                settings.api.token_audience,
                trust=certificate is not None,
                scrapers=token is not None,
                guard=Guard(identity.namespace, identity.service_account, settings.tls.secret if certificate else ""),
                operator=f"{identity.namespace}/{lease.name}",
                marked=served is not None,
            ),
            bundle=certificate.bundle if certificate is not None else lambda: "",
            scrapers=token or (lambda: ""),
            resync_interval=settings.resync_interval,
        )

    kopf_stop, kopf_ready = threading.Event(), threading.Event()
    kopf = _thread(
        lambda: handlers.run(
            make_controller,
            lambda: connection(configuration),
            settings.watch_namespaces,
            kopf_stop,
            kopf_ready,
            lambda kind, body, event: cache.update(kind, body, gone=event == "DELETED", listed=event is None),
            served,
        )
    )
    lost = asyncio.create_task(server.lost())
    stop_requested = asyncio.create_task(stop.wait())
    tasks: tuple[asyncio.Future[Any], ...] = (kopf, lost, stop_requested)
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    metrics.leader.set(0)
    code = _verdict(kopf, lost, stop_requested)
    # The next leader must not wait for the end of our watches: from here on we can neither answer nor write.
    kopf_stop.set()
    await server.resign()
    await asyncio.wait({kopf}, timeout=KOPF_STOP_TIMEOUT)
    for task in (lost, stop_requested):
        task.cancel()
    await asyncio.gather(lost, stop_requested, return_exceptions=True)
    return code


def watched(ownership: OwnershipStore, connector: SourceConnector, traces: Tracing | None) -> dict[str, Any]:
    """The ports that requests go through, with traces if there are any: nothing of theirs is even imported otherwise."""
    if traces is None:
        return {"ownership": ownership, "connector": connector}
    from shardherd.adapters.traces.requests import RequestTraces
    from shardherd.adapters.traces.stores import TracedConnector, TracedOwnership

    requests = RequestTraces(traces.tracer)
    return {
        "ownership": TracedOwnership(ownership, requests),
        "connector": TracedConnector(connector, requests),
        "observer": requests,
    }


def _announce_start(path: str) -> str:
    """A name for this start of the process, written for the kubelet to `path`: our pod's status then says who died."""
    start = uuid.uuid4().hex
    if path:
        try:
            Path(path).write_text(json.dumps({"start": start}))
        except OSError as error:
            logger.warning("cannot write %s (%s): if this process dies, the next leader waits for the Lease", path, error)
    return start


def _tokens(settings: Settings, api: KubernetesApi, clock: Clock) -> TokenReviewer:
    if settings.api.token_check == "keys":
        from shardherd.adapters.kubernetes.keys import PublishedKeysTokens

        return PublishedKeysTokens(api, settings.api.token_audience, clock, settings.watch_namespaces)
    from shardherd.adapters.kubernetes.tokens import KubernetesTokens

    return KubernetesTokens(api, settings.api.token_audience)


def _serving(settings: Settings, api: KubernetesApi, clock: Clock) -> ServingCertificate | None:
    """What the coordinator serves TLS with; None without TLS."""
    from shardherd.adapters.kubernetes.serving import ServingCertificate
    from shardherd.core.planning.certificates import DAY, Lifetimes

    tls = settings.tls
    if tls.mode == "disabled":
        return None
    lifetimes = Lifetimes(tls.authority_days * DAY, tls.certificate_days * DAY) if tls.mode == "auto" else None
    host = urlsplit(settings.api.coordinator_url).hostname or ""
    return ServingCertificate(api, clock, settings.identity.namespace, tls.secret, frozenset({host}), lifetimes)


async def _definition(cluster: KubernetesCluster, namespaces: Sequence[str]) -> None:
    """Wait until the API server serves ConsumerGroups: Kopf would look for them only once."""
    logged = ""
    while True:
        try:
            if await cluster.knows_groups(namespaces):
                return
            why = "waiting for the definition of ConsumerGroup: kubectl apply -f crds/consumergroup.yaml"
        except ClusterRefusedError as error:
            why = f"waiting for the right to list ConsumerGroups, which the chart gives: {error}"
        except ClusterUnavailableError as error:
            why = f"waiting for the API server: {error}"
        if why != logged:
            logger.warning("%s", why)
        logged = why
        await asyncio.sleep(DEFINITION_INTERVAL)


async def _before(stop: asyncio.Event, work: Coroutine[None, None, None]) -> bool:
    """Await `work`; False if a stop was requested first."""
    task, stop_requested = asyncio.create_task(work), asyncio.create_task(stop.wait())
    first: tuple[asyncio.Future[Any], ...] = (task, stop_requested)
    await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
    stop_requested.cancel()
    if not task.done():
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return False
    task.result()
    return True


def _verdict(kopf: asyncio.Future[None], lost: asyncio.Task[str], stop_requested: asyncio.Task[bool]) -> int:
    """The exit code for what ended first; logs it."""
    if lost.done():
        logger.error("this process may not go on: %s", lost.result())
        return FAILED
    if stop_requested.done():
        logger.info("stop requested")
        return 0
    logger.error("watching the cluster ended (%s)", kopf.exception() or "nobody asked it to")
    return FAILED


def _thread(work: Callable[[], None]) -> asyncio.Future[None]:
    """Run `work` in a thread; the future ends with it. A daemon thread, so that a hanging one cannot keep the process."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def finish(error: Exception | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    def body() -> None:
        error: Exception | None = None
        try:
            work()
        except Exception as raised:
            logger.exception("watching the cluster failed")
            error = raised
        if not loop.is_closed():
            loop.call_soon_threadsafe(finish, error)

    threading.Thread(target=body, name="kopf", daemon=True).start()
    return future
