"""A schema registry over HTTP: the paths of Confluent's REST that a consumer and a producer need, over a dictionary.

It runs in a thread, counts what it is asked, and can be told to answer with an error.
"""

from __future__ import annotations

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

CUT_OFF = 0

CONTENT = "application/vnd.schemaregistry.v1+json"


class SchemaRegistry:
    """`GET /schemas/ids/<id>` and `POST /subjects/<subject>/versions`. `user` and `password`, if given, are demanded."""

    def __init__(self, user: str | None = None, password: str = "") -> None:
        self.schemas: dict[int, dict[str, Any]] = {}
        self.asked: list[int] = []
        self.failures: list[int] = []
        """Statuses that the next answers have in place of a schema; with CUT_OFF the schema does not come whole."""
        wanted = None if user is None else "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *arguments: Any) -> None:
                """Says nothing."""

            def do_GET(self) -> None:
                parts = self.path.strip("/").split("/")
                if wanted is not None and self.headers.get("Authorization") != wanted:
                    self._answer(401, {"error_code": 401, "message": "Unauthorized"})
                    return
                if parts[:-1] != ["schemas", "ids"] or not parts[-1].isdigit():
                    self._answer(404, {"error_code": 404, "message": "HTTP 404 Not Found"})
                    return
                schema_id = int(parts[-1])
                outer.asked.append(schema_id)
                if outer.failures[:1] == [CUT_OFF]:
                    outer.failures.pop(0)
                    self._answer(200, outer.schemas[schema_id], cut_off=True)
                elif outer.failures:
                    self._answer(outer.failures.pop(0), {"error_code": 50001, "message": "Error in the backend data store"})
                elif schema_id in outer.schemas:
                    self._answer(200, outer.schemas[schema_id])
                else:
                    self._answer(404, {"error_code": 40403, "message": f"Schema {schema_id} not found"})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self._answer(200, {"id": outer.register(body["schema"])})

            def _answer(self, status: int, body: dict[str, Any], *, cut_off: bool = False) -> None:
                raw = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", CONTENT)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw[:-1] if cut_off else raw)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def register(self, schema: Any, schema_id: int | None = None, **more: Any) -> int:
        """Keep a schema (its JSON, or what its JSON says); returns its id."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        chosen = schema_id if schema_id is not None else 1 + max(self.schemas, default=0)
        self.schemas[chosen] = {"schema": text, **more}
        return chosen

    def __enter__(self) -> SchemaRegistry:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def framed(schema_id: int, raw: bytes) -> bytes:
    """A value in Confluent's wire format."""
    return b"\0" + schema_id.to_bytes(4, "big") + raw
