"""Decides how the files of a release are sealed; `sha256sum --check SHA256SUMS` checks them. Called by the command."""

from __future__ import annotations

import hashlib
from pathlib import Path

NAME = "SHA256SUMS"


def write(folder: Path) -> Path:
    """Write the sums of all files of a folder, by name."""
    lines = []
    for path in sorted(each for each in folder.iterdir() if each.is_file() and each.name != NAME):
        with path.open("rb") as file:
            lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.name}\n")
    sums = folder / NAME
    sums.write_text("".join(lines))
    return sums
