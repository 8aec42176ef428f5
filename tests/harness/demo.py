"""What the table of the demo must hold, wherever the demo runs: for the tests of both places."""

from __future__ import annotations

from collections.abc import Mapping

from dev.demo.account import Line, render
from dev.demo.story import Story
from tests.harness.cluster import Tell

Table = Mapping[str, Line]
"""The lines of a demo's table, by name."""

PROMISED = frozenset(
    {
        "end offsets of the topic, summed",
        "missing",
        "read but never produced",
        "duplicates before the kill",
        "duplicates after the kill",
        "duplicates at scale-in",
        "the killed consumer's 4 shards read by others after",
    }
)
"""The lines that must hold in both places."""


def played_table(story: Story, tell: Tell) -> Table:
    """The table of a story that was told to its end."""
    table = story.table()
    tell(render(table))
    return {line.name: line for line in table}


def promised(table: Table) -> set[str]:
    """The lines that say whether something holds."""
    return {name for name, line in table.items() if line.holds is not None}


def broken(table: Table) -> dict[str, str]:
    """What does not hold."""
    return {name: line.value for name, line in table.items() if line.holds is False}


def number(table: Table, name: str) -> int:
    """The figure of this line."""
    return int(table[name].value.replace(",", ""))


def moved_as_promised(table: Table) -> bool:
    """Whether as many shards moved as the story has move.

    Four to the third application, four away from the dead one, four back to it, and four away from it at scale-in. One consumer
    may be late at the first assignment, so that four more move to it from the other, which was given all eight. A drained one
    may not take shards back: they would move twice.
    """
    return 12 <= number(table, "shards moved, by the operator's metric") <= 20
