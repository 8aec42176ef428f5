"""The pieces of the compiled reader of JSON: texts, numbers, words, dates, and values that nobody wants.

`json_kernels` reads a document with them. A piece says where it ends, or that it is not proven; it writes nothing, and never
looks beyond the document's end.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from shardherd.source.values.bytes_kernels import (
    NOTHING,
    POWERS,
    compiled,
    hex4,
    load8,
    load64,
    trailing_zeros,
)
from shardherd.source.values.json_bytes import (
    AFTER_SURROGATES,
    BACKSLASH,
    CARRIAGE_RETURN,
    CLOSE_BRACE,
    CLOSE_BRACKET,
    COLON,
    COMMA,
    FIRST_OF_MANY,
    FIRST_PRINTABLE,
    HIGH_SURROGATES,
    LINE_FEED,
    LOW_SURROGATES,
    LOWER_A,
    LOWER_B,
    LOWER_E,
    LOWER_F,
    LOWER_L,
    LOWER_N,
    LOWER_R,
    LOWER_S,
    LOWER_T,
    LOWER_U,
    MINUS,
    NINE,
    OPEN_BRACE,
    OPEN_BRACKET,
    PLUS,
    POINT,
    QUOTE,
    SLASH,
    SPACE,
    TAB,
    UPPER_E,
    UPPER_T,
    UPPER_Z,
    ZERO,
)
from shardherd.source.values.value_layout import (
    MAX_DEPTH,
)

_types: Any = types
MAX_NAME = 4096
_MAX_NUMBER = 300
MAX_TEXT = 10_000_000

HAS_ESCAPES = 1 << 62
WITHOUT_ESCAPES = HAS_ESCAPES - 1
"""A bit that `text_end` sets beside a position, and the mask of the position."""

_LOW = np.uint64(0x0101010101010101)
_HIGH = np.uint64(0x8080808080808080)
_QUOTES = np.uint64(0x2222222222222222)
_SLASHES = np.uint64(0x5C5C5C5C5C5C5C5C)
_SPACES = np.uint64(0x2020202020202020)

TENS = np.array([10.0**k for k in range(23)], np.float64)
_MONTHS = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], np.int64)


@compiled("Bnn", inline=True)
def skip_space(data: Any, at: Any, end: Any) -> Any:
    while at < end and load8(data, at) <= SPACE:
        c = load8(data, at)
        if c != SPACE and c != LINE_FEED and c != CARRIAGE_RETURN and c != TAB:
            return at
        at += 1
    return at


@compiled("Bnn")
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


@compiled("Bnn")
def text_end(data: Any, at: Any, end: Any) -> Any:
    """The position of a string's closing quote, from the position after its opening one; -1 if it is not proven.

    If there are escapes, it is the position with HAS_ESCAPES set.
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
        if c == QUOTE:
            return at | escaped
        if c == BACKSLASH:
            escaped = np.int64(HAS_ESCAPES)
            if at + 1 >= end:
                return np.int64(-1)
            c = load8(data, at + 1)
            if c == LOWER_U:
                if at + 6 > end:
                    return np.int64(-1)
                code = hex4(data, at + 2)
                if code < 0 or LOW_SURROGATES <= code < AFTER_SURROGATES:
                    return np.int64(-1)
                at += 6
                if HIGH_SURROGATES <= code < LOW_SURROGATES:
                    if at + 6 > end or load8(data, at) != BACKSLASH or load8(data, at + 1) != LOWER_U:
                        return np.int64(-1)
                    code = hex4(data, at + 2)
                    if code < LOW_SURROGATES or code >= AFTER_SURROGATES:
                        return np.int64(-1)
                    at += 6
            elif (
                c == QUOTE
                or c == BACKSLASH
                or c == SLASH
                or c == LOWER_B
                or c == LOWER_F
                or c == LOWER_N
                or c == LOWER_R
                or c == LOWER_T
            ):
                at += 2
            else:
                return np.int64(-1)
        elif c >= FIRST_OF_MANY:
            at = _sequence(data, at, end)
            if at < 0:
                return np.int64(-1)
        elif c < FIRST_PRINTABLE:
            return np.int64(-1)
        else:
            at += 1


_NUMBER = _types.UniTuple(types.int64, 5)
_NO_NUMBER = (-1, 0, 0, 0, 0)


