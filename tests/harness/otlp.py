"""A collector of traces: takes OTLP over HTTP as OpenTelemetry's own does, and keeps the spans."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse


@dataclass(frozen=True)
class Received:
    """One span as it came over the wire."""

    name: str
    service: str
    trace: bytes
    id: bytes
    parent: bytes
    attributes: dict[str, Any]
    headers: dict[str, str]


@dataclass
class Collector:
    """What has come so far."""

    url: str
    spans: list[Received] = field(default_factory=list)

    def take(self, body: bytes, headers: dict[str, str]) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        for whose in request.resource_spans:
            service = next(each.value.string_value for each in whose.resource.attributes if each.key == "service.name")
            for span in (span for scope in whose.scope_spans for span in scope.spans):
                attributes = {each.key: getattr(each.value, str(each.value.WhichOneof("value"))) for each in span.attributes}
                self.spans.append(
                    Received(span.name, service, span.trace_id, span.span_id, span.parent_span_id, attributes, headers)
                )

    def named(self, name: str) -> list[Received]:
        return [span for span in self.spans if span.name == name]

    def below(self, parent: Received) -> list[str]:
        """The names of its children."""
        return [span.name for span in self.spans if (span.trace, span.parent) == (parent.trace, parent.id)]


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector on a free port of this machine."""

    class Takes(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            right = self.path == "/v1/traces" and self.headers["Content-Type"] == "application/x-protobuf"
            if right:
                zipped = self.headers.get("Content-Encoding") == "gzip"
                collector.take(gzip.decompress(body) if zipped else body, dict(self.headers))
            self.send_response(200 if right else 404)
            self.end_headers()
            self.wfile.write(ExportTraceServiceResponse().SerializeToString())

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Takes) as server:
        collector = Collector(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, name="collector")
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()
