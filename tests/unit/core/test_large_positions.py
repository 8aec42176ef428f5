"""Positions of up to 56 digits, as Kinesis has them, come out of everything that writes them as they went in."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardherd import protocol
from shardherd.core.group import ownership
from shardherd.core.model.errors import InvalidRequestError
from shardherd.core.model.nouns import (
    CheckpointOutcome,
    CheckpointReply,
    CheckpointRequest,
    CheckpointResult,
    ConfirmedShard,
    ConsumerId,
    HeartbeatReply,
    ShardCheckpoint,
)
from shardherd.core.model.positions import LARGEST_EXACT, MAX_OFFSET, MAX_POSITION, from_json, to_json
from tests.builders import Play, incarnation, info, shard, spec

POSITIONS = st.one_of(
    st.integers(0, MAX_POSITION),
    st.sampled_from([0, LARGEST_EXACT, LARGEST_EXACT + 1, MAX_OFFSET, MAX_OFFSET + 1, 2**64 - 1, 2**64, MAX_POSITION]),
)


@given(POSITIONS)
def test_what_other_programs_read_is_exact_in_floating_point_or_a_string(position: int) -> None:
    written = json.loads(json.dumps(to_json(position)), parse_int=float)
    assert int(written) == position
    assert from_json(to_json(position)) == from_json(position) == from_json(str(position)) == position


@pytest.mark.parametrize("value", [-1, MAX_POSITION + 1, True, 1.0, None, "", "-1", "01", "1e3", " 1", "1" * 57, "١"])
def test_what_is_no_position_is_refused_by_its_value(value: object) -> None:
    with pytest.raises(ValueError, match="is no position: it must be an integer from 0 on with at most 56 digits"):
        from_json(value)


@given(POSITIONS)
def test_messages_carry_every_position(position: int) -> None:
    run, name = incarnation("g-0"), ConsumerId("g-0")
    for value in (
        CheckpointRequest(name, run, (ShardCheckpoint(shard("0"), 1, position),), "uid"),
        CheckpointReply((CheckpointOutcome(shard("0"), CheckpointResult.OK, position, 1),)),
        HeartbeatReply(1, (ConfirmedShard(shard("0"), 1, 1, position),)),
        protocol.ForcedCheckpoint(position),
    ):
        assert protocol.loads(type(value), protocol.dumps(value)) == value


@given(POSITIONS, POSITIONS)
def test_the_stored_ownership_keeps_every_position(start: int, end: int) -> None:
    play = Play(spec(1, starting="Latest"))
    play.discover([info("0", end=start), info("1", begin=end, end=end)])
    stored = play.group.ownership
    assert ownership.encode(ownership.loads(ownership.dumps(stored))) == ownership.encode(stored)
    assert {row.start for row in stored.shards.values()} == {start, end}


def test_no_group_takes_a_position_that_its_source_cannot_have() -> None:
    play = Play(spec(1))
    play.discover([info("0")])
    play.settle("g-0")
    largest = f"at most {MAX_OFFSET}"
    with pytest.raises(InvalidRequestError, match=f"checkpoint of shard t/0 has offset {MAX_OFFSET + 1}.*{largest}"):
        play.checkpoint("g-0", "0", MAX_OFFSET + 1)
