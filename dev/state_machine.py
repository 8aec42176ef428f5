"""Writes the diagram and the table of docs/state-machine.md from the state table in `core.group.fsm`.

`python -m dev.state_machine` rewrites every document that has the markers; a test fails while one is out of date. It changes
nothing outside of its markers.
"""

from __future__ import annotations

import sys
from pathlib import Path

from shardherd.core.group.fsm import MEANINGS, TRANSITIONS
from shardherd.core.model.nouns import ShardState

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
DOCUMENT = DOCS / "state-machine.md"


def diagram() -> str:
    """The state table as a Mermaid diagram: one arrow for each pair of states, with the numbers and causes of its edges."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for (before, cause), edge in sorted(TRANSITIONS.items(), key=lambda item: item[1].number):
        arrows.setdefault((before or "[*]", edge.to), []).append(f"{edge.number} {cause}")
    lines = ["```mermaid", "stateDiagram-v2"]
    lines += [f"    {before} --> {after}: {', '.join(causes)}" for (before, after), causes in arrows.items()]
    return "\n".join([*lines, "```"])


def table() -> str:
    """Every edge with what causes it, by its number in the specification."""
    rows = ["| # | from | to | cause | when |", "|---|---|---|---|---|"]
    for (before, cause), edge in sorted(TRANSITIONS.items(), key=lambda item: (item[1].number, str(item[0][0]), item[0][1])):
        shown = f"`{before}`" if before is not None else "(new)"
        rows.append(f"| {edge.number} | {shown} | `{edge.to}` | `{cause}` | {MEANINGS[cause]} |")
    return "\n".join(rows)


def refused() -> str:
    """How many pairs there are, and how many of them are not in the table."""
    pairs = (len(ShardState) + 1) * len(MEANINGS)
    return f"{pairs - len(TRANSITIONS)} of the {pairs} pairs of a state (or a new shard) and a cause are refused."


def rendered(document: str) -> str:
    """The document with each part whose markers it has as it should be now."""
    for name, part in {"states": diagram(), "transitions": table(), "refused": refused()}.items():
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        if begin in document:
            head, rest = document.split(begin, 1)
            document = f"{head}{begin}\n{part}\n{end}{rest.split(end, 1)[1]}"
    return document


if __name__ == "__main__":
    for path in sorted(DOCS.glob("*.md")):
        before = path.read_text()
        if rendered(before) != before:
            path.write_text(rendered(before))
            sys.stdout.write(f"{path.relative_to(ROOT)}\n")
