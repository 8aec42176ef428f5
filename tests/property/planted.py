"""Planted bugs: a mutation of the code, and a property that must notice it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from hypothesis import HealthCheck, Phase, settings


@dataclass(frozen=True)
class Bug:
    """What is wrong, in which method of which class, and what stands in its place: it gets the right one first."""

    name: str
    owner: Any
    method: str
    wrong: Callable[..., Any]

    def planted(self) -> AbstractContextManager[Any]:
        """The code has the bug within this."""
        right = self.owner.__dict__[self.method]
        wrong = self.wrong
        if isinstance(right, property):
            getter = right.fget
            return mock.patch.object(self.owner, self.method, property(lambda me: wrong(getter, me)))

        def replaced(*arguments: Any, **named: Any) -> Any:
            return wrong(right, *arguments, **named)

        return mock.patch.object(self.owner, self.method, replaced)


def noticed(bug: Bug, property_: Any, examples: int = 1000) -> bool:
    """Whether the property fails with this bug in the code, by any of so many examples: the first is enough.

    Only what it asserts counts: another error says that the bug, or the property, does not even run.
    """
    name = "_hypothesis_internal_use_settings"
    wider = settings(
        getattr(property_, name),
        max_examples=examples,
        phases=(Phase.generate,),
        database=None,
        report_multiple_bugs=False,
        suppress_health_check=tuple(HealthCheck),
    )
    with bug.planted(), mock.patch.object(property_, name, wider):
        try:
            property_()
        except AssertionError:
            return True
    return False
