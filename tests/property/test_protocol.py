"""The two readers of the protocol's JSON are of one mind: the fast one, and the one that says what is wrong."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from shardherd import protocol
from shardherd.core.model.errors import InvalidRequestError
from shardherd.core.model.nouns import Leave
from shardherd.core.model.requests import ForceCheckpointReply
from shardherd.protocol import reading, wire
from tests.unit.client.test_client import RESET
from tests.unit.client.test_protocol import CHECKPOINT, CHECKPOINT_REPLY, HEARTBEAT, NAME, REPLY, RUN, VIEW

VALUES = (
    HEARTBEAT,
    HEARTBEAT.held[0],
    CHECKPOINT,
    CHECKPOINT.checkpoints[0],
    Leave(NAME, RUN, "uid", stopped=True),
    RUN,
    protocol.ForcedCheckpoint(7),
    REPLY,
    CHECKPOINT_REPLY,
    VIEW,
    VIEW.shards[0],
    VIEW.consumers[0],
    RESET,
    ForceCheckpointReply("careful"),
)
SENT = [type(value) for value in VALUES[:7]]
"""What consumers send: unknown fields are refused there, and ignored in what they are answered."""

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**64), 2**64),
    st.sampled_from([0, 1, 2**63 - 1, 2**63, 10**56 - 1, -1, 1.0, 1.5, 1e300]),
    st.text(max_size=3),
    st.sampled_from(["", "WAIT", "ok", "n" * 512, "n" * 513, "\x7f", "a\nb", "\ud800", "é"]),
    st.just([]),
    st.just({}),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where something can be put in the place of something else."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in inside for place in places(item, (*path, key)))]


def changed(value: Any, path: tuple[Any, ...], other: Any) -> Any:
    if not path:
        return other
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = changed(value[path[0]], path[1:], other)
    return copy


@st.composite
def bodies(draw: st.DrawFn, value: Any) -> bytes:
    """The body of this value, or one that differs in one place: another value, no field, or one more."""
    body = protocol.encode(value)
    path = draw(st.sampled_from(places(body)))
    at = body
    for key in path[:-1]:
        at = at[key]
    kind = draw(st.sampled_from(["as it is", "another value", "no field", "one more", "cut off"]))
    if kind == "another value":
        body = changed(body, path, draw(SCALARS))
    elif path and kind == "no field":
        del at[path[-1]]
    elif path and kind == "one more" and isinstance(at, dict):
        at[draw(st.text(max_size=3))] = draw(SCALARS)
    written = json.dumps(body, ensure_ascii=draw(st.booleans())).encode(errors="surrogatepass")
    return written[: draw(st.integers(0, len(written)))] if kind == "cut off" else written


def plain(body: bytes) -> bool:
    return body.isascii() and b"\\" not in body and b"\x7f" not in body


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_what_the_fast_reader_reads_is_what_the_careful_one_reads(value: Any) -> None:
    kind: Any = type(value)

    @settings(suppress_health_check=[HealthCheck.too_slow])
    @given(bodies(value))
    def check(body: bytes) -> None:
        fast = wire.read(kind, body)
        try:
            careful = reading.read(kind, body)
        except InvalidRequestError:
            careful = None
        if fast is None and careful is not None and plain(body):
            # Parts of an answer that are sent as well: what is unknown there, the careful reader alone ignores.
            assert type(value) not in SENT
            with pytest.raises(msgspec.ValidationError, match="unknown field"):
                wire._decoder(kind).decode(body)
        elif fast is not None or plain(body):
            assert fast == careful
            assert type(fast) is type(careful)
            assert fast is None or protocol.dumps(fast) == protocol.dumps(careful)

    check()


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_every_kind_is_read_the_fast_way(value: Any) -> None:
    assert wire.read(type(value), protocol.dumps(value)) == value


@pytest.mark.parametrize("letter", ["\n", "\x7f", "\xad", "\u2028"])
def test_what_may_not_be_printable_is_read_the_careful_way(letter: str) -> None:
    view = replace(VIEW, source_error=f"no broker{letter}answers")

    assert wire.read(type(view), protocol.dumps(view)) is None
    assert protocol.loads(type(view), protocol.dumps(view)) == view
