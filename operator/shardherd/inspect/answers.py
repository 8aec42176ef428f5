"""An answer of a command: values for `-o json` and `-o yaml`, and the sections of its text.

Made by the functions that report, written by `printing`. Pure: equal observations give equal answers and equal text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shardherd.core.planning.listing import NOTHING, table

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True)
class Section:
    """A table, lines, or both under a title. Columns named in `wide` are shown on request only."""

    title: str = ""
    heads: tuple[str, ...] = ()
    rows: tuple[tuple[object, ...], ...] = ()
    wide: frozenset[str] = frozenset()
    lines: tuple[str, ...] = ()
    none: str = ""

    def text(self, *, wide: bool) -> list[str]:
        """Its lines. `none` stands in the place of a table without rows."""
        found = [plain(self.title)] if self.title else []
        if self.heads and (self.rows or not self.none):
            kept = [at for at, head in enumerate(self.heads) if wide or head not in self.wide]
            found += table([self.heads[at] for at in kept], ([cell(row[at]) for at in kept] for row in self.rows))
        elif self.none:
            found.append(plain(self.none))
        return [*found, *(plain(line, keep="\n") for line in self.lines)]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command has to say, and the exit code that goes with it."""

    data: object
    sections: tuple[Section, ...]
    code: int = 0

    def text(self, *, wide: bool = False) -> str:
        """The sections with an empty line between them."""
        parts = ("\n".join(section.text(wide=wide)) for section in self.sections)
        return "\n\n".join(part for part in parts if part) + "\n"


def cell(value: object) -> str:
    """A value in a table."""
    if value is None or value == "":
        return NOTHING
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else plain(str(value))


def plain(text: str, keep: str = "") -> str:
    """The text without what a terminal obeys: Events and errors quote what applications wrote."""
    return _CONTROL.sub(lambda found: found[0] if found[0] in keep else " ", text)


def keyed(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> list[dict[str, object]]:
    """The rows as objects, by these names."""
    return [dict(zip(heads, row, strict=True)) for row in rows]


def notes(unseen: Iterable[str]) -> Section:
    """What could not be read, last of all."""
    return Section(lines=tuple(f"Not read: {each}" for each in unseen))
