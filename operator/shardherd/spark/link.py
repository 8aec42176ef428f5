"""The stream reader's line to the agent of its application: one question and one answer at a time over a unix socket.

Used by `source` in the process that Spark runs the stream reader in. It connects on the first question and never retries: if
the agent is gone, so is the application.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from typing import Any

SOCKET_VARIABLE = "SHARDHERD_AGENT_SOCKET"
"""Environment variable with the path of the agent's socket; `application` sets it before Spark starts."""


class AgentGoneError(RuntimeError):
    """The agent cannot be reached, or refuses. Says why and what to do."""


class AgentLink:
    """A connection to the agent. `options` are told to it when the connection is made."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = dict(options)
        self._socket: socket.socket | None = None
        self._lines: Any = None
        self._facts: dict[str, Any] = {}

    @property
    def facts(self) -> Mapping[str, Any]:
        """What the agent says of the group: its UID, the brokers, the number of slots."""
        if self._socket is None:
            self._connect()
        return self._facts

    def ask(self, op: str, **question: Any) -> dict[str, Any]:
        """Raises AgentGoneError."""
        if self._socket is None:
            self._connect()
        return self._exchange({"op": op, **question})

    def close(self) -> None:
        """May be called at any moment, also twice."""
        closing, self._socket = self._socket, None
        if closing is not None:
            self._lines.close()  # it keeps the socket open
            closing.close()

    def _connect(self) -> None:
        path = os.environ.get(SOCKET_VARIABLE)
        if not path:
            raise AgentGoneError(
                'format("shardherd") needs a session made by shardherd.spark.session(), which starts the agent'
            )
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            line.connect(path)
        except OSError as error:
            line.close()
            raise AgentGoneError(f"the agent of this application does not listen on {path}: {error}") from error
        self._socket = line
        self._lines = line.makefile("rb")
        self._facts = self._exchange({"op": "hello", **self._options})

    def _exchange(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self._socket is not None
        try:
            self._socket.sendall(json.dumps(question).encode() + b"\n")
            line = self._lines.readline()
        except OSError as error:
            raise AgentGoneError(f"the agent of this application is gone: {error}") from error
        if not line:
            raise AgentGoneError("the agent of this application has closed the line")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise AgentGoneError(answer["error"])
        return answer
