"""Touches what lies outside, on purpose: `python -m tests.property.outside` prints each access that was not stopped.

To be run with NUMBA_BOUNDSCHECK=1, where there must be none. Nothing else shows that the checked loops of `values` do check:
what they read goes by addresses, of which numba knows no bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import Mock, patch

import numba
import numpy as np
import pyarrow as pa

from shardherd.source.values import avro_column, avro_kernels, json_column
from shardherd.source.values.avro_column import AvroColumn
from shardherd.source.values.bytes_kernels import (
    load8,
    load64,
    memory,
    put_double,
    put_word,
    store8,
    store64,
    until,
    word_at,
)
from shardherd.source.values.decoded_values import PERMISSIVE, Decoder
from shardherd.source.values.value_format import ValueFormat

_njit: Callable[..., Callable[[Any, int], None]] = numba.njit
END = 16
"""Items that a piece may touch of an array that has more, before and behind them."""


def touching(access: Any, value: object = None) -> Callable[[Any, int], None]:
    """A compiled function that loads from, or writes `value` to, an index of an array of which the first `END` items may be."""
    if value is None:
        return _njit(lambda data, at: access(until(memory(data), END), at))
    return _njit(lambda data, at: access(until(memory(data), END), at, value))


PIECES: tuple[tuple[str, Callable[[Any, int], None], Any, int], ...] = (
    ("load8", touching(load8), np.uint8, 1),
    ("load64", touching(load64), np.uint8, 8),
    ("a load of 32 bits", touching(avro_kernels._single), np.uint8, 4),
    ("word_at", touching(word_at), np.int64, 1),
    ("store8", touching(store8, 0), np.uint8, 1),
    ("store64", touching(store64, np.uint64(0)), np.uint8, 8),
    ("put_word", touching(put_word, 0), np.int64, 1),
    ("put_double", touching(put_double, 0.0), np.int64, 1),
)


def lying(raw: bytes, claimed: int) -> tuple[Any, Any, Any]:
    """The buffers of a column with one value, which is said to have `claimed` bytes where there are those of `raw` only."""
    data = np.frombuffer(raw.ljust(claimed + 8, b" "), np.uint8)[: len(raw)]
    return data, np.array([0, claimed], np.int32), np.zeros(0, np.uint8)


def json_of(schema: str) -> Decoder:
    """A decoder of documents."""
    decoder = ValueFormat("json", schema).decoder("UTC")
    assert decoder is not None
    return decoder


def avro_of(kind: str) -> Decoder:
    """A decoder of a record with one field."""
    schema = f'{{"type":"record","name":"r","fields":[{{"name":"a","type":"{kind}"}}]}}'
    return AvroColumn(schema, mode=PERMISSIVE, registry_url=None)


COLUMNS: tuple[tuple[str, Callable[[], Decoder], bytes, int], ...] = (
    ("a text of JSON", lambda: json_of("a string"), b'{"a":"x', 40),
    ("a number of JSON", lambda: json_of("a int"), b'{"a":1', 40),
    ("a name of JSON", lambda: json_of("a int"), b'{"', 40),
    ("a field of JSON that nobody wants", lambda: json_of("a int"), b'{"b":[', 40),
    ("a double of Avro", lambda: avro_of("double"), b"\x00", 8),
    ("an integer of Avro", lambda: avro_of("long"), b"\x80", 8),
    ("a text of Avro, as it is copied", lambda: avro_of("string"), b"\x40", 33),
)


def unstopped() -> Iterator[str]:
    """What was touched outside, and nobody said so."""
    for name, touch, dtype, items in PIECES:
        data = np.zeros(3 * END, dtype)[END:]
        touch(data, 0)
        touch(data, END - items)
        for at in (-1, END - items + 1):
            try:
                touch(data, at)
            except IndexError:
                continue
            yield f"{name} at {at}"
    for what, decoder, raw, claimed in COLUMNS:
        buffers = Mock(return_value=lying(raw, claimed))
        try:
            with patch.object(json_column, "buffers_of", buffers), patch.object(avro_column, "buffers_of", buffers):
                decoder().decode(pa.array([raw], pa.binary()))
        except IndexError:
            continue
        yield what


if __name__ == "__main__":
    for each in unstopped():
        print(each)
