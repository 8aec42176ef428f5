"""Compiled pieces that read and write memory by its address, for the readers of this package.

Nothing here checks a bound: callers do. An address costs a call less than an array does, and no index is looked at twice.
`compiled_values` says what is called from outside, and by which signature.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from shardherd.source.values.json_bytes import (
    BACKSLASH,
    BACKSPACE,
    BEYOND,
    CARRIAGE_RETURN,
    FORM_FEED,
    HIGH_SURROGATES,
    LINE_FEED,
    LOW_SURROGATES,
    LOWER_A,
    LOWER_B,
    LOWER_F,
    LOWER_N,
    LOWER_R,
    LOWER_T,
    LOWER_U,
    NINE,
    TAB,
    UPPER_A,
    UPPER_F,
    ZERO,
)
from shardherd.source.values.value_layout import DOMAIN, ESCAPED

F = TypeVar("F", bound=Callable[..., Any])

_types: Any = types
_njit: Any = numba.njit
OUT_BYTES = types.uint8[::1]
WORDS = types.int64[::1]


def compiled(*signature: Any, inline: bool = False) -> Callable[[F], F]:
    """A piece for other compiled functions, by numba's njit with a declared signature.

    Not cached: numba's cache does not see that a piece in another file has changed.
    """

    def wrap(function: F) -> F:
        made: F = _njit(*signature, nogil=True, error_model="numpy", inline="always" if inline else "never")(function)
        return made

    return wrap


def builtin(function: Callable[..., Any]) -> Callable[..., Any]:
    """numba's intrinsic: a function that gives its machine code. It is called without the function's first argument."""
    made: Callable[..., Any] = intrinsic(function)
    return made


def _pointer(builder: Any, bits: int, address: Any, index: Any) -> Any:
    return builder.inttoptr(builder.add(address, index), ir.IntType(bits).as_pointer())


@builtin
def load8(_typing: Any, _address: Any, _index: Any) -> Any:
    """The byte at an address plus an index."""

    def code(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.zext(builder.load(_pointer(builder, 8, *arguments), align=1), ir.IntType(64))

    return types.int64(types.int64, types.int64), code


@builtin
def load64(_typing: Any, _address: Any, _index: Any) -> Any:
    """The eight bytes from an address plus an index on, as one little-endian word."""

    def code(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.load(_pointer(builder, 64, *arguments), align=1)

    return types.uint64(types.int64, types.int64), code


@builtin
def store64(_typing: Any, _address: Any, _index: Any, _word: Any) -> Any:
    """Write eight bytes from an address plus an index on."""

    def code(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        to, at, value = arguments
        builder.store(value, _pointer(builder, 64, to, at), align=1)
        return context.get_dummy_value()

    return types.none(types.int64, types.int64, types.uint64), code


@builtin
def store8(_typing: Any, _address: Any, _index: Any, _byte: Any) -> Any:
    """Write the byte at an address plus an index."""

    def code(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        to, at, value = arguments
        builder.store(builder.trunc(value, ir.IntType(8)), _pointer(builder, 8, to, at), align=1)
        return context.get_dummy_value()

    return types.none(types.int64, types.int64, types.int64), code


@builtin
def word_at(_typing: Any, _address: Any, _index: Any) -> Any:
    """The word of this index in an array of words at an address."""

    def code(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        address, index = arguments
        return builder.load(_pointer(builder, 64, address, builder.shl(index, index.type(3))), align=8)

    return types.int64(types.int64, types.int64), code


@builtin
def put_word(_typing: Any, _address: Any, _index: Any, _word: Any) -> Any:
    """Write the word of this index in an array of words at an address."""

    def code(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        address, index, value = arguments
        builder.store(value, _pointer(builder, 64, address, builder.shl(index, index.type(3))), align=8)
        return context.get_dummy_value()

    return types.none(types.int64, types.int64, types.int64), code


@builtin
def put_double(_typing: Any, _address: Any, _index: Any, _number: Any) -> Any:
    """Write a floating-point number as the word of this index."""

    def code(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        address, index, value = arguments
        word = builder.bitcast(value, ir.IntType(64))
        builder.store(word, _pointer(builder, 64, address, builder.shl(index, index.type(3))), align=8)
        return context.get_dummy_value()

    return types.none(types.int64, types.int64, types.float64), code


@builtin
def trailing_zeros(_typing: Any, _word: Any) -> Any:
    """How many low bits of a word that is not 0 are 0."""

    def code(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], cgutils.true_bit)

    return types.int64(types.uint64), code


@compiled(_types.int64(OUT_BYTES, types.int64, types.int64))
def put_utf8(out: Any, at: Any, code: Any) -> Any:
    """Write a code point as UTF-8; returns the position after it."""
    if code < 0x80:
        out[at] = code
        return at + 1
    if code < 0x800:
        out[at] = 0xC0 | (code >> 6)
        out[at + 1] = 0x80 | (code & 0x3F)
        return at + 2
    if code < 0x10000:
        out[at] = 0xE0 | (code >> 12)
        out[at + 1] = 0x80 | ((code >> 6) & 0x3F)
        out[at + 2] = 0x80 | (code & 0x3F)
        return at + 3
    out[at] = 0xF0 | (code >> 18)
    out[at + 1] = 0x80 | ((code >> 12) & 0x3F)
    out[at + 2] = 0x80 | ((code >> 6) & 0x3F)
    out[at + 3] = 0x80 | (code & 0x3F)
    return at + 4


@compiled(_types.int64(types.int64, types.int64))
def hex4(data: Any, at: Any) -> Any:
    """The number of four hexadecimal digits, -1 if they are none."""
    value = np.int64(0)
    for i in range(4):
        c = load8(data, at + i)
        if ZERO <= c <= NINE:
            digit = c - ZERO
        elif UPPER_A <= c <= UPPER_F:
            digit = c - UPPER_A + 10
        elif LOWER_A <= c <= LOWER_F:
            digit = c - LOWER_A + 10
        else:
            return np.int64(-1)
        value = value * 16 + digit
    return value


def text_bound(words: Any, valid: Any, count: Any) -> Any:
    """At most how many bytes the strings of a plane have together."""
    total = np.int64(0)
    for i in range(count):
        if valid[i]:
            total += words[i] & (ESCAPED - 1)
    return total


def gather_text(data: Any, size: Any, words: Any, valid: Any, count: Any, ends: Any, out: Any) -> Any:
    """Copy the strings of a plane, whose bytes are at `data` (`size` in all), one after another, JSON's escapes resolved.

    `ends` gets their ends, from ends[1] on; `out` has room for `text_bound` bytes and eight more. Returns their number.
    """
    to = np.int64(0)
    target = np.int64(out.ctypes.data)
    for i in range(count):
        if valid[i]:
            word = words[i]
            at = word >> 32
            length = word & (ESCAPED - 1)
            if word & ESCAPED:
                stop = at + length
                while at < stop:
                    c = load8(data, at)
                    if c != BACKSLASH:
                        out[to] = c
                        to += 1
                        at += 1
                        continue
                    c = load8(data, at + 1)
                    at += 2
                    if c == LOWER_U:
                        code = hex4(data, at)
                        at += 4
                        if HIGH_SURROGATES <= code < LOW_SURROGATES:
                            code = BEYOND + ((code - HIGH_SURROGATES) << 10) + (hex4(data, at + 2) - LOW_SURROGATES)
                            at += 6
                        to = put_utf8(out, to, code)
                        continue
                    if c == LOWER_B:
                        c = np.int64(BACKSPACE)
                    elif c == LOWER_T:
                        c = np.int64(TAB)
                    elif c == LOWER_N:
                        c = np.int64(LINE_FEED)
                    elif c == LOWER_F:
                        c = np.int64(FORM_FEED)
                    elif c == LOWER_R:
                        c = np.int64(CARRIAGE_RETURN)
                    out[to] = c
                    to += 1
            elif at + length + 8 <= size:
                k = np.int64(0)
                while k < length:
                    store64(target, to + k, load64(data, at + k))
                    k += 8
                to += length
            else:
                for j in range(length):
                    out[to + j] = load8(data, at + j)
                to += length
        ends[i + 1] = to
    return to


@compiled(types.void(types.Array(types.int64, 2, "C", readonly=True), WORDS, OUT_BYTES, WORDS, WORDS, types.int64))
def forget(nodes: Any, bases: Any, valid: Any, counts: Any, before: Any, row: Any) -> None:
    """Take back what a record has written at `row` and, in the other domains, from the slots `before` on."""
    for node in range(len(nodes)):
        domain = nodes[node, DOMAIN]
        if domain == 0:
            valid[bases[node] + row] = 0
        else:
            for i in range(before[domain], counts[domain]):
                valid[bases[node] + i] = 0
    for domain in range(1, len(counts)):
        counts[domain] = before[domain]
