"""The page on the state machine is made from the table, and Mermaid can draw it."""

from __future__ import annotations

import re

import pytest

from dev.state_machine import DOCS, DOCUMENT, diagram, rendered
from shardherd.core.group.fsm import MEANINGS, TRANSITIONS, Cause

MARKERS = ("states", "transitions", "refused")


def test_the_page_has_every_part() -> None:
    text = DOCUMENT.read_text()
    assert [name for name in MARKERS if f"<!-- begin {name} -->" not in text or f"<!-- end {name} -->" not in text] == []


@pytest.mark.parametrize("name", sorted(path.name for path in DOCS.glob("*.md")))
def test_what_is_made_from_the_table_is_current(name: str) -> None:
    text = (DOCS / name).read_text()
    assert rendered(text) == text, "run: python -m dev.state_machine"


def test_a_page_that_was_changed_by_hand_or_made_from_another_table_is_stale() -> None:
    text = DOCUMENT.read_text()
    for changed in (
        text.replace("8 Finished", "8 Done"),
        text.replace("| 7 | `OVER`", "| 7 | `WAIT`"),
        text.replace("48 of", "47 of"),
    ):
        assert changed != text
        assert rendered(changed) == text


def test_the_diagram_has_every_edge_of_the_table_and_no_other() -> None:
    arrows = re.findall(r"^    (\S+) --> (\S+): (.+)$", diagram(), re.MULTILINE)
    drawn = {(before, after, cause) for before, after, causes in arrows for cause in causes.split(", ")}
    assert drawn == {
        (str(before or "[*]"), str(edge.to), f"{edge.number} {cause}") for (before, cause), edge in TRANSITIONS.items()
    }


def test_every_cause_is_explained() -> None:
    assert set(MEANINGS) == set(Cause)
