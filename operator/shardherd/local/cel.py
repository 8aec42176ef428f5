"""Evaluates the rules of the resource definition as the API server does: the part of CEL that they are written in.

Called by `schema`. A rule is parsed once into a function of the variables `self` and `oldSelf`. Raises CelError for what it
does not know, so that a new rule cannot be passed over. Pure.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import re2

from shardherd.core.model.gauges import QUANTITIES

Scope = Mapping[str, Any]
Value = Callable[[Scope], Any]


class CelError(Exception):
    """An expression that cannot be read, or has no value. The message says where."""


@dataclass(frozen=True, slots=True)
class Optional:
    """A value that there may be."""

    value: Any = None
    there: bool = False


@dataclass(frozen=True, slots=True, order=True)
class Duration:
    """A time in milliseconds."""

    milliseconds: int


_TOKEN = re.compile(
    r"""\s*(?:(?P<number>\d+)|(?P<name>[A-Za-z_]\w*)|(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
    r"""|(?P<sign>&&|\|\||==|!=|<=|>=|[-+*/<>!?:.,()\[\]]))"""
)
_ESCAPED = re.compile(r"\\(.)")
_PART = re.compile(r"(\d+)(ms|h|m|s)")
_UNITS = {"h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}

_BINARY: tuple[Mapping[str, Callable[[Any, Any], Any]], ...] = (
    {
        "==": lambda left, right: left == right,
        "!=": lambda left, right: left != right,
        "<=": lambda left, right: left <= right,
        ">=": lambda left, right: left >= right,
        "<": lambda left, right: left < right,
        ">": lambda left, right: left > right,
        "in": lambda left, right: left in right,
    },
    {"+": lambda left, right: left + right, "-": lambda left, right: left - right},
    {"*": lambda left, right: left * right},
)
"""The operators of two values that are both needed, from those that bind least on."""

_METHODS: Mapping[str, Callable[..., Any]] = {
    "size": len,
    "startsWith": str.startswith,
    "endsWith": str.endswith,
    "contains": lambda text, part: part in text,
    "matches": lambda text, pattern: re2.search(pattern, text) is not None,
    "getMilliseconds": lambda duration: duration.milliseconds,
    "replace": str.replace,
    "isLessThan": lambda left, right: left < right,
    "isGreaterThan": lambda left, right: left > right,
    "hasValue": lambda optional: optional.there,
    "value": lambda optional: optional.value,
    "format": lambda text, values: text % tuple(values),
}


def duration(text: str) -> Duration:
    """What `duration(...)` is of this text."""
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise CelError(f'"{text}" is no duration')
    return Duration(sum(int(number) * _UNITS[unit] for number, unit in parts))


_QUANTITY = re.compile(rf"(?P<number>\d+)(?P<unit>{'|'.join(QUANTITIES)})")


def quantity(text: str) -> int:
    """What `quantity(...)` is of this text: a whole number, as the rules have no others."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise CelError(f'"{text}" is no quantity')
    unit: str = match["unit"]
    return int(match["number"]) * QUANTITIES[unit]


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {"duration": duration, "quantity": quantity, "size": len, "string": str}
_CONSTANTS = {"true": True, "false": False, "null": None}


@functools.cache
def parsed(text: str) -> Value:
    """The function that this expression is. Raises CelError."""
    reader = _Reader(text)
    value = reader.ternary()
    reader.end()
    return value


def evaluate(text: str, scope: Scope) -> Any:
    """The expression's value. Raises CelError."""
    value = parsed(text)
    try:
        return value(scope)
    except (KeyError, TypeError, ValueError, IndexError, re2.error) as error:
        raise CelError(f"{text}: {error}") from error


class _Reader:
    """Reads one expression, by recursive descent."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, str]] = []
        at = 0
        while at < len(text.rstrip()):
            match = _TOKEN.match(text, at)
            if match is None:
                raise CelError(f"{text}: cannot be read from position {at} on")
            self._tokens.append((str(match.lastgroup), match[str(match.lastgroup)]))
            at = match.end()
        self._at = 0

    def ternary(self) -> Value:
        condition = self._or()
        if not self._take("?"):
            return condition
        yes = self.ternary()
        self._expect(":")
        no = self.ternary()
        return lambda scope: yes(scope) if condition(scope) else no(scope)

    def end(self) -> None:
        if self._at < len(self._tokens):
            raise CelError(f"{self._text}: did not expect {self._tokens[self._at][1]!r}")

    def _or(self) -> Value:
        values = [self._and()]
        while self._take("||"):
            values.append(self._and())
        return values[0] if len(values) == 1 else lambda scope: any(value(scope) for value in values)

    def _and(self) -> Value:
        values = [self._binary(0)]
        while self._take("&&"):
            values.append(self._binary(0))
        return values[0] if len(values) == 1 else lambda scope: all(value(scope) for value in values)

    def _binary(self, level: int) -> Value:
        if level == len(_BINARY):
            return self._unary()
        value = self._binary(level + 1)
        while (sign := next((sign for sign in _BINARY[level] if self._take(sign)), None)) is not None:
            value = _combined(_BINARY[level][sign], value, self._binary(level + 1))
        return value

    def _unary(self) -> Value:
        if self._take("!"):
            value = self._unary()
            return lambda scope: not value(scope)
        if self._take("-"):
            value = self._unary()
            return lambda scope: -value(scope)
        return self._member(self._primary())

    def _member(self, value: Value) -> Value:
        while True:
            if self._take("."):
                name = self._name()
                value = self._method(name, value) if self._take("(") else _field(value, name)
            elif self._take("["):
                index = self.ternary()
                self._expect("]")
                value = _combined(lambda found, at: found[at], value, index)
            else:
                return value

    def _method(self, name: str, value: Value) -> Value:
        if name not in _METHODS:
            raise CelError(f"{self._text}: the method {name} is not known")
        method, arguments = _METHODS[name], self._arguments()
        return lambda scope: method(value(scope), *(each(scope) for each in arguments))

    def _primary(self) -> Value:
        kind, text = self._next()
        match kind:
            case "number":
                return lambda _: int(text)
            case "text":
                plain = _ESCAPED.sub(r"\1", text[1:-1])
                return lambda _: plain
            case "name":
                return self._named(text)
        if text == "(":
            value = self.ternary()
            self._expect(")")
            return value
        if text == "[":
            items: list[Value] = []
            while not self._take("]"):
                items.append(self.ternary())
                self._take(",")
            return lambda scope: [item(scope) for item in items]
        raise CelError(f"{self._text}: did not expect {text!r}")

    def _named(self, name: str) -> Value:
        if name in _CONSTANTS:
            return lambda _: _CONSTANTS[name]
        if not self._take("("):
            return lambda scope: scope[name]
        if name == "has":
            return self._has()
        if name not in _FUNCTIONS:
            raise CelError(f"{self._text}: the function {name} is not known")
        function, arguments = _FUNCTIONS[name], self._arguments()
        return lambda scope: function(*(each(scope) for each in arguments))

    def _has(self) -> Value:
        """`has(a.b.c)`: everything up to the last name has a value; is there one of that name in it?"""
        depth, last = self._at, self._at
        while self._tokens[depth][1] != ")":
            opened = 1 if self._tokens[depth][1] == "(" else 0
            depth += 1
            while opened:
                opened += {"(": 1, ")": -1}.get(self._tokens[depth][1], 0)
                depth += 1
            if self._tokens[depth][1] == ".":
                last = depth
        name = self._tokens[last + 1][1]
        rest = self._tokens
        self._tokens = rest[:last]
        value = self._member(self._primary())
        self._tokens, self._at = rest, depth
        self._expect(")")
        return lambda scope: name in value(scope)

    def _arguments(self) -> list[Value]:
        found: list[Value] = []
        while not self._take(")"):
            found.append(self.ternary())
            self._take(",")
        return found

    def _next(self) -> tuple[str, str]:
        if self._at >= len(self._tokens):
            raise CelError(f"{self._text}: ends too early")
        self._at += 1
        return self._tokens[self._at - 1]

    def _name(self) -> str:
        kind, text = self._next()
        if kind != "name":
            raise CelError(f"{self._text}: expected a name, not {text!r}")
        return text

    def _take(self, sign: str) -> bool:
        if self._at < len(self._tokens) and self._tokens[self._at] in (("sign", sign), ("name", sign)):
            self._at += 1
            return True
        return False

    def _expect(self, sign: str) -> None:
        if not self._take(sign):
            raise CelError(f"{self._text}: expected {sign!r}")


def _combined(operator: Callable[[Any, Any], Any], left: Value, right: Value) -> Value:
    return lambda scope: operator(left(scope), right(scope))


def _field(value: Value, name: str) -> Value:
    return lambda scope: value(scope)[name]
