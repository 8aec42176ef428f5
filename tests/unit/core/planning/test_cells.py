"""What a group with cells is told of them: how they are shared, whether their state is lost, and whether their number fits."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from shardherd.core.model.messages import Seconds
from shardherd.core.model.nouns import (
    Condition,
    ConsumerId,
    ConsumerView,
    FailingCell,
    GroupSettings,
    Incarnation,
    ShardId,
    ShardState,
    ShardView,
)
from shardherd.core.planning.conditions import findings
from shardherd.core.planning.observed import Scaling
from shardherd.core.planning.sizing import decide
from tests.unit.core.planning.builders import course_of, declared, observation, view


def held(*holders: str, topic: str = "clicks") -> list[ShardView]:
    """Shards of a topic, each held by the consumer that is named."""
    return [
        ShardView(ShardId(f"{topic}/{number}"), ShardState.ALREADY_ALLOC, ConsumerId(holder), present=True)
        for number, holder in enumerate(holders)
    ]


def consumers(*numbers: int) -> tuple[ConsumerView, ...]:
    """Consumers that hold so many shards."""
    return tuple(
        ConsumerView(ConsumerId(f"g-{at}"), Incarnation(f"uid-{at}", 1), True, False, number, Seconds(0.0))
        for at, number in enumerate(numbers)
    )


def told(shards: list[ShardView], cells: int, **fields: Any) -> dict[str, tuple[str, str, str]]:
    """The conditions, by their types."""
    seen = observation(declared=declared(settings=GroupSettings(cells=cells)), view=view(shards, **fields))
    return {each.type: (each.status, each.reason, each.message) for each in findings(seen, course_of(seen))}


def test_cells_are_counted_where_cells_are_shared() -> None:
    shards = held("g-0", "g-1", "g-0", "g-0", "g-1", "g-0", "g-0")
    assert told(shards, 3, consumers=consumers(5, 2))["Balanced"] == ("True", "Balanced", "2 consumers with 1 to 2 cells each.")


def test_cells_that_differ_by_more_than_one_are_uneven() -> None:
    said = told(held("g-0", "g-0", "g-0", "g-1"), 4, consumers=consumers(3, 1))["Balanced"]
    assert said == ("False", "Uneven", "Consumers hold between 1 and 3 cells.")


def test_lost_state_is_a_condition_and_keeps_the_group_from_being_ready() -> None:
    lost = Condition("StateLost", "the state of cell 1 is gone")
    said = told(held("g-0", "g-1"), 2, consumers=consumers(1, 1), withheld=(lost,))
    assert said["StateLost"] == ("True", "StateLost", "the state of cell 1 is gone")
    assert said["Ready"] == ("False", "StateLost", "the state of cell 1 is gone")
    assert told(held("g-0", "g-1"), 2)["StateLost"][:2] == ("False", "StateKept")


def failing(*cells: FailingCell) -> tuple[ConsumerView, ...]:
    """Two consumers, the second of which has these failing cells."""
    well, ill = consumers(1, 1)
    return well, structs.replace(ill, cells_failing=cells)


def test_failing_cells_are_a_condition_and_keep_the_group_from_being_ready() -> None:
    cells = FailingCell(1, "out of luck"), FailingCell(3, "no room")
    said = told(held("g-0", "g-1", "g-0", "g-1"), 4, consumers=failing(*cells))
    message = (
        "The queries of the cells 1, 3 fail and are started again; the other cells are read. See the log of g-1, which says of "
        "cell 1: out of luck"
    )
    assert said["CellsFailing"] == ("True", "QueryFails", message)
    assert said["Ready"] == ("False", "QueryFails", message)
    assert told(held("g-0", "g-1"), 2)["CellsFailing"] == ("False", "QueriesRun", "No cell's query is known to fail.")


def test_one_failing_cell_is_named() -> None:
    said = told(held("g-0", "g-1"), 2, consumers=failing(FailingCell(1, "out of luck")))["CellsFailing"][2]
    assert said == (
        "The query of cell 1 fails and is started again; the other cells are read. See the log of g-1, which says of cell 1: "
        "out of luck"
    )


@pytest.mark.parametrize(
    ("cells", "fits"),
    [
        (3, ("True", "CellsDivide", "3 cells of as many partitions each, in every topic.")),
        (
            4,
            (
                "False",
                "CellsDoNotDivide",
                "spec.state.cells (4) does not divide the number of partitions: clicks has 6 partitions, views has 3 "
                "partitions. A key is in another cell there than in other topics, and changes its cell when the topic grows.",
            ),
        ),
    ],
)
def test_the_number_of_cells_fits_if_it_divides_the_partitions_of_every_topic(cells: int, fits: tuple[str, str, str]) -> None:
    shards = held(*["g-0"] * 6) + held(*["g-0"] * 3, topic="views")
    assert told(shards, cells)["CellsFit"] == fits


def test_whether_they_fit_is_not_known_before_the_topics_are() -> None:
    assert told([], 3, discovered=False)["CellsFit"][:2] == ("Unknown", "Discovering")


def test_a_group_without_cells_is_told_nothing_of_them() -> None:
    assert told(held("g-0"), 0).keys().isdisjoint({"StateLost", "CellsFit"})


def test_there_are_never_more_consumers_than_cells() -> None:
    each = Scaling(shards_per_consumer=1)
    seen = observation(declared=declared(settings=GroupSettings(cells=3), scaling=each), view=view(held(*["g-0"] * 8)))
    decision = decide(seen)
    assert (decision.desired, decision.message) == (3, "8 shards to read, in 3 cells: 3 consumers, one for each.")
    fewer = observation(
        declared=declared(settings=GroupSettings(cells=3), scaling=Scaling(shards_per_consumer=4)),
        view=view(held(*["g-0"] * 8)),
    )
    assert decide(fewer).desired == 2