@compiled("Bnn", _NUMBER)
def read_number(data: Any, at: Any, end: Any) -> Any:
    """A number: (position after it or -1, its digits as an integer, the power of ten, is it an integer, how many digits).

    The integer has its sign, and is right for at most 18 digits; zeros before the first other digit do not count.
    """
    begin = at
    negative = at < end and load8(data, at) == MINUS
    if negative:
        at += 1
    if at >= end or load8(data, at) < ZERO or load8(data, at) > NINE:
        return _NO_NUMBER
    mantissa = np.int64(0)
    digits = np.int64(0)
    if load8(data, at) == ZERO:
        at += 1
        if at < end and ZERO <= load8(data, at) <= NINE:
            return _NO_NUMBER
    else:
        while at < end and ZERO <= load8(data, at) <= NINE:
            if digits < 18:
                mantissa = mantissa * 10 + (load8(data, at) - ZERO)
            digits += 1
            at += 1
    power = np.int64(0)
    whole = np.int64(1)
    if at < end and load8(data, at) == POINT:
        whole = np.int64(0)
        at += 1
        point = at
        while at < end and ZERO <= load8(data, at) <= NINE:
            if digits < 18:
                mantissa = mantissa * 10 + (load8(data, at) - ZERO)
            if digits > 0 or load8(data, at) != ZERO:
                digits += 1
            at += 1
        power = point - at
        if at == point:
            return _NO_NUMBER
    if at < end and (load8(data, at) == LOWER_E or load8(data, at) == UPPER_E):
        whole = np.int64(0)
        at += 1
        down = False
        if at < end and (load8(data, at) == PLUS or load8(data, at) == MINUS):
            down = load8(data, at) == MINUS
            at += 1
        point = at
        exponent = np.int64(0)
        while at < end and ZERO <= load8(data, at) <= NINE:
            if exponent < 100_000:
                exponent = exponent * 10 + (load8(data, at) - ZERO)
            at += 1
        if at == point:
            return _NO_NUMBER
        power += -exponent if down else exponent
    if at - begin > _MAX_NUMBER:
        return _NO_NUMBER
    return at, -mantissa if negative else mantissa, power, whole, digits


@compiled("Bnn")
def word_end(data: Any, at: Any, end: Any) -> Any:
    """The position after true, false or null, -1 for anything else. What follows is looked at by whoever goes on."""
    c = load8(data, at)
    if c == LOWER_T:
        if (
            at + 4 <= end
            and load8(data, at + 1) == LOWER_R
            and load8(data, at + 2) == LOWER_U
            and load8(data, at + 3) == LOWER_E
        ):
            return at + 4
    elif c == LOWER_F:
        if (
            at + 5 <= end
            and load8(data, at + 1) == LOWER_A
            and load8(data, at + 2) == LOWER_L
            and load8(data, at + 3) == LOWER_S
            and load8(data, at + 4) == LOWER_E
        ):
            return at + 5
    elif (
        c == LOWER_N
        and at + 4 <= end
        and load8(data, at + 1) == LOWER_U
        and load8(data, at + 2) == LOWER_L
        and load8(data, at + 3) == LOWER_L
    ):
        return at + 4
    return np.int64(-1)


@compiled("Bnn")
def value_end(data: Any, at: Any, end: Any) -> Any:
    """The position after a value that nobody wants, -1 if it is not proven to be JSON."""
    depth = np.int64(0)
    objects = np.uint64(0)  # bit d: the container at depth d is an object
    first = False
    while True:
        at = skip_space(data, at, end)
        if at >= end:
            return np.int64(-1)
        c = load8(data, at)
        closing = False
        if depth > 0:
            inside = (objects >> np.uint64(depth)) & np.uint64(1)
            if c == CLOSE_BRACE or c == CLOSE_BRACKET:
                if (c == CLOSE_BRACE) != (inside == 1):
                    return np.int64(-1)
                closing = True
            else:
                if not first:
                    if c != COMMA:
                        return np.int64(-1)
                    at = skip_space(data, at + 1, end)
                    if at >= end:
                        return np.int64(-1)
                    c = load8(data, at)
                if inside == 1:
                    if c != QUOTE:
                        return np.int64(-1)
                    close = text_end(data, at + 1, end)
                    if close < 0 or (close & WITHOUT_ESCAPES) - at > MAX_NAME:
                        return np.int64(-1)
                    at = skip_space(data, (close & WITHOUT_ESCAPES) + 1, end)
                    if at >= end or load8(data, at) != COLON:
                        return np.int64(-1)
                    at = skip_space(data, at + 1, end)
                    if at >= end:
                        return np.int64(-1)
                    c = load8(data, at)
        first = False
        if closing:
            depth -= 1
            at += 1
        elif c == QUOTE:
            close = text_end(data, at + 1, end)
            if close < 0:
                return np.int64(-1)
            at = (close & WITHOUT_ESCAPES) + 1
        elif c == OPEN_BRACE or c == OPEN_BRACKET:
            depth += 1
            if depth > MAX_DEPTH:
                return np.int64(-1)
            bit = np.uint64(1) << np.uint64(depth)
            objects = (objects | bit) if c == OPEN_BRACE else (objects & ~bit)
            first = True
            at += 1
        elif c == MINUS or ZERO <= c <= NINE:
            at = read_number(data, at, end)[0]
        else:
            at = word_end(data, at, end)
        if at < 0:
            return np.int64(-1)
        if depth == 0:
            return at


