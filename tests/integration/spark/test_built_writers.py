"""The writer that `build(cell)` returns: trigger, name and location are given by run_cells, and by nobody else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from shardherd.spark.cells.build import CellsError, checked
from tests.harness.spark import make_session

CELL = 3
PAGE = Path(__file__).resolve().parents[3] / "docs" / "state.md"


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = make_session(tmp_path_factory.mktemp("spark"), {"spark.master": "local[1]"})
    yield session
    session.stop()


@pytest.fixture
def writer(spark: SparkSession) -> DataStreamWriter:
    return spark.readStream.format("rate").load().writeStream.format("noop").outputMode("append")


def refusal(returned: object) -> str:
    with pytest.raises(CellsError) as refused:
        checked(returned, CELL)
    return str(refused.value)


def test_a_writer_that_leaves_trigger_name_and_location_to_run_cells_is_taken(writer: DataStreamWriter) -> None:
    assert checked(writer.option("truncate", "false"), CELL) is writer


def test_the_function_of_the_page_returns_such_a_writer(spark: SparkSession) -> None:
    (text,) = re.findall(r"```python\n(from pyspark.sql.functions import window.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(text, names)
    records = spark.readStream.format("rate").load().selectExpr("cast(cast(value as string) as binary) as key", "timestamp")
    cell = SimpleNamespace(number=CELL, id=f"uid/0/{CELL}", read=lambda: records)

    writer = names["build"](cell)

    assert checked(writer, CELL) is writer


def test_what_is_no_writer_is_refused_with_what_to_return(writer: DataStreamWriter, tmp_path: Path) -> None:
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    query.stop()

    says = "for cell 3: it must return the DataStreamWriter, df.writeStream..., and not call start()"
    assert {type(each).__name__: refusal(each) for each in (None, query)} == {
        "NoneType": f"build(cell) has returned NoneType {says}",
        "StreamingQuery": f"build(cell) has returned StreamingQuery {says}",
    }


def test_a_writer_with_a_name_of_its_own_is_refused(writer: DataStreamWriter) -> None:
    assert refusal(writer.queryName("mine")) == (
        "build(cell) has set queryName to 'mine': run_cells gives the query of every cell its name, trigger and location; "
        "remove it"
    )


def test_a_writer_with_a_location_of_its_own_is_refused(writer: DataStreamWriter) -> None:
    assert refusal(writer.option("checkpointLocation", "/mine")) == (
        "build(cell) has set option(\"checkpointLocation\", ...) to '/mine': run_cells gives the query of every cell its name, "
        "trigger and location; remove it"
    )


def test_a_writer_with_a_trigger_of_its_own_is_refused_with_where_to_say_it(spark: SparkSession) -> None:
    def writer() -> DataStreamWriter:
        return spark.readStream.format("rate").load().writeStream

    found = [refusal(each) for each in (writer().trigger(processingTime="2 seconds"), writer().trigger(availableNow=True))]
    assert found == [
        f"build(cell) has set a trigger, {trigger}: remove it, and give run_cells(build, trigger=...) instead"
        for trigger in ("ProcessingTimeTrigger(2000)", "AvailableNowTrigger")
    ]
