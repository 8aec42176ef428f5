"""Serves the page: its files, and the document that they show. Nothing but GET and HEAD, and nothing that changes anything.

Started by the composition roots, where `Views` makes the document, and by `inspect`, where it comes through the API server.
It has threads of its own, as the metrics have, so that no browser waits for a busy event loop, nor the loop for a browser. The
page is shown to whoever reaches the address: who that is decides the network, or the API server. Holds no rule of a group.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs, urlsplit

from shardherd.core.model.naming import is_group_name
from shardherd.core.model.nouns import GroupIdentity, GroupView
from shardherd.core.planning.listing import identity_of
from shardherd.page.document import document, group
from shardherd.page.history import History
from shardherd.ports import Clock
from shardherd.telemetry.background import BackgroundServer, BoundedServer

log = logging.getLogger(__name__)

DOCUMENT = "document.json"
"""Where the document is, beside the page. `?group=namespace/name` asks for one group in full."""

KEPT = 1.0
"""Seconds for which a document serves all who ask for it, so that many browsers cost no more than one."""

DOCUMENTS = 32
"""So many are kept."""

TIMEOUT = 10.0
"""Seconds that a connection may take for its request and its answer together, however slowly it sends."""

TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none';"
        " form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""On every answer. The page loads nothing from elsewhere, runs no inline script and turns no text into HTML."""

Wanted = tuple[str, str] | None
"""Namespace and name of the group that is asked for in full."""


class PageUnavailableError(Exception):
    """There is no document now. The message says why, and is shown."""


@dataclass
class Views:
    """Makes documents of what the operator knows: of each group its resource and the coordinator's view. For any thread."""

    resources: Callable[[], Iterable[Mapping[str, Any]]]
    view: Callable[[GroupIdentity], GroupView | None]
    history: History
    clock: Clock
    version: str
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _kept: dict[Wanted, tuple[float, bytes]] = field(default_factory=dict)

    def __call__(self, wanted: Wanted) -> bytes:
        """The document, at most KEPT seconds old."""
        with self._lock:
            now = self.clock.now()
            self._kept = {key: kept for key, kept in self._kept.items() if now - kept[0] < KEPT}
            if wanted not in self._kept:
                made = json.dumps(self._made(wanted), separators=(",", ":")).encode()
                if len(self._kept) >= DOCUMENTS:
                    return made
                self._kept[wanted] = now, made
            return self._kept[wanted][1]

    def _made(self, wanted: Wanted) -> dict[str, Any]:
        resources = list(self.resources())
        chosen = None
        for resource in resources:
            identity = identity_of(resource)
            if (identity.namespace, identity.name) == wanted:
                chosen = group(resource, self.view(identity), self.history)
        return document(resources, chosen, wanted, self.clock.wall(), self.version)


class PageServer(BackgroundServer):
    """The page on a port. Raises OSError if that is taken.

    With `hosts` it answers only who names it so: a page of somebody else's, whose name leads to this machine, does not.
    """

    def __init__(self, port: int, made: Callable[[Wanted], bytes], address: str, hosts: frozenset[str] = frozenset()) -> None:
        static = _static()

        class Handler(_Handler):
            _made, _static, _hosts = staticmethod(made), static, hosts

        super().__init__(BoundedServer((address, port), Handler, TIMEOUT), "page", poll=0.1)


_PORT = re.compile(r":\d*\Z")

LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
"""By which names a page that is for this machine alone is called."""


@dataclass(frozen=True, slots=True)
class _File:
    body: bytes
    kind: str
    tag: str


def _static() -> dict[str, _File]:
    """The page's files by their paths: nothing else can be asked for."""
    found = {}
    for each in files("shardherd.page").joinpath("static").iterdir():
        kind = TYPES.get(each.name.rpartition(".")[2])
        if kind is not None:
            body = each.read_bytes()
            found[f"/{each.name}"] = _File(body, f"{kind}; charset=utf-8", f'"{sha256(body).hexdigest()[:16]}"')
    found["/"] = found["/index.html"]
    return found


class _Handler(BaseHTTPRequestHandler):
    timeout = TIMEOUT
    server_version, sys_version = "shardherd", ""
    _made: Callable[[Wanted], bytes]
    _static: Mapping[str, _File]
    _hosts: frozenset[str]

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        if self._hosts and _PORT.sub("", self.headers.get("Host", "").lower()) not in self._hosts:
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST, "this page is for this machine alone: call it by 127.0.0.1")
        elif parts.path == f"/{DOCUMENT}":
            self._document(parts.query)
        elif (file := self._static.get(parts.path)) is None:
            self.send_error(HTTPStatus.NOT_FOUND, "there is no such page")
        elif self.headers.get("If-None-Match") == file.tag:
            self._answer(HTTPStatus.NOT_MODIFIED, b"", file.kind, {"ETag": file.tag, "Cache-Control": "no-cache"})
        else:
            self._answer(HTTPStatus.OK, file.body, file.kind, {"ETag": file.tag, "Cache-Control": "no-cache"})

    do_HEAD = do_GET  # noqa: N815 - the base class names it

    def _document(self, query: str) -> None:
        named = parse_qs(query).get("group", [""])[0]
        namespace, _, name = named.partition("/")
        if named and not (is_group_name(namespace) and is_group_name(name)):
            self.send_error(HTTPStatus.BAD_REQUEST, "group is to be namespace/name, in lower-case letters, digits and '-'")
            return
        try:
            self._json(HTTPStatus.OK, self._made((namespace, name) if named else None))
        except PageUnavailableError as error:
            self._json(HTTPStatus.SERVICE_UNAVAILABLE, json.dumps({"error": str(error)}).encode())
        except Exception:
            log.exception("the page's document could not be made")
            self._json(HTTPStatus.INTERNAL_SERVER_ERROR, b'{"error":"the operator failed; its log says why"}')

    def _json(self, status: HTTPStatus, body: bytes) -> None:
        self._answer(status, body, "application/json", {"Cache-Control": "no-store"})

    def _answer(self, status: int, body: bytes, kind: str, more: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in {**HEADERS, "Content-Type": kind, "Content-Length": str(len(body)), **more}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """Of every refusal, also those of the base class: as text, with our headers."""
        more = {"Cache-Control": "no-store"}
        if code == HTTPStatus.NOT_IMPLEMENTED:
            # It knows no other way to say that there is no such method.
            code, message, more = HTTPStatus.METHOD_NOT_ALLOWED, "this page is for reading only", more | {"Allow": "GET, HEAD"}
        said = message or HTTPStatus(code).phrase
        self._answer(code, f"{said}\n".encode(errors="replace"), "text/plain; charset=utf-8", more)

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)
