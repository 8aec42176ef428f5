"""What the documentation says to type and to apply is taken: commands of `shardherd` with their options, targets of `make`,
ConsumerGroups, patches of one. Nothing is run."""

from __future__ import annotations

import argparse
import copy
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.core import TyperCommand, TyperGroup

from shardherd.controller.manifests import Manifests
from shardherd.inspect import COMMANDS
from shardherd.inspect.commands import app
from shardherd.local import alone
from shardherd.local import commands as local
from shardherd.local.schema import RefusedError, admitted

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md")),
    *sorted((ROOT / "spark_apps").glob("*/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
)
DAY_TWO = ROOT / "docs" / "day-two.md"
Json = dict[str, Any]
LOCAL = ("local", "run")
"""Commands that are no part of what looks at groups; what parses them is made elsewhere."""
OTHERS = ("operator", "version", "ping", "brokers")


def blocks(page: Path, *languages: str) -> list[str]:
    """The blocks of code of these languages."""
    found = re.findall(r"^ *```(\w*)\n(.*?)^ *```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return [text for language, text in found if language in languages]


def typed(page: Path) -> Iterator[str]:
    """Every line that a page says to type in a shell."""
    for block in blocks(page, "sh", "bash", "console"):
        yield from block.replace("\\\n", " ").splitlines()


def calls(line: str) -> list[list[str]]:
    """The words after `shardherd`, or `kubectl shardherd`, of each call of it in a line of a shell."""
    found = re.findall(r"(?:^|[|;&(]\s*|\$ )(?:kubectl )?shardherd ([^|;&)]*)", line.strip())
    return [shlex.split(words, comments=True) for words in found]


IN_BLOCKS = [(page.name, shlex.join(words)) for page in PAGES for line in typed(page) for words in calls(line)]
IN_TEXT = sorted(
    {
        (page.name, words)
        for page in PAGES
        for words in re.findall(
            r"`(?:kubectl )?shardherd ([a-z][^`]*)`", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        )
    }
)


def command(words: list[str]) -> tuple[TyperCommand | TyperGroup, list[str]]:
    """The command that these words name, and the words that are left for it."""
    found: Any = typer.main.get_command(app)
    while isinstance(found, TyperGroup) and words and (below := found.commands.get(words[0])) is not None:
        found, words = below, words[1:]
    return found, words


def parser() -> argparse.ArgumentParser:
    """What parses the commands of one machine."""
    made = argparse.ArgumentParser(exit_on_error=False)
    below = made.add_subparsers(dest="command")
    local.add_to(below)
    alone.add_to(below)
    return made


def test_there_are_some() -> None:
    assert {words.split()[0] for _, words in IN_BLOCKS} >= COMMANDS.keys() | {"local"}
    assert len(IN_TEXT) > 10


@pytest.mark.parametrize(("page", "line"), IN_BLOCKS)
def test_a_command_in_a_block_is_parsed(page: str, line: str) -> None:
    words = shlex.split(line)
    if words[0] in LOCAL:
        parser().parse_args(words)
    elif words[0] not in OTHERS:
        found, rest = command(words)
        assert not isinstance(found, TyperGroup), f"no such command: {line}"
        found.make_context(words[0], rest)


@pytest.mark.parametrize(("page", "line"), IN_TEXT)
def test_a_command_in_the_text_exists_with_its_options(page: str, line: str) -> None:
    words = shlex.split(line)
    if words[0] in (*LOCAL, *OTHERS):
        return
    found, rest = command(words)
    assert words[0] in COMMANDS, f"no such command: {line}"
    known = {option for parameter in found.params for option in (*parameter.opts, *parameter.secondary_opts)}
    assert {word for word in rest if word.startswith("-")} <= known | {"--help"}


def test_every_target_of_make_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        (page.name, name)
        for page in PAGES
        for name in re.findall(r"(?:`|^)make ([a-z][a-z-]*)", page.read_text(), re.MULTILINE)
    }
    assert len(named) > 15
    assert {(page, name) for page, name in named if name not in targets} == set()


def groups() -> Iterator[tuple[str, Json]]:
    for page in PAGES:
        for block in blocks(page, "yaml"):
            for found in yaml.safe_load_all(block):
                if isinstance(found, dict) and found.get("kind") == "ConsumerGroup" and "spec" in found:
                    yield page.name, found


@pytest.mark.parametrize(("page", "group"), list(groups()), ids=[page for page, _ in groups()])
def test_a_group_that_is_shown_is_taken(page: str, group: Json) -> None:
    admitted(group)


def test_groups_are_shown_on_several_pages() -> None:
    assert {page for page, _ in groups()} >= {"README.md", "keda.md", "security-kafka.md"}


def merged(value: Any, patch: Any) -> Any:
    """As `kubectl patch --type=merge` does it."""
    if not isinstance(patch, Mapping):
        return patch
    below = value if isinstance(value, Mapping) else {}
    changed = {name: merged(below.get(name), each) for name, each in patch.items() if each is not None}
    return {**{name: each for name, each in below.items() if name not in patch}, **changed}


PATCHES = sorted(
    {
        (page.name, patch)
        for page in PAGES
        for patch in re.findall(r"kubectl patch (?:shcg|consumergroup)[^`]*?-p '(\{[^']*\})'(?!\")", page.read_text())
    }
)


@pytest.mark.parametrize(("page", "patch"), PATCHES)
def test_a_patch_that_is_shown_is_taken(page: str, patch: str) -> None:
    (group,) = (group for name, group in groups() if name == "keda.md")
    before = merged(group, {"spec": {"reset": {"id": "one", "to": "Earliest"}}})
    admitted(merged(before, json.loads(patch)))


def replaced(resource: Any, patch: list[Json]) -> Any:
    """As `kubectl patch --type=json` does it, by nothing but the operation `add` below fields that there are."""
    for each in patch:
        assert each["op"] == "add"
        *names, last = each["path"].split("/")[1:]
        below = resource = copy.deepcopy(resource)
        for name in names:
            below = below[name]
        below[last] = each["value"]
    return resource


WHOLE = re.findall(
    r"""kubectl patch shcg [^`]*?--type=json[^`]*?-p '(\[.*?\])'$""", DAY_TWO.read_text(), re.MULTILINE | re.DOTALL
)


def test_a_reset_that_is_shown_has_nothing_of_one_that_was_declared_before() -> None:
    (group,) = (group for name, group in groups() if name == "keda.md")
    patches = [json.loads(patch.replace("""'"$offsets"'""", '{"clickstream/0": 7}')) for patch in WHOLE]
    for earlier in (
        {"id": "one", "to": "Earliest", "shards": ["clickstream/1"]},
        {"id": "one", "to": "Offsets", "offsets": {"clickstream/1": 5}},
        {"id": "one", "to": "Timestamp", "timestamp": "2026-01-31T12:00:00Z"},
    ):
        before = merged(group, {"spec": {"reset": earlier}})
        assert [admitted(replaced(before, patch), before)["spec"]["reset"] for patch in patches] == [
            {"id": "replay-1", "to": "Earliest", "dryRun": True},
            {"id": "restore-1", "to": "Offsets", "dryRun": False, "offsets": {"clickstream/0": 7}},
        ]
    assert {name for _, patch in PATCHES for name in json.loads(patch)["spec"].get("reset", {})} == {"dryRun"}


def test_the_disks_of_a_consumer_are_named_as_the_page_on_concepts_has_it() -> None:
    (block,) = (each for each in blocks(ROOT / "docs" / "concepts.md", "yaml") if "SHARDHERD_DISKS" in each)
    (group,) = (group for name, group in groups() if name == "keda.md")
    for kind in ("driver", "worker"):
        patch = yaml.safe_load(block.replace("driver", kind))
        if kind == "worker":
            patch["spec"]["application"] |= {"type": "Python"}
        resource = admitted(merged(group, patch))
        resource["metadata"] |= {"uid": "uid", "generation": 1}
        pod = Manifests("https://here", "shardherd", trust=True).stateful_set(resource, 1)["spec"]["template"]["spec"]
        (container,) = (each for each in pod["containers"] if each["name"] == kind)
        assert {"name": "SHARDHERD_DISKS", "value": "/data"} in container["env"]


def test_no_two_runs_of_a_consumer_have_the_staging_table_of_the_page_on_sinks_in_common(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SHARDHERD_CONSUMER", "clicks-0")
    (block,) = (each for each in blocks(ROOT / "docs" / "sinks.md", "python") if "STAGING" in each)
    tables: set[str] = set()
    for _ in range(2):
        names: Json = {}
        exec(block, names)
        tables.add(names["STAGING"])
    # PostgreSQL cuts longer names off.
    assert (len(tables), [each for each in tables if len(each) > 63]) == (2, [])


def test_a_patch_of_a_field_that_there_is_not_is_refused() -> None:
    assert len(PATCHES) > 3
    (group,) = (group for name, group in groups() if name == "keda.md")
    with pytest.raises(RefusedError):
        admitted(merged(group, {"spec": {"pausd": True}}))
