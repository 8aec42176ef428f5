"""Decides whether a server answers. Called by `cluster` as conditions to await: each returns None, or the reason why not."""

from __future__ import annotations

import io
import json
import socket
import ssl
import struct
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

METADATA = 3


def http_ready(url: str) -> str | None:
    """Whether a GET answers with 200."""
    try:
        with urllib.request.urlopen(url, timeout=2.0) as reply:
            reply.read()
    except (urllib.error.URLError, OSError) as error:
        return f"{url}: {error}"
    return None


def http_post(url: str) -> None:
    """POST nothing to `url`; OSError if it is not answered with success."""
    with urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=10.0) as reply:
        reply.read()


class ApiServer:
    """GET requests to the API server as the administrator. `certificates` is the instance's folder of keys."""

    def __init__(self, url: str, certificates: Path) -> None:
        self._url = url
        self._context = ssl.create_default_context(cafile=str(certificates / "ca.crt"))
        self._context.load_cert_chain(certificates / "admin.crt", certificates / "admin.key")

    def get(self, path: str) -> bytes:
        """The body at `path`; OSError (urllib's errors are such) if there is none."""
        with urllib.request.urlopen(self._url + path, timeout=5.0, context=self._context) as reply:
            body: bytes = reply.read()
            return body

    def healthy(self) -> str | None:
        return self._answers("/readyz")

    def accounts_ready(self) -> str | None:
        """Whether the default service account exists, without which no pod can be created."""
        return self._answers("/api/v1/namespaces/default/serviceaccounts/default")

    def _answers(self, path: str) -> str | None:
        try:
            self.get(path)
        except OSError as error:
            return f"{path}: {error}"
        return None

    def node_ready(self, name: str) -> str | None:
        try:
            node: dict[str, Any] = json.loads(self.get(f"/api/v1/nodes/{name}"))
        except OSError as error:
            return str(error)
        for condition in node.get("status", {}).get("conditions", []):
            if condition["type"] == "Ready":
                return None if condition["status"] == "True" else str(condition.get("message", "not ready"))
        return "the node has no Ready condition yet"


def broker_ready(host: str, port: int, members: int = 1) -> str | None:
    """Whether a Kafka broker answers a metadata request and knows of so many members of its cluster."""
    try:
        answer = _metadata(host, port, 1, struct.pack(">i", 0))
        (brokers,) = struct.unpack(">i", _exactly(answer, 4)[:4])
    except OSError as error:
        return f"{host}:{port}: {error}"
    return None if brokers >= members else f"the broker knows of {brokers} members of its cluster, not of {members} yet"


def topic_known(host: str, port: int, topic: str) -> str | None:
    """Whether this broker knows a topic, whatever others do."""
    name = topic.encode()
    # The topic, which is not to be made by asking for it.
    asked = struct.pack(">ih", 1, len(name)) + name + b"\0"
    try:
        answer = io.BytesIO(_metadata(host, port, 4, asked))
        _, brokers = struct.unpack(">ii", _exactly(answer.read(8), 8))
        for _ in range(brokers):
            answer.read(4)
            _skip_text(answer)
            answer.read(4)
            _skip_text(answer)
        _skip_text(answer)
        *_, error = struct.unpack(">iih", _exactly(answer.read(10), 10))
    except OSError as unreachable:
        return f"{host}:{port}: {unreachable}"
    return None if not error else f"the broker answers for topic {topic!r} with error {error}"


def _metadata(host: str, port: int, version: int, asked: bytes) -> bytes:
    """What a broker answers to a metadata request of this version, after the header."""
    client = b"probe"
    request = struct.pack(">hhih", METADATA, version, 1, len(client)) + client + asked
    with socket.create_connection((host, port), timeout=2.0) as connection:
        connection.settimeout(5.0)
        connection.sendall(struct.pack(">i", len(request)) + request)
        stream = connection.makefile("rb")
        (size,) = struct.unpack(">i", _exactly(stream.read(4), 4))
        return _exactly(stream.read(size), size)[4:]


def _skip_text(answer: io.BytesIO) -> None:
    (length,) = struct.unpack(">h", _exactly(answer.read(2), 2))
    answer.read(max(0, length))


def _exactly(data: bytes, least: int) -> bytes:
    if len(data) < least:
        raise ConnectionError("the broker closed the connection")
    return data
