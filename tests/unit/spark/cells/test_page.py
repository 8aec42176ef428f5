"""The page on keyed state: its sink for a Delta table writes each micro-batch once."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

PAGE = Path(__file__).parents[4] / "docs" / "state.md"


@dataclass(frozen=True)
class Batch:
    """What `foreachBatch` hands over, as far as the page asks of it."""

    key: str

    def toArrow(self) -> pa.Table:  # noqa: N802 - Spark's own name
        return pa.table({"key": [self.key]})


@dataclass(frozen=True)
class Cell:
    id: str


@pytest.fixture
def once() -> Callable[[Cell, str], Callable[[Batch, int], None]]:
    """The page's function."""
    (text,) = re.findall(r"```python\n(from deltalake.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(text, names)
    found: Callable[[Cell, str], Callable[[Batch, int], None]] = names["once"]
    return found


def test_a_micro_batch_that_is_run_again_is_there_once(tmp_path: Path, once: Any) -> None:
    table = str(tmp_path / "table")
    before, after, other = once(Cell("uid/0/1"), table), once(Cell("uid/0/1"), table), once(Cell("uid/0/2"), table)
    before(Batch("a"), 0)
    before(Batch("b"), 1)
    after(Batch("b"), 1)
    after(Batch("c"), 2)
    before(Batch("late"), 2)
    other(Batch("d"), 0)
    once(Cell("uid/1/1"), table)(Batch("anew"), 0)
    rows = DeltaTable(table).to_pyarrow_table().column("key").to_pylist()
    assert sorted(map(str, rows)) == ["a", "anew", "b", "c", "d"]
