"""Turns one JSON document into the values of a schema, exactly as Spark's `from_json` does it. Slow, and complete.

`json_column` calls it for the documents that the compiled reader does not prove. It follows Spark's `JacksonParser`: a field
that cannot be read is null and makes the record bad, what came before and after it stays, and everything depends on where
`jackson` stands after an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import tzinfo
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
from pyspark.sql import types as sql

from shardherd.source.values import datetimes, java_text
from shardherd.source.values.decoded_values import Row
from shardherd.source.values.jackson import MalformedJsonError, Token, Tokens
from shardherd.source.values.value_layout import BITS

Read = Callable[[Tokens], Any]
_INFINITIES = {"+INF": math.inf, "+Infinity": math.inf, "Infinity": math.inf, "-INF": -math.inf, "-Infinity": -math.inf}
_CONTEXT = Context(prec=2200, Emin=-(10**9), Emax=10**9, rounding=ROUND_HALF_UP)
_MAX_EXPONENT = 2**31 - 1


class _PartError(ValueError):
    """Something in a value was bad; `value` is the rest of it."""

    def __init__(self, value: Any, cause: str) -> None:
        super().__init__(cause)
        self.value = value


class FromJson:
    """`from_json` for one struct schema (without the corrupt record's column) in one time zone."""

    def __init__(self, schema: sql.StructType, zone: tzinfo) -> None:
        self._zone = zone
        self._width = len(schema.fields)
        self._names = {field.name: at for at, field in enumerate(schema.fields)}
        self._readers = [self._reader(field.dataType) for field in schema.fields]

    def row(self, document: bytes) -> Row:
        """Never raises: what is wrong with a document is in its row."""
        tokens = Tokens(java_text.code_units(document))
        try:
            token = tokens.next()
            if token is None:
                return Row(None)
            if token is not Token.START_OBJECT:
                raise MalformedJsonError(f"the document is not an object but starts with {token.name}")
            return Row(_object(tokens, self._width, self._names, self._readers))
        except _PartError as error:
            return Row(error.value, str(error))
        except ValueError as error:
            return Row([None] * self._width, str(error))

    def _reader(self, kind: sql.DataType) -> Read:
        read = self._converter(kind)

        def checked(tokens: Tokens) -> Any:
            while tokens.token is Token.NAME:
                tokens.next()
            if tokens.token is None or tokens.token is Token.NULL:
                return None
            return read(tokens)

        return checked

    def _converter(self, kind: sql.DataType) -> Read:
        match kind:
            case sql.StringType():
                return _string
            case sql.BooleanType():
                return _boolean
            case sql.ByteType() | sql.ShortType() | sql.IntegerType() | sql.LongType():
                bits = BITS[type(kind)]
                return lambda tokens: _integer(tokens, bits)
            case sql.DoubleType():
                return lambda tokens: _floating(tokens, float)
            case sql.FloatType():
                return lambda tokens: _floating(tokens, _single)
            case sql.DecimalType():
                precision, scale = kind.precision, kind.scale
                return lambda tokens: _decimal(tokens, precision, scale)
            case sql.DateType():
                return _date
            case sql.TimestampType():
                return lambda tokens: _timestamp(tokens, self._zone)
            case sql.StructType():
                width, names = len(kind.fields), {field.name: at for at, field in enumerate(kind.fields)}
                readers = [self._reader(field.dataType) for field in kind.fields]
                return lambda tokens: _object(_expect(tokens, Token.START_OBJECT), width, names, readers)
            case sql.ArrayType():
                element = self._reader(kind.elementType)
                return lambda tokens: _array(_expect(tokens, Token.START_ARRAY), element)
            case sql.MapType():
                value = self._reader(kind.valueType)
                return lambda tokens: _map(_expect(tokens, Token.START_OBJECT), value)
            case _:
                raise ValueError(f"type {kind.simpleString()} cannot be read from JSON")


def _bad(tokens: Tokens) -> ValueError:
    # Spark puts the text into its message, which finishes a string; the position depends on it.
    text = tokens.text()
    kind = "nothing" if tokens.token is None else tokens.token.name
    return MalformedJsonError(f"field {tokens.name()!r}: {kind} {text[:40]!r} is not of its type")


def _expect(tokens: Tokens, token: Token) -> Tokens:
    if tokens.token is not token:
        raise _bad(tokens)
    return tokens


def _object(tokens: Tokens, width: int, names: dict[str, int], readers: list[Read]) -> list[Any]:
    row: list[Any] = [None] * width
    trouble: str | None = None
    while (token := tokens.next()) is not None and token is not Token.END_OBJECT:
        at = names.get(tokens.name() or "") if tokens.name() is not None else None
        if at is None:
            tokens.skip_children()
            continue
        try:
            row[at] = readers[at](tokens)
        except _PartError as error:
            trouble = trouble or str(error)
            row[at] = error.value
        except ValueError as error:
            trouble = trouble or str(error)
            tokens.skip_children()
    if trouble is not None:
        raise _PartError(row, trouble)
    return row


def _map(tokens: Tokens, read: Read) -> list[tuple[bytes, Any]]:
    keys: list[bytes] = []
    values: list[Any] = []
    trouble: str | None = None
    while (token := tokens.next()) is not None and token is not Token.END_OBJECT:
        keys.append(java_text.utf8(tokens.name() or ""))
        try:
            values.append(read(tokens))
        except _PartError as error:
            trouble = trouble or str(error)
            values.append(error.value)
        except ValueError as error:
            trouble = trouble or str(error)
            tokens.skip_children()
    if len(keys) != len(values):
        raise MalformedJsonError(trouble or "a map has values that cannot be read")
    pairs = list(zip(keys, values, strict=True))
    if trouble is not None:
        raise _PartError(pairs, trouble)
    return pairs


def _array(tokens: Tokens, read: Read) -> list[Any]:
    values: list[Any] = []
    trouble: str | None = None
    while (token := tokens.next()) is not None and token is not Token.END_ARRAY:
        try:
            values.append(read(tokens))
        except _PartError as error:
            trouble = trouble or str(error)
            values.append(error.value)
    if trouble is not None:
        raise _PartError(values, trouble)
    return values


def _boolean(tokens: Tokens) -> bool:
    if tokens.token is Token.TRUE:
        return True
    if tokens.token is Token.FALSE:
        return False
    raise _bad(tokens)


def _integer(tokens: Tokens, bits: int) -> int:
    if tokens.token is not Token.INTEGER:
        raise _bad(tokens)
    value = int(tokens.text())
    # Jackson takes an unsigned byte for a byte.
    high = 255 if bits == 8 else 2 ** (bits - 1) - 1
    if not -(2 ** (bits - 1)) <= value <= high:
        raise MalformedJsonError(f"field {tokens.name()!r}: {value} does not fit {bits} bits")
    return value - 256 if bits == 8 and value > 127 else value


def _floating(tokens: Tokens, parse: Callable[[str], float]) -> float:
    if tokens.token in (Token.INTEGER, Token.FLOAT):
        text = tokens.text()
        if text[-1] in "NyF":
            return _INFINITIES.get(text, math.nan)
        # An integer has no negative zero.
        return 0.0 if tokens.token is Token.INTEGER and text == "-0" else parse(text)
    if tokens.token is Token.STRING and (text := tokens.text()):
        if text == "NaN":
            return math.nan
        if text in _INFINITIES:
            return _INFINITIES[text]
    raise _bad(tokens)


def _single(text: str) -> float:
    """The nearest number of 32 bits: rounded once, where going through 64 bits would round twice."""
    found: float = pa.scalar(text).cast(pa.float32()).as_py()
    return found


def unscaled(text: str, precision: int, scale: int) -> int:
    """The digits of a decimal(precision, scale), rounded half up. Raises ValueError if it is no number or does not fit."""
    try:
        # Java's BigDecimal allows digits of other scripts as Python does, but neither white space nor underscores.
        if not text or text != text.strip() or "_" in text or not (text[-1].isdigit() or text[-1] == "."):
            raise ValueError(f"{text!r} is no number")
        number = Decimal(text)
        exponent = number.as_tuple().exponent
        if not isinstance(exponent, int) or abs(exponent) > _MAX_EXPONENT:
            raise ValueError(f"{text!r} is no number")
        if number and number.adjusted() > precision - scale:
            raise ValueError(f"{text} does not fit decimal({precision},{scale})")
        if not number or number.adjusted() < -scale - 1:
            return 0
        digits = int(number.scaleb(scale, _CONTEXT).to_integral_value(ROUND_HALF_UP, _CONTEXT))
    except InvalidOperation as error:
        raise ValueError(f"{text!r} is no number") from error
    if abs(digits) >= 10**precision:
        raise ValueError(f"{text} does not fit decimal({precision},{scale})")
    return digits


def _decimal(tokens: Tokens, precision: int, scale: int) -> int:
    if tokens.token in (Token.INTEGER, Token.FLOAT):
        return unscaled(tokens.text(), precision, scale)
    if tokens.token is Token.STRING and (text := tokens.text()):
        return unscaled(text.replace(",", ""), precision, scale)
    raise _bad(tokens)


def _date(tokens: Tokens) -> int:
    if tokens.token is Token.STRING and (text := tokens.text()):
        days = datetimes.legacy_date_of(java_text.utf8(text), text)
        if days is not None:
            return days
    raise _bad(tokens)


def _timestamp(tokens: Tokens, zone: tzinfo) -> int:
    if tokens.token is Token.STRING and (text := tokens.text()):
        micros = datetimes.legacy_timestamp_of(java_text.utf8(text), zone)
        if micros is not None:
            return micros
    elif tokens.token is Token.INTEGER:
        # Java multiplies in 64 bits and lets it overflow.
        return (_integer(tokens, 64) * 1_000_000 + 2**63) % 2**64 - 2**63
    raise _bad(tokens)


# --- a string field takes any value, as JSON text ----------------------------------------------------------------------------

_ESCAPED = {chr(code): f"\\u{code:04X}" for code in range(0x20)}
_ESCAPED |= {chr(code): f"\\u{code:04X}" for code in range(0xD800, 0xE000)}
_ESCAPED |= {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_ESCAPE_TABLE = str.maketrans(_ESCAPED)


def _string(tokens: Tokens) -> bytes:
    token = tokens.token
    if token is Token.STRING:
        return java_text.utf8(tokens.text())
    if token is Token.END_OBJECT or token is Token.END_ARRAY:
        raise MalformedJsonError("a value was expected")
    if token is None:
        raise MalformedJsonError("a value was expected")
    return _copied(tokens, token).encode()


def _copied(tokens: Tokens, token: Token) -> str:
    """The value that starts with this token as Jackson writes it."""
    written: list[str] = []
    depth = 0
    while True:
        if token is Token.END_OBJECT or token is Token.END_ARRAY:
            depth -= 1
            written.append(token.value)
        elif token is Token.NAME:
            written.append(("," if written[-1] != "{" else "") + _quoted(tokens.name() or "") + ":")
        else:
            if written and written[-1] not in "{[" and not written[-1].endswith(":"):
                written.append(",")
            written.append(_text_of(tokens, token))
            depth += token in (Token.START_OBJECT, Token.START_ARRAY)
        following = tokens.next() if depth else None
        if following is None:
            # With something open only after an error inside: Jackson's copy ends where the tokens end.
            return "".join(written)
        token = following


def _text_of(tokens: Tokens, token: Token) -> str:
    if token is Token.STRING:
        return _quoted(tokens.text())
    if token is Token.INTEGER:
        return str(int(tokens.text()))
    if token is Token.FLOAT:
        return java_double(tokens.text())
    return str(token.value)


def _quoted(text: str) -> str:
    # Code units: Jackson writes each half of a surrogate pair as an escape.
    return f'"{text.translate(_ESCAPE_TABLE)}"'


def java_double(text: str) -> str:
    """A number as Java (from 19 on) writes the double that it reads from this text."""
    value = _INFINITIES.get(text, math.nan) if text[-1] in "NyF" else float(text)
    if math.isnan(value):
        return '"NaN"'
    if math.isinf(value):
        return '"Infinity"' if value > 0 else '"-Infinity"'
    sign = "-" if math.copysign(1, value) < 0 else ""
    if value == 0:
        return sign + "0.0"
    _, digits, exponent = Decimal(repr(abs(value))).as_tuple()
    assert isinstance(exponent, int)
    number = "".join(map(str, digits)).rstrip("0")
    if len(number) == 1:
        # Java writes two digits at least, and takes those that are nearest.
        number = f"{abs(value):.1e}"[:3:2].rstrip("0")
    point = len(digits) + exponent
    if -3 < point <= 7:
        if point <= 0:
            return f"{sign}0.{'0' * -point}{number}"
        return f"{sign}{number[:point].ljust(point, '0')}.{number[point:] or '0'}"
    return f"{sign}{number[0]}.{number[1:] or '0'}E{point - 1}"
