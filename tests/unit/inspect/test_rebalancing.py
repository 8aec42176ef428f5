"""What the assignor would move."""

from __future__ import annotations

import pytest

from shardherd.core.model.nouns import Condition
from shardherd.inspect.observed import InspectError
from shardherd.inspect.rebalancing import rebalance
from tests.unit.inspect.observations import live, observed, pod, record, seen

UNEVEN = tuple(record(number, "clicks-0") for number in range(4))


def test_the_moves_and_what_each_consumer_has_then() -> None:
    answer = rebalance(observed(UNEVEN))
    assert answer.text() == (
        "The assignor Sticky would move 2 shards of 4.\n"
        "\n"
        "SHARD     FROM      TO\n"
        "clicks/2  clicks-0  clicks-1\n"
        "clicks/3  clicks-0  clicks-1\n"
        "\n"
        "CONSUMER  SHARDS  THEN\n"
        "clicks-0  4       2\n"
        "clicks-1  0       2\n"
    )
    assert answer.data == {
        "group": "shop/clicks",
        "assignor": "Sticky",
        "live": False,
        "moves": [
            {"shard": "clicks/2", "from": "clicks-0", "to": "clicks-1"},
            {"shard": "clicks/3", "from": "clicks-0", "to": "clicks-1"},
        ],
        "consumers": [
            {"consumer": "clicks-0", "shards": 4, "then": 2},
            {"consumer": "clicks-1", "shards": 0, "then": 2},
        ],
        "unknown": [],
        "notRead": [],
    }


def test_a_shard_that_moves_already_is_its_next_consumers() -> None:
    there = observed((record(0, "clicks-0"), record(1, "clicks-0", to="clicks-1")))
    assert rebalance(there).text().splitlines()[0] == "The assignor Sticky would move 0 shards of 2."


def test_a_consumer_that_is_drained_gives_all_away_and_one_that_is_not_ready_gets_nothing() -> None:
    def then(*pods: object) -> list[str]:
        return [line.split()[-1] for line in rebalance(observed(UNEVEN, pods=pods)).text().splitlines()[-1:]]

    drained = pod("clicks-0", labels={"shardherd.dev/cordoned": "true"})
    assert then(drained, pod("clicks-1")) == ["4"]
    assert then(pod("clicks-0"), pod("clicks-1", ready=False)) == ["4"]


def test_what_is_withheld_or_unknown_is_said() -> None:
    paused = {"Ready": ("False", "Paused", "spec.paused is true")}
    there = observed(UNEVEN, conditions=paused, spec={"assignor": "Weighted"})
    assert rebalance(there).text().splitlines()[1:3] == [
        "It is not done now: spec.paused is true.",
        "How much work each shard is only the coordinator knows: all count as equal here.",
    ]
    stopped = live(seen(0, "clicks-0"), withheld=(Condition("TopicMissing", "a topic"), Condition("Resetting", "reset r")))
    assert rebalance(observed(view=stopped)).text().splitlines()[1] == "It is not done now: reset r."


def test_a_plug_in_that_is_not_here_is_named() -> None:
    with pytest.raises(InspectError, match=r'^spec.assignor is "example.Mine", a plug-in that is not installed here'):
        rebalance(observed(spec={"assignor": "example.Mine"}))


def test_nobody_who_may_be_given_shards_is_no_table() -> None:
    assert rebalance(observed((record(0, None),), consumers=())).text() == (
        "The assignor Sticky would move 0 shards of 1.\n\nNo consumer may be given shards.\n"
    )
