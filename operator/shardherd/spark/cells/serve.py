"""The agent's server for the stream readers of cells: each query of a cell has one or more, all at the same time.

The other end is `link`, the messages are those of `spark.serve`. It translates and decides nothing.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from shardherd.spark.cells.agent import CellAgent
from shardherd.spark.cells.readers import CellReader, NoCellError
from shardherd.spark.flow import Limits
from shardherd.spark.offsets import OffsetsError, parse
from shardherd.spark.serve import GONE, SocketServer

NEEDS_RUN_CELLS = (
    "this ConsumerGroup has spec.state: its shards are read by cells, each with a query and a checkpoint location of its own. "
    "Build the query in a function and call shardherd.spark.run_cells(build), where cell.read() stands for this read"
)


class CellServer(SocketServer[CellAgent]):
    """Serves the agent of cells."""

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served: CellReader | None = None
        try:
            while line := await reader.readline():
                question = json.loads(line)
                try:
                    if question["op"] == "hello":
                        answer, served = self._hello(question)
                    elif served is None:
                        answer = {"error": NEEDS_RUN_CELLS}
                    else:
                        answer = await self._do(served, question)
                except (OffsetsError, NoCellError) as error:
                    answer = {"error": str(error)}
                await self._send(writer, answer)
        finally:
            if served is not None:
                self._agent.reader_ended(served)

    def _hello(self, question: dict[str, Any]) -> tuple[dict[str, Any], CellReader | None]:
        if question.get("cell") is None:
            return {"error": NEEDS_RUN_CELLS}, None
        if self._agent.gone:
            return {"error": GONE}, None
        answer = self._welcome(question)
        if "error" in answer:
            return answer, None
        number, start = question["cell"]
        return answer, self._agent.reader_began(number, start, frozenset(question["topics"]), Limits(**question["limits"]))

    async def _do(self, reader: CellReader, question: dict[str, Any]) -> dict[str, Any]:
        agent, group = self._agent, self._agent.settings.group_uid
        match question["op"]:
            case "latest":
                start = parse(question["start"], group)
                end = await agent.latest(reader, start, question["limit"])
                unread = end is start and agent.unread(reader, start)
                return {**self._latest(start, end, agent.known_end_offsets(reader)), "unread": unread}
            case "replay":
                return {"ours": list(agent.replay(reader, parse(question["end"], group))), "ordered": agent.settings.ordered}
            case "prepare":
                await agent.prepare_available_now(reader)
                return {}
            case what:
                return self._unknown(what)
