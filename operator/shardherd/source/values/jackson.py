"""Reads one JSON document token by token, as the reader-based parser of Jackson 2.21 does it under Spark's default options.

`from_json` calls it for the documents that the compiled reader does not prove. It is a port and keeps what looks odd in the
original: a token after a field's name is read ahead with the name, strings are finished only when somebody looks at them, and
after an error the next call goes on from where the error left the position. Spark's partial results depend on all three.
It knows nothing of schemas.
"""

from __future__ import annotations

import re
import unicodedata
from enum import Enum

MAX_DEPTH, MAX_NUMBER_LENGTH, MAX_NAME_LENGTH, MAX_STRING_LENGTH = 1000, 1000, 50_000, 20_000_000
_MAX_ERROR_TOKEN = 256
_ESCAPES = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", '"': '"', "/": "/", "\\": "\\", "'": "'"}
_HEX = re.compile("[0-9a-fA-F]{0,4}")
_DIGITS = "0123456789"
_NUMBER = re.compile(r"([0-9]*)(?:\.([0-9]*))?(?:[eE][+-]?([0-9]*))?")
_NEXT = re.compile(r"[ \t\n\r]*(.?)", re.DOTALL)
_PLAIN = {quote: re.compile(f"[^{quote}\\\\\\x00-\\x1f]*") for quote in "\"'"}
"""What a string may have as it is, by its quote."""

_IDENTIFIER_START = frozenset({"Lu", "Ll", "Lt", "Lm", "Lo", "Nl", "Sc", "Pc"})
_IDENTIFIER_PART = _IDENTIFIER_START | {"Nd", "Mn", "Mc", "Cf"}


class MalformedJsonError(ValueError):
    """The document is not JSON in the sense of Spark's parser."""


class Token(Enum):
    """What the parser stands on. Its value is the text that Jackson gives such a token, for those that have one text."""

    START_OBJECT = "{"
    END_OBJECT = "}"
    START_ARRAY = "["
    END_ARRAY = "]"
    NAME = "name"
    STRING = "string"
    INTEGER = "integer"
    FLOAT = "float"
    TRUE = "true"
    FALSE = "false"
    NULL = "null"


class _Context:
    __slots__ = ("depth", "index", "kind", "name", "parent")

    def __init__(self, kind: str, parent: _Context | None) -> None:
        self.kind, self.parent = kind, parent
        self.index = -1
        self.name: str | None = None
        self.depth: int = 0 if parent is None else parent.depth + 1


def _identifier_part(char: str) -> bool:
    if char < "\x80":
        return char.isalnum() or char in "_$" or char < "\x09" or "\x0e" <= char < "\x1c" or char == "\x7f"
    return "\x80" <= char <= "\x9f" or unicodedata.category(char) in _IDENTIFIER_PART


