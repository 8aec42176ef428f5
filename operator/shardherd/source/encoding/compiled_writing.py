"""The inner loops of encoding (`record_writing`) as functions to call, loaded without numba: see `compiled.machine_code`.

`record_encoding` calls them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shardherd.source.compiled.machine_code import Library

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]
Ints = npt.NDArray[np.int32]

WRITING = Library(
    "writing",
    "shardherd.source.encoding.record_writing",
    ("encoding/record_writing.py",),
    {"place": "IBBln", "write": "LnnLIBBIBBIBbl"},
)
LIBRARIES = (WRITING,)


def place(key_at: Ints, keys: Bytes, key_there: Bytes, placed: Longs, count: int) -> int:
    """See `record_writing.place`."""
    return WRITING.functions()["place"](key_at, keys, key_there, placed, count)


def write(*arguments: Bytes | Longs | Ints | int) -> int:
    """See `record_writing.write`."""
    return WRITING.functions()["write"](*arguments)
