"""How much is written to each shard: rates from look to look, and the sizes of records."""

from __future__ import annotations

import math

import pytest

from shardherd.core.group.rates import MEMORY, Rates, again, first, in_unit
from shardherd.core.model.nouns import Weights
from tests.builders import info, shard

S0, S1, S2, S3 = (shard(str(number)) for number in range(4))


def test_the_first_look_notes_where_the_ends_are_and_how_large_records_are() -> None:
    infos = {
        S0: info("0", 10, 30)._replace(size=200),
        S1: info("1", 10, 10)._replace(size=50),
        S2: info("2", 0, 40),
        S3: info("3", 5, 6)._replace(size=0),
    }
    ends = {S0: 30, S1: 10, S2: 40, S3: 6}
    assert first(infos, 7.0, Weights.RECORDS) == Rates(7.0, ends)
    in_bytes = Rates(7.0, ends, unit=Weights.BYTES, record_sizes={S0: 10.0, S3: 0.0})
    assert first(infos, 7.0, Weights.BYTES) == in_bytes
    assert in_unit(Rates(3.0, {S0: 1}, True, {S0: 2.0}), infos, Weights.BYTES) == Rates(
        3.0, {S0: 1}, True, {S0: 2.0}, Weights.BYTES, {S0: 10.0, S3: 0.0}
    )
    assert in_unit(in_bytes, infos, Weights.RECORDS) == Rates(7.0, ends)


@pytest.mark.parametrize(("known", "wait"), [(False, 5.0), (True, 30.0)])
def test_the_next_look_is_due_soon_after_the_first_and_seldom_later(known: bool, wait: float) -> None:
    rates = Rates(100.0, {}, known)
    assert (rates.due(100.0 + wait - 0.1), rates.due(100.0 + wait)) == (False, True)


def test_each_look_gives_every_shard_that_was_there_before_a_rate_and_forgets_a_part_of_the_old_one() -> None:
    before = Rates(
        100.0,
        {S1: 500, S2: 50, S3: 10},
        True,
        {S1: 9.0, S2: 1.0},
        Weights.BYTES,
        {S1: 7.0, S2: 8.0, S3: 9.0, shard("9"): 1.0},
    )
    infos = {
        S0: info("0", 0, 90),
        S1: info("1", 0, 499),
        S2: info("2", 0, 50 + 3 * int(MEMORY))._replace(size=95_000),
        S3: info("3", 0, 10),
    }
    smoothed = 1.0 + (1.0 - math.exp(-1.0)) * (3.0 - 1.0)
    assert again(before, infos, 100.0 + MEMORY) == Rates(
        100.0 + MEMORY,
        {S0: 90, S1: 499, S2: 950, S3: 10},
        True,
        {S2: smoothed, S3: 0.0},
        Weights.BYTES,
        {S1: 7.0, S2: 100.0, S3: 9.0},
    )


def test_a_shard_weighs_its_records_or_their_bytes() -> None:
    per_second = {S0: 2.0, S1: 3.0, S2: 5.0}
    assert Rates(0.0, {}, True, per_second).weights == per_second
    sized = Rates(0.0, {}, True, per_second, Weights.BYTES, {S0: 10.0, S1: 30.0})
    assert sized.weights == {S0: 20.0, S1: 90.0, S2: 100.0}