@compiled("Bnn", inline=True)
def _digits(data: Any, at: Any, count: Any) -> Any:
    value = np.int64(0)
    for i in range(count):
        digit = load8(data, at + i) - ZERO
        if digit < 0 or digit > 9:
            return np.int64(-1)
        value = value * 10 + digit
    return value


@compiled("Bn")
def read_date(data: Any, at: Any) -> Any:
    """Days since 1970-01-01 of the ten bytes yyyy-mm-dd, NOTHING if they are no date."""
    year, month, day = _digits(data, at, 4), _digits(data, at + 5, 2), _digits(data, at + 8, 2)
    if year < 0 or month < 1 or month > 12 or day < 1 or load8(data, at + 4) != MINUS or load8(data, at + 7) != MINUS:
        return np.int64(NOTHING)
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if day > _MONTHS[month] and not (month == 2 and day == 29 and leap):
        return np.int64(NOTHING)
    if month <= 2:
        year -= 1
        month += 12
    cycle = year // 400
    of_cycle = year - cycle * 400
    of_year = (153 * (month - 3) + 2) // 5 + day - 1
    return cycle * 146_097 + of_cycle * 365 + of_cycle // 4 - of_cycle // 100 + of_year - 719_468


@compiled("BnnAA")
def read_timestamp(data: Any, at: Any, stop: Any, zone_from: Any, zone_offset: Any) -> Any:
    """Microseconds of load8(data, at:stop), a date and a time with or without a zone; NOTHING if it is written in another way.

    `zone_offset[i]` is the session's offset in seconds from the local second `zone_from[i]` on; outside of it nothing is known.
    """
    size = stop - at
    if size < 19:
        return np.int64(NOTHING)
    days = read_date(data, at)
    hour, minute, second = _digits(data, at + 11, 2), _digits(data, at + 14, 2), _digits(data, at + 17, 2)
    if days == NOTHING or hour < 0 or hour > 23 or minute < 0 or minute > 59 or second < 0 or second > 59:
        return np.int64(NOTHING)
    if (
        (load8(data, at + 10) != UPPER_T and load8(data, at + 10) != SPACE)
        or load8(data, at + 13) != COLON
        or load8(data, at + 16) != COLON
    ):
        return np.int64(NOTHING)
    local = days * 86_400 + hour * 3600 + minute * 60 + second
    at += 19
    micros = np.int64(0)
    if at < stop and load8(data, at) == POINT:
        at += 1
        digits = 0
        while at < stop and ZERO <= load8(data, at) <= NINE:
            if digits < 6:
                micros = micros * 10 + (load8(data, at) - ZERO)
            digits += 1
            at += 1
        if digits == 0 or digits > 9:
            return np.int64(NOTHING)
        if digits < 6:
            micros *= POWERS[6 - digits]
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
            return np.int64(NOTHING)
        offset = zone_offset[low - 1]
    elif load8(data, at) == UPPER_Z and at + 1 == stop:
        offset = np.int64(0)
    elif (load8(data, at) == PLUS or load8(data, at) == MINUS) and at + 6 == stop and load8(data, at + 3) == COLON:
        hours, minutes = _digits(data, at + 1, 2), _digits(data, at + 4, 2)
        if hours < 0 or hours > 17 or minutes < 0 or minutes > 59:
            return np.int64(NOTHING)
        offset = hours * 3600 + minutes * 60
        if load8(data, at) == MINUS:
            offset = -offset
    else:
        return np.int64(NOTHING)
    return (local - offset) * 1_000_000 + micros


@compiled("nnnnn")
def as_decimal(mantissa: Any, power: Any, digits: Any, scale: Any, precision: Any) -> Any:
    """A number as the unscaled digits of decimal(precision, scale), rounded half up; NOTHING if 18 digits do not prove it."""
    if digits > 18:
        return np.int64(NOTHING)
    shift = power + scale
    value = abs(mantissa)
    if shift >= 0:
        if digits + shift > 18:
            return np.int64(NOTHING)
        value *= POWERS[shift]
    elif shift >= -18:
        unit = POWERS[-shift]
        rest = value % unit
        value = value // unit
        if rest >= unit - rest:
            value += 1
    else:
        return np.int64(NOTHING)
    if precision <= 18 and value >= POWERS[precision]:
        return np.int64(NOTHING)
    return -value if mantissa < 0 else value
