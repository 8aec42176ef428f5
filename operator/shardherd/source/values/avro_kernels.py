"""The compiled reader of Avro values: follows a program of steps and fills the planes of a layout.

Called by `avro_column` only. It reads what is well formed; any error, and the few things that Java reads in a way of its own
(an overlong integer, a key twice in a map, a default that is a text), give the status SLOW, and the planes are as if the value
had not been there. It never reads outside of a value.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from shardherd.source.values.avro_schema import (
    ARRAY,
    AS_DOUBLE,
    AS_FLOAT,
    BOOLEAN,
    BYTES,
    CODE,
    DECIMAL_BYTES,
    DECIMAL_FIXED,
    DEFAULT,
    DOUBLE,
    ENUM,
    FIRST,
    FIXED,
    FLOAT,
    INT,
    LONG,
    MAP,
    MEMBER,
    NODE,
    NULL,
    RECORD,
    SECOND,
    STEP_FIELDS,
    UNION,
)
from shardherd.source.values.bytes_kernels import (
    NOTHING,
    POWERS,
    SINGLE,
    compiled,
    forget,
    load8,
    load64,
    loads,
    memory,
    node_field,
    put_double,
    put_word,
    store8,
    until,
    word_at,
)
from shardherd.source.values.value_layout import ABSENT, CHILD, DOMAIN, FAST, MAX_DEPTH, SLOW

_MAX_KEYS = 64

_MORE = 0x80
"""The bit of a varint's byte that says that another one follows."""

_SIGN = 0x80
"""The bit of a number's first byte that is its sign."""

_LENGTH = 0xFFFFFFFF
"""The half of a text's word that is its length; the other one is where it begins."""

_LEAST_INT, _MOST_INT = -(2**31), 2**31 - 1

_MOST_MILLIS = 9_223_372_036_854_775
"""Milliseconds that still fit Spark's microseconds, before or after 1970."""

_types: Any = types
_PAIR = _types.UniTuple(types.int64, 2)


_single = loads(SINGLE, types.float64, lambda builder, number: builder.fpext(number, ir.DoubleType()))
"""A 32-bit floating-point number, widened."""


@compiled("Bnn", _PAIR)
def _varint(data: Any, at: Any, end: Any) -> Any:
    """A zigzag integer of up to nine bytes: (the number, the position after it or -1). Longer ones are rare and left out."""
    value = np.uint64(0)
    shift = np.uint64(0)
    while at < end and shift < np.uint64(63):
        byte = np.uint64(load8(data, at))
        at += 1
        value |= (byte & np.uint64(_MORE - 1)) << shift
        if byte < np.uint64(_MORE):
            return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1)), at
        shift += np.uint64(7)
    return np.int64(0), np.int64(-1)


@compiled("Bnnn")
def _decimal(data: Any, at: Any, size: Any, precision: Any) -> Any:
    """The big-endian integer of up to eight bytes, NOTHING if it is longer or has more digits than that."""
    if size < 1 or size > 8:
        return np.int64(NOTHING)
    value = np.int64(0) if load8(data, at) < _SIGN else np.int64(-1)
    for i in range(size):
        value = (value << 8) | load8(data, at + i)
    if precision <= 18 and (value >= POWERS[precision] or value <= -POWERS[precision]):
        return np.int64(NOTHING)
    return value if value > NOTHING else np.int64(NOTHING)


@compiled("Blnn")
def _repeated(data: Any, values: Any, begin: Any, end: Any) -> Any:
    """Whether two of a map's keys, the words begin to end, are the same; 1 also if there are too many to say."""
    if end - begin > _MAX_KEYS:
        return 1
    for i in range(begin + 1, end):
        one = word_at(values, i)
        for j in range(begin, i):
            other = word_at(values, j)
            if (one ^ other) & _LENGTH:
                continue
            same = 1
            for k in range(one & _LENGTH):
                if load8(data, (one >> 32) + k) != load8(data, (other >> 32) + k):
                    same = 0
                    break
            if same:
                return 1
    return 0


