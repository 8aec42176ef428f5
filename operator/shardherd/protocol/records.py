"""What a value of the protocol looks like: the fields of a dataclass or a named tuple, and their names in JSON.

Called by the readers and writers beside it and by the coordinator's OpenAPI document, so that all say the same. Decides
nothing.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any, get_type_hints

_MILLISECONDS = frozenset(
    {"heartbeat_interval", "session_timeout", "heartbeat_age", "state_age", "time", "phase_age", "goes_on_in"}
)


@dataclass(frozen=True, slots=True)
class Field:
    """One field: its attribute, its name in JSON, its type. `milliseconds`: seconds here, whole milliseconds there."""

    attribute: str
    key: str
    kind: Any
    milliseconds: bool
    required: bool


def is_record(kind: Any) -> bool:
    """Whether values of this type are objects in JSON."""
    return isinstance(kind, type) and (dataclasses.is_dataclass(kind) or is_named_tuple(kind))


def is_named_tuple(kind: Any) -> bool:
    """Whether this is a named tuple: what there are many thousands of in a request or a reply is one, as it is made fastest."""
    return isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")


@functools.cache
def fields_of(kind: Any) -> tuple[Field, ...]:
    """Every field of such a type, in order. Those that are not required follow those that are."""
    hints = get_type_hints(kind)
    if is_named_tuple(kind):
        required = {name: name not in kind._field_defaults for name in kind._fields}
    else:
        required = {
            each.name: each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING
            for each in dataclasses.fields(kind)
        }
    return tuple(
        Field(name, f"{_camel(name)}Ms" if name in _MILLISECONDS else _camel(name), hints[name], name in _MILLISECONDS, needed)
        for name, needed in required.items()
    )


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)
