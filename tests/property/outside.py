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

single: Any = avro_kernels._single
_njit: Any = numba.njit
END = 16
"""Items that a piece may touch of an array that has more, before and behind them."""


@_njit
def _load8(data: Any, at: Any) -> None:
    load8(until(memory(data), END), at)


@_njit
def _load64(data: Any, at: Any) -> None:
    load64(until(memory(data), END), at)


@_njit
def _single(data: Any, at: Any) -> None:
    single(until(memory(data), END), at)


@_njit
def _word_at(data: Any, at: Any) -> None:
    word_at(until(memory(data), END), at)


@_njit
def _store8(data: Any, at: Any) -> None:
    store8(until(memory(data), END), at, np.int64(0))


@_njit
def _store64(data: Any, at: Any) -> None:
    store64(until(memory(data), END), at, np.uint64(0))


@_njit
def _put_word(data: Any, at: Any) -> None:
    put_word(until(memory(data), END), at, np.int64(0))


@_njit
def _put_double(data: Any, at: Any) -> None:
    put_double(until(memory(data), END), at, 0.0)


PIECES: tuple[tuple[Callable[..., None], Any, int], ...] = (
    (_load8, np.uint8, 1), (_load64, np.uint8, 8), (_single, np.uint8, 4), (_word_at, np.int64, 1), (_store8, np.uint8, 1),
    (_store64, np.uint8, 8), (_put_word, np.int64, 1), (_put_double, np.int64, 1),
)  # fmt: skip


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
    for touch, dtype, items in PIECES:
        data = np.zeros(3 * END, dtype)[END:]
        touch(data, 0)
        touch(data, END - items)
        for at in (-1, END - items + 1):
            try:
                touch(data, at)
            except IndexError:
                continue
            yield f"{touch.__name__} at {at}"
    for name, decoder, raw, claimed in COLUMNS:
        buffers = Mock(return_value=lying(raw, claimed))
        try:
            with patch.object(json_column, "buffers_of", buffers), patch.object(avro_column, "buffers_of", buffers):
                decoder().decode(pa.array([raw], pa.binary()))
        except IndexError:
            continue
        yield name


if __name__ == "__main__":
    for each in unstopped():
        print(each)
