"""The state table: the nine transitions, and nothing else. Every pair of a state and a cause is tried."""

from __future__ import annotations

import ast
from itertools import product
from pathlib import Path

import pytest

from shardherd.core.group import fsm, grants
from shardherd.core.group.fsm import TRANSITIONS, Cause, step
from shardherd.core.model.errors import IllegalTransitionError
from shardherd.core.model.nouns import ConsumerId
from shardherd.core.model.nouns import ShardState as S
from tests.builders import Play, copy_of, info, shard, spec

CORE = Path(fsm.__file__).parents[1]

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
    with pytest.raises(IllegalTransitionError) as refused:
        step(before, cause)
    where = "a new shard" if before is None else f"state {before}"
    assert refused.value.message == f"{cause} is not possible in {where}; nothing was changed. Please report this."
    assert refused.value.code == "IllegalTransition"


HANDS = {
    Cause.ANCESTORS_DONE: lambda state, row: grants.wake(state, row, 0.0),
    Cause.GRANTED: lambda state, row: grants.grant(state, row, ConsumerId("g-0"), 0.0),
    Cause.HOLDER_GONE: lambda state, row: grants.reclaim(state, row, 0.0),
    Cause.REVOKED: lambda state, row: grants.revoke(state, row, ConsumerId("g-0"), 0.0),
    Cause.RELEASED: lambda state, row: grants.release(state, row._replace(next_consumer=ConsumerId("g-0")), 0.0),
    Cause.KEPT: lambda state, row: grants.keep(state, row, 0.0),
}
"""What changes a shard's state, by the cause that it asks the table for."""

ASKED = {
    Cause.REWOUND: lambda state, row: grants.rewind_if_before_end(state, row.shard, 0.0),
    Cause.FINISHED: lambda state, row: grants.finish_if_done(state, row.shard, 0.0),
}
"""The same for what looks whether it applies."""


def in_state(wanted: S) -> Play:
    """A group with a shard 0 in this state, whose checkpoint is at neither end, unless that is what its state says."""
    play = Play(spec(1, ordered=True))
    if wanted is S.WAIT:
        play.discover([info("1", open=False), info("0", parents=["1"], open=False)])
        play.settle("g-0")
    elif wanted is S.NOT_ALLOC:
        play.discover([info("0", open=False)])
        play.run("g-0", ready=False)
        play.settle("g-0")
    else:
        play.discover([info("0", open=False), info("1")])
        play.settle("g-0")
        play.checkpoint("g-0", "0", 100 if wanted is S.OVER else 40)
    if wanted is S.TRANSFER:
        play.consumer("g-0").busy = {shard("0"), shard("1")}
        play.change(spec(1, ordered=True, leaving=["g-0"]))
        play.beat("g-1", "g-0")
    assert play.state("0") == wanted
    return play


@pytest.mark.parametrize(("before", "cause"), list(product(S, [*HANDS, *ASKED])))
def test_every_pair_outside_the_table_changes_nothing_in_a_group_and_every_other_leads_where_it_says(
    before: S, cause: Cause
) -> None:
    group = copy_of(in_state(before).group)
    state = group._state
    row = state.shards[shard("0")]
    state.begin()
    if cause in ASKED:
        position = 100 if cause is Cause.FINISHED else 40
        state.put_position(row.shard, position)
        state.begin()
        applies = ASKED[cause](state, row)
        assert applies == ((before, cause) in TRANSITIONS)
    elif (before, cause) in TRANSITIONS:
        HANDS[cause](state, row)
    else:
        with pytest.raises(IllegalTransitionError):
            HANDS[cause](state, row)
    if (before, cause) in TRANSITIONS:
        assert state.shards[row.shard].state is TRANSITIONS[before, cause].to
    else:
        assert (state.shards[row.shard], state.journal) == (row, [])


def test_only_the_table_says_what_state_a_shard_enters() -> None:
    entered = []
    for path in CORE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "_replace":
                entered += [(path.name, keyword.value) for keyword in node.keywords if keyword.arg == "state"]
    assert {name for name, _ in entered} == {"grants.py"}
    steps = [value for _, value in entered if isinstance(value, ast.Call) and ast.unparse(value.func) == "step"]
    named = [value for _, value in entered if isinstance(value, ast.Name) and value.id == "after"]
    assert len(steps) + len(named) == len(entered)
