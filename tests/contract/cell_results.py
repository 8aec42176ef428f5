"""What every sink promises of a cell's results: each micro-batch of the cell is there once, whoever runs it and how often."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import pytest

from shardherd.core.model.nouns import ShardId
from shardherd.spark import application
from shardherd.spark.cells.build import Cell
from shardherd.spark.running_batch import BatchRanges, Running
from shardherd.spark.sinks.cell_results import write_results
from shardherd.spark.sinks.positions import GapError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GROUP = "group-uid"
Result = tuple[str, int, int]
"""A key, an `offset`, which is a name that results may have, and a count."""

FIRST: list[Result] = [("a", 4, 2), ("b", 9, 1), ("c", 2, 7)]
SECOND: list[Result] = [("a", 11, 3), ("d", 10, 1)]


class KilledError(Exception):
    """The driver is gone."""


def nothing() -> None:
    """Happens."""


def killed() -> None:
    raise KilledError


def cell(number: int = 3, generation: int = 1) -> Cell:
    return Cell(number, f"{GROUP}/{generation}/{number}", 0, cast("SparkSession", None))


class Table(ABC):
    """Where results are written, by a sink that is made anew for each micro-batch, as in a process of its own."""

    @abstractmethod
    def written(
        self, of: Cell, rows: list[Result], then: Callable[[], None], *, accept_gaps: bool
    ) -> Callable[[DataFrame, BatchRanges], None]:
        """What the sink does with a DataFrame of these rows; `then` happens when they are written and not committed."""

    @abstractmethod
    def shard(self, of: Cell) -> ShardId:
        """As what the sink keeps the cell's position."""

    @abstractmethod
    def rows(self) -> Counter[Result]:
        """All results that are there."""


class Contract:
    """Subclasses have a fixture `table`."""

    @pytest.fixture(autouse=True)
    def _running(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._batch = Running("run-0", -1)
        monkeypatch.setattr(application, "_running", lambda: self._batch)

    def write(
        self,
        table: Table,
        batch_id: int,
        rows: list[Result],
        then: Callable[[], None] = nothing,
        of: Cell | None = None,
        *,
        accept_gaps: bool = False,
    ) -> None:
        """One run of a cell's micro-batch."""
        here = of or cell()
        before, self._batch = self._batch, Running(f"run-{batch_id}", batch_id)
        try:
            frame: Any = None
            writes = table.written(here, rows, then, accept_gaps=accept_gaps)
            write_results(writes, frame, here, batch_id, table.shard(here))
        finally:
            self._batch = before

    def test_results_are_there_with_all_their_columns(self, table: Table) -> None:
        self.write(table, 7, FIRST)
        self.write(table, 8, SECOND)

        assert table.rows() == Counter(FIRST + SECOND)

    def test_a_micro_batch_that_is_run_again_adds_nothing(self, table: Table) -> None:
        self.write(table, 7, FIRST)
        self.write(table, 7, FIRST)
        self.write(table, 8, SECOND)
        self.write(table, 8, SECOND)

        assert table.rows() == Counter(FIRST + SECOND)

    def test_a_driver_that_is_killed_before_its_commit_leaves_nothing_and_the_next_writes_all(self, table: Table) -> None:
        with pytest.raises(KilledError):
            self.write(table, 7, FIRST, killed)
        assert table.rows() == Counter()

        self.write(table, 7, FIRST)

        assert table.rows() == Counter(FIRST)

    def test_a_holder_that_comes_back_after_the_cell_has_moved_adds_nothing(self, table: Table) -> None:
        self.write(table, 6, SECOND)

        def moved() -> None:
            self.write(table, 7, FIRST)
            self.write(table, 8, [("late", 1, 1)])

        self.write(table, 7, FIRST, moved)

        assert table.rows() == Counter([*SECOND, *FIRST, ("late", 1, 1)])

    def test_two_that_run_the_first_micro_batch_of_a_cell_write_it_once(self, table: Table) -> None:
        self.write(table, 0, FIRST, lambda: self.write(table, 0, FIRST))

        assert table.rows() == Counter(FIRST)

    def test_a_micro_batch_without_results_counts_too(self, table: Table) -> None:
        self.write(table, 7, FIRST)
        self.write(table, 8, [])
        self.write(table, 9, SECOND)

        assert table.rows() == Counter(FIRST + SECOND)

    def test_micro_batches_that_are_missing_are_an_error_with_both_remedies(self, table: Table) -> None:
        self.write(table, 7, FIRST)

        with pytest.raises(GapError, match=r"micro-batches of cell 3 \(group-uid/1/3\) below 8, and this one is 10") as raised:
            self.write(table, 10, SECOND)

        assert "discardState: true" in str(raised.value)
        assert "accept_gaps=True" in str(raised.value)
        assert table.rows() == Counter(FIRST)
        self.write(table, 10, SECOND, accept_gaps=True)
        assert table.rows() == Counter(FIRST + SECOND)

    def test_each_cell_and_each_generation_of_its_state_has_its_own_micro_batches(self, table: Table) -> None:
        self.write(table, 7, FIRST)
        self.write(table, 0, SECOND, of=cell(generation=2))
        self.write(table, 7, FIRST, of=cell(1))

        assert table.rows() == Counter(FIRST + SECOND + FIRST)
