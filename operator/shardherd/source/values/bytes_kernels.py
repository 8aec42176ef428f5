"""Compiled pieces that read and write memory by its address, for the readers of this package.

Nothing here checks a bound: callers do. An address costs a call less than an array does, and no index is looked at twice.
With NUMBA_BOUNDSCHECK=1, as tests set it, the same code is compiled with arrays where else there are addresses, and an access
outside of its array, or beyond the end of the value that is read, raises IndexError.
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
from numba.extending import intrinsic, register_jitable

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
from shardherd.source.values.value_layout import DOMAIN, ESCAPED, NODE_FIELDS

F = TypeVar("F", bound=Callable[..., Any])

_njit: Any = numba.njit
_config: Any = numba.config
_inlined: Any = register_jitable
_intrinsic: Any = intrinsic

POWERS = np.array([10**k for k in range(19)], np.int64)
NOTHING = -(2**62)
"""What stands for a number that was not found."""

CHECKED = bool(_config.BOUNDSCHECK)
"""Whether accesses are checked. Never in what is compiled beforehand."""


def _array(item: Any, *, readonly: bool) -> Any:
    return types.Array(item, 1, "C", readonly=readonly)


_ARGUMENTS: dict[str, Any] = {"n": types.int64, "A": _array(types.int64, readonly=True)} | {
    letter: _array(item, readonly=letter.isupper()) if CHECKED else types.int64
    for letter, item in (("B", types.uint8), ("b", types.uint8), ("L", types.int64), ("l", types.int64))
}


def compiled(arguments: str, result: Any = types.int64, *, inline: bool = False) -> Callable[[F], F]:
    """A piece for other compiled functions, by numba's njit with a declared signature.

    A letter for each argument: n is a number, A an array of words. B and L are `memory` of bytes and of words, small letters
    memory that is written to.
    Not cached: numba's cache does not see that a piece in another file has changed.
    """
    signature = result(*[_ARGUMENTS[letter] for letter in arguments])

    def wrap(function: F) -> F:
        made: F = _njit(signature, nogil=True, error_model="numpy", inline="always" if inline else "never")(function)
        return made

    return wrap


def _flat(array: Any) -> Any:
    return array.reshape(-1)


def _address(array: Any) -> Any:
    return np.int64(array.ctypes.data)


def _cut(data: Any, end: Any) -> Any:
    return data[:end]


def _whole(data: Any, _end: Any) -> Any:
    return data


memory: Any = _inlined(_flat if CHECKED else _address)
"""An array as the pieces take it."""

until: Any = _inlined(_cut if CHECKED else _whole)
"""Memory in which nothing may be looked at from an index on."""


def _looked_at(touch: Any, items: int) -> Any:
    """An access that touches so many items of its memory from its index on; where accesses are checked, it looks first."""

    def looking(memory: Any, index: Any, *more: Any) -> Any:
        if index < 0 or index + items > len(memory):
            raise IndexError("an access outside of an array, or beyond the end of a value")
        return touch(memory.ctypes.data, index, *more)

    return _inlined(looking) if CHECKED else touch


def _pointer(builder: Any, kind: Any, address: Any, index: Any, *, words: bool) -> Any:
    by = builder.shl(index, index.type(3)) if words else index
    return builder.inttoptr(builder.add(address, by), kind.as_pointer())


def loads(kind: Any, result: Any, widened: Callable[[Any, Any], Any] | None = None, *, words: bool = False) -> Any:
    """A compiled function of memory and an index, of a byte or a word of it, that gives what is there.

    `kind` is LLVM's type of it, `result` numba's of what `widened` makes of it.
    """

    @_intrinsic  # type: ignore[untyped-decorator]
    def load(_typing: Any, _address: Any, _index: Any) -> Any:
        def code(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            found = builder.load(_pointer(builder, kind, *arguments, words=words), align=8 if words else 1)
            return found if widened is None else widened(builder, found)

        return result(types.int64, types.int64), code

    return _looked_at(load, 1 if words else _SIZES[kind])


def _stores(kind: Any, given: Any, *, words: bool = False) -> Any:
    """A compiled function of memory, an index, of a byte or a word of it, and a number of type `given` to be written there."""

    @_intrinsic  # type: ignore[untyped-decorator]
    def store(_typing: Any, _address: Any, _index: Any, _value: Any) -> Any:
        def code(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            address, index, value = arguments
            if kind == _BYTE:
                value = builder.trunc(value, kind)
            builder.store(value, _pointer(builder, kind, address, index, words=words), align=8 if words else 1)
            return context.get_dummy_value()

        return types.none(types.int64, types.int64, given), code

    return _looked_at(store, 1 if words else _SIZES[kind])


SINGLE = ir.FloatType()
_BYTE, _WORD, _DOUBLE = ir.IntType(8), ir.IntType(64), ir.DoubleType()
_SIZES = {_BYTE: 1, SINGLE: 4, _WORD: 8}

load8 = loads(_BYTE, types.int64, lambda builder, byte: builder.zext(byte, _WORD))
load64 = loads(_WORD, types.uint64)
"""Eight bytes as one little-endian word."""

word_at = loads(_WORD, types.int64, words=True)
store8, store64 = _stores(_BYTE, types.int64), _stores(_WORD, types.uint64)
put_word, put_double = _stores(_WORD, types.int64, words=True), _stores(_DOUBLE, types.float64, words=True)


@_intrinsic  # type: ignore[untyped-decorator]
def trailing_zeros(_typing: Any, _word: Any) -> Any:
    """How many low bits of a word that is not 0 are 0."""

    def code(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], cgutils.true_bit)

    return types.int64(types.uint64), code


@compiled("Lnn", inline=True)
def node_field(nodes: Any, node: Any, which: Any) -> Any:
    """A column of a node's row in the table."""
    return word_at(nodes, node * NODE_FIELDS + which)


@compiled("bnn")
def put_utf8(out: Any, at: Any, code: Any) -> Any:
    """Write a code point as UTF-8; returns the position after it."""
    if code < 0x80:
        store8(out, at, code)
        return at + 1
    size = 2 if code < 0x800 else 3 if code < BEYOND else 4
    for left in range(size - 1, 0, -1):
        store8(out, at + left, 0x80 | (code & 0x3F))
        code >>= 6
    store8(out, at, ((0xF00 >> size) & 0xFF) | code)
    return at + size


@compiled("Bn")
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


def gather_text(texts: Any, words: Any, valid: Any, count: Any, ends: Any, out: Any) -> Any:
    """Copy the strings of a plane, whose words point into `texts`, one after another, JSON's escapes resolved.

    `ends` gets their ends, from ends[1] on; `out` has room for `text_bound` bytes and eight more. Returns their number.
    """
    to = np.int64(0)
    data, size, target = memory(texts), len(texts), memory(out)
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
                        store8(target, to, c)
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
                        to = put_utf8(target, to, code)
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
                    store8(target, to, c)
                    to += 1
            elif at + length + 8 <= size:
                k = np.int64(0)
                while k < length:
                    store64(target, to + k, load64(data, at + k))
                    k += 8
                to += length
            else:
                for j in range(length):
                    store8(target, to + j, load8(data, at + j))
                to += length
        ends[i + 1] = to
    return to


@_inlined  # type: ignore[untyped-decorator]
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
