"""What the benchmark of cells counts with."""

from __future__ import annotations

from typing import Any

from benchmarks.source.moves import Follower
from benchmarks.state.__main__ import Size, read


def test_the_micro_batches_of_each_cell_are_counted_since_a_moment() -> None:
    process: Any = None
    first, second = frozenset({"cell/0"}), frozenset({"cell/1"})
    follower = Follower(process, [(1.0, first), (2.0, second), (3.0, first), (4.0, first)])
    assert read(follower, 0.0) == {"cell/0": 3, "cell/1": 1}
    assert read(follower, 2.0) == {"cell/0": 2}


def test_cells_are_called_as_the_application_calls_them() -> None:
    assert Size(3, 10, "1g", 1).shards() == ["cell/0", "cell/1", "cell/2"]
