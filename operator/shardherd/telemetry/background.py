"""An HTTP server in a thread of its own, so that no event loop keeps its callers waiting, nor they the loop.

The metrics and the page are served by one each. What is answered says the server that is given; this decides nothing.
"""

from __future__ import annotations

import logging
import socket
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

log = logging.getLogger(__name__)

THREADS = 32
"""Requests at a time. Who comes then is sent away, and comes again."""


class BoundedServer(ThreadingHTTPServer):
    """Has a thread for each connection, THREADS at most. Each ends within so many seconds, however slow its caller is."""

    request_queue_size = THREADS

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler], within: float) -> None:
        self._within = within
        self._room = threading.BoundedSemaphore(THREADS)
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            # There is no thread that would do it.
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        deadline = threading.Timer(self._within, _end, (request,))
        deadline.daemon = True
        deadline.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            deadline.cancel()
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the base class names them
        log.debug("a request ended early", exc_info=True)


def _end(connection: socket.socket) -> None:
    """Wake the thread that reads from this connection, or writes to it."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class BackgroundServer:
    """Runs `server`, which listens already, in a thread of this name; it is asked to stop every `poll` seconds."""

    def __init__(self, server: ThreadingHTTPServer, name: str, poll: float = 0.5) -> None:
        self._server = server
        self._thread = threading.Thread(target=server.serve_forever, args=(poll,), name=name, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that is served; of use when it was asked for as 0."""
        return int(self._server.server_port)

    def close(self) -> None:
        """Stop serving and wait for the thread."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
