"""What `register` learns of a session and starts in it, with the session played by the test."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from pyspark.accumulators import Accumulator
from pyspark.errors import PySparkAttributeError

from shardherd.spark import registration, values_read, warming
from shardherd.spark.decode_stats import Counts
from shardherd.spark.registration import NotCountedError, register_source
from shardherd.spark.source import ShardherdSource
from shardherd.spark.warming import start_workers


class RuntimeConf:
    """A session's settings, and the defaults of its JVM."""

    def __init__(self) -> None:
        self.set_to: dict[str, str] = {}

    def get(self, key: str) -> str:
        return {"spark.sql.session.timeZone": "Asia/Tokyo", **self.set_to}[key]

    def set(self, key: str, value: str) -> None:
        self.set_to[key] = value


class Session:
    """Has a context, its configuration and a registry of sources: all in one."""

    defaultParallelism = 2  # noqa: N815
    applicationId = "local-1"  # noqa: N815

    def __init__(self, **conf: str) -> None:
        self.given = conf
        self.conf = RuntimeConf()
        self.registered: list[type[ShardherdSource]] = []
        self.sparkContext = self.dataSource = self

    def getConf(self) -> dict[str, str]:  # noqa: N802
        return {key.replace("_", "."): value for key, value in self.given.items()}

    def register(self, source: type[ShardherdSource]) -> None:
        self.registered.append(source)

    def accumulator(self, zero: Any, param: Any) -> Accumulator[Any]:
        return Accumulator(-88, zero, param)


class Remote(Session):
    """A session of Spark Connect."""

    def __init__(self) -> None:
        self.conf = RuntimeConf()
        self.registered = []
        self.dataSource = self

    def __getattr__(self, name: str) -> Any:
        raise PySparkAttributeError(errorClass="JVM_ATTRIBUTE_NOT_SUPPORTED", messageParameters={"attr_name": name})


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many workers were started ahead, each time."""
    found: list[int] = []
    monkeypatch.setattr(registration, "_counters", {})
    monkeypatch.setattr(registration, "start_workers", lambda _session, slots: found.append(slots))
    return found


def register(session: Any, *, warm_up: bool = True) -> None:
    register_source(session, warm_up=warm_up)


def test_workers_are_started_once_in_an_application_and_counts_go_on(started: list[int]) -> None:
    session = Session()
    register(session)
    counter = session.registered[0].counted
    assert counter is not None
    counter.add(Counts(10, 2, 1))
    register(session)

    assert started == [2]
    assert [source.slots for source in session.registered] == [2, 2]
    assert values_read(session) == Counts(10, 2, 1)  # type: ignore[arg-type]
    assert session.registered[1].counted is counter


@pytest.mark.parametrize(
    ("session", "warm_up", "slots"),
    [
        pytest.param(Session(), False, 2, id="where it is not wanted"),
        pytest.param(Session(spark_dynamicAllocation_enabled="true"), True, None, id="where executors come and go"),
        pytest.param(Remote(), True, None, id="with Spark Connect"),
    ],
)
def test_no_worker_is_started(started: list[int], session: Session, warm_up: bool, slots: int | None) -> None:
    register(session, warm_up=warm_up)

    assert started == []
    assert [source.slots for source in session.registered] == [slots]


@pytest.mark.parametrize("session", [Session(), Remote()])
def test_tasks_are_told_the_time_zone_that_the_session_has_by_default(session: Session) -> None:
    register(session)
    assert session.conf.set_to == {"spark.sql.session.timeZone": "Asia/Tokyo"}
    session.conf.set("spark.sql.session.timeZone", "Europe/Paris")
    register(session)
    assert session.conf.set_to == {"spark.sql.session.timeZone": "Europe/Paris"}


KAFKA = {"kafka.bootstrap.servers": "k:1", "subscribe": "clicks"}
KINESIS = {"kinesis.stream": "orders", "kinesis.region": "eu-central-1"}


@pytest.mark.parametrize(
    ("given", "options", "found"),
    [
        (KAFKA, {}, KAFKA),
        (KAFKA, {"subscribe": "views", "targetBatchSeconds": "2"}, KAFKA | {"subscribe": "views"}),
        (KAFKA, {"Kafka.Bootstrap.Servers": "k:2"}, {"Kafka.Bootstrap.Servers": "k:2"}),
        (KAFKA, KINESIS, KINESIS),
        (KINESIS, {"kinesis.maxSpanPerTrigger": "5s"}, KINESIS | {"kinesis.maxSpanPerTrigger": "5s"}),
    ],
)
def test_what_the_command_line_says_is_read_where_the_application_does_not_say_what(
    given: dict[str, str], options: dict[str, str], found: dict[str, str]
) -> None:
    session: Any = Session()
    register_source(session, warm_up=False, given=given)
    assert session.registered[0](options).options == found


def test_where_nothing_is_counted_the_reason_is_said() -> None:
    with pytest.raises(NotCountedError, match=r"call shardherd.spark.register\(spark\) first"):
        values_read(Session())  # type: ignore[arg-type]
    with pytest.raises(NotCountedError, match="Spark Connect does not bring back"):
        values_read(Remote())  # type: ignore[arg-type]


def test_workers_that_cannot_be_started_ahead_are_no_error(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, warming.__name__):
        start_workers(Remote(), 2).join()  # type: ignore[arg-type]

    assert "Python workers were not started ahead" in caplog.text


def test_what_reading_takes_is_loaded_in_a_worker() -> None:
    assert warming._load(0) is True


def test_a_read_that_names_no_brokers_has_the_options_that_were_given() -> None:
    session = Session()
    given = {"kafka.bootstrap.servers": "here:1", "subscribe": "clicks", "startingOffsets": "earliest"}
    register_source(session, warm_up=False, given=given)  # type: ignore[arg-type]
    source = session.registered[0]

    assert source({"targetBatchSeconds": "1", "includeHeaders": "true"}).options == {**given, "includeHeaders": "true"}
    assert source({"StartingOffsets": "latest"}).options == {
        "kafka.bootstrap.servers": "here:1",
        "subscribe": "clicks",
        "StartingOffsets": "latest",
    }
    theirs = {"kafka.bootstrap.servers": "there:2", "subscribe": "views"}
    assert source(theirs).options == theirs


def test_what_an_application_asks_for_is_as_it_is_where_nothing_was_given() -> None:
    session = Session()
    register(session)
    assert session.registered[0]({"targetBatchSeconds": "1"}).options == {"targetBatchSeconds": "1"}
