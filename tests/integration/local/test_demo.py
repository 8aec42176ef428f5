"""The first thing that a newcomer sees: exactly what `make demo` does on this machine, every line of its table, and its end."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dev.demo.account import Line, render
from dev.demo.on_machine import MachinePlace
from dev.demo.place import TOPIC
from dev.demo.report import Reporter
from dev.demo.story import Story
from dev.demo.traffic import Traffic
from tests.harness.cluster import Tell

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tell: Tell) -> Iterator[MachinePlace]:
    """An empty place; whatever the story left is ended with it."""
    found = MachinePlace(tmp_path_factory.mktemp("demo") / "here", Reporter(tell))
    yield found
    Traffic(found, TOPIC).end()
    found.stop()


@pytest.fixture(scope="module")
def table(place: MachinePlace, tell: Tell) -> dict[str, Line]:
    """The whole story, told to its end: the lines of its table, by name."""
    story = Story(place)
    for step in (story.build, story.prepare, story.apply, story.grow, story.kill, story.scale_in, story.finish):
        step()
    table = story.table()
    tell(render(table))
    return {line.name: line for line in table}


def test_every_promise_of_the_demo_held(table: dict[str, Line]) -> None:
    assert {name: line.value for name, line in table.items() if line.holds is False} == {}


def test_the_demo_promises_what_the_one_on_a_cluster_promises(table: dict[str, Line]) -> None:
    promised = {name for name, line in table.items() if line.holds is not None}
    assert promised >= {
        "end offsets of the topic, summed",
        "missing",
        "read but never produced",
        "duplicates before the kill",
        "duplicates after the kill",
        "duplicates at scale-in",
        "the killed consumer's 4 shards read by others after",
        "lag by the operator's metric",
    }


def test_more_than_the_backlog_was_produced_and_shards_moved(place: MachinePlace, table: dict[str, Line]) -> None:
    produced = int(table["records produced"].value.replace(",", ""))
    moves = int(table["shards moved, by the operator's metric"].value.replace(",", ""))
    assert produced > place.backlog
    # Four to the third application, four away from the dead one, four back to it, and four away from it at scale-in.
    assert 12 <= moves <= 19


def test_what_to_look_at_afterwards_is_there(place: MachinePlace, table: dict[str, Line]) -> None:
    said = place.next_steps()
    assert f"{Path(sys.executable).parent.name}/shardherd local status --state " in said
    assert place.metrics_url in said
    assert "make demo-cluster" in said
    assert "2 consumers read 12 shards." in place.explain()


def test_nothing_is_left_when_it_is_removed(place: MachinePlace, table: dict[str, Line]) -> None:
    assert place.stop()
    assert not place.folder.exists()
    assert processes_that_name(str(place.folder)) == []
    assert not place.stop()


def processes_that_name(text: str) -> list[str]:
    """The command lines of all processes that have this text in them."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in command:
            found.append(command)
    return found
