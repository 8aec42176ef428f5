"""Text as Java has it: UTF-16 code units, decoded from bytes and encoded to them as Java does it, also where they are wrong.

`from_json` and `jackson` read documents in this form. Knows nothing of JSON.
"""

from __future__ import annotations

import codecs


def _replace(error: UnicodeError) -> tuple[str, int]:
    """One U+FFFD for what Java's decoder takes for one malformed piece; Python's differs for encoded surrogates only."""
    assert isinstance(error, UnicodeDecodeError)
    raw, start = error.object, error.start
    if raw[start] == 0xED and start + 1 < len(raw) and 0xA0 <= raw[start + 1] <= 0xBF:
        return "\ufffd", start + 2 + (start + 2 < len(raw) and 0x80 <= raw[start + 2] <= 0xBF)
    return "\ufffd", error.end


_REPLACE = "shardherd-java"
codecs.register_error(_REPLACE, _replace)


def code_units(document: bytes) -> str:
    """The document as Java's reader gives it: UTF-16 code units, each malformed piece one U+FFFD."""
    text = document.decode("utf-8", _REPLACE)
    if text.isascii() or max(text) <= "\uffff":
        return text
    raw = text.encode("utf-16-le")
    return "".join(map(chr, memoryview(raw).cast("H")))


def utf8(text: str) -> bytes:
    """Code units as Java encodes them: pairs together, a lone surrogate as a question mark."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass").encode("utf-8", "replace")
