"""The first thing that a newcomer sees: exactly what `make demo` does on this machine, every line of its table, and its end."""

from __future__ import annotations

import re
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from dev.demo.on_machine import MachinePlace
from dev.demo.place import TOPIC
from dev.demo.report import Reporter
from dev.demo.story import Story
from dev.demo.traffic import Traffic
from shardherd.cli import main
from tests.harness.cluster import Tell
from tests.harness.demo import PROMISED, Table, broken, moved_as_promised, number, played_table, promised

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tell: Tell) -> Iterator[MachinePlace]:
    """An empty place; whatever the story left is ended with it."""
    found = MachinePlace(tmp_path_factory.mktemp("demo") / "here", Reporter(tell))
    yield found
    Traffic(found, TOPIC).end()
    found.stop()


@pytest.fixture(scope="module")
def table(place: MachinePlace, tell: Tell) -> Table:
    """The whole story, told to its end."""
    story = Story(place)
    for step in (story.build, *story.steps):
        step()
    return played_table(story, tell)


def test_every_promise_of_the_demo_held(table: Table) -> None:
    assert broken(table) == {}


def test_the_demo_promises_what_the_one_on_a_cluster_promises(table: Table) -> None:
    assert promised(table) >= PROMISED | {"lag by the operator's metric"}


def test_more_than_the_backlog_was_produced_and_shards_moved(place: MachinePlace, table: Table) -> None:
    assert number(table, "records produced") > place.backlog
    assert moved_as_promised(table)


def test_what_to_look_at_afterwards_is_there(place: MachinePlace, table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    said = place.next_steps()
    assert f"{Path(sys.executable).parent.name}/shardherd local status --state " in said
    assert place.metrics_url in said
    (page,) = re.findall(r"shardherd (page --local --state \S+)", said)
    assert main(page.split()) == 0
    with urllib.request.urlopen(capsys.readouterr().out.strip(), timeout=30) as answer:
        assert answer.headers.get_content_type() == "text/html"
    assert "make demo-cluster" in said
    assert "2 consumers read 12 shards." in place.explain()


def test_nothing_is_left_when_it_is_removed(place: MachinePlace, table: Table) -> None:
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
