"""The compiled reader of JSON documents: fills the planes of a layout from every document that it can prove.

Compiled by `native`, called by `json_column` only. A document is proven if Spark's parser could only read it one way and every
value fits its field at once: strict JSON up to the object's end, valid UTF-8, known escapes, no name twice in an object, a
value of the field's own type. Whatever else comes up gives the status SLOW, and the planes are as if the document had not been
there. Malformed bytes never make it read outside of its document.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types

from shardherd.spark.values.bytes_kernels import (
    BYTES,
    OUT_BYTES,
    WORDS,
    compiled,
    forget,
    hex4,
    load8,
    load64,
    put_double,
    put_word,
    store8,
    trailing_zeros,
    word_at,
)
from shardherd.spark.values.layout import (
    ABSENT,
    ARRAY,
    BOOLEAN,
    CHILD,
    DATE,
    DECIMAL,
    DOMAIN,
    DOUBLE,
    EMPTY,
    ESCAPED,
    FAST,
    FIRST,
    FLOAT,
    HASH_AT,
    HASH_FACTOR,
    HASH_MASK,
    INTEGER,
    KIND,
    MAP,
    MAX_DEPTH,
    NAME_AT,
    NAME_SIZE,
    NODE_FIELDS,
    SECOND,
    SLOW,
    STRING,
    STRUCT,
    TIMESTAMP,
)

_MAX_NAME = 4096
_MAX_NUMBER = 300
_MAX_TEXT = 10_000_000

_types: Any = types
_TABLE = types.Array(types.int64, 2, "C", readonly=True)
_CONST_WORDS = types.Array(types.int64, 1, "C", readonly=True)

_LOW = np.uint64(0x0101010101010101)
_HIGH = np.uint64(0x8080808080808080)
_QUOTES = np.uint64(0x2222222222222222)
_SLASHES = np.uint64(0x5C5C5C5C5C5C5C5C)
_SPACES = np.uint64(0x2020202020202020)

_POWERS = np.array([10**k for k in range(19)], np.int64)
_TENS = np.array([10.0**k for k in range(23)], np.float64)
_MONTHS = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], np.int64)


@compiled(_types.int64(types.int64, types.int64, types.int64), inline=True)
def _space(data: Any, at: Any, end: Any) -> Any:
    while at < end and load8(data, at) <= 32:
        c = load8(data, at)
        if c != 32 and c != 10 and c != 13 and c != 9:
            return at
        at += 1
    return at


@compiled(_types.int64(types.int64, types.int64, types.int64))
def _sequence(data: Any, at: Any, end: Any) -> Any:
    """The position after a valid UTF-8 sequence of more than one byte, -1 if it is none."""
    first = load8(data, at)
    if first < 0xC2 or first > 0xF4:
        return -1
    size = 2 if first < 0xE0 else 3 if first < 0xF0 else 4
    if at + size > end:
        return -1
    second = load8(data, at + 1)
    if second & 0xC0 != 0x80:
        return -1
    if (first == 0xE0 and second < 0xA0) or (first == 0xED and second > 0x9F):
        return -1
    if (first == 0xF0 and second < 0x90) or (first == 0xF4 and second > 0x8F):
        return -1
    for i in range(2, size):
        if load8(data, at + i) & 0xC0 != 0x80:
            return -1
    return at + size


@compiled(_types.int64(types.int64, types.int64, types.int64))
def _text(data: Any, at: Any, end: Any) -> Any:
    """The position of a string's closing quote, from the position after its opening one; -1 if it is not proven.

    If there are escapes, it is the position with its bit 62 set.
    """
    escaped = np.int64(0)
    while True:
        while at + 8 <= end:
            word = load64(data, at)
            quote = word ^ _QUOTES
            slash = word ^ _SLASHES
            # Bytes that are a quote, a backslash, a control character or not ASCII; the lowest set bit is exact.
            found = (((quote - _LOW) & ~quote) | ((slash - _LOW) & ~slash) | (word - _SPACES) | word) & _HIGH
            if found:
                at += trailing_zeros(found) >> 3
                break
            at += 8
        if at >= end:
            return np.int64(-1)
        c = load8(data, at)
        if c == 34:
            return at | escaped
        if c == 92:
            escaped = np.int64(1) << 62
            if at + 1 >= end:
                return np.int64(-1)
            c = load8(data, at + 1)
            if c == 117:
                if at + 6 > end:
                    return np.int64(-1)
                code = hex4(data, at + 2)
                if code < 0 or 0xDC00 <= code < 0xE000:
                    return np.int64(-1)
                at += 6
                if 0xD800 <= code < 0xDC00:
                    if at + 6 > end or load8(data, at) != 92 or load8(data, at + 1) != 117:
                        return np.int64(-1)
                    code = hex4(data, at + 2)
                    if code < 0xDC00 or code >= 0xE000:
                        return np.int64(-1)
                    at += 6
            elif c == 34 or c == 92 or c == 47 or c == 98 or c == 102 or c == 110 or c == 114 or c == 116:
                at += 2
            else:
                return np.int64(-1)
        elif c >= 0x80:
            at = _sequence(data, at, end)
            if at < 0:
                return np.int64(-1)
        elif c < 32:
            return np.int64(-1)
        else:
            at += 1


_NUMBER = _types.UniTuple(types.int64, 5)


@compiled(_NUMBER(types.int64, types.int64, types.int64))
def _number(data: Any, at: Any, end: Any) -> Any:
    """A number: (position after it or -1, its digits as an integer, the power of ten, is it an integer, how many digits).

    The integer has its sign, and is right for at most 18 digits; zeros before the first other digit do not count.
    """
    begin = at
    negative = at < end and load8(data, at) == 45
    if negative:
        at += 1
    if at >= end or load8(data, at) < 48 or load8(data, at) > 57:
        return np.int64(-1), np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    mantissa = np.int64(0)
    digits = np.int64(0)
    if load8(data, at) == 48:
        at += 1
        if at < end and 48 <= load8(data, at) <= 57:
            return np.int64(-1), np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    else:
        while at < end and 48 <= load8(data, at) <= 57:
            if digits < 18:
                mantissa = mantissa * 10 + (load8(data, at) - 48)
            digits += 1
            at += 1
    power = np.int64(0)
    whole = np.int64(1)
    if at < end and load8(data, at) == 46:
        whole = np.int64(0)
        at += 1
        point = at
        while at < end and 48 <= load8(data, at) <= 57:
            if digits < 18:
                mantissa = mantissa * 10 + (load8(data, at) - 48)
            if digits > 0 or load8(data, at) != 48:
                digits += 1
            at += 1
        power = point - at
        if at == point:
            return np.int64(-1), np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    if at < end and (load8(data, at) == 101 or load8(data, at) == 69):
        whole = np.int64(0)
        at += 1
        down = False
        if at < end and (load8(data, at) == 43 or load8(data, at) == 45):
            down = load8(data, at) == 45
            at += 1
        point = at
        exponent = np.int64(0)
        while at < end and 48 <= load8(data, at) <= 57:
            if exponent < 100_000:
                exponent = exponent * 10 + (load8(data, at) - 48)
            at += 1
        if at == point:
            return np.int64(-1), np.int64(0), np.int64(0), np.int64(0), np.int64(0)
        power += -exponent if down else exponent
    if at - begin > _MAX_NUMBER:
        return np.int64(-1), np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    return at, -mantissa if negative else mantissa, power, whole, digits


@compiled(_types.int64(types.int64, types.int64, types.int64))
def _word(data: Any, at: Any, end: Any) -> Any:
    """The position after true, false or null, -1 for anything else. What follows is looked at by whoever goes on."""
    c = load8(data, at)
    if c == 116:
        if at + 4 <= end and load8(data, at + 1) == 114 and load8(data, at + 2) == 117 and load8(data, at + 3) == 101:
            return at + 4
    elif c == 102:
        if (
            at + 5 <= end
            and load8(data, at + 1) == 97
            and load8(data, at + 2) == 108
            and load8(data, at + 3) == 115
            and load8(data, at + 4) == 101
        ):
            return at + 5
    elif (
        c == 110 and at + 4 <= end and load8(data, at + 1) == 117 and load8(data, at + 2) == 108 and load8(data, at + 3) == 108
    ):
        return at + 4
    return np.int64(-1)


@compiled(_types.int64(types.int64, types.int64, types.int64))
def _skip(data: Any, at: Any, end: Any) -> Any:
    """The position after a value that nobody wants, -1 if it is not proven to be JSON."""
    depth = np.int64(0)
    objects = np.uint64(0)  # bit d: the container at depth d is an object
    first = False
    while True:
        at = _space(data, at, end)
        if at >= end:
            return np.int64(-1)
        c = load8(data, at)
        closing = False
        if depth > 0:
            inside = (objects >> np.uint64(depth)) & np.uint64(1)
            if c == 125 or c == 93:
                if (c == 125) != (inside == 1):
                    return np.int64(-1)
                closing = True
            else:
                if not first:
                    if c != 44:
                        return np.int64(-1)
                    at = _space(data, at + 1, end)
                    if at >= end:
                        return np.int64(-1)
                    c = load8(data, at)
                if inside == 1:
                    if c != 34:
                        return np.int64(-1)
                    close = _text(data, at + 1, end)
                    if close < 0 or (close & 0x3FFFFFFFFFFFFFFF) - at > _MAX_NAME:
                        return np.int64(-1)
                    at = _space(data, (close & 0x3FFFFFFFFFFFFFFF) + 1, end)
                    if at >= end or load8(data, at) != 58:
                        return np.int64(-1)
                    at = _space(data, at + 1, end)
                    if at >= end:
                        return np.int64(-1)
                    c = load8(data, at)
        first = False
        if closing:
            depth -= 1
            at += 1
        elif c == 34:
            close = _text(data, at + 1, end)
            if close < 0:
                return np.int64(-1)
            at = (close & 0x3FFFFFFFFFFFFFFF) + 1
        elif c == 123 or c == 91:
            depth += 1
            if depth > MAX_DEPTH:
                return np.int64(-1)
            bit = np.uint64(1) << np.uint64(depth)
            objects = (objects | bit) if c == 123 else (objects & ~bit)
            first = True
            at += 1
        elif c == 45 or 48 <= c <= 57:
            at = _number(data, at, end)[0]
        else:
            at = _word(data, at, end)
        if at < 0:
            return np.int64(-1)
        if depth == 0:
            return at


@compiled(_types.int64(types.int64, types.int64, types.int64), inline=True)
def _digits(data: Any, at: Any, count: Any) -> Any:
    value = np.int64(0)
    for i in range(count):
        digit = load8(data, at + i) - 48
        if digit < 0 or digit > 9:
            return np.int64(-1)
        value = value * 10 + digit
    return value


_NONE = -(2**62)


@compiled(_types.int64(types.int64, types.int64))
def _date(data: Any, at: Any) -> Any:
    """Days since 1970-01-01 of the ten bytes yyyy-mm-dd, _NONE if they are no date."""
    year, month, day = _digits(data, at, 4), _digits(data, at + 5, 2), _digits(data, at + 8, 2)
    if year < 0 or month < 1 or month > 12 or day < 1 or load8(data, at + 4) != 45 or load8(data, at + 7) != 45:
        return np.int64(_NONE)
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if day > _MONTHS[month] and not (month == 2 and day == 29 and leap):
        return np.int64(_NONE)
    if month <= 2:
        year -= 1
        month += 12
    cycle = year // 400
    of_cycle = year - cycle * 400
    of_year = (153 * (month - 3) + 2) // 5 + day - 1
    return cycle * 146_097 + of_cycle * 365 + of_cycle // 4 - of_cycle // 100 + of_year - 719_468


@compiled(_types.int64(types.int64, types.int64, types.int64, _CONST_WORDS, _CONST_WORDS))
def _timestamp(data: Any, at: Any, stop: Any, zone_from: Any, zone_offset: Any) -> Any:
    """Microseconds of load8(data, at:stop), a date and a time with or without a zone; _NONE if it is written in another way.

    `zone_offset[i]` is the session's offset in seconds from the local second `zone_from[i]` on; outside of it nothing is known.
    """
    size = stop - at
    if size < 19:
        return np.int64(_NONE)
    days = _date(data, at)
    hour, minute, second = _digits(data, at + 11, 2), _digits(data, at + 14, 2), _digits(data, at + 17, 2)
    if days == _NONE or hour < 0 or hour > 23 or minute < 0 or minute > 59 or second < 0 or second > 59:
        return np.int64(_NONE)
    if (load8(data, at + 10) != 84 and load8(data, at + 10) != 32) or load8(data, at + 13) != 58 or load8(data, at + 16) != 58:
        return np.int64(_NONE)
    local = days * 86_400 + hour * 3600 + minute * 60 + second
    at += 19
    micros = np.int64(0)
    if at < stop and load8(data, at) == 46:
        at += 1
        digits = 0
        while at < stop and 48 <= load8(data, at) <= 57:
            if digits < 6:
                micros = micros * 10 + (load8(data, at) - 48)
            digits += 1
            at += 1
        if digits == 0 or digits > 9:
            return np.int64(_NONE)
        if digits < 6:
            micros *= _POWERS[6 - digits]
    offset = np.int64(0)
    if at == stop:
        low, high = 0, len(zone_from)
        while low < high:
            middle = (low + high) // 2
            if zone_from[middle] <= local:
                low = middle + 1
            else:
                high = middle
        if low == 0 or low == len(zone_from):
            return np.int64(_NONE)
        offset = zone_offset[low - 1]
    elif load8(data, at) == 90 and at + 1 == stop:
        offset = np.int64(0)
    elif (load8(data, at) == 43 or load8(data, at) == 45) and at + 6 == stop and load8(data, at + 3) == 58:
        hours, minutes = _digits(data, at + 1, 2), _digits(data, at + 4, 2)
        if hours < 0 or hours > 17 or minutes < 0 or minutes > 59:
            return np.int64(_NONE)
        offset = hours * 3600 + minutes * 60
        if load8(data, at) == 45:
            offset = -offset
    else:
        return np.int64(_NONE)
    return (local - offset) * 1_000_000 + micros


@compiled(_types.int64(types.int64, types.int64, types.int64, types.int64, types.int64))
def _decimal(mantissa: Any, power: Any, digits: Any, scale: Any, precision: Any) -> Any:
    """A number as the unscaled digits of decimal(precision, scale), rounded half up; _NONE if 18 digits do not prove it."""
    if digits > 18:
        return np.int64(_NONE)
    shift = power + scale
    value = abs(mantissa)
    if shift >= 0:
        if digits + shift > 18:
            return np.int64(_NONE)
        value *= _POWERS[shift]
    elif shift >= -18:
        unit = _POWERS[-shift]
        rest = value % unit
        value = value // unit
        if rest >= unit - rest:
            value += 1
    else:
        return np.int64(_NONE)
    if precision <= 18 and value >= _POWERS[precision]:
        return np.int64(_NONE)
    return -value if mantissa < 0 else value


@compiled(_types.int64(types.int64, types.int64, types.int64), inline=True)
def node_field(nodes: Any, node: Any, which: Any) -> Any:
    """A column of a node's row in the table at an address."""
    return word_at(nodes, node * NODE_FIELDS + which)


