"""The state table: the nine transitions, and nothing else."""

from __future__ import annotations

from itertools import product

import pytest

from shardherd.core.errors import IllegalTransitionError
from shardherd.core.fsm import TRANSITIONS, Cause, step
from shardherd.core.model import ShardState as S

EDGES = [
    (1, None, Cause.APPEARED_BEHIND, S.WAIT),
    (1, None, Cause.APPEARED, S.NOT_ALLOC),
    (2, S.WAIT, Cause.ANCESTORS_DONE, S.NOT_ALLOC),
    (3, S.NOT_ALLOC, Cause.GRANTED, S.ALREADY_ALLOC),
    (4, S.ALREADY_ALLOC, Cause.HOLDER_GONE, S.NOT_ALLOC),
    (5, S.ALREADY_ALLOC, Cause.REVOKED, S.TRANSFER),
    (6, S.TRANSFER, Cause.RELEASED, S.ALREADY_ALLOC),
    (6, S.TRANSFER, Cause.KEPT, S.ALREADY_ALLOC),
    (7, S.OVER, Cause.REWOUND, S.NOT_ALLOC),
    (8, S.ALREADY_ALLOC, Cause.FINISHED, S.OVER),
    (8, S.TRANSFER, Cause.FINISHED, S.OVER),
    (9, S.TRANSFER, Cause.HOLDER_GONE, S.NOT_ALLOC),
]
ALL = list(product([None, *S], Cause))


@pytest.mark.parametrize(("number", "before", "cause", "after"), EDGES)
def test_every_edge_of_the_specification_is_there(number: int, before: S | None, cause: Cause, after: S) -> None:
    assert step(before, cause) is after
    assert TRANSITIONS[before, cause].number == number


def test_the_table_has_no_other_edge() -> None:
    assert set(TRANSITIONS) == {(before, cause) for _, before, cause, _ in EDGES}


@pytest.mark.parametrize(
    ("before", "cause"), [pair for pair in ALL if pair not in {(before, cause) for _, before, cause, _ in EDGES}]
)
def test_every_other_pair_is_refused_by_name(before: S | None, cause: Cause) -> None:
    with pytest.raises(IllegalTransitionError, match=f"{cause} is not possible in") as refused:
        step(before, cause)
    assert refused.value.code == "IllegalTransition"
