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
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, ReadMinRows
from pyspark.sql.types import LongType, StringType, StructField, StructType

from shardherd.spark.decode_stats import CountsAddress
from shardherd.spark.flow import Limits
from shardherd.spark.kafka_readers import ShardherdStreamReader, Slice
from shardherd.spark.link import SOCKET_VARIABLE, AgentGoneError
from shardherd.spark.options import OptionError, read_options
from shardherd.spark.schema import SCHEMA, Wanted, columns
from shardherd.spark.source import ShardherdSource

ADDRESS = CountsAddress("127.0.0.1", 9091, "a-token")
READER_SETTINGS = {
    "group": "uid",
    "bootstrapServers": "kafka:9092",
    "slots": 2,
    "kafka": {},
    "countsAddress": ADDRESS.as_dict(),
}


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
                hello = question["op"] == "hello"
                answer = (
                    {**READER_SETTINGS, "committed": bool(question["committed"])}
                    if hello
                    else self.answers[question["op"]].pop(0)
                )
                stream.write(json.dumps(answer).encode() + b"\n")
                stream.flush()

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)  # closing alone does not wake a thread that waits for a connection
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
    made = reader_with()
    yield made
    made.stop()


def reader_with(**options: str) -> ShardherdStreamReader:
    return ShardherdStreamReader(read_options(options, batch=False), Wanted(tuple(SCHEMA.names)))


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
    assert agent.questions[0]["limits"] == Limits().as_dict()
    assert reader.reportLatestOffset() == {"ends": {"clicks/0": 99}}


def test_the_isolation_level_goes_to_the_agent_and_to_every_task_and_so_does_who_counts_values(agent: FakeAgent) -> None:
    reader = reader_with(**{"kafka.isolation.level": "read_committed"})
    end = offsets(s0=[0, 10, 3])
    agent.answers["latest"] = [{"end": end, "ends": {}}]

    reader.latestOffset(offsets(), ReadAllAvailable())
    tasks = reader.partitions(offsets(), end)
    reader.stop()

    assert agent.questions[0]["committed"] is True
    assert [(task.committed, task.counts_address) for task in tasks if isinstance(task, Slice)] == [(True, ADDRESS)]
    with pytest.raises(
        OptionError, match=r"kafka\.isolation\.level must be read_uncommitted or read_committed, not 'serializable'"
    ):
        reader_with(**{"kafka.isolation.level": "serializable"})


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
    fresh = ShardherdStreamReader(read_options({"maxOffsetsPerTrigger": "1"}, batch=False), Wanted(("value",)))

    copy = cloudpickle.loads(cloudpickle.dumps(fresh.read)).__self__  # type: ignore[no-untyped-call]

    assert (copy._wanted, copy._batch_planner) == (Wanted(("value",)), None)


def test_the_limits_are_told_to_the_agent_and_trigger_once_sets_them_aside(agent: FakeAgent) -> None:
    reader = reader_with(maxOffsetsPerTrigger="5", maxBytesPerTrigger="1000")
    agent.answers["latest"] = [{"end": None, "ends": {}}] * 2

    reader.latestOffset(offsets(), reader.getDefaultReadLimit())
    reader.latestOffset(offsets(), ReadAllAvailable())
    reader.stop()

    assert agent.questions[0]["limits"] == Limits(max_records=5, max_bytes=1000).as_dict()
    assert [question["limit"] for question in agent.questions[1:]] == [5, None]


@pytest.mark.parametrize(
    ("given", "limit"),
    [
        ({}, ReadAllAvailable()),
        ({"maxOffsetsPerTrigger": "5", "maxBytesPerTrigger": "9"}, ReadMaxRows(5)),
        ({"maxBytesPerTrigger": "9", "minOffsetsPerTrigger": "2"}, ReadMaxBytes(9)),
        ({"minOffsetsPerTrigger": "2"}, ReadMinRows(2)),
    ],
)
def test_spark_is_told_a_limit_where_there_is_one(given: dict[str, str], limit: ReadLimit) -> None:
    assert reader_with(**given).getDefaultReadLimit() == limit


def test_an_unordered_groups_shards_are_split_among_tasks_and_an_ordered_ones_are_not(agent: FakeAgent) -> None:
    reader = reader_with(minPartitions="4")
    first, second = offsets(s0=[0, 100, 3]), offsets(s0=[100, 180, 3])
    agent.answers["latest"] = [
        {"end": first, "ends": {}, "ordered": False},
        {"end": second, "ends": {}, "ordered": True},
    ]
    reader.latestOffset(offsets(), ReadAllAvailable())
    split = planned(reader, offsets(), first)
    reader.latestOffset(first, ReadAllAvailable())
    whole = planned(reader, first, second)
    reader.stop()

    assert split == [[("clicks/0", at, at + 25)] for at in (0, 25, 50, 75)]
    assert whole == [[("clicks/0", 100, 180)]]


def test_fewer_columns_may_be_asked_for_in_any_order() -> None:
    source = ShardherdSource(options={"maxoffsetspertrigger": "5"})

    fewer = source.streamReader(StructType([StructField("shard", StringType()), StructField("offset", LongType())]))

    assert isinstance(fewer, ShardherdStreamReader)
    assert fewer._wanted == Wanted(("shard", "offset"))
    assert source.schema() == SCHEMA


def test_headers_are_a_column_where_they_are_asked_for() -> None:
    assert ShardherdSource(options={"includeheaders": "TRUE"}).schema().names == columns(headers=True).names


def test_a_wrong_option_is_said_when_the_source_is_made() -> None:
    with pytest.raises(OptionError, match=r"unknown option 'subscibe'.* did you mean subscribe"):
        ShardherdSource(options={"subscibe": "clicks"})


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
        "import sys, shardherd.spark.source as s; s.ShardherdSource({}).streamReader(s.columns(headers=False));"
        "heavy = ('numba', 'pyarrow', 'kafka.errors', 'aiohttp', 'kopf', 'kubernetes', 'prometheus_client');"
        "print([m for m in heavy if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert found.stdout.strip() == "[]"