@compiled(_types.int64(*[types.int64] * 15, _CONST_WORDS, _CONST_WORDS))
def _document(
    data: Any, at: Any, end: Any, row: Any, nodes: Any, names: Any, hashes: Any, bases: Any, values: Any, valid: Any,
    counts: Any, stack: Any, seen: Any, deferred: Any, cursor: Any, zone_from: Any, zone_offset: Any,
) -> Any:  # fmt: skip
    """Read one document into slot `row`. Returns FAST, EMPTY or SLOW; the caller undoes what a SLOW one has left.

    `cursor` is [how many numbers are deferred, the last object's stamp].
    """
    at = _space(data, at, end)
    if at >= end:
        return EMPTY
    if load8(data, at) != 123:
        return SLOW
    at += 1
    stamp = word_at(cursor, 1) + 1
    put_word(cursor, 1, stamp)
    depth = np.int64(0)
    node, slot, begin = np.int64(0), np.int64(row), np.int64(0)
    kind = np.int64(STRUCT)
    first = True
    while True:
        at = _space(data, at, end)
        if at >= end:
            return SLOW
        c = load8(data, at)
        if (c == 93 and kind == ARRAY) or (c == 125 and kind != ARRAY):
            at += 1
            if kind != STRUCT:
                put_word(
                    values,
                    word_at(bases, node) + slot,
                    word_at(counts, node_field(nodes, node_field(nodes, node, CHILD), DOMAIN)) - begin,
                )
            depth -= 1
            if depth < 0:
                store8(valid, word_at(bases, 0) + row, 1)
                return FAST
            node, slot = word_at(stack, 4 * depth), word_at(stack, 4 * depth + 1)
            stamp, begin = word_at(stack, 4 * depth + 2), word_at(stack, 4 * depth + 3)
            kind = node_field(nodes, node, KIND)
            first = False
            continue
        if not first:
            if c != 44:
                return SLOW
            at = _space(data, at + 1, end)
            if at >= end:
                return SLOW
            c = load8(data, at)
        first = False
        child = node_field(nodes, node, CHILD)
        child_slot = slot
        if kind == ARRAY:
            domain = node_field(nodes, child, DOMAIN)
            child_slot = word_at(counts, domain)
            put_word(counts, domain, child_slot + 1)
        else:
            if c != 34:
                return SLOW
            at += 1
            name_at = at
            if kind == STRUCT:
                code = np.int64(0)
                while at < end:
                    c = load8(data, at)
                    if c == 34 or c == 92 or c < 32 or c >= 128:
                        break
                    code = (code * HASH_FACTOR + np.int64(c)) & 0x7FFFFFFF
                    at += 1
                if at >= end:
                    return SLOW
                if load8(data, at) != 34:
                    # Not plain ASCII: proven again from its start, and hashed as it is.
                    close = _text(data, name_at, end)
                    if close < 0 or close >> 62:
                        return SLOW
                    while at < close:
                        code = (code * HASH_FACTOR + load8(data, at)) & 0x7FFFFFFF
                        at += 1
                if at - name_at > _MAX_NAME:
                    return SLOW
                probe = code & node_field(nodes, node, HASH_MASK)
                while True:
                    child = word_at(hashes, node_field(nodes, node, HASH_AT) + probe)
                    if child < 0:
                        break
                    if node_field(nodes, child, NAME_SIZE) == at - name_at:
                        same = True
                        for i in range(at - name_at):
                            if load8(names, node_field(nodes, child, NAME_AT) + i) != load8(data, name_at + i):
                                same = False
                                break
                        if same:
                            break
                    probe = (probe + 1) & node_field(nodes, node, HASH_MASK)
            else:
                close = _text(data, at, end)
                if close < 0:
                    return SLOW
                at = close & 0x3FFFFFFFFFFFFFFF
                if at - name_at > _MAX_NAME:
                    return SLOW
                domain = node_field(nodes, child, DOMAIN)
                child_slot = word_at(counts, domain)
                put_word(counts, domain, child_slot + 1)
                flag = np.int64(ESCAPED) if close >> 62 else np.int64(0)
                put_word(values, word_at(bases, child) + child_slot, (name_at << 32) | flag | (at - name_at))
                store8(valid, word_at(bases, child) + child_slot, 1)
                child += 1
            at = _space(data, at + 1, end)
            if at >= end or load8(data, at) != 58:
                return SLOW
            at = _space(data, at + 1, end)
            if at >= end:
                return SLOW
            if child < 0:
                at = _skip(data, at, end)
                if at < 0:
                    return SLOW
                continue
            if kind == STRUCT:
                if word_at(seen, child) == stamp:
                    return SLOW
                put_word(seen, child, stamp)
            c = load8(data, at)
        # --- the value of `child` at `child_slot`
        if c == 110:
            at = _word(data, at, end)
            if at < 0:
                return SLOW
            continue
        wanted = node_field(nodes, child, KIND)
        place = word_at(bases, child) + child_slot
        if wanted == STRING:
            if c == 34:
                close = _text(data, at + 1, end)
                if close < 0:
                    return SLOW
                stop = close & 0x3FFFFFFFFFFFFFFF
                if stop - at > _MAX_TEXT:
                    return SLOW
                flag = np.int64(ESCAPED) if close >> 62 else np.int64(0)
                put_word(values, place, ((at + 1) << 32) | flag | (stop - at - 1))
                at = stop + 1
            elif c == 45 or 48 <= c <= 57:
                stop, mantissa, _power, whole, _count = _number(data, at, end)
                # A fraction is written anew by Java, and so is an integer's negative zero.
                if stop < 0 or not whole or (mantissa == 0 and stop - at != 1):
                    return SLOW
                put_word(values, place, (at << 32) | (stop - at))
                at = stop
            else:
                if c != 116 and c != 102:
                    return SLOW
                stop = _word(data, at, end)
                if stop < 0:
                    return SLOW
                put_word(values, place, (at << 32) | (stop - at))
                at = stop
            store8(valid, place, 1)
        elif wanted == INTEGER:
            stop, mantissa, _power, whole, count = _number(data, at, end)
            if (
                stop < 0
                or not whole
                or count > 18
                or mantissa < node_field(nodes, child, FIRST)
                or mantissa > node_field(nodes, child, SECOND)
            ):
                return SLOW
            put_word(values, place, mantissa)
            store8(valid, place, 1)
            at = stop
        elif wanted == DOUBLE or wanted == FLOAT:
            stop, mantissa, power, whole, count = _number(data, at, end)
            if stop < 0:
                return SLOW
            limit = np.int64(1) << (53 if wanted == DOUBLE else 24)
            most = 22 if wanted == DOUBLE else 10
            if whole and count <= 18:
                put_double(values, place, np.float64(mantissa) if wanted == DOUBLE else np.float64(np.float32(mantissa)))
            elif count <= 18 and abs(mantissa) <= limit and -most <= power <= most:
                # Both numbers are exact, so one operation rounds once.
                number = np.float64(abs(mantissa))
                number = number / _TENS[-power] if power < 0 else number * _TENS[power]
                number = number if wanted == DOUBLE else np.float64(np.float32(number))
                put_double(values, place, -number if c == 45 else number)
            else:
                count = word_at(cursor, 0)
                put_word(deferred, 3 * count, child)
                put_word(deferred, 3 * count + 1, child_slot)
                put_word(deferred, 3 * count + 2, (at << 32) | (stop - at))
                put_word(cursor, 0, count + 1)
            store8(valid, place, 1)
            at = stop
        elif wanted == BOOLEAN:
            if c != 116 and c != 102:
                return SLOW
            at = _word(data, at, end)
            if at < 0:
                return SLOW
            put_word(values, place, np.int64(c == 116))
            store8(valid, place, 1)
        elif wanted == STRUCT or wanted == ARRAY or wanted == MAP:
            if c != (91 if wanted == ARRAY else 123) or depth >= MAX_DEPTH - 1:
                return SLOW
            put_word(stack, 4 * depth, node)
            put_word(stack, 4 * depth + 1, slot)
            put_word(stack, 4 * depth + 2, stamp)
            put_word(stack, 4 * depth + 3, begin)
            depth += 1
            node, slot, kind = child, child_slot, wanted
            store8(valid, place, 1)
            if kind == STRUCT:
                stamp = word_at(cursor, 1) + 1
                put_word(cursor, 1, stamp)
            else:
                begin = word_at(counts, node_field(nodes, node_field(nodes, child, CHILD), DOMAIN))
            first = True
            at += 1
        elif c == 34:
            close = _text(data, at + 1, end)
            if close < 0 or close >> 62:
                return SLOW
            found = np.int64(_NONE)
            if wanted == TIMESTAMP:
                found = _timestamp(data, at + 1, close, zone_from, zone_offset)
            elif wanted == DATE:
                if close - at == 11:
                    found = _date(data, at + 1)
            else:
                stop, mantissa, power, _whole, count = _number(data, at + 1, close)
                if stop == close:
                    found = _decimal(mantissa, power, count, node_field(nodes, child, FIRST), node_field(nodes, child, SECOND))
            if found == _NONE:
                return SLOW
            put_word(values, place, found)
            store8(valid, place, 1)
            at = close + 1
        elif wanted == DECIMAL:
            stop, mantissa, power, _whole, count = _number(data, at, end)
            if stop < 0:
                return SLOW
            found = _decimal(mantissa, power, count, node_field(nodes, child, FIRST), node_field(nodes, child, SECOND))
            if found == _NONE:
                return SLOW
            put_word(values, place, found)
            store8(valid, place, 1)
            at = stop
        elif wanted == TIMESTAMP:
            stop, mantissa, _power, whole, count = _number(data, at, end)
            if stop < 0 or not whole or count > 12:
                return SLOW
            put_word(values, place, mantissa * 1_000_000)
            store8(valid, place, 1)
            at = stop
        else:
            return SLOW