@compiled("Lnn", inline=True)
def _field(steps: Any, step: Any, which: Any) -> Any:
    return word_at(steps, step * STEP_FIELDS + which)


@compiled("Ln", inline=True)
def _domain_below(nodes: Any, node: Any) -> Any:
    return node_field(nodes, node_field(nodes, node, CHILD), DOMAIN)


@compiled("BnnnnLLLLlbll")
def _record(
    data: Any, at: Any, end: Any, step: Any, row: Any, steps: Any, lists: Any, nodes: Any, bases: Any, values: Any, valid: Any,
    counts: Any, stack: Any,
) -> Any:  # fmt: skip
    """Read one value by `step` into slot `row`. Returns FAST or SLOW; the caller undoes what a SLOW one has left."""
    depth = np.int64(0)  # frames on the stack: step, slot, what is left of it, where its elements begin
    slot = np.int64(row)
    elements = end - at  # each element takes a byte, or there are more of them than room was made for
    while True:
        code, node = _field(steps, step, CODE), _field(steps, step, NODE)
        first = _field(steps, step, FIRST)
        place = word_at(bases, node) + slot if node >= 0 else np.int64(0)
        wanted = node >= 0
        if code == INT or code == LONG:
            number, at = _varint(data, at, end)
            if at < 0:
                return SLOW
            if code == INT and (number < _LEAST_INT or number > _MOST_INT):
                return SLOW
            if wanted:
                form = _field(steps, step, SECOND)
                if form == AS_DOUBLE:
                    put_double(values, place, np.float64(number))
                elif form == AS_FLOAT:
                    put_double(values, place, np.float64(np.float32(number)))
                else:
                    if first != 1 and (number > _MOST_MILLIS or number < -_MOST_MILLIS):
                        return SLOW
                    put_word(values, place, number * first)
        elif code == BYTES or code == DECIMAL_BYTES:
            size, at = _varint(data, at, end)
            if at < 0 or size < 0 or size > end - at:
                return SLOW
            if wanted:
                word = (at << 32) | size
                if code == DECIMAL_BYTES:
                    word = _decimal(data, at, size, first)
                    if word == NOTHING:
                        return SLOW
                put_word(values, place, word)
            at += size
        elif code == DOUBLE:
            if end - at < 8:
                return SLOW
            if wanted:
                put_word(values, place, np.int64(load64(data, at)))
            at += 8
        elif code == FLOAT:
            if end - at < 4:
                return SLOW
            if wanted:
                put_double(values, place, _single(data, at))
            at += 4
        elif code == BOOLEAN:
            if at >= end or load8(data, at) > 1:
                return SLOW
            if wanted:
                put_word(values, place, load8(data, at))
            at += 1
        elif code == ENUM:
            number, at = _varint(data, at, end)
            if at < 0 or number < 0 or number >= _field(steps, step, SECOND):
                return SLOW
            number = word_at(lists, first + number)
            if number < 0:
                return SLOW
            if wanted:
                put_word(values, place, number)
        elif code == FIXED or code == DECIMAL_FIXED:
            if first > end - at:
                return SLOW
            if wanted:
                word = (at << 32) | first
                if code == DECIMAL_FIXED:
                    word = _decimal(data, at, first, _field(steps, step, SECOND))
                    if word == NOTHING:
                        return SLOW
                put_word(values, place, word)
            at += first
        elif code == UNION:
            number, at = _varint(data, at, end)
            if at < 0 or number < 0 or number >= _field(steps, step, SECOND):
                return SLOW
            step = word_at(lists, first + number)
            continue
        elif code == MEMBER:
            store8(valid, place, 1)
            step = first
            continue
        elif code == DEFAULT:
            if first == 0:
                return SLOW
            put_word(values, place, _field(steps, step, SECOND))
        elif code == RECORD or code == ARRAY or code == MAP:
            if depth >= MAX_DEPTH:
                return SLOW
            put_word(stack, 4 * depth, step)
            put_word(stack, 4 * depth + 1, slot)
            put_word(stack, 4 * depth + 2, np.int64(0))
            if code != RECORD and wanted:
                put_word(stack, 4 * depth + 3, word_at(counts, _domain_below(nodes, node)))
            depth += 1
        elif code != NULL:
            return SLOW
        if wanted and code != NULL:
            store8(valid, place, 1)
        # --- what comes next
        while True:
            if depth == 0:
                return FAST
            top = 4 * (depth - 1)
            step = word_at(stack, top)
            slot = word_at(stack, top + 1)
            left = word_at(stack, top + 2)
            code, node = _field(steps, step, CODE), _field(steps, step, NODE)
            if code == RECORD:
                if left < _field(steps, step, SECOND):
                    put_word(stack, top + 2, left + 1)
                    step = word_at(lists, _field(steps, step, FIRST) + left)
                    break
                depth -= 1
                continue
            if left == 0:
                left, at = _varint(data, at, end)
                if at < 0:
                    return SLOW
                if left < 0:
                    # A negative count is followed by the block's size in bytes.
                    left = -left
                    _size, at = _varint(data, at, end)
                    if at < 0:
                        return SLOW
                elements -= left
                if elements < 0:
                    return SLOW
                if left == 0:
                    if node >= 0:
                        begin = word_at(stack, top + 3)
                        size = word_at(counts, _domain_below(nodes, node)) - begin
                        put_word(values, word_at(bases, node) + slot, size)
                        if code == MAP and size > 1:
                            begin += word_at(bases, node_field(nodes, node, CHILD))
                            if _repeated(data, values, begin, begin + size):
                                return SLOW
                    depth -= 1
                    continue
            put_word(stack, top + 2, left - 1)
            if node >= 0:
                domain = _domain_below(nodes, node)
                slot = word_at(counts, domain)
                put_word(counts, domain, slot + 1)
            if code == MAP:
                size, at = _varint(data, at, end)
                if at < 0 or size < 0 or size > end - at:
                    return SLOW
                if node >= 0:
                    place = word_at(bases, node_field(nodes, node, CHILD)) + slot
                    put_word(values, place, (at << 32) | size)
                    store8(valid, place, 1)
                at += size
            step = _field(steps, step, FIRST)
            break