def _end_of(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Where what a pattern matches from here on ends; each of ours matches nothing, too."""
    found = pattern.match(text, at)
    assert found is not None
    return found.end()


class Tokens:
    """A document that is being read. `token` is the current token, None before the first and after the last."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._end = len(text)
        self._context = _Context("root", None)
        self._pending: Token | None = None
        self._incomplete = False
        self._value = ""
        self.token: Token | None = None

    def text(self) -> str:
        """The current token's text; finishes a string. Raises MalformedJsonError."""
        if self.token is Token.STRING:
            if self._incomplete:
                self._incomplete = False
                self._value = self._string('"')
            if len(self._value) > MAX_STRING_LENGTH:
                raise MalformedJsonError(f"a string of {len(self._value)} characters")
            return self._value
        if self.token in (Token.INTEGER, Token.FLOAT):
            return self._value
        if self.token is Token.NAME:
            return self._context.name or ""
        return "" if self.token is None else self.token.value

    def name(self) -> str | None:
        """The name of the field that the current token belongs to."""
        if self.token in (Token.START_OBJECT, Token.START_ARRAY) and self._context.parent is not None:
            return self._context.parent.name
        return self._context.name

    def skip_children(self) -> None:
        """Go to the end of the object or array that starts here; elsewhere do nothing."""
        if self.token not in (Token.START_OBJECT, Token.START_ARRAY):
            return
        opened = 1
        while opened:
            token = self.next()
            if token is None:
                self._end_of_input()
                return
            if token in (Token.START_OBJECT, Token.START_ARRAY):
                opened += 1
            elif token in (Token.END_OBJECT, Token.END_ARRAY):
                opened -= 1

    def next(self) -> Token | None:
        """Go to the next token and return it; None at the end. Raises MalformedJsonError, after which it can go on."""
        if self.token is Token.NAME:
            token, self._pending = self._pending, None
            if token in (Token.START_ARRAY, Token.START_OBJECT):
                self._open(token)
            self.token = token
            return token
        if self._incomplete:
            self._incomplete = False
            self._string('"')
        char = self._skip_space()
        if not char:
            self._end_of_input()
            self.token = None
            return None
        if char in "]}":
            self._close(char)
            return self.token
        context = self._context
        context.index += 1
        if context.kind != "root" and context.index > 0:
            if char != ",":
                raise MalformedJsonError(f"{char!r} where a comma was expected")
            char = self._skip_space()
            if not char:
                raise MalformedJsonError("the document ends after a comma")
        inside = context.kind == "object"
        if inside:
            if char == '"':
                name = self._string('"')
            elif char == "'":
                name = self._string("'")
            else:
                raise MalformedJsonError(f"{char!r} where a field's name was expected")
            if len(name) > MAX_NAME_LENGTH:
                raise MalformedJsonError(f"a name of {len(name)} characters")
            context.name = name
            self.token = Token.NAME
            char = self._skip_colon()
        token = self._start_value(char)
        if inside:
            self._pending = token
            return self.token
        if token in (Token.START_ARRAY, Token.START_OBJECT):
            self._open(token)
        self.token = token
        return token

    # --- pieces ----------------------------------------------------------------------------------------------------------

    def _open(self, token: Token) -> None:
        self._context = _Context("array" if token is Token.START_ARRAY else "object", self._context)
        if self._context.depth > MAX_DEPTH:
            raise MalformedJsonError(f"nested deeper than {MAX_DEPTH}")

    def _close(self, char: str) -> None:
        kind = "array" if char == "]" else "object"
        if self._context.kind != kind or self._context.parent is None:
            raise MalformedJsonError(f"{char!r} closes nothing")
        self._context = self._context.parent
        self.token = Token.END_ARRAY if char == "]" else Token.END_OBJECT

    def _end_of_input(self) -> None:
        if self._context.kind != "root":
            raise MalformedJsonError(f"the document ends inside an {self._context.kind}")

    def _skip_space(self) -> str:
        """The next character that is no white space, consumed; "" at the end."""
        found = _NEXT.match(self._text, self._at)
        assert found is not None
        self._at, char = found.end(), found[1]
        if char == "/":
            raise MalformedJsonError("a comment")
        if char < " " and char:
            raise MalformedJsonError(f"control character {char!r} between tokens")
        return char

    def _skip_colon(self) -> str:
        char = self._skip_space()
        if char and char != ":":
            raise MalformedJsonError(f"{char!r} where a colon was expected")
        if not char or not (char := self._skip_space()):
            raise MalformedJsonError("the document ends after a name")
        return char

    def _start_value(self, char: str) -> Token:
        match char:
            case '"':
                self._incomplete = True
                return Token.STRING
            case "{":
                return Token.START_OBJECT
            case "[":
                return Token.START_ARRAY
            case "t":
                return self._match("true", 1, Token.TRUE)
            case "f":
                return self._match("false", 1, Token.FALSE)
            case "n":
                return self._match("null", 1, Token.NULL)
            case "-":
                return self._number(negative=True)
            case "'":
                self._value = self._string("'")
                return Token.STRING
            case "N":
                return self._not_a_number("NaN", 1)
            case "I":
                return self._not_a_number("Infinity", 1)
            case "+":
                return self._plus()
            case "]" | "," | "}":
                raise MalformedJsonError(f"{char!r} where a value was expected")
        if char in _DIGITS:
            self._at -= 1
            return self._number(negative=False)
        if char == "_" or char == "$" or unicodedata.category(char) in _IDENTIFIER_START:
            self._invalid_token(char)
        raise MalformedJsonError(f"{char!r} where a value was expected")

    def _invalid_token(self, matched: str) -> None:
        length = len(matched)
        while self._at < self._end and _identifier_part(self._text[self._at]):
            self._at += 1
            length += 1
            if length >= _MAX_ERROR_TOKEN:
                break
        raise MalformedJsonError("an unknown word")

    def _match(self, word: str, matched: int, token: Token) -> Token:
        while matched < len(word):
            if self._at >= self._end or self._text[self._at] != word[matched]:
                self._invalid_token(word[:matched])
            self._at += 1
            matched += 1
        if self._at < self._end:
            char = self._text[self._at]
            if char >= "0" and char not in "]}" and _identifier_part(char):
                self._invalid_token(word)
        return token

    def _not_a_number(self, word: str, matched: int) -> Token:
        self._match(word, matched, Token.FLOAT)
        self._value = word
        return Token.FLOAT

    def _plus(self) -> Token:
        if self._at >= self._end:
            raise MalformedJsonError("the document ends after a plus sign")
        char = self._text[self._at]
        self._at += 1
        return self._odd_number(char, negative=False)

    def _odd_number(self, char: str, *, negative: bool) -> Token:
        """What follows a sign and is no digit: an infinity, or an error."""
        if char == "I":
            if self._at >= self._end:
                raise MalformedJsonError("the document ends inside a number")
            char = self._text[self._at]
            self._at += 1
            sign = "-" if negative else "+"
            if char == "N":
                return self._not_a_number(sign + "INF", 3)
            if char == "n":
                return self._not_a_number(sign + "Infinity", 3)
        raise MalformedJsonError("a sign that no digit follows")

    def _number(self, *, negative: bool) -> Token:
        text, start = self._text, self._at
        if negative:
            if start >= self._end:
                raise MalformedJsonError("the document ends inside a number")
            if text[start] not in _DIGITS:
                self._at = start + 1
                return self._odd_number(text[start], negative=True)
        found = _NUMBER.match(text, start)
        assert found is not None
        whole, fraction, exponent = found.groups()
        if len(whole) > 1 and whole[0] == "0":
            self._at = start + 1
            raise MalformedJsonError("a number with leading zeros")
        if fraction == "":
            self._number_error(found.end(2), short=whole != "0", fraction_at=found.end(2))
        at = found.end()
        if exponent == "":
            self._number_error(at, short=whole != "0", fraction_at=-1)
        self._at = at
        if self._context.kind == "root" and at < self._end and text[at] not in " \t\r\n":
            self._at += 1
            raise MalformedJsonError("a number that no white space follows")
        if len(whole) + len(fraction or "") + len(exponent or "") > MAX_NUMBER_LENGTH:
            raise MalformedJsonError("a number of more than 1000 digits")
        self._value = ("-" if negative else "") + text[start:at]
        return Token.INTEGER if fraction is None and exponent is None else Token.FLOAT

    def _number_error(self, at: int, *, short: bool, fraction_at: int) -> None:
        # Jackson leaves its position after the point or the exponent's letter on its quick path, and after what it looked at on
        # its careful one, which it takes for a number that starts with 0 or that touches the document's end.
        if at >= self._end:
            self._at = self._end
        elif not short:
            self._at = at + 1
        else:
            self._at = fraction_at if fraction_at >= 0 else self._quick_position(at)
        raise MalformedJsonError("a number that ends in a point or in an exponent's sign")

    def _quick_position(self, at: int) -> int:
        text = self._text
        while text[at - 1] in "+-":
            at -= 1
        # The position was noted after the integer part's next character: the point if there is one, else the letter.
        exponent = at - 1
        point = exponent
        while point > 0 and text[point - 1] in _DIGITS:
            point -= 1
        return point if point > 0 and text[point - 1] == "." else at

    def _string(self, quote: str) -> str:
        """The rest of a string up to its quote. A position inside of an error is where Jackson leaves it."""
        text = self._text
        pieces: list[str] = []
        while True:
            at = _end_of(_PLAIN[quote], text, self._at)
            pieces.append(text[self._at : at])
            char = text[at : at + 1]
            self._at = at + len(char)
            if char == quote:
                return "".join(pieces)
            if not char:
                raise MalformedJsonError("the document ends inside a string")
            if char != "\\":
                raise MalformedJsonError(f"control character {char!r} inside a string")
            pieces.append(self._escape())

    def _escape(self) -> str:
        if self._at >= self._end:
            raise MalformedJsonError("the document ends inside an escape")
        char = self._text[self._at]
        self._at += 1
        if char != "u":
            if char not in _ESCAPES:
                raise MalformedJsonError(f"unknown escape {char!r}")
            return _ESCAPES[char]
        begin, self._at = self._at, _end_of(_HEX, self._text, self._at)
        if self._at - begin == 4:
            return chr(int(self._text[begin : self._at], 16))
        if self._at >= self._end:
            raise MalformedJsonError("the document ends inside an escape")
        self._at += 1
        raise MalformedJsonError(f"{self._text[self._at - 1]!r} is no hexadecimal digit")
