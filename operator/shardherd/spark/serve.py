"""The agent's server for stream readers: a unix socket with one JSON object a line, request and response in turn.

Spark runs the stream reader in a process of its own; `link` is the other end. `ReaderServer` takes one query at a time: a
second one is refused while the first is connected. `cells.serve` has the server of a group with cells. They translate and
decide nothing else.
"""

from __future__ import annotations

import asyncio
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from shardherd.clock import boot_time
from shardherd.core.model.nouns import Offset, ShardId
from shardherd.source.security.kafka_settings import ISOLATION_LEVELS
from shardherd.spark.agent import Agent
from shardherd.spark.consumer_run import ConsumerRun
from shardherd.spark.flow import Limits
from shardherd.spark.offsets import Offsets, OffsetsError, parse

log = logging.getLogger(__name__)

A = TypeVar("A", bound=ConsumerRun[Any])

LINE_LIMIT = 64 * 1024 * 1024
"""Longest message in bytes: the offsets of very many shards."""

PREDECESSOR_WAIT = 5.0
"""Seconds that a new query waits for the process of the one before it to end."""

LAST_WORD_WAIT = 1.0
"""Seconds after a query's end in which its last progress event may still arrive."""


LEAVE_AFTER = 10.0
"""Seconds after a query's end in which the application may start it again without losing its shards."""

LEAVE_WITHIN = 30.0
"""Seconds for the last checkpoint and for leaving."""

GONE = (
    "this consumer has left its group, because its streaming query had ended or it was stopped; it joins again when its "
    "application is started again: end it"
)

SECOND_QUERY = (
    "another streaming query of this application reads this ConsumerGroup's shards already, and each shard has one reader: "
    "write to all your sinks from that one query with foreachBatch, or stop it first"
)

NO_CELLS = (
    "the options cell and topics are for a ConsumerGroup with spec.state, and this one has none: leave them out, or set "
    "spec.state and call shardherd.spark.run_cells"
)

OTHER_ISOLATION = (
    "the option kafka.isolation.level is {asked}, and spec.source.kafka.isolationLevel of the ConsumerGroup says {declared}: "
    "leave the option out, or make both the same"
)

LAG_OF_OPEN_TRANSACTIONS = (
    "the option kafka.isolation.level is read_committed, and the ConsumerGroup does not say so: its lag counts the records of "
    "open transactions too; set spec.source.kafka.isolationLevel to ReadCommitted"
)


class SocketServer(ABC, Generic[A]):
    """Serves `agent` on `path`: the socket, how a stream reader is welcomed, and the form of answers.

    `reader_settings` are sent to every reader when it connects. `committed`: whether the ConsumerGroup sets that only committed
    records are read, None if it leaves that to the query; `read_committed` is called with whether the query that begins now
    does. `slots` returns how many tasks the next micro-batch should have, where that changes; its argument is whether there is
    something new to read.
    """

    def __init__(
        self,
        agent: A,
        path: Path,
        reader_settings: dict[str, Any],
        *,
        read_committed: Callable[[bool], None],
        committed: bool | None = None,
        slots: Callable[[bool], int] | None = None,
    ) -> None:
        self._agent = agent
        self._slots = slots
        self._read_committed = read_committed
        self._committed = committed
        self._path = path
        self._reader_settings = reader_settings
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._serve, path=str(self._path), limit=LINE_LIMIT)
        self._path.chmod(0o600)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()

    @abstractmethod
    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """With one stream reader, until it goes."""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._talk(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            log.info("the stream reader went away")
        finally:
            writer.close()

    def _welcome(self, question: dict[str, Any]) -> dict[str, Any]:
        """The answer to a reader's first question: what it needs to read, or why it must not."""
        asked, declared = question["committed"], self._committed
        if asked is not None and declared is not None and asked is not declared:
            return {"error": OTHER_ISOLATION.format(asked=_level(asked), declared=_level(declared))}
        committed = bool(declared if asked is None else asked)
        if committed and declared is None:
            log.warning(LAG_OF_OPEN_TRANSACTIONS)
        self._read_committed(committed)
        return {**self._reader_settings, "ordered": self._agent.settings.ordered, "committed": committed}

    def _latest(self, start: Offsets, end: Offsets, end_offsets: Mapping[ShardId, Offset]) -> dict[str, Any]:
        slots = {} if self._slots is None else {"slots": self._slots(end is not start)}
        return {
            "end": None if end is start else end.as_dict(),
            "ends": dict(end_offsets),
            "ordered": self._agent.settings.ordered,
            **slots,
        }

    @staticmethod
    def _unknown(what: str) -> dict[str, Any]:
        return {"error": f"the agent does not know the operation {what!r}: agent and stream reader are of different versions"}

    @staticmethod
    async def _send(writer: asyncio.StreamWriter, answer: dict[str, Any]) -> None:
        writer.write(json.dumps(answer).encode() + b"\n")
        await writer.drain()


class ReaderServer(SocketServer[Agent]):
    """Serves the agent of one streaming query."""

    def __init__(self, agent: Agent, path: Path, reader_settings: dict[str, Any], **more: Any) -> None:
        super().__init__(agent, path, reader_settings, **more)
        self._one = asyncio.Lock()
        self._endings: set[asyncio.Task[None]] = set()
        self._queries = 0

    async def close(self) -> None:
        await super().close()
        for task in self._endings:
            task.cancel()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(PREDECESSOR_WAIT):
                await self._one.acquire()
        except TimeoutError:
            await self._send(writer, {"error": SECOND_QUERY})
            return
        self._queries += 1
        try:
            await self._answer(reader, writer)
        finally:
            self._one.release()
            ending = asyncio.create_task(self._ended(self._queries))
            self._endings.add(ending)
            ending.add_done_callback(self._endings.discard)

    async def _ended(self, query: int) -> None:
        await asyncio.sleep(LAST_WORD_WAIT)
        if query != self._queries or not self._agent.query_ended():
            return
        await asyncio.sleep(LEAVE_AFTER)
        if query == self._queries and not self._agent.gone:
            log.warning("the streaming query ended and no other one began: leaving the group, so that others read its shards")
            await self._agent.drain(boot_time() + LEAVE_WITHIN)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            try:
                answer = await self._do(json.loads(line))
            except OffsetsError as error:
                answer = {"error": str(error)}
            await self._send(writer, answer)

    async def _do(self, question: dict[str, Any]) -> dict[str, Any]:
        agent, group = self._agent, self._agent.settings.group_uid
        what = question["op"]
        if what == "latest":
            start = parse(question["start"], group)
            end = await agent.latest(start, question["limit"])
            if agent.refusal:
                return {"error": agent.refusal}
            unread = end is start and agent.unread()
            return {**self._latest(start, end, agent.known_end_offsets()), "unread": unread}
        if what == "replay":
            return {"ours": list(await agent.replay(parse(question["end"], group))), "ordered": agent.settings.ordered}
        if what == "hello":
            if agent.gone:
                return {"error": GONE}
            if question.get("cell") is not None:
                return {"error": NO_CELLS}
            answer = self._welcome(question)
            if "error" not in answer:
                agent.query_began(Limits(**question["limits"]))
            return answer
        if what == "prepare":
            await agent.prepare_available_now()
            return {}
        return self._unknown(what)


def _level(committed: bool) -> str:
    return next(level for level, means in ISOLATION_LEVELS.items() if means is committed)