def documents(
    data: Any, offsets: Any, present: Any, row: Any, nodes: Any, names: Any, hashes: Any, bases: Any, values: Any,
    valid: Any, counts: Any, capacities: Any, zone_from: Any, zone_offset: Any, stack: Any, seen: Any, deferred: Any,
    cursor: Any, status: Any, before: Any,
) -> Any:  # fmt: skip
    """Read documents from `row` on: document i is at the addresses data + offsets[i] to data + offsets[i + 1].

    Returns the first row that was not read because a domain or the deferred numbers may not have room for it, or the number of
    rows. `present` may be empty: all are there. `before` is scratch, a word for each domain.
    """
    rows = len(offsets) - 1
    domains = len(counts)
    while row < rows:
        if len(present) > 0 and present[row] == 0:
            status[row] = ABSENT
            row += 1
            continue
        at, end = np.int64(offsets[row]), np.int64(offsets[row + 1])
        bound = (end - at) // 2 + 1
        if cursor[0] + bound > len(deferred):
            return row
        for domain in range(1, domains):
            if counts[domain] + bound > capacities[domain]:
                return row
            before[domain] = counts[domain]
        numbers = cursor[0]
        status[row] = _document(
            data, at, end, row, nodes.ctypes.data, names.ctypes.data, hashes.ctypes.data, bases.ctypes.data, values.ctypes.data,
            valid.ctypes.data, counts.ctypes.data, stack.ctypes.data, seen.ctypes.data, deferred.ctypes.data,
            cursor.ctypes.data, zone_from, zone_offset,
        )  # fmt: skip
        if status[row] == SLOW:
            cursor[0] = numbers
            forget(nodes, bases, valid, counts, before, row)
        row += 1
    return row


SIGNATURES: dict[str, tuple[Any, Callable[..., Any]]] = {
    "documents": (
        _types.int64(
            types.int64, types.Array(types.int32, 1, "C", readonly=True), BYTES, types.int64, _TABLE, BYTES, _CONST_WORDS,
            WORDS, WORDS, OUT_BYTES, WORDS, WORDS, _CONST_WORDS, _CONST_WORDS, types.int64[:, ::1], WORDS, types.int64[:, ::1],
            WORDS, OUT_BYTES, WORDS,
        ),
        documents,
    ),
}  # fmt: skip
"""What is called from outside, with the types that it is compiled for."""