def records(
    raw: Any, offsets: Any, header: Any, present: Any, roots: Any, row: Any, steps: Any, lists: Any, nodes: Any, bases: Any,
    values: Any, valid: Any, counts: Any, capacities: Any, stack: Any, status: Any, before: Any,
) -> Any:  # fmt: skip
    """Read values from `row` on: value i is raw[offsets[i] + header : offsets[i + 1]].

    Its first step is roots[i], below 0 if it cannot be read. Returns the first row that was not read because a domain may not
    have room for it, or the number of rows. `present` may be empty: all are there. `before` is scratch, a word for each domain.
    """
    rows = len(offsets) - 1
    domains = len(counts)
    data = memory(raw)
    while row < rows:
        if len(present) > 0 and present[row] == 0:
            status[row] = ABSENT
            row += 1
            continue
        at, end = np.int64(offsets[row]) + header, np.int64(offsets[row + 1])
        if roots[row] < 0 or at > end:
            status[row] = SLOW
            row += 1
            continue
        for domain in range(1, domains):
            if counts[domain] + end - at > capacities[domain]:
                return row
            before[domain] = counts[domain]
        status[row] = _record(
            until(data, end), at, end, roots[row], row, memory(steps), memory(lists), memory(nodes), memory(bases),
            memory(values), memory(valid), memory(counts), memory(stack),
        )  # fmt: skip
        if status[row] == SLOW:
            forget(nodes, bases, valid, counts, before, row)
        row += 1
    return row
