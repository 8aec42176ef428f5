"""What a column of raw values becomes, and the modes that say what happens to a value that cannot be read.

The decoders return it and `reading.typed_values` reads it. The modes are Spark's. It does not know how values are read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

PERMISSIVE, DROP_MALFORMED, FAIL_FAST = "PERMISSIVE", "DROPMALFORMED", "FAILFAST"
MODES = (PERMISSIVE, DROP_MALFORMED, FAIL_FAST)


class MalformedValueError(ValueError):
    """A value cannot be read and the mode is FAILFAST. `row` is its place in the column that was decoded."""

    def __init__(self, row: int, message: str) -> None:
        super().__init__(message)
        self.row = row


@dataclass(frozen=True, slots=True)
class Decoded:
    """A decoded column. `keep` says which rows stay (None: all), `slow` how many went the slow way, `malformed` how many were
    bad."""

    values: pa.Array[Any]
    keep: npt.NDArray[np.bool_] | None
    slow: int
    malformed: int


@dataclass(frozen=True, slots=True)
class Row:
    """What a value became that was read the slow way, and what was wrong with it, if anything.

    A struct is its values in order (None: it is null), strings are bytes, dates days, timestamps microseconds, decimals
    unscaled integers, maps lists of pairs.
    """

    values: Any
    trouble: str | None = None


class Decoder(Protocol):
    """Turns a column of raw values into typed ones."""

    def decode(self, values: pa.Array[Any]) -> Decoded:
        """A binary array as the typed column. Raises MalformedValueError in mode FAILFAST."""
