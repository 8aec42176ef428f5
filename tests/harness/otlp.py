"""A collector of traces: takes OTLP over HTTP as OpenTelemetry's own does, and keeps the spans."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse
from opentelemetry.proto.common.v1.common_pb2 import KeyValue


@dataclass(frozen=True)
class Received:
    """One span as it came over the wire."""

    name: str
    resource: dict[str, Any]
    trace: bytes
    id: bytes
    parent: bytes
    attributes: dict[str, Any]
    headers: dict[str, str]

    @property
    def service(self) -> str:
        return str(self.resource["service.name"])


@dataclass
class Collector:
    """What has come so far. `port` is where it comes."""

    url: str
    port: int
    spans: list[Received] = field(default_factory=list)

    def take(self, body: bytes, headers: dict[str, str]) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        for whose in request.resource_spans:
            resource = _values(whose.resource.attributes)
            for span in (span for scope in whose.scope_spans for span in scope.spans):
                about = _values(span.attributes)
                self.spans.append(
                    Received(span.name, resource, span.trace_id, span.span_id, span.parent_span_id, about, headers)
                )

    def named(self, name: str, **attributes: Any) -> list[Received]:
        """Those of this name, with these attributes: `__` is the dot."""
        wanted = {key.replace("__", "."): value for key, value in attributes.items()}.items()
        return [span for span in self.spans if span.name == name and wanted <= span.attributes.items()]

    def children(self, parent: Received, name: str) -> list[Received]:
        """Those of this name right below it."""
        return [span for span in self.named(name) if (span.trace, span.parent) == (parent.trace, parent.id)]

    def below(self, parent: Received) -> list[str]:
        """The names of its children."""
        return [span.name for span in self.spans if (span.trace, span.parent) == (parent.trace, parent.id)]


def _values(attributes: Iterable[KeyValue]) -> dict[str, Any]:
    return {each.key: getattr(each.value, str(each.value.WhichOneof("value"))) for each in attributes}


@contextmanager
def collecting(address: str = "127.0.0.1") -> Iterator[Collector]:
    """A collector on a free port of this machine, at this address of it."""

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

    with ThreadingHTTPServer((address, 0), Takes) as server:
        collector = Collector(f"http://{address}:{server.server_port}", server.server_port)
        thread = threading.Thread(target=server.serve_forever, name="collector")
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()
