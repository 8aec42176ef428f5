"""Reasons stand in one place each, with their meaning: no module writes one out, and none is given that is not explained."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardherd.core.model import event_reasons, reasons
from shardherd.core.model.event_reasons import EVENTS, REBALANCES
from shardherd.core.model.reasons import CONDITIONS, REASONS, SCALING, STUCK_SHARDS
from shardherd.core.planning import diagnosis

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "operator" / "shardherd"
CHART = ROOT / "charts" / "shardherd"
VALUES = {reason.value for reason in REASONS}
TEXTS = [*(text for reason in REASONS for text in (reason.meaning, reason.remedy)), *EVENTS.values(), *REBALANCES.values()]

OTHERS = {
    ("adapters/kubernetes/object_cache.py", "Ready"): "a pod's condition",
    ("adapters/local/statuses.py", "Ready"): "a pod's condition",
    ("controller/pods.py", "Ready"): "a pod's condition",
    ("core/model/errors.py", "OwnershipDamaged"): "an error's code",
    ("core/planning/observed.py", "External"): "a mode of scaling",
    ("core/planning/observed.py", "Fixed"): "a mode of scaling",
    ("core/model/verdicts.py", "Stalled"): "a verdict on how a shard is read",
}
"""What is spelt as a reason and is something else."""

GIVEN = {
    "Condition": 0,
    "Decision": 1,
    "Event": 0,
    "Finding": 2,
    "GroupEvent": 0,
    "Trouble": 0,
    "Wish": 1,
    "_depart": 2,
    "answer": 1,
    "end": 4,
    "finding": 0,
    "record": 1,
    "want_rebalance": 1,
}
"""Calls that give a reason, and where."""


def modules() -> Iterator[tuple[str, ast.Module]]:
    """Every module but those that define reasons."""
    for path in sorted(PACKAGE.rglob("*.py")):
        name = str(path.relative_to(PACKAGE))
        if name not in ("core/model/reasons.py", "core/model/event_reasons.py"):
            yield name, ast.parse(path.read_text())


def constants(module: object) -> dict[str, str]:
    """The reasons that a module defines, by their names."""
    found = {name: value for name, value in vars(module).items() if re.fullmatch(r"[A-Z]+(_[A-Z]+)*", name)}
    return {name: value for name, value in found.items() if isinstance(value, str) and value not in (SCALING, STUCK_SHARDS)}


def test_no_module_writes_a_reason_or_the_type_of_a_condition_out() -> None:
    named = VALUES | EVENTS.keys() | REBALANCES.keys() | CONDITIONS.keys()
    written = {
        (name, str(node.value))
        for name, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and node.value in named
    }
    assert written == OTHERS.keys()


def test_nothing_is_given_as_a_reason_that_is_written_out() -> None:
    written = []
    for name, tree in modules():
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            called = getattr(call.func, "id", getattr(call.func, "attr", ""))
            at = GIVEN.get(called, len(call.args))
            for part in ast.walk(call.args[at]) if at < len(call.args) else ():
                if isinstance(part, ast.Constant) and isinstance(part.value, str) and re.fullmatch(r"[A-Z]\w+", part.value):
                    written.append(f"{name}:{part.lineno}: {part.value}")
    assert written == []


@pytest.mark.parametrize("module", [reasons, event_reasons], ids=["status", "events"])
def test_every_reason_is_given_by_somebody(module: object) -> None:
    used = {
        node.id if isinstance(node, ast.Name) else node.attr
        for _, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Name | ast.Attribute)
    }
    assert len(constants(module)) > 30
    assert constants(module).keys() - used == set()


def test_every_constant_is_explained() -> None:
    assert set(constants(reasons).values()) == VALUES
    assert set(constants(event_reasons).values()) == EVENTS.keys() | REBALANCES.keys()


def test_no_place_has_one_reason_twice() -> None:
    stands = Counter((reason.value, place) for reason in REASONS for place in reason.places)
    assert {pair for pair, times in stands.items() if times > 1} == set()
    assert {place for _, place in stands} == {*CONDITIONS, SCALING, STUCK_SHARDS}


def test_a_meaning_is_one_line_that_a_table_can_have() -> None:
    assert [text for text in TEXTS if "|" in text or text != " ".join(text.split())] == []
    assert [reason.value for reason in REASONS if not reason.meaning] == []
    assert [name for name, text in (*EVENTS.items(), *REBALANCES.items()) if not text] == []


def test_shards_are_stuck_for_the_reasons_that_are_listed() -> None:
    listed = [reason.value for reason in REASONS if STUCK_SHARDS in reason.places]
    assert sorted(diagnosis.ORDER) == sorted(listed)


def test_the_number_of_consumers_is_as_it_is_for_the_reasons_that_are_listed() -> None:
    listed = {reason.value for reason in REASONS if SCALING in reason.places}
    deciding = {name: tree for name, tree in modules() if name in ("core/planning/sizing.py", "core/planning/catchup.py")}
    named = {node.id for tree in deciding.values() for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert len(deciding) == 2
    assert {value for name, value in constants(reasons).items() if name in named} == listed


IN_THE_CHART = ("templates/prometheusrule.yaml", "templates/NOTES.txt", "files/dashboard.json")


@pytest.mark.parametrize("file", IN_THE_CHART)
def test_the_chart_names_conditions_and_reasons_that_there_are(file: str) -> None:
    text = (CHART / file).read_text()
    if file.endswith(".json"):
        json.loads(text)
    alerts = set(re.findall(r'\(dict "name" "(\w+)"', text))
    kinds = {"AppVersion", "ConfigMaps", "ConsumerGroup", "PrometheusRule", "ServiceMonitor", "StatefulSets"}
    conditions = {*re.findall(r'condition=\\+"(\w+)', text), *re.findall(r"\bcondition ([A-Z]\w+)", text)}
    compound = set(re.findall(r"\b[A-Z][a-z]+(?:[A-Z][a-z]+)+\b", text))
    assert conditions - CONDITIONS.keys() == set()
    assert compound - alerts - kinds - CONDITIONS.keys() - VALUES - EVENTS.keys() - REBALANCES.keys() == set()


def test_the_alerts_and_the_dashboard_name_conditions() -> None:
    """The test above would notice nothing if they were looked for in the wrong way."""
    named = {file: set(re.findall(r'condition=\\+"(\w+)', (CHART / file).read_text())) for file in IN_THE_CHART}
    assert {"CheckpointLost", "ScalingLimited", "Ready"} <= named["templates/prometheusrule.yaml"]
    assert "Ready" in named["files/dashboard.json"]
