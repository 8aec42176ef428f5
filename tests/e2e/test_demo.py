"""The main job, end to end: what `make demo-cluster` does, of a shorter backlog, and every line of its table."""

from __future__ import annotations

import json
import re
import urllib.request
from typing import Any
from urllib.parse import urlencode

import pytest

from dev.demo.account import render
from dev.demo.encore import grow_without_operator, shrink_without_operator
from dev.demo.lab import Lab
from dev.demo.on_cluster import ClusterPlace
from dev.demo.place import REPOSITORY
from dev.demo.story import Story
from tests.e2e.groups import NAMESPACES
from tests.harness.cluster import Tell
from tests.harness.demo import PROMISED, Table, broken, moved_as_promised, number, played_table, promised
from tests.unit.test_documented import command

pytestmark = pytest.mark.timeout(900)

BACKLOG = 100_000
"""A fifth of the demo's: to write and read the rest takes half a minute, and shows no more."""
DASHBOARD = REPOSITORY / "charts" / "shardherd" / "files" / "dashboard.json"


@pytest.fixture(scope="module")
def story(installed: Lab) -> Story:
    """The whole story, told to its end."""
    place = ClusterPlace(installed, NAMESPACES)
    place.backlog = BACKLOG
    story = Story(place)
    for step in story.steps:
        step()
    return story


@pytest.fixture(scope="module")
def table(story: Story, tell: Tell) -> Table:
    return played_table(story, tell)


def test_every_promise_of_the_demo_held(table: Table) -> None:
    assert broken(table) == {}


def test_the_demo_promises_what_matters(table: Table) -> None:
    assert promised(table) >= PROMISED | {"lag by the operator's metric in Prometheus"}


def test_more_than_the_backlog_was_produced_and_shards_moved(table: Table) -> None:
    assert number(table, "records produced") > BACKLOG
    assert moved_as_promised(table)


def test_what_it_names_to_look_at_afterwards_are_commands_that_there_are(story: Story) -> None:
    named = re.findall(r"^  \S*bin/shardherd (.*?)(?:    .*)?$", story.place.next_steps(), re.MULTILINE)
    assert [words.split()[:2] for words in named] == [["explain", "clickstream"], ["page"]]
    for words in map(str.split, named):
        found, rest = command(words)
        found.make_context(words[0], rest)


def test_every_query_of_the_dashboard_shows_something(installed: Lab, table: Table) -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len(panels) > 20

    def empty(panel: dict[str, Any]) -> list[str]:
        # What a panel hides while it is 0 has to be there all the same.
        queries = [
            re.sub(r"\$(namespace|consumergroup)", ".*", target["expr"]).removesuffix(" > 0") for target in panel["targets"]
        ]
        return [query for query in queries if not answered(installed, query)]

    # Empty where nothing failed, nothing stands still, no value is typed, no consumer was measured at its full speed, and none
    # is plain Python.
    quiet = re.compile(
        r"shardherd_(source_errors|reconcile_errors|callers_refused|source_values)_total"
        r"|shardherd_(shard_verdict_info|shard_unowned_seconds|group_consumer_records_per_second)"
        r"|shardherd_worker_\w+"
        r'|shardherd_agent_(heartbeats|checkpoints)_total\{[^}]*result!="ok"'
    )
    assert [(panel["title"], query) for panel in panels for query in empty(panel) if not quiet.search(query)] == []


def answered(lab: Lab, query: str) -> list[Any]:
    """What Prometheus has for a query now."""
    url = f"{lab.cluster.prometheus_url}/api/v1/query?{urlencode({'query': query})}"
    with urllib.request.urlopen(url, timeout=10) as response:
        found: list[Any] = json.loads(response.read())["data"]["result"]
    return found


def test_killing_the_operator_while_a_consumer_joins_changes_nothing(story: Story, table: Table, tell: Tell) -> None:
    grown = grow_without_operator(story)
    tell(render(grown))
    assert broken({line.name: line for line in grown}) == {}


def test_killing_the_operator_while_a_consumer_drains_changes_nothing(story: Story, table: Table, tell: Tell) -> None:
    drained = shrink_without_operator(story)
    tell(render(drained))
    assert broken({line.name: line for line in drained}) == {}
