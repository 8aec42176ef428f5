"""One call to the API server: whatever keeps it from being answered is one kind of error, which every caller expects."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from kubernetes.client.configuration import Configuration

from shardherd.adapters.kubernetes.api import ApiUnavailableError, KubernetesApi


class Greeting(BaseHTTPRequestHandler):
    """What a proxy shows that has lost its way to the API server."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>hello</html>")

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def proxy() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Greeting)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_token_that_cannot_be_read_now_is_no_answer(proxy: str, tmp_path: Path) -> None:
    configuration: Any = Configuration(host=proxy)
    configuration.refresh_api_key_hook = lambda _: (tmp_path / "token").read_text()
    api = KubernetesApi(configuration)

    with pytest.raises(ApiUnavailableError, match=r"cannot read the token for GET /api at the API server: .*No such file"):
        api.call("GET", "/api")
    api.close()


def test_an_answer_that_is_no_json_is_no_answer(proxy: str) -> None:
    api = KubernetesApi(Configuration(host=proxy))

    with pytest.raises(ApiUnavailableError, match=f"what answers GET /api at {proxy} is no API server, it sends no JSON"):
        api.call("GET", "/api")
    api.close()
