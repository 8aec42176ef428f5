"""Finding the assignors of others."""

from __future__ import annotations

import logging
from importlib.metadata import EntryPoint

import pytest

from shardherd.adapters.assignors import ENTRY_POINTS, load_assignors
from shardherd.core.assignors import ASSIGNORS, AssignorFailedError, Problem, sticky, target
from shardherd.core.model.nouns import ConsumerId, ShardId


def plug_in(name: str, value: str) -> EntryPoint:
    return EntryPoint(name, value, ENTRY_POINTS)


ASKED = Problem.of([ShardId("t/0")], [ConsumerId("g-0")])


def test_without_plug_ins_there_are_ours() -> None:
    assert load_assignors([]) == ASSIGNORS


def test_installed_distributions_are_asked() -> None:
    assert set(ASSIGNORS) <= set(load_assignors())


def test_a_plug_in_is_found_by_its_name() -> None:
    found = load_assignors([plug_in("example.Same", "shardherd.core.assignors:sticky")])
    assert found["example.Same"] is sticky
    assert target("example.Same", ASKED, found).tolist() == [0]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("no_such_module:assign", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("shardherd.core.assignors:NOBODY", "shardherd.core.assignors:NOBODY is a int, not a function of a Problem"),
    ],
)
def test_one_that_cannot_be_loaded_fails_with_the_reason_when_it_is_asked(value: str, why: str) -> None:
    found = load_assignors([plug_in("example.Broken", value)])
    with pytest.raises(AssignorFailedError, match=why):
        target("example.Broken", ASKED, found)


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (["Sticky"], "assignor 'Sticky' of shardherd.core.assignors:kept is left out: the name of a plug-in needs a dot"),
        (["a.B", "a.B"], "assignor 'a.B' of shardherd.core.assignors:kept is left out: another plug-in has the name"),
    ],
)
def test_a_name_without_a_dot_or_taken_is_left_out(names: list[str], why: str, caplog: pytest.LogCaptureFixture) -> None:
    accepted = set(names[1:])
    plug_ins = [plug_in(name, "shardherd.core.assignors:kept") for name in names]
    with caplog.at_level(logging.ERROR):
        found = load_assignors(plug_ins)
    assert set(found) == set(ASSIGNORS) | accepted
    assert why in caplog.text
