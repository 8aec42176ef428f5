"""The readers of JSON and Avro, and the copying of their texts, as functions to call, loaded without numba.

`json_column`, `avro_column` and `arrow_columns` call them; `compiled.machine_code` says how they are loaded.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shardherd.source.compiled.machine_code import Library

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]
Ints = npt.NDArray[np.int32]

_BASE = ("values/value_layout.py", "values/json_bytes.py", "values/bytes_kernels.py")

TEXTS = Library(
    "texts",
    "shardherd.source.values.bytes_kernels",
    _BASE,
    {"text_bound": "lbn", "gather_text": "Blbnib"},
)
JSON = Library(
    "json",
    "shardherd.source.values.json_kernels",
    (*_BASE, "values/json_tokens.py", "values/json_kernels.py"),
    {"documents": "BIBnTBLllbllLLtltlbl"},
)
AVRO = Library(
    "avro",
    "shardherd.source.values.avro_kernels",
    (*_BASE, "values/avro_schema.py", "values/avro_kernels.py"),
    {"records": "BInBLnTLTllblltbl"},
)
LIBRARIES = (TEXTS, JSON, AVRO)


def text_bound(words: Longs, valid: Bytes, count: int) -> int:
    """See `bytes_kernels.text_bound`."""
    return TEXTS.functions()["text_bound"](words, valid, count)


def gather_text(texts: Bytes, words: Longs, valid: Bytes, count: int, ends: Ints, out: Bytes) -> int:
    """See `bytes_kernels.gather_text`."""
    return TEXTS.functions()["gather_text"](texts, words, valid, count, ends, out)


def documents(*arguments: Bytes | Longs | Ints | int) -> int:
    """See `json_kernels.documents`."""
    return JSON.functions()["documents"](*arguments)


def avro_records(*arguments: Bytes | Longs | Ints | int) -> int:
    """See `avro_kernels.records`."""
    return AVRO.functions()["records"](*arguments)
