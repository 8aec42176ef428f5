"""What the values of the protocol say of themselves."""

from __future__ import annotations

import pytest

from shardherd.core.group.records import ConsumerRecord
from shardherd.core.model.errors import FencedEpochError
from shardherd.core.model.nouns import ConsumerId, GroupIdentity, GroupView, Incarnation, ShardState, ShardView
from tests.builders import shard

RUN = Incarnation("uid", 2)


@pytest.mark.parametrize(
    ("other", "older"),
    [(Incarnation("uid", 1), True), (RUN, False), (Incarnation("uid", 3), False), (Incarnation("another-uid", 1), False)],
)
def test_only_an_earlier_start_of_the_same_pod_is_superseded(other: Incarnation, older: bool) -> None:
    assert RUN.supersedes(other) is older


@pytest.mark.parametrize(
    ("ended", "run", "refused"),
    [
        (None, RUN, False),
        (RUN, RUN, True),
        (RUN, Incarnation("uid", 1), True),
        (RUN, Incarnation("uid", 3), False),
        (RUN, Incarnation("another-uid", 2), False),
    ],
)
def test_what_ended_is_refused_with_all_earlier_starts_of_its_pod(
    ended: Incarnation | None, run: Incarnation, refused: bool
) -> None:
    assert ConsumerRecord(ConsumerId("g-0"), RUN, ended=ended).has_ended(run) is refused


def test_shards_are_counted_by_state_as_far_as_the_source_has_them() -> None:
    rows = (
        ShardView(shard("0"), ShardState.WAIT),
        ShardView(shard("1"), ShardState.WAIT, present=False),
        ShardView(shard("2"), ShardState.OVER),
        ShardView(shard("3"), ShardState.WAIT),
    )
    view = GroupView(group_epoch=1, revision=1, shards=rows, consumers=(), source_reachable=True)
    counts = view.shards_in(ShardState.WAIT), view.shards_in(ShardState.WAIT, ShardState.OVER), view.shards_in()
    assert counts == (2, 3, 0)


def test_a_group_is_called_by_its_namespace_and_name() -> None:
    assert str(GroupIdentity("demo", "clicks", "uid")) == "demo/clicks"


def test_a_refusal_has_what_it_says_as_attributes_too() -> None:
    said = {
        "group": "demo/clicks",
        "shard": shard("0"),
        "consumer": ConsumerId("g-0"),
        "expected_epoch": 3,
        "actual_epoch": 2,
    }
    error = FencedEpochError("drop the shard", **said)  # type: ignore[arg-type]  # each has the type of its own parameter
    assert (str(error), vars(error)) == ("drop the shard", {"message": "drop the shard", **said})
    assert vars(FencedEpochError("drop it")) == {"message": "drop it", **dict.fromkeys(said)}
