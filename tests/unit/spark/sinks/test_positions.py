"""What of a micro-batch is still to be written, by the positions that the sink has."""

from __future__ import annotations

import re

import pytest

from shardherd.spark.running_batch import BatchRange
from shardherd.spark.sinks.positions import GapError, Pending, StaleWriterError, pending
from shardherd.transactions.outcomes import Stored

A, B = "clicks/0", "clicks/1"
RANGES = {A: BatchRange(10, 20, 3), B: BatchRange(100, 130, 5)}


def test_a_sink_that_has_nothing_gets_everything() -> None:
    assert pending(RANGES, {}) == {A: Pending(10, 20, 3, None), B: Pending(100, 130, 5, None)}


def test_a_shard_goes_on_at_the_sinks_position_and_one_that_is_there_is_left_out() -> None:
    assert pending(RANGES, {A: Stored(10, 3), B: Stored(130, 5)}) == {A: Pending(10, 20, 3, 10)}
    assert pending(RANGES, {A: Stored(500), B: Stored(117)}) == {B: Pending(117, 130, 5, 117)}
    assert pending(RANGES, {A: Stored(20), B: Stored(130)}) == {}


def test_a_newer_grant_keeps_this_writer_out() -> None:
    with pytest.raises(StaleWriterError, match=r"shard clicks/1 was written under epoch 6 already.*was given it under 5"):
        pending(RANGES, {B: Stored(110, 6)})


def test_what_a_newer_grant_has_written_up_to_the_end_is_simply_there() -> None:
    assert pending(RANGES, {B: Stored(130, 6), A: Stored(20, 4)}) == {}


def test_records_that_would_be_missing_are_an_error_with_both_remedies() -> None:
    says = re.escape("the sink has shard clicks/0 up to offset 4, and this micro-batch begins at 10: 6 offsets are missing")
    with pytest.raises(GapError, match=says) as raised:
        pending(RANGES, {A: Stored(4, 3)})
    assert "checkpoint of the shard back to 4" in str(raised.value)
    assert "accept_gaps=True" in str(raised.value)

    assert pending({A: RANGES[A]}, {A: Stored(4, 3)}, accept_gaps=True) == {A: Pending(10, 20, 3, 4)}
