"""Decides how the files of a release are sealed; `sha256sum --check SHA256SUMS` checks them. Called by the command."""

from __future__ import annotations

import hashlib
from pathlib import Path

NAME = "SHA256SUMS"


def write(folder: Path) -> Path:
    """Write the sums of all files of a folder, by name."""
    files = sorted(each for each in folder.iterdir() if each.is_file() and each.name != NAME)
    sums = folder / NAME
    sums.write_text("".join(f"{of(path)}  {path.name}\n" for path in files))
    return sums


def of(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
