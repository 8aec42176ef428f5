"""Writes core's messages as JSON, and reads those that are right: by msgspec, which is told by their classes how.

Called by the package only. A body that it does not read is for `reading`, which knows why.
"""

from __future__ import annotations

import functools
import threading
from typing import Any, TypeVar, cast

import msgspec

from shardherd.core.model.messages import MAX_INTEGER, Seconds

T = TypeVar("T")


def write(value: object) -> bytes:
    """The UTF-8 JSON text of a message, of a tuple of messages, or of a plain value. Raises TypeError for any other."""
    return _ENCODER.encode(value)


def read(kind: type[T], body: bytes) -> T | None:
    """The message, None if `reading` must read it."""
    if not _is_printable(body):
        return None
    try:
        return cast("T", _decoder(cast("Any", kind)).decode(body))
    except (msgspec.MsgspecError, RecursionError):
        return None


def _is_printable(body: bytes) -> bool:
    """Whether all strings in it surely are, as every name has to be: there are no escapes but of quotes and slashes."""
    if b"\\" in body:
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"").replace(b"\\/", b"")
    if b"\\" in body or b"\x7f" in body:
        return False
    try:
        return body.isascii() or body.decode().isprintable()
    except UnicodeDecodeError:
        return False


_MAKING = threading.Lock()
"""A decoder that is made fills in what msgspec keeps of a class for all that follow: two at once see half of it, and crash."""


@functools.cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    with _MAKING:
        return msgspec.json.Decoder(kind, dec_hook=_inward)


def _inward(_seconds: type, value: object) -> Seconds:
    """Of a field whose type msgspec does not know: there is one such type."""
    if type(value) is int and 0 <= value <= MAX_INTEGER:
        return Seconds(value / 1000)
    raise ValueError("not so many milliseconds")


def _outward(value: object) -> int:
    if isinstance(value, Seconds):
        return round(value * 1000)
    raise TypeError(f"{type(value).__name__} has no JSON in this protocol")


_ENCODER = msgspec.json.Encoder(enc_hook=_outward)
