"""The inner loops of decoding (`record_kernels`) as functions to call, loaded without numba: see `compiled.machine_code`.

`record_batches` and `record_rows` call them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from shardherd.source.compiled.machine_code import Library, ending_with

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]
Ints = npt.NDArray[np.int32]

KERNELS = Library(
    "kernels",
    "shardherd.source.decoding.record_kernels",
    ("decoding/record_layout.py", "decoding/record_kernels.py"),
    {
        "count_batches": "B",
        "scan": "Bt",
        "pack": "IBBb",
        "records": "BBtnnnn" + "lli" + "ibb" + "ibb" + "ib" + "ib" + "ibb" + "l",
    },
)
LIBRARIES = (KERNELS,)


def count_batches(data: Bytes) -> int:
    """See `record_kernels.count_batches`."""
    return KERNELS.functions()["count_batches"](data)


def scan(data: Bytes, batches: Longs) -> int:
    """See `record_kernels.scan`."""
    return KERNELS.functions()["scan"](data, batches)


def pack(ends: Ints, given: Bytes, data: Bytes, into: Bytes) -> int:
    """See `record_kernels.pack`."""
    return KERNELS.functions()["pack"](ends, given, data, into)


def records(*columns: Bytes | Longs | Ints) -> Callable[..., int]:
    """`record_kernels.records` for these columns and their cursor: it is called with the arguments before them."""
    return ending_with(KERNELS.functions()["records"], *columns)
