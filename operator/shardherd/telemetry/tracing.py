"""Traces by OpenTelemetry: whether they are wanted, what they are sampled by, and what sends them away. Off unless asked for.

Called by the composition roots; what a span is about is decided by `adapters.traces`, `client.traced` and `spark.traces`. The
variables are OpenTelemetry's own, and what they do not say is as its specification has it. While traces are off nothing of
OpenTelemetry is imported, and no thread runs: this module must not import it before `start`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.sdk.trace.sampling import Sampler
    from opentelemetry.trace import Tracer

log = logging.getLogger(__name__)

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
EXPORTER, DISABLED, SAMPLER, RATIO = (
    "OTEL_TRACES_EXPORTER",
    "OTEL_SDK_DISABLED",
    "OTEL_TRACES_SAMPLER",
    "OTEL_TRACES_SAMPLER_ARG",
)
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
PROTOCOL = "http/protobuf"

SAMPLERS = (
    "always_on",
    "always_off",
    "traceidratio",
    "parentbased_always_on",
    "parentbased_always_off",
    "parentbased_traceidratio",
)

CLOSING = 2.0
"""Seconds for the last spans to go out when the process ends: nobody waits longer for a collector that does not answer."""


class TracingError(Exception):
    """Traces are asked for and cannot be sent. The message names the variable or the package, and the remedy."""


def wanted(environment: Mapping[str, str]) -> bool:
    """Whether the environment asks for traces: it says where they go, and nothing in it is against it."""
    if environment.get(DISABLED, "").strip().lower() == "true":
        return False
    return _first(environment, (EXPORTER,)) in ("", "otlp") and bool(_first(environment, ENDPOINTS))


def check(environment: Mapping[str, str]) -> None:
    """Raises TracingError if the variables of traces that are wanted are wrong."""
    for name in ENDPOINTS:
        if (value := environment.get(name, "").strip()) and not value.startswith(("http://", "https://")):
            raise TracingError(f'{name} is "{value}": use a URL that begins with http:// or https://')
    for name in PROTOCOLS:
        if (value := environment.get(name, "").strip()) and value != PROTOCOL:
            raise TracingError(f'{name} is "{value}": use {PROTOCOL}, for which collectors listen on port 4318')
    if (sampler := environment.get(SAMPLER, "").strip()) and sampler not in SAMPLERS:
        raise TracingError(f'{SAMPLER} is "{sampler}": use one of {", ".join(SAMPLERS)}')
    if ratio := environment.get(RATIO, "").strip():
        with suppress(ValueError):
            if 0.0 <= float(ratio) <= 1.0:
                return
        raise TracingError(f'{RATIO} is "{ratio}": use a number from 0 to 1, for example 0.01')


@dataclass(frozen=True, slots=True)
class Tracing:
    """What makes spans, and what ends the sending of them."""

    tracer: Tracer
    shut_down: Callable[[], None]

    def close(self) -> None:
        """Send what is left, as long as there is time. Blocks for at most CLOSING seconds."""
        # The package waits for half a minute, and its thread does not keep the process.
        closing = threading.Thread(target=self.shut_down, name="shardherd-traces-end", daemon=True)
        try:
            closing.start()
        except RuntimeError as error:
            log.info("the last spans are not sent: %s", error)  # an interpreter that ends starts no thread any more
            return
        closing.join(CLOSING)


def start(environment: Mapping[str, str], service: str, instance: Mapping[str, str]) -> Tracing | None:
    """Send traces from now on, if they are wanted. `service` and `instance` say whose; the environment's own words win.

    Raises TracingError.
    """
    if not wanted(environment):
        return None
    check(environment)
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        raise TracingError(
            f"{_first(environment, ENDPOINTS)} is to get traces, which needs the package {error.name}: install shardherd with"
            " its extra `tracing`"
        ) from error
    log.info("traces are sent to %s", _first(environment, ENDPOINTS))
    return traced_by(BatchSpanProcessor(OTLPSpanExporter()), sampler_of(environment), service, instance)


def started(environment: Mapping[str, str], service: str, instance: Mapping[str, str]) -> Tracing | None:
    """The same for a consumer: records are not left unread for want of traces, but it is said in the log."""
    try:
        return start(environment, service, instance)
    except TracingError as error:
        log.error("there are no traces: %s", error)  # noqa: TRY400
        return None


def instance(namespace: str, pod: str) -> dict[str, str]:
    """By what the spans of one pod are known."""
    return {"service.instance.id": pod, "k8s.namespace.name": namespace, "k8s.pod.name": pod}


def traced_by(processor: SpanProcessor, sampler: Sampler, service: str, instance: Mapping[str, str]) -> Tracing:
    """Traces that go to `processor`."""
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider

    ours = {"service.name": service, "service.version": _version(), **instance}
    resource = Resource.create({**ours, **OTELResourceDetector().detect().attributes})
    # It is of this package alone: an application has its own, if any. Who ends the process ends it, with a bound.
    provider = TracerProvider(sampler, resource, shutdown_on_exit=False)
    provider.add_span_processor(processor)
    return Tracing(provider.get_tracer("shardherd", _version()), provider.shutdown)


def sampler_of(environment: Mapping[str, str]) -> Sampler:
    """What says which traces are made, by the standard variables. What is linked to a sampled span always is."""
    from opentelemetry.sdk.trace import sampling
    from opentelemetry.trace import Link, SpanKind
    from opentelemetry.trace.span import TraceState

    name = environment.get(SAMPLER, "").strip() or "parentbased_always_on"
    roots: dict[str, sampling.Sampler] = {
        "always_on": sampling.ALWAYS_ON,
        "always_off": sampling.ALWAYS_OFF,
        "traceidratio": sampling.TraceIdRatioBased(float(environment.get(RATIO, "").strip() or "1")),
    }
    root = roots[name.removeprefix("parentbased_")]
    rest = sampling.ParentBased(root) if name.startswith("parentbased_") else root

    class WithWhatItIsAbout(sampling.Sampler):
        def should_sample(
            self,
            parent_context: Any,
            trace_id: int,
            name: str,
            kind: SpanKind | None = None,
            attributes: Any = None,
            links: Sequence[Link] | None = None,
            trace_state: TraceState | None = None,
        ) -> sampling.SamplingResult:
            if any(link.context.trace_flags.sampled for link in links or ()):
                return sampling.SamplingResult(sampling.Decision.RECORD_AND_SAMPLE, attributes, trace_state)
            return rest.should_sample(parent_context, trace_id, name, kind, attributes, links, trace_state)

        def get_description(self) -> str:
            return f"linked, else {rest.get_description()}"

    return WithWhatItIsAbout()


def _first(environment: Mapping[str, str], names: Sequence[str]) -> str:
    """The first of these variables that says something."""
    return next((value for name in names if (value := environment.get(name, "").strip())), "")


def _version() -> str:
    try:
        return version("shardherd")
    except PackageNotFoundError:
        return ""
