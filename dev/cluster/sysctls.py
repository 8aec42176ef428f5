"""Decides which kernel settings are put back after the last instance. Called by `cluster`.

The kubelet writes these at its start; they belong to the whole machine, not to a namespace.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

NAMES = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
ROOT = Path("/proc/sys")


def read() -> dict[str, str]:
    """The present value of each."""
    return {name: (ROOT / name).read_text().strip() for name in NAMES if (ROOT / name).exists()}


def write(values: Mapping[str, str]) -> None:
    """Set each to a value that `read` gave, where it differs."""
    for name, value in values.items():
        if (ROOT / name).read_text().strip() != value:
            (ROOT / name).write_text(value + "\n")
