"""A cell's results in PostgreSQL and in a topic, over real servers; tasks are called as Spark would call them."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from shardherd.core.model.nouns import ShardId
from shardherd.spark.cells.build import Cell
from shardherd.spark.running_batch import BatchRanges
from shardherd.spark.sinks.cell_results import shard_of
from shardherd.spark.sinks.kafka_rows import WriteJob, write_records
from shardherd.spark.sinks.postgresql_rows import CopyJob, copy_rows
from tests.contract.cell_results import FIRST, Contract, Result, Table, cell
from tests.harness.kafka import KafkaLab
from tests.integration.sinks.test_kafka import Site
from tests.integration.sinks.test_postgresql import Database, database

__all__ = ["database"]


class PostgreSQLResults(Table):
    """A table of PostgreSQL."""

    SCHEMA = StructType([StructField("key", StringType()), StructField("offset", LongType()), StructField("count", LongType())])

    def __init__(self, database: Database) -> None:
        self.database = database
        database.run('CREATE TABLE results (key text, "offset" bigint, count bigint)')

    def written(
        self, of: Cell, rows: list[Result], then: Callable[[], None], *, accept_gaps: bool
    ) -> Callable[[Any, BatchRanges], None]:
        def tasks(job: CopyJob) -> Iterable[Sequence[Any]]:
            # As in one task of Spark: the rows are on their way, and `then` happens before the transaction's end.
            def batches() -> Iterable[pa.RecordBatch]:
                for key, offset, count in rows:
                    yield pa.record_batch({"key": [key], "offset": [offset], "count": [count]})
                then()

            return [tuple(row.values()) for answer in copy_rows(batches(), job) for row in answer.to_pylist()]

        made = self.database.sink("results", cell=of, accept_gaps=accept_gaps)
        return lambda _, ranges: made.write_by(tasks, self.SCHEMA, ranges)

    def shard(self, of: Cell) -> ShardId:
        return shard_of(of)

    def rows(self) -> Counter[Result]:
        return Counter(self.database.run('SELECT key, "offset", count FROM results'))


class TestPostgreSQL(Contract):
    @pytest.fixture
    def table(self, database: Database) -> Table:
        return PostgreSQLResults(database)

    def test_the_number_of_the_next_micro_batch_stands_beside_the_rows(self, database: Database) -> None:
        self.write(PostgreSQLResults(database), 7, FIRST, of=cell(number=5, generation=2))

        assert database.positions() == {"cell/5@2": (8, 0)}


class Topic(Table):
    """A topic, as who reads committed records sees it."""

    SCHEMA = StructType([StructField("value", StringType())])

    def __init__(self, site: Site) -> None:
        self.site = site
        self.group_id = f"results-{uuid.uuid4()}"

    def written(
        self, of: Cell, rows: list[Result], then: Callable[[], None], *, accept_gaps: bool
    ) -> Callable[[Any, BatchRanges], None]:
        def tasks(job: WriteJob) -> Iterable[Sequence[Any]]:
            def batches() -> Iterable[pa.RecordBatch]:
                for key, offset, count in rows:
                    yield pa.record_batch({"value": [f"{key}:{offset}:{count}"]})
                then()

            return [tuple(row.values()) for answer in write_records(batches(), job) for row in answer.to_pylist()]

        made = self.site.sink(cell=of, accept_gaps=accept_gaps, group_id=self.group_id)
        return lambda _, ranges: made.write_by(tasks, self.SCHEMA, ranges)

    def shard(self, of: Cell) -> ShardId:
        return ShardId(f"{self.site.topic}/0")

    def rows(self) -> Counter[Result]:
        found = (each.value.decode().split(":") for each in self.site.read())
        return Counter((key, int(offset), int(count)) for key, offset, count in found)


class TestKafka(Contract):
    @pytest.fixture
    def table(self, kafka: KafkaLab) -> Table:
        return Topic(Site(kafka))
