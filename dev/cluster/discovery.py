"""Decides what Prometheus scrapes: every running pod annotated prometheus.io/scrape: "true", at its /port and /path.

Runs inside an instance as a process of its own and answers Prometheus's `http_sd_configs`, because Debian's Prometheus is built
without discovery from Kubernetes. Asks the API server anew at every request; keeps nothing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from dev.cluster.probes import ApiServer

PREFIX = "prometheus.io"


def targets(pods: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Prometheus's target groups, one a pod, from pods as the API server has them."""
    groups = []
    for pod in pods:
        metadata, status = pod["metadata"], pod.get("status", {})
        annotations = metadata.get("annotations", {})
        wanted = annotations.get(f"{PREFIX}/scrape") == "true" and f"{PREFIX}/port" in annotations
        if not wanted or status.get("phase") != "Running" or not status.get("podIP"):
            continue
        labels = {
            "namespace": metadata["namespace"],
            "pod": metadata["name"],
            "__metrics_path__": annotations.get(f"{PREFIX}/path", "/metrics"),
        }
        groups.append({"targets": [f"{status['podIP']}:{annotations[f'{PREFIX}/port']}"], "labels": labels})
    return groups


def serve(url: str, certificates: Path, port: int) -> None:
    """Answer for ever on 127.0.0.1:`port`. When the API server does not answer, neither do we: Prometheus keeps its targets."""
    api = ApiServer(url, certificates)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            try:
                body = json.dumps(targets(json.loads(api.get("/api/v1/pods"))["items"])).encode()
            except OSError as error:
                self.send_error(503, explain=str(error))
                return
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            """Answers are not logged; errors are."""

    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    serve(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
