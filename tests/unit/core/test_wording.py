"""Numbers and names in sentences."""

from __future__ import annotations

import pytest

from shardherd.core.model.wording import count, part, some, verb


@pytest.mark.parametrize(("number", "said"), [(0, "0 shards are"), (1, "1 shard is"), (2, "2 shards are")])
def test_one_is_told_in_the_singular_and_none_as_many(number: int, said: str) -> None:
    assert f"{count(number, 'shard')} {verb(number, 'is', 'are')}" == said


@pytest.mark.parametrize(
    ("number", "whole", "said"),
    [
        (0, 0, "0 of 0 consumers are"),
        (0, 1, "0 of 1 consumer is"),
        (1, 1, "1 of 1 consumer is"),
        (0, 2, "0 of 2 consumers are"),
        (1, 2, "1 of 2 consumers is"),
        (2, 2, "2 of 2 consumers are"),
    ],
)
def test_the_verb_of_a_part_is_that_of_one_where_there_is_one(number: int, whole: int, said: str) -> None:
    assert part(number, whole, "consumer", "is", "are") == said


@pytest.mark.parametrize(
    ("names", "said"), [((), ""), (("a",), "a"), (("a", "b"), "a, b"), (("a", "b", "c"), "a, b and others")]
)
def test_of_many_names_the_first_are_told(names: tuple[str, ...], said: str) -> None:
    assert some(names, 2) == said
