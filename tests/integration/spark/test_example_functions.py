"""What the examples `running`, `countdown` and `joins` make of records, all of it: as batches, without a group.

In every long run `tests/integration/local/test_examples.py` has them as applications.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from tests.harness.spark import make_session

EXAMPLES = Path(__file__).resolve().parents[3] / "spark_apps"


def application(name: str) -> ModuleType:
    found = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / name / "app.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = make_session(tmp_path_factory.mktemp("spark"), {"spark.master": "local[1]"})
    yield session
    session.stop()


class State:
    """The one value of the one key, and what gives it."""

    def __init__(self) -> None:
        self._kept: tuple[int, int] | None = None

    def getValueState(self, name: str, schema: str) -> State:  # noqa: N802 - Spark's own convention
        assert (name, schema) == ("kept", "first long, second long")
        return self

    def exists(self) -> bool:
        return self._kept is not None

    def get(self) -> Any:
        return self._kept

    def update(self, kept: tuple[int, int]) -> None:
        self._kept = kept


def run(name: str, *batches: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The results, in the order of the records, which come in micro-batches that are the wrong way round."""
    processor = application("running").Running(name)
    processor.init(State())
    found: list[tuple[int, int, int]] = []
    at = 0
    for batch in batches:
        rows = [Row(key="k", offset=at + number, first=first, second=second) for number, (first, second) in enumerate(batch)]
        at += len(batch)
        found += [(row.offset, row.first, row.second) for row in processor.handleInputRows(("k",), reversed(rows), None)]
    assert [each[0] for each in found] == list(range(at - len(found), at))
    return [(first, second) for _, first, second in found]


def test_a_rolling_reduce_gives_every_sum_from_the_second_record_on_also_over_micro_batches() -> None:
    assert run("reduce", [(1, 0), (2, 0)], [(3, 0), (4, 0), (5, 0)]) == [(3, 0), (6, 0), (10, 0), (15, 0)]


@pytest.mark.parametrize(
    ("name", "of_0", "of_1"),
    [
        ("min", [(2, 4)] * 3 + [(1, 4)], [(2, 4)] * 2 + [(1, 4)] * 2),
        ("min-by", [(2, 4)] * 3 + [(1, 2)], [(2, 4)] * 2 + [(1, 0)] * 2),
    ],
)
def test_a_rolling_minimum_keeps_the_rest_of_the_first_record_and_min_by_that_of_the_least(
    name: str, of_0: list[tuple[int, int]], of_1: list[tuple[int, int]]
) -> None:
    assert run(name, [(2, 4), (4, 5)], [(3, 3), (1, 2)]) == of_0
    assert run(name, [(2, 4), (5, 1), (1, 0)], [(2, 2)]) == of_1


def test_a_union_of_a_stream_with_itself_has_every_record_twice(spark: SparkSession) -> None:
    records = spark.createDataFrame([("k", at, at, 0) for at in range(6)], "key string, offset long, first long, second long")
    found = application("running").running(records, "union")
    assert sorted(row.first for row in found.collect()) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]


Event = tuple[int, float]
ORDERS: list[Event] = [(0, 0.0), (1, 0.0), (2, 1.5), (3, 1.5), (4, 2.5), (5, 2.5), (6, 3.5), (7, 3.5)]
PAYMENTS: list[Event] = [(0, 0.0), (1, 0.0), (3, 1.5), (4, 2.5)]


@pytest.mark.parametrize(
    ("join", "pairs"),
    [
        ("window", ["00", "01", "10", "11", "23", "33", "44", "54"]),
        (
            "sliding",  # what is in seconds -1 and 0, then in 0 and 1, and so on
            [
                *("00", "01", "10", "11"),
                *("00", "01", "03", "10", "11", "13", "20", "21", "23", "30", "31", "33"),
                *("23", "24", "33", "34", "43", "44", "53", "54"),
                *("44", "54", "64", "74"),
            ],
        ),
        ("session", ["00", "01", "10", "11", *(f"{order}{payment}" for order in range(2, 8) for payment in (3, 4))]),
    ],
)
def test_joins_in_windows_have_every_pair_of_a_key_in_one_window(spark: SparkSession, join: str, pairs: list[str]) -> None:
    def side(name: str, events: list[Event], *others: Event) -> DataFrame:
        rows = [("key", *each) for each in events] + [("other", *each) for each in others]
        found = spark.createDataFrame(rows, f"key string, {name} long, time double")
        return found.select("key", name, F.timestamp_seconds("time").alias(f"{name}_time"))

    found = application("joins").JOINS[join](side("order", ORDERS), side("payment", PAYMENTS, (4, 3.5)))
    assert sorted(f"{row.order}{row.payment}" for row in found.collect()) == sorted(pairs)
    assert {row.key for row in found.collect()} == {"key"}


def test_who_has_least_left_leaves_the_iteration_first(spark: SparkSession) -> None:
    countdown = application("countdown")
    names = {"Jim": 3, "John": 2, "Lily": 1, "Lucy": 4}
    schema = "shard string, offset long, value string"
    rows = [("rounds/0", at, f'{{"name": "{name}", "left": {left}}}') for at, (name, left) in enumerate(names.items())]
    left: list[str] = []
    while rows:
        after = countdown.less_one(spark.createDataFrame(rows, schema))
        left += [row.key for row in countdown.as_records(countdown.leave(after)).collect()]
        again = countdown.as_records(countdown.go_on(after)).collect()
        rows = [("rounds/0", at, row.value) for at, row in enumerate(again)]
    assert left == ["Lily", "John", "Jim", "Lucy"]
