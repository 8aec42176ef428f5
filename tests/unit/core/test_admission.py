"""Which groups may be served beside each other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardherd.core.group.admission import refused
from shardherd.core.model.nouns import GroupIdentity, GroupSettings, GroupSpec, KafkaSource
from shardherd.core.model.reasons import GROUP_ID_TAKEN, TOO_MANY_GROUPS


def group(number: int, *, topic: str = "clicks", brokers: str = "a:9092,b:9092", group_id: str = "", age: int = 0) -> GroupSpec:
    """A group of its own; a smaller `age` was created later."""
    identity = GroupIdentity("demo", f"g{number}", f"uid-{number}")
    source = KafkaSource(brokers, (topic,), "", group_id or f"demo.g{number}")
    return GroupSpec(identity, source, GroupSettings(), 1, created=f"2026-01-{28 - age:02}T00:00:00Z")


def test_by_default_any_number_of_groups_reads_a_topic() -> None:
    assert refused([group(number) for number in range(100)], 0) == {}


def test_five_groups_of_a_topic_are_served_and_a_sixth_is_not() -> None:
    groups = [group(number, age=10 - number) for number in range(6)]

    found = refused(reversed(groups), 5)

    assert [(identity.name, condition.reason) for identity, condition in found.items()] == [("g5", TOO_MANY_GROUPS)]
    assert found[groups[5].identity].message == (
        "5 groups read topic 'clicks' of a:9092,b:9092 already, and this operator allows no more; delete one, or raise"
        " api.maxGroupsPerSource of the chart"
    )


def test_another_topic_and_another_cluster_count_by_themselves() -> None:
    assert refused([group(0), group(1, topic="views"), group(2, brokers="c:9092")], 1) == {}


@pytest.mark.parametrize("brokers", ["b:9092,a:9092", "A:9092, B:9092"])
def test_the_same_brokers_are_the_same_cluster_however_they_are_written(brokers: str) -> None:
    assert list(refused([group(0, age=1), group(1, brokers=brokers)], 1)) == [group(1).identity]


def test_a_pattern_is_a_source_of_its_own() -> None:
    pattern = replace(group(1).kafka, topics=(), topic_pattern="cl.*")

    assert refused([group(0), replace(group(1), source=pattern)], 1) == {}


def test_of_two_groups_that_share_their_positions_the_older_is_served() -> None:
    older, newer = group(1, group_id="shared", age=3), group(0, group_id="shared", age=1)

    found = refused([newer, older], 0)

    assert [(identity.name, condition.reason) for identity, condition in found.items()] == [("g0", GROUP_ID_TAKEN)]
    assert found[newer.identity].message == (
        "ConsumerGroup demo/g1 keeps its positions in the Kafka group 'shared' of the same brokers; give this one a"
        " spec.source.kafka.groupId of its own"
    )


def test_a_group_that_is_refused_takes_no_place_and_those_after_it_are_looked_at() -> None:
    first, twin, second, third, other, fourth = (
        group(0, group_id="shared", age=9),
        group(1, group_id="shared", age=8),
        group(2, age=7),
        group(3, age=6),
        group(4, topic="views", age=5),
        group(5, age=4),
    )

    found = refused([first, twin, second, third, other, fourth], 2)

    assert {identity.name: condition.reason for identity, condition in found.items()} == {
        "g1": GROUP_ID_TAKEN,
        "g3": TOO_MANY_GROUPS,
        "g5": TOO_MANY_GROUPS,
    }


def test_a_group_that_is_refused_keeps_its_id_from_nobody() -> None:
    groups = [group(0, age=9), group(1, group_id="shared", age=8), group(2, topic="views", group_id="shared", age=7)]

    assert [identity.name for identity in refused(groups, 1)] == ["g1"]
