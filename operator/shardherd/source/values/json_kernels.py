"""The compiled reader of JSON documents: fills the planes of a layout from every document that it can prove.

Compiled by `compiled_values`, called by `json_column` only. A document is proven if Spark's parser could only read it one way
and every value fits its field at once: strict JSON up to the object's end, valid UTF-8, known escapes, no name twice in an
object, a value of the field's own type. Whatever else comes up gives the status SLOW, and the planes are as if the document had
not been there. Malformed bytes never make it read outside of its document.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shardherd.source.values.bytes_kernels import (
    NOTHING,
    compiled,
    forget,
    load8,
    memory,
    node_field,
    put_double,
    put_word,
    store8,
    until,
    word_at,
)
from shardherd.source.values.json_bytes import (
    BACKSLASH,
    CLOSE_BRACE,
    CLOSE_BRACKET,
    COLON,
    COMMA,
    FIRST_OF_MANY,
    FIRST_PRINTABLE,
    LOWER_F,
    LOWER_N,
    LOWER_T,
    MINUS,
    NINE,
    OPEN_BRACE,
    OPEN_BRACKET,
    QUOTE,
    ZERO,
)
from shardherd.source.values.json_tokens import (
    HAS_ESCAPES,
    MAX_NAME,
    MAX_TEXT,
    TENS,
    WITHOUT_ESCAPES,
    as_decimal,
    read_date,
    read_number,
    read_timestamp,
    skip_space,
    text_end,
    value_end,
    word_end,
)
from shardherd.source.values.value_layout import (
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
    HASH_BITS,
    HASH_FACTOR,
    HASH_MASK,
    INTEGER,
    KIND,
    MAP,
    MAX_DEPTH,
    NAME_AT,
    NAME_SIZE,
    SECOND,
    SLOW,
    STRING,
    STRUCT,
    TIMESTAMP,
)


@compiled("BnnnLBLLlblllllAA")
def _document(
    data: Any, at: Any, end: Any, row: Any, nodes: Any, names: Any, hashes: Any, bases: Any, values: Any, valid: Any,
    counts: Any, stack: Any, seen: Any, deferred: Any, cursor: Any, zone_from: Any, zone_offset: Any,
) -> Any:  # fmt: skip
    """Read one document into slot `row`. Returns FAST, EMPTY or SLOW; the caller undoes what a SLOW one has left.

    `cursor` is [how many numbers are deferred, the last object's stamp].
    """
    at = skip_space(data, at, end)
    if at >= end:
        return EMPTY
    if load8(data, at) != OPEN_BRACE:
        return SLOW
    at += 1
    stamp = word_at(cursor, 1) + 1
    put_word(cursor, 1, stamp)
    depth = np.int64(0)
    node, slot, begin = np.int64(0), np.int64(row), np.int64(0)
    kind = np.int64(STRUCT)
    first = True
    while True:
        at = skip_space(data, at, end)
        if at >= end:
            return SLOW
        c = load8(data, at)
        if (c == CLOSE_BRACKET and kind == ARRAY) or (c == CLOSE_BRACE and kind != ARRAY):
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
            if c != COMMA:
                return SLOW
            at = skip_space(data, at + 1, end)
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
            if c != QUOTE:
                return SLOW
            at += 1
            name_at = at
            if kind == STRUCT:
                code = np.int64(0)
                while at < end:
                    c = load8(data, at)
                    if c == QUOTE or c == BACKSLASH or c < FIRST_PRINTABLE or c >= FIRST_OF_MANY:
                        break
                    code = (code * HASH_FACTOR + np.int64(c)) & HASH_BITS
                    at += 1
                if at >= end:
                    return SLOW
                if load8(data, at) != QUOTE:
                    # Not plain ASCII: proven again from its start, and hashed as it is.
                    close = text_end(data, name_at, end)
                    if close < 0 or close & HAS_ESCAPES:
                        return SLOW
                    while at < close:
                        code = (code * HASH_FACTOR + load8(data, at)) & HASH_BITS
                        at += 1
                if at - name_at > MAX_NAME:
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
                close = text_end(data, at, end)
                if close < 0:
                    return SLOW
                at = close & WITHOUT_ESCAPES
                if at - name_at > MAX_NAME:
                    return SLOW
                domain = node_field(nodes, child, DOMAIN)
                child_slot = word_at(counts, domain)
                put_word(counts, domain, child_slot + 1)
                flag = np.int64(ESCAPED) if close & HAS_ESCAPES else np.int64(0)
                put_word(values, word_at(bases, child) + child_slot, (name_at << 32) | flag | (at - name_at))
                store8(valid, word_at(bases, child) + child_slot, 1)
                child += 1
            at = skip_space(data, at + 1, end)
            if at >= end or load8(data, at) != COLON:
                return SLOW
            at = skip_space(data, at + 1, end)
            if at >= end:
                return SLOW
            if child < 0:
                at = value_end(data, at, end)
                if at < 0:
                    return SLOW
                continue
            if kind == STRUCT:
                if word_at(seen, child) == stamp:
                    return SLOW
                put_word(seen, child, stamp)
            c = load8(data, at)
        # --- the value of `child` at `child_slot`
        if c == LOWER_N:
            at = word_end(data, at, end)
            if at < 0:
                return SLOW
            continue
        wanted = node_field(nodes, child, KIND)
        place = word_at(bases, child) + child_slot
        if wanted == STRING:
            if c == QUOTE:
                close = text_end(data, at + 1, end)
                if close < 0:
                    return SLOW
                stop = close & WITHOUT_ESCAPES
                if stop - at > MAX_TEXT:
                    return SLOW
                flag = np.int64(ESCAPED) if close & HAS_ESCAPES else np.int64(0)
                put_word(values, place, ((at + 1) << 32) | flag | (stop - at - 1))
                at = stop + 1
            elif c == MINUS or ZERO <= c <= NINE:
                stop, mantissa, _power, whole, _count = read_number(data, at, end)
                # A fraction is written anew by Java, and so is an integer's negative zero.
                if stop < 0 or not whole or (mantissa == 0 and stop - at != 1):
                    return SLOW
                put_word(values, place, (at << 32) | (stop - at))
                at = stop
            else:
                if c != LOWER_T and c != LOWER_F:
                    return SLOW
                stop = word_end(data, at, end)
                if stop < 0:
                    return SLOW
                put_word(values, place, (at << 32) | (stop - at))
                at = stop
            store8(valid, place, 1)
        elif wanted == INTEGER:
            stop, mantissa, _power, whole, count = read_number(data, at, end)
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
            stop, mantissa, power, whole, count = read_number(data, at, end)
            if stop < 0:
                return SLOW
            limit = np.int64(1) << (53 if wanted == DOUBLE else 24)
            most = 22 if wanted == DOUBLE else 10
            if whole and count <= 18:
                put_double(values, place, np.float64(mantissa) if wanted == DOUBLE else np.float64(np.float32(mantissa)))
            elif count <= 18 and abs(mantissa) <= limit and -most <= power <= most:
                # Both numbers are exact, so one operation rounds once.
                number = np.float64(abs(mantissa))
                number = number / TENS[-power] if power < 0 else number * TENS[power]
                number = number if wanted == DOUBLE else np.float64(np.float32(number))
                put_double(values, place, -number if c == MINUS else number)
            else:
                count = word_at(cursor, 0)
                put_word(deferred, 3 * count, child)
                put_word(deferred, 3 * count + 1, child_slot)
                put_word(deferred, 3 * count + 2, (at << 32) | (stop - at))
                put_word(cursor, 0, count + 1)
            store8(valid, place, 1)
            at = stop
        elif wanted == BOOLEAN:
            if c != LOWER_T and c != LOWER_F:
                return SLOW
            at = word_end(data, at, end)
            if at < 0:
                return SLOW
            put_word(values, place, np.int64(c == LOWER_T))
            store8(valid, place, 1)
        elif wanted == STRUCT or wanted == ARRAY or wanted == MAP:
            if c != (OPEN_BRACKET if wanted == ARRAY else OPEN_BRACE) or depth >= MAX_DEPTH - 1:
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
        elif c == QUOTE:
            close = text_end(data, at + 1, end)
            if close < 0 or close & HAS_ESCAPES:
                return SLOW
            found = np.int64(NOTHING)
            if wanted == TIMESTAMP:
                found = read_timestamp(data, at + 1, close, zone_from, zone_offset)
            elif wanted == DATE:
                if close - at == 11:
                    found = read_date(data, at + 1)
            else:
                stop, mantissa, power, _whole, count = read_number(data, at + 1, close)
                if stop == close:
                    found = as_decimal(
                        mantissa, power, count, node_field(nodes, child, FIRST), node_field(nodes, child, SECOND)
                    )
            if found == NOTHING:
                return SLOW
            put_word(values, place, found)
            store8(valid, place, 1)
            at = close + 1
        elif wanted == DECIMAL:
            stop, mantissa, power, _whole, count = read_number(data, at, end)
            if stop < 0:
                return SLOW
            found = as_decimal(mantissa, power, count, node_field(nodes, child, FIRST), node_field(nodes, child, SECOND))
            if found == NOTHING:
                return SLOW
            put_word(values, place, found)
            store8(valid, place, 1)
            at = stop
        elif wanted == TIMESTAMP:
            stop, mantissa, _power, whole, count = read_number(data, at, end)
            if stop < 0 or not whole or count > 12:
                return SLOW
            put_word(values, place, mantissa * 1_000_000)
            store8(valid, place, 1)
            at = stop
        else:
            return SLOW


def documents(
    texts: Any, offsets: Any, present: Any, row: Any, nodes: Any, names: Any, hashes: Any, bases: Any, values: Any,
    valid: Any, counts: Any, capacities: Any, zone_from: Any, zone_offset: Any, stack: Any, seen: Any, deferred: Any,
    cursor: Any, status: Any, before: Any,
) -> Any:  # fmt: skip
    """Read documents from `row` on: document i is texts[offsets[i] : offsets[i + 1]].

    Returns the first row that was not read because a domain or the deferred numbers may not have room for it, or the number of
    rows. `present` may be empty: all are there. `before` is scratch, a word for each domain.
    """
    rows = len(offsets) - 1
    domains = len(counts)
    data = memory(texts)
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
            until(data, end), at, end, row, memory(nodes), memory(names), memory(hashes), memory(bases), memory(values),
            memory(valid), memory(counts), memory(stack), memory(seen), memory(deferred), memory(cursor), zone_from,
            zone_offset,
        )  # fmt: skip
        if status[row] == SLOW:
            cursor[0] = numbers
            forget(nodes, bases, valid, counts, before, row)
        row += 1
    return row
