"""Label selectors in the syntax of the API server and of kubectl: what one says, and whether labels match it.

Read by the settings, which refuse what the API server would refuse, and by `inspect`. The operator itself has the API server
choose by them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

LONGEST = 63
"""Characters of a label's name, and of its value."""

LONGEST_PREFIX = 253

EXAMPLES = "for example shardherd.dev/operator=a, or team in (a,b),!retired"

_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_PREFIX = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LISTED = re.compile(r"(?P<key>[^\s()=!,]+)\s+(?P<operator>in|notin)\s*\((?P<values>[^()]*)\)")
_COMPARED = re.compile(r"(?P<key>[^\s()=!,]+)\s*(?P<operator>==|=|!=)\s*(?P<value>[^\s()=!,]*)")
_ALONE = re.compile(r"(?P<absent>!?)\s*(?P<key>[^\s()=!,]+)")


class SelectorError(ValueError):
    """This is no label selector. The message says what is wrong, and how it is written."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """What one label must be. Without `values`: there, or not `wanted`, absent; with them: one of these, or not."""

    key: str
    wanted: bool
    values: frozenset[str] | None = None

    def holds(self, labels: Mapping[str, str]) -> bool:
        """A label that is not there has none of the values."""
        if self.values is None:
            return (self.key in labels) == self.wanted
        return (labels.get(self.key) in self.values) == self.wanted


@dataclass(frozen=True, slots=True)
class Selector:
    """All of these must hold."""

    requirements: tuple[Requirement, ...]

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with these labels is chosen."""
        return all(requirement.holds(labels) for requirement in self.requirements)


def parse(text: str) -> Selector:
    """Raises SelectorError."""
    return Selector(tuple(_requirement(part) for part in _parts(text)))


def _parts(text: str) -> Iterator[str]:
    """What stands between the commas that are in no parentheses."""
    depth = begun = 0
    for at, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            yield text[begun:at].strip()
            begun = at + 1
    yield text[begun:].strip()


def _requirement(part: str) -> Requirement:
    forms: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Requirement]], ...] = (
        (_LISTED, _listed),
        (_COMPARED, _compared),
        (_ALONE, lambda found: Requirement(found["key"], wanted=not found["absent"])),
    )
    for form, made in forms:
        found = form.fullmatch(part)
        if found is not None:
            requirement = made(found)
            _check(requirement, part)
            return requirement
    what = f"{part!r} is none of key, !key, key=value, key!=value, key in (value,...) and key notin (value,...)"
    raise SelectorError(f"{what if part else 'nothing stands beside a comma, or in all of it'}; write {EXAMPLES}")


def _listed(found: re.Match[str]) -> Requirement:
    values = frozenset(value.strip() for value in found["values"].split(","))
    return Requirement(found["key"], found["operator"] == "in", values)


def _compared(found: re.Match[str]) -> Requirement:
    return Requirement(found["key"], found["operator"] != "!=", frozenset({found["value"]}))


def _check(requirement: Requirement, part: str) -> None:
    prefix, slash, name = requirement.key.rpartition("/")
    wrong = [] if _is_name(name) and (not slash or _is_prefix(prefix)) else [requirement.key]
    wrong += sorted(value for value in requirement.values or () if value and not _is_name(value))
    if wrong:
        what = "key" if wrong[0] == requirement.key else "value"
        raise SelectorError(
            f"{wrong[0]!r} in {part!r} can be no label's {what}: letters, digits, '-', '_' and '.', at most {LONGEST}, begun"
            f" and ended by a letter or digit (a key may have a domain and '/' before it); write {EXAMPLES}"
        )


def _is_name(text: str) -> bool:
    return len(text) <= LONGEST and _NAME.fullmatch(text) is not None


def _is_prefix(text: str) -> bool:
    return len(text) <= LONGEST_PREFIX and _PREFIX.fullmatch(text) is not None
