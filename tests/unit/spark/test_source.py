"""The stream reader as Spark calls it, with the agent's end of the socket played by the test."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import LongType, StringType, StructField, StructType

from shardherd.spark.link import SOCKET_VARIABLE, AgentGoneError
from shardherd.spark.source import SCHEMA, ShardherdSource, ShardherdStreamReader, Slice

FACTS = {"group": "uid", "bootstrapServers": "kafka:9092", "slots": 2, "kafka": {}}


def offsets(warm: int = 1, **shards: list[int]) -> dict[str, Any]:
    return {"group": "uid", "shards": {f"clicks/{name[1:]}": each for name, each in shards.items()}, "v": 1, "warm": warm}


class FakeAgent:
    """Answers on a unix socket from a script: the operation's answers in turn."""

    def __init__(self, path: Path) -> None:
        self.questions: list[dict[str, Any]] = []
        self.answers: dict[str, list[dict[str, Any]]] = {}
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(path))
        self._server.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        try:
            line, _ = self._server.accept()
        except OSError:  # closed: nobody asked anything
            return
        with line, line.makefile("rwb") as stream:
            for question in map(json.loads, stream):
                self.questions.append(question)
                answer = FACTS if question["op"] == "hello" else self.answers[question["op"]].pop(0)
                stream.write(json.dumps(answer).encode() + b"\n")
                stream.flush()

    def close(self) -> None:
        self._server.close()
        self._thread.join(5)


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAgent]:
    monkeypatch.setenv(SOCKET_VARIABLE, str(tmp_path / "agent.sock"))
    made = FakeAgent(tmp_path / "agent.sock")
    yield made
    made.close()


@pytest.fixture
def reader() -> Iterator[ShardherdStreamReader]:
    made = ShardherdStreamReader({}, tuple(SCHEMA.names))
    yield made
    made.stop()


def planned(reader: ShardherdStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[list[tuple[str, int, int]]]:
    slices = reader.partitions(start, end)
    assert all(isinstance(each, Slice) for each in slices)
    return [[(r.shard, r.start, r.stop) for r in each.ranges] for each in slices if isinstance(each, Slice)]


def test_a_query_starts_with_a_constant_and_without_shards(agent: FakeAgent, reader: ShardherdStreamReader) -> None:
    assert reader.initialOffset() == reader.initialOffset() == offsets(warm=0)


def test_what_the_agent_hands_out_is_planned_without_asking_again(agent: FakeAgent, reader: ShardherdStreamReader) -> None:
    start, end = offsets(), offsets(s0=[0, 10, 3], s1=[0, 8, 4], s2=[5, 5, 4])
    agent.answers["latest"] = [{"end": end, "ends": {"clicks/0": 99}}]

    assert reader.latestOffset(start, ReadMaxRows(100)) == end
    assert planned(reader, start, end) == planned(reader, start, end) == [[("clicks/0", 0, 10)], [("clicks/1", 0, 8)]]
    assert [question["op"] for question in agent.questions] == ["hello", "latest"]
    assert agent.questions[1]["limit"] == 100
    assert reader.reportLatestOffset() == {"ends": {"clicks/0": 99}}


def test_nothing_new_is_the_very_start_and_equal_offsets_need_no_task(agent: FakeAgent, reader: ShardherdStreamReader) -> None:
    start = offsets(s0=[0, 10, 3])
    agent.answers["latest"] = [{"end": None, "ends": {}}]

    assert reader.latestOffset(start, ReadAllAvailable()) is start
    assert agent.questions[1]["limit"] is None
    assert reader.partitions(start, start) == []


def test_a_warm_up_is_an_empty_task_for_every_slot(agent: FakeAgent, reader: ShardherdStreamReader) -> None:
    agent.answers["latest"] = [{"end": offsets(warm=1), "ends": {}}]
    end = reader.latestOffset(offsets(warm=0), ReadAllAvailable())

    assert planned(reader, offsets(warm=0), end) == [[], []]


def test_a_logged_micro_batch_is_decided_once_and_others_ranges_are_dropped(
    agent: FakeAgent, reader: ShardherdStreamReader
) -> None:
    start, end = offsets(), offsets(s0=[0, 10, 3], s1=[0, 8, 4])
    agent.answers["replay"] = [{"ours": ["clicks/1"]}]

    assert planned(reader, start, end) == planned(reader, start, end) == [[("clicks/1", 0, 8)]]
    assert [question["op"] for question in agent.questions] == ["hello", "replay"]


def test_the_reader_that_executors_get_is_pickled_without_a_connection(agent: FakeAgent, reader: ShardherdStreamReader) -> None:
    fresh = ShardherdStreamReader({"targetBatchSeconds": "1"}, ("value",))

    copy = cloudpickle.loads(cloudpickle.dumps(fresh.read)).__self__  # type: ignore[no-untyped-call]

    assert (copy._columns, copy._link) == (("value",), None)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger must be a number above 0, not '0'"),
        ({"targetbatchseconds": "soon"}, "targetBatchSeconds must be a number above 0, not 'soon'"),
        ({"subscribe": "clicks"}, "unknown option 'subscribe'.* it has maxOffsetsPerTrigger, targetBatchSeconds"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        ShardherdStreamReader(options, ())


def test_fewer_columns_may_be_asked_for_and_wrong_ones_are_named() -> None:
    source = ShardherdSource(options={"maxoffsetspertrigger": "5"})
    fewer = source.streamReader(StructType([StructField("offset", LongType()), StructField("shard", StringType())]))
    assert isinstance(fewer, ShardherdStreamReader)
    assert fewer._columns == ("offset", "shard")
    assert fewer.getDefaultReadLimit() == ReadMaxRows(5)

    with pytest.raises(ValueError, match=r"column 'offset' of type string is not of this source; it has: key binary"):
        source.streamReader(StructType([StructField("offset", StringType())]))


def test_without_a_session_the_remedy_is_named(reader: ShardherdStreamReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SOCKET_VARIABLE, raising=False)
    with pytest.raises(AgentGoneError, match=r"shardherd\.spark\.session\(\)"):
        reader.initialOffset()


def test_an_agent_that_refuses_is_quoted(agent: FakeAgent, reader: ShardherdStreamReader) -> None:
    agent.answers["latest"] = [{"error": "another streaming query of this application reads already"}]
    with pytest.raises(AgentGoneError, match="another streaming query"):
        reader.latestOffset(offsets(), ReadAllAvailable())


def test_sparks_short_lived_processes_load_neither_numba_nor_the_operator() -> None:
    code = (
        "import sys, shardherd.spark.source as s; s.ShardherdStreamReader({}, ());"
        "heavy = ('numba', 'pyarrow', 'kafka', 'aiohttp', 'kopf', 'kubernetes', 'prometheus_client');"
        "print([m for m in heavy if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert found.stdout.strip() == "[]"
