"""The lines of Python that the documentation shows, for another broker, topic and folder than its examples name."""

from __future__ import annotations

import re
from pathlib import Path

DOCUMENTS = Path(__file__).parents[3] / "docs"


def lines_of(document: str, number: int, **instead: str) -> str:
    """The n-th block of Python of a page. `instead`: what takes the place of an example's name, which must be there."""
    found: str = re.findall(r"```python\n(.*?)```", (DOCUMENTS / document).read_text(), re.DOTALL)[number]
    for old, new in instead.items():
        assert old in found, f"{document} does not say {old!r}"
        found = found.replace(old, new)
    return found


def ten_lines(bootstrap: str, topic: str, folder: Path) -> str:
    """The ten lines that read a topic without an operator; they write to `folder`/clicks."""
    return lines_of("source.md", 0, **{"localhost:9092": bootstrap, '"clicks"': f'"{topic}"', "/tmp/": f"{folder}/"})
