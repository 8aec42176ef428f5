"""The bytes of JSON texts by name, for the compiled readers, and the numbers that UTF-16's escapes are made of.

numba takes them for the constants that they are.
"""

from __future__ import annotations

TAB, LINE_FEED, CARRIAGE_RETURN, SPACE = 9, 10, 13, 32
BACKSPACE, FORM_FEED = 8, 12
QUOTE, PLUS, COMMA, MINUS, POINT, SLASH, COLON, BACKSLASH = 34, 43, 44, 45, 46, 47, 58, 92
OPEN_BRACKET, CLOSE_BRACKET, OPEN_BRACE, CLOSE_BRACE = 91, 93, 123, 125
ZERO, NINE = 48, 57
UPPER_A, UPPER_E, UPPER_F, UPPER_T, UPPER_Z = 65, 69, 70, 84, 90
LOWER_A, LOWER_B, LOWER_E, LOWER_F, LOWER_L, LOWER_N = 97, 98, 101, 102, 108, 110
LOWER_R, LOWER_S, LOWER_T, LOWER_U = 114, 115, 116, 117

FIRST_PRINTABLE = 32
"""Smaller bytes are control characters, which a text may not have as they are."""

FIRST_OF_MANY = 0x80
"""Bytes from here on are parts of a UTF-8 sequence of several."""

HIGH_SURROGATES, LOW_SURROGATES, AFTER_SURROGATES = 0xD800, 0xDC00, 0xE000
"""Where the two halves of a pair begin that stands for one code point beyond the first 65,536, and what follows them."""

BEYOND = 0x10000
"""The first of those code points."""
