"""Where the demo happens: what is read of Kafka's own words, and that both places are told of alike."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dev.demo.on_cluster import ClusterPlace
from dev.demo.on_machine import MachinePlace
from dev.demo.place import Position, positions
from dev.demo.report import DemoError, Reporter
from shardherd.adapters.local.objects import GROUP_LABEL, POD
from shardherd.local.operator import METRICS
from shardherd.local.state import State
from tests.unit.test_documented import command, parser

ROOT = Path(__file__).resolve().parents[2]

DESCRIBED = """
GROUP            TOPIC           PARTITION  CURRENT-OFFSET  LOG-END-OFFSET  LAG  CONSUMER-ID  HOST  CLIENT-ID
demo.clickstream clickstream     0          120             130             10   -            -     -
demo.clickstream clickstream     1          -               7               -    -            -     -
other.group      clickstream     2          1               1               0    -            -     -
"""


def test_what_kafka_says_of_a_group_is_read_by_shard() -> None:
    assert positions(DESCRIBED, "demo.clickstream") == {
        "clickstream/0": Position(committed=120, end=130, lag=10),
        "clickstream/1": Position(committed=-1, end=7, lag=-1),
    }


def test_a_group_that_kafka_does_not_know_is_an_error_with_its_words() -> None:
    with pytest.raises(DemoError, match=r"knows nothing of group demo\.missing: Error: no such group"):
        positions("Error: no such group\n", "demo.missing")


def test_both_places_have_all_that_the_story_needs() -> None:
    assert not ClusterPlace.__abstractmethods__
    assert not MachinePlace.__abstractmethods__


def test_the_rows_on_this_machine_are_where_the_manifests_volume_leads(tmp_path: Path) -> None:
    place = MachinePlace(tmp_path / "demo", Reporter(lambda _: None))
    assert place.rows == tmp_path / "demo" / "herd" / "volumes" / "demo" / "clickstream-data" / "clickstream" / "rows"


def test_what_to_look_at_afterwards_are_commands_that_there_are(tmp_path: Path) -> None:
    place = MachinePlace(tmp_path / "demo", Reporter(lambda _: None))
    state = State(place.folder / "herd")
    state.make()
    objects = state.objects()
    objects.database.note(METRICS, "1234")
    objects.database.close()

    named = re.findall(r"^  \S*bin/shardherd (.*?)(?:    .*)?$", place.next_steps(), re.MULTILINE)

    assert [words.split()[:2] for words in named] == [
        ["local", "status"], ["local", "logs"], ["local", "kill"], ["explain", "clickstream"], ["page", "--local"],
    ]  # fmt: skip
    for words in map(str.split, named):
        assert words[-2:] == ["--state", str(state.folder)]
        if words[0] == "local":
            parser().parse_args(words)
        else:
            found, rest = command(words)
            found.make_context(words[0], rest)


def test_to_remove_what_is_not_there_does_nothing(tmp_path: Path) -> None:
    assert not MachinePlace(tmp_path / "demo", Reporter(lambda _: None)).stop()


def test_a_place_where_nothing_was_started_has_nothing_to_explain(tmp_path: Path) -> None:
    assert MachinePlace(tmp_path / "demo", Reporter(lambda _: None)).explain() == ""


def test_a_failure_is_explained_by_the_state_the_consumers_logs_and_those_of_what_serves_them(tmp_path: Path) -> None:
    place = MachinePlace(tmp_path / "demo", Reporter(lambda _: None))
    state = State(place.folder / "herd")
    state.make()
    pod = {"metadata": {"labels": {GROUP_LABEL: "clickstream"}, "name": "clickstream-0", "namespace": "demo"}}
    objects = state.objects()
    objects.change((POD, "demo", "clickstream-0"), lambda _: {**pod, "kind": POD, "spec": {}, "status": {}})
    objects.database.close()
    state.log.write_text("the operator said this\n")
    place.broker.folder.mkdir()
    place.broker.log.write_text("the broker said that\n")
    said = place.explain()
    assert "no operator runs" in said
    assert "'clickstream-0' has written nothing here" in said
    assert said.endswith("last lines of the operator:\nthe operator said this\nlast lines of the broker:\nthe broker said that")
    assert place.stop()


@pytest.mark.parametrize(
    "document", ["README.md", "CONTRIBUTING.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
)
def test_every_target_of_make_that_a_page_names_exists(document: str) -> None:
    named = set(re.findall(r"(?:^|`)make ([a-z][a-z-]+)", (ROOT / document).read_text(), re.MULTILINE))
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert named - targets == set()


def test_the_first_screen_of_the_readme_has_the_two_commands_and_a_table_without_missing_records() -> None:
    first = (ROOT / "README.md").read_text().partition("## An application")[0]
    assert re.findall(r"^make ([a-z-]+)", first, re.MULTILINE) == ["demo", "test"]
    assert re.search(r"^missing +0  held  0$", first, re.MULTILINE)
    assert "BROKEN" not in first
