"""What prometheus-adapter and KEDA serve to autoscalers, `external.metrics.k8s.io`, answered from what a scrape shows.

The real API server passes requests on to it over TLS, as to any server behind an APIService; nobody else is answered. A metric
has its own name, its label `namespace` is the namespace that is asked for, and the selector chooses by its other labels.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import ssl
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from prometheus_client.parser import text_string_to_metric_families

from dev.cluster import Cluster
from shardherd.adapters import certificates
from shardherd.adapters.certificates import BUNDLE
from tests.harness.authorities import secret

GROUP, VERSION = "external.metrics.k8s.io", "v1beta1"
ROOT = f"/apis/{GROUP}/{VERSION}"
SERVICE = "external-metrics"

_VALUES = re.compile(rf"{re.escape(ROOT)}/namespaces/([^/]+)/([^/]+)")

Json = dict[str, Any]


def values(scraped: str, namespace: str, metric: str, selector: str) -> list[Json]:
    """The samples that are asked for, as the API has them. A selector is `label=value,label=value`."""
    wanted = {"namespace": namespace} | dict(part.split("=", 1) for part in selector.split(",") if part)
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return [
        {"metricName": metric, "metricLabels": dict(sample.labels), "timestamp": now, "value": f"{sample.value:.3f}"}
        for family in text_string_to_metric_families(scraped)
        for sample in family.samples
        if sample.name == metric and wanted.items() <= sample.labels.items()
    ]


@contextlib.contextmanager
def external_metrics(cluster: Cluster, namespace: str, scrape: Callable[[], str]) -> Iterator[None]:
    """Serves what `scrape` returns while the block lasts. A cluster has one such API; its Service is in `namespace`."""
    keys = secret(hosts=frozenset({f"{SERVICE}.{namespace}.svc"}))
    context = certificates.context(keys)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cluster.layout.certificates / "ca.crt")
    address = cluster.addresses.machine
    server = ThreadingHTTPServer((address, 0), _handler(scrape))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, name="external metrics")
    thread.start()
    name = f"apiservice/{VERSION}.{GROUP}"
    try:
        for manifest in _manifests(namespace, address, server.server_port, keys[BUNDLE]):
            cluster.kubectl("apply", "-f", "-", input=json.dumps(manifest))
        cluster.kubectl("wait", "--for=condition=Available", name, "--timeout=60s")
        yield
    finally:
        # A namespace cannot be deleted while an API that is announced does not answer.
        cluster.kubectl("delete", name, "--ignore-not-found")
        server.shutdown()
        server.server_close()
        thread.join()


def _manifests(namespace: str, address: str, port: int, authority: bytes) -> tuple[Json, Json]:
    """A Service of a server outside of the cluster, and the API that it serves."""
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": SERVICE, "namespace": namespace},
        "spec": {"type": "ExternalName", "externalName": address},
    }
    announced = {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": f"{VERSION}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "version": VERSION,
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "caBundle": base64.b64encode(authority).decode(),
            "service": {"namespace": namespace, "name": SERVICE, "port": port},
        },
    }
    return service, announced


def _handler(scrape: Callable[[], str]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            asked = _VALUES.fullmatch(url.path)
            if asked is not None:
                selector = parse_qs(url.query).get("labelSelector", [""])[0]
                items = values(scrape(), asked[1], asked[2], selector)
                self._answer({"kind": "ExternalMetricValueList", "apiVersion": f"{GROUP}/{VERSION}", "items": items})
            elif url.path == ROOT:
                self._answer(
                    {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": f"{GROUP}/{VERSION}", "resources": []}
                )
            else:
                self.send_error(404)

        def _answer(self, content: Json) -> None:
            body = json.dumps(content).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """What is asked is of no interest."""

    return Handler
