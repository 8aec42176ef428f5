"""Whether traces are on, what OpenTelemetry's variables say of them, and that there is nothing of them while they are off."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from shardherd.cli import main
from shardherd.cli.command_line import MISCONFIGURED
from shardherd.telemetry import tracing
from shardherd.telemetry.tracing import TracingError, check, instance, sampler_of, start, started, traced_by, wanted

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, False),
        (ENDPOINT, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:9/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": " "}, False),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, False),
        ({**ENDPOINT, "OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({**ENDPOINT, "OTEL_TRACES_EXPORTER": "none"}, False),
        ({**ENDPOINT, "OTEL_SDK_DISABLED": "True"}, False),
    ],
)
def test_traces_are_made_where_the_environment_says_where_they_go(environment: Mapping[str, str], expected: bool) -> None:
    assert wanted(environment) is expected


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "OTEL_EXPORTER_OTLP_ENDPOINT",
            "collector:4318",
            'OTEL_EXPORTER_OTLP_ENDPOINT is "collector:4318": use a URL that begins with http:// or https://',
        ),
        (
            "OTEL_EXPORTER_OTLP_PROTOCOL",
            "grpc",
            'OTEL_EXPORTER_OTLP_PROTOCOL is "grpc": use http/protobuf, for which collectors listen on port 4318',
        ),
        (
            "OTEL_TRACES_SAMPLER",
            "jaeger_remote",
            'OTEL_TRACES_SAMPLER is "jaeger_remote": use one of always_on, always_off, traceidratio, parentbased_always_on,'
            " parentbased_always_off, parentbased_traceidratio",
        ),
        ("OTEL_TRACES_SAMPLER_ARG", "1%", 'OTEL_TRACES_SAMPLER_ARG is "1%": use a number from 0 to 1, for example 0.01'),
        ("OTEL_TRACES_SAMPLER_ARG", "2", 'OTEL_TRACES_SAMPLER_ARG is "2": use a number from 0 to 1, for example 0.01'),
    ],
)
def test_a_wrong_variable_is_named_with_the_remedy(name: str, value: str, message: str) -> None:
    with pytest.raises(TracingError) as refused:
        start({**ENDPOINT, name: value}, "tested", {})
    assert str(refused.value) == message


def test_right_ones_are_taken() -> None:
    check({**ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf", "OTEL_TRACES_SAMPLER_ARG": "0.5"})


def test_without_the_extra_it_says_which_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(TracingError, match="install shardherd with its extra `tracing`"):
        start(ENDPOINT, "tested", {})


def test_a_consumer_goes_on_without_traces_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    assert started({**ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "tested", {}) is None
    why = 'OTEL_EXPORTER_OTLP_PROTOCOL is "grpc": use http/protobuf, for which collectors listen on port 4318'
    assert [record.getMessage() for record in caplog.records] == [f"there are no traces: {why}"]


def test_an_operator_that_could_not_send_them_does_not_start(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardherd.telemetry.logs.configure", lambda *_: None)
    for name, value in {
        "SHARDHERD_NAMESPACE": "system",
        "SHARDHERD_POD_NAME": "shardherd-0",
        "OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4318",
    }.items():
        monkeypatch.setenv(name, value)

    assert main(["operator"]) == MISCONFIGURED
    expected = 'OTEL_EXPORTER_OTLP_ENDPOINT is "collector:4318": use a URL that begins with http:// or https://'
    assert capsys.readouterr().err == f"shardherd: {expected}\n"


def resource_of(service: str, whose: Mapping[str, str]) -> dict[str, object]:
    exporter = InMemorySpanExporter()
    traced_by(SimpleSpanProcessor(exporter), sampler_of({}), service, whose).tracer.start_span("one").end()
    resource: Resource = exporter.get_finished_spans()[0].resource
    return {name: value for name, value in resource.attributes.items() if not name.startswith("telemetry.")}


def test_spans_say_whose_they_are_and_the_environment_has_the_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    place = {"service.instance.id": "clicks-0", "k8s.namespace.name": "demo", "k8s.pod.name": "clicks-0"}
    version = {"service.version": tracing._version()}
    assert resource_of("clicks", instance("demo", "clicks-0")) == {"service.name": "clicks", **version, **place}

    monkeypatch.setenv("OTEL_SERVICE_NAME", "counting")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test,k8s.pod.name=other")
    found = {**version, **place, "service.name": "counting", "deployment.environment": "test", "k8s.pod.name": "other"}
    assert resource_of("clicks", instance("demo", "clicks-0")) == found


def test_the_ratio_says_how_many_are_made() -> None:
    exporter = InMemorySpanExporter()
    sampler = sampler_of({"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.25"})
    tracer = traced_by(SimpleSpanProcessor(exporter), sampler, "tested", {}).tracer
    for _ in range(2000):
        tracer.start_span("one").end()

    assert 350 < len(exporter.get_finished_spans()) < 650


def test_a_collector_that_hangs_keeps_nobody_from_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    class Hanging(SpanExporter):
        def shutdown(self) -> None:
            released.wait(30)

    monkeypatch.setattr(tracing, "CLOSING", 0.05)
    traces = traced_by(SimpleSpanProcessor(Hanging()), sampler_of({}), "tested", {})
    begun = time.monotonic()
    traces.close()
    took = time.monotonic() - begun
    released.set()

    assert took < 10


SHOW = """
import json, sys, threading
from unittest import mock
import shardherd.cli.command_line, shardherd.cli.operator_process
{made}
found = [each for each in sys.modules if each.partition(".")[0] == "opentelemetry"]
print(json.dumps([bool(found), sorted(each.name for each in threading.enumerate())]))
"""

OPERATOR = """
async def operate(settings, traces):
    from shardherd.adapters.memory import MemoryConnector, MemoryKafka, MemoryOwnership
    import shardherd.controller.handlers, shardherd.coordinator, shardherd.adapters.kafka.connector
    import shardherd.adapters.kubernetes.ownership, shardherd.telemetry.collector, shardherd.page.serving
    ownership, connector = MemoryOwnership(), MemoryConnector(MemoryKafka())
    found = shardherd.cli.operator_process.watched(ownership, connector, traces)
    assert traces is not None or found == {"ownership": ownership, "connector": connector}
    return 0
