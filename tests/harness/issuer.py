"""A played issuer of tokens: the token endpoint that a real one has, over TLS, for the clients that it knows."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jwt

from dev.cluster.tokens import AUDIENCE, ISSUER, KEY, KEY_ID

Answer = tuple[int, dict[str, Any], dict[str, str]]
"""Status, what the body says as JSON, and headers."""


@dataclass
class Asked:
    """One request: who, by which secret, and the form."""

    client: str
    secret: str = field(repr=False)
    form: dict[str, str]


class Issuer:
    """Serves `https://127.0.0.1:<port>/token` with the key and certificate `broker` of `keys`. `close` it."""

    def __init__(self, keys: Path, clients: dict[str, str], *, seconds: int = 3600) -> None:
        self.clients = clients
        self.seconds = seconds
        """For how long a token is good that is given from now on."""
        self.asked: list[Asked] = []
        self.given: list[str] = []
        self.instead: Callable[[], Answer] | None = None
        """What is answered instead of a token."""
        self._key = (keys / KEY).read_bytes()
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(keys / "broker.crt", keys / "broker.key")
        self._port = 0
        self._server: ThreadingHTTPServer | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._port}/token"

    def start(self) -> None:
        """Serve, again at the same address if it was stopped."""
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                status, said, headers = issuer._answer(self.path, self.headers["Authorization"], body)
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(json.dumps(said).encode())

            def log_message(self, *_: Any) -> None:
                """Say nothing: what counts is in `asked`."""

        server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        server.daemon_threads = True
        server.socket = self._context.wrap_socket(server.socket, server_side=True)
        self._port = server.server_address[1]
        self._server = server
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        """Be away: nobody listens at the address."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    close = stop

    def token(self, client: str, *, seconds: int = 3600, **claims: Any) -> str:
        """A token of this client, as the endpoint gives it."""
        now = int(time.time())
        # Whole seconds: it lives at least as long as is said.
        said = {"iss": ISSUER, "aud": AUDIENCE, "sub": client, "iat": now, "exp": now + 1 + seconds, **claims}
        return jwt.encode(said, self._key, "ES256", headers={"kid": KEY_ID})

    def _answer(self, path: str, authorization: str, body: str) -> Answer:
        user, _, secret = base64.b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
        unquote = urllib.parse.unquote_plus
        asked = Asked(unquote(user), unquote(secret), dict(urllib.parse.parse_qsl(body)))
        self.asked.append(asked)
        if self.instead is not None:
            return self.instead()
        if path != "/token" or asked.form.get("grant_type") != "client_credentials":
            return 400, {"error": "invalid_request"}, {}
        if self.clients.get(asked.client) != asked.secret:
            return 401, {"error": "invalid_client", "error_description": "Client authentication failed"}, {}
        self.given.append(self.token(asked.client, seconds=self.seconds))
        return 200, {"access_token": self.given[-1], "token_type": "Bearer", "expires_in": self.seconds}, {}
