"""What the tasks of a sink tell of the shards that they have written."""

from __future__ import annotations

import pytest

from shardherd.spark.sinks.shard_tasks import without_rows
from shardherd.transactions.outcomes import ConflictError


def test_a_shard_of_which_no_task_tells_has_had_no_rows() -> None:
    assert without_rows([("clicks/1", None)], ["clicks/2", "clicks/1", "clicks/0"], "clicks") == ["clicks/0", "clicks/2"]


def test_a_shard_that_a_task_could_not_write_is_a_conflict_of_the_micro_batch() -> None:
    told = [("clicks/0", None), ("clicks/1", "clicks/1 was moved")]
    with pytest.raises(ConflictError, match="a part of the micro-batch was not written to the_table: clicks/1 was moved"):
        without_rows(iter(told), ["clicks/0", "clicks/1"], "the_table")