with mock.patch("shardherd.cli.command_line.operate", operate):
    assert shardherd.cli.main(["operator"]) == 0
"""

CONSUMERS = """
import os
import shardherd.client, shardherd.client.pod, shardherd.spark, shardherd.spark.runtime, shardherd.spark.application
from shardherd.telemetry.tracing import started
assert started(os.environ, "clicks", {}) is None
"""


def shown(made: str, **environment: str) -> tuple[bool, list[str]]:
    """Whether anything of OpenTelemetry was imported by a process that did this, and which threads it has."""
    rest = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    settings = {"SHARDHERD_NAMESPACE": "system", "SHARDHERD_POD_NAME": "shardherd-0"}
    run = subprocess.run(
        [sys.executable, "-c", SHOW.format(made=made)],
        env={**rest, **settings, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    imported, threads = json.loads(run.stdout.splitlines()[-1])
    return imported, threads


def test_while_they_are_off_an_operator_imports_nothing_and_starts_no_thread() -> None:
    assert shown(OPERATOR) == (False, ["MainThread"])


def test_while_they_are_off_a_consumer_imports_nothing_and_starts_no_thread() -> None:
    assert shown(CONSUMERS) == (False, ["MainThread"])


def test_while_they_are_on_an_operator_does() -> None:
    imported, threads = shown(OPERATOR, **ENDPOINT)
    assert imported
    assert threads == ["MainThread"]  # what sent them has ended with the operator
