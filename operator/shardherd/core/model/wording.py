"""How numbers and names are written in messages. Called wherever one counts or lists something; decides nothing."""

from __future__ import annotations

from collections.abc import Sequence


def count(number: int, noun: str) -> str:
    """A number with its noun: `1 shard`, `2 shards`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def verb(number: int, one: str, many: str) -> str:
    """The form of a verb that goes with this number."""
    return one if number == 1 else many


def some(names: Sequence[str], most: int) -> str:
    """The first of these names: `a, b`, and of more than `most` of them `a, b and others`."""
    return ", ".join(names[:most]) + (" and others" if len(names) > most else "")


def part(number: int, whole: int, noun: str, one: str, many: str) -> str:
    """A part of a whole, with its verb: `1 of 2 consumers is`, `0 of 1 consumer is`, `0 of 2 consumers are`."""
    return f"{number} of {count(whole, noun)} {one if 1 in (number, whole) else many}"
