"""The stream reader's client of its application's agent: one request and one response at a time over a unix socket.

Used by `source` in the process that Spark runs the stream reader in. It connects on the first question and never retries: if
the agent is gone, so is the application.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import replace
from typing import Any

from shardherd.core.model.nouns import ShardId
from shardherd.spark.batch_planner import Latest, ReaderSettings
from shardherd.spark.decode_stats import CountsAddress
from shardherd.spark.flow import Limits

SOCKET_VARIABLE = "SHARDHERD_AGENT_SOCKET"
"""Environment variable with the path of the agent's socket; `application` sets it before Spark starts."""


class AgentGoneError(RuntimeError):
    """The agent cannot be reached, or refuses. Says why and what to do."""


class AgentLink:
    """A connection to the agent, opened with the limits and the isolation level. Implements `batch_planner.BatchPlanner`.

    Without an isolation level it is the ConsumerGroup's. `cell` is that whose records are read, with the number of its query's
    start, and `topics` are those that are read of it, all if there are none. Everything raises AgentGoneError.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        committed: bool | None = None,
        cell: tuple[int, int] | None = None,
        topics: tuple[str, ...] = (),
    ) -> None:
        self._limits = limits
        self._committed = committed
        self._place = {} if cell is None else {"cell": cell, "topics": topics}
        self._socket: socket.socket | None = None
        self._lines: Any = None
        self._reader_settings: ReaderSettings | None = None
        self.ordered = False

    @property
    def reader_settings(self) -> ReaderSettings:
        if self._reader_settings is None:
            self._connect()
        assert self._reader_settings is not None
        return self._reader_settings

    def latest(self, start: dict[str, Any], *, once: bool) -> Latest:
        answer = self._ask("latest", start=start, limit=None if once else self._limits.max_records)
        if "slots" in answer:
            self._reader_settings = replace(self.reader_settings, slots=answer["slots"])
        return Latest(answer["end"], answer["ends"], answer.get("unread", False))

    def replay(self, end: dict[str, Any]) -> frozenset[ShardId]:
        return frozenset(self._ask("replay", end=end)["ours"])

    def prepare(self) -> None:
        self._ask("prepare")

    def _ask(self, op: str, **question: Any) -> dict[str, Any]:
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
                'format("shardherd") needs a session made by shardherd.spark.session(), which starts the agent; without a '
                "ConsumerGroup, give the option kafka.bootstrap.servers"
            )
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            line.connect(path)
        except OSError as error:
            line.close()
            raise AgentGoneError(f"the agent of this application does not listen on {path}: {error}") from error
        self._socket = line
        self._lines = line.makefile("rb")
        said = self._exchange({"op": "hello", "limits": self._limits.as_dict(), "committed": self._committed, **self._place})
        counts_address = CountsAddress(**said["countsAddress"]) if said.get("countsAddress") else None
        self._reader_settings = ReaderSettings(
            said["group"],
            said["bootstrapServers"],
            said["slots"],
            said["kafka"],
            counts_address,
            said["committed"],
            said.get("kinesis"),
        )

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
        self.ordered = answer.get("ordered", self.ordered)
        return answer
