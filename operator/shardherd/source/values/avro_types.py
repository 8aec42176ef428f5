"""Avro schemas as values. Made by `avro_schema`, which reads their JSON; `avro_matching` compares them. Holds no rule."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")


@dataclass(slots=True)
class Field:
    """A record's field. `default` is only there if `optional`."""

    name: str
    schema: Avro
    aliases: tuple[str, ...] = ()
    optional: bool = False
    default: Any = None


@dataclass(slots=True)
class Avro:
    """An Avro schema. `parts` are a union's branches, or the one element or value schema of an array or a map.

    `name` and `aliases` of a named type are with their name space.
    """

    kind: str
    name: str = ""
    logical: str | None = None
    parts: list[Avro] = field(default_factory=list)
    fields: list[Field] = field(default_factory=list)
    symbols: tuple[str, ...] = ()
    default_symbol: str | None = None
    size: int = 0
    precision: int = 0
    scale: int = 0
    aliases: tuple[str, ...] = ()
