"""An HTTP server in a thread of its own, so that no event loop keeps its callers waiting, nor they the loop.

The metrics and the page are served by one each. What is answered says the server that is given; this decides nothing.
"""

from __future__ import annotations

import threading
from http.server import ThreadingHTTPServer


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
