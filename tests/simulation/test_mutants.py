"""Mutants: which are drawn from, how one is put into a process, and when it counts as noticed."""

from __future__ import annotations

import pytest

from tests.simulation import mutants
from tests.simulation.mutations import MODULES, PACKAGE, Mutant, every

SEEDS = range(5_000_000, 5_000_003)


def of(source: str, module: str = "core/group/grants", function: str = "movable") -> Mutant:
    return Mutant(module, function, "as the test says", source)


def test_mutants_are_changes_of_functions_written_down_from_the_margin_on() -> None:
    found, texts = every(["core/group/fsm", "core/group/lineage"])
    made = [make() for make in found]
    assert {each.module for each in made} == {"core/group/fsm", "core/group/lineage"}
    assert "all(done(ancestor) for ancestor in ancestors(shard, parents))" in (PACKAGE / "core/group/lineage.py").read_text()
    assert [each.change for each in made if each.function == "may_be_read"] == [
        f"return all(done(ancestor) for ancestor in ancestors(shard, parents)) -> return {after}"
        for after in (
            "all(None)",
            "all(done(None) for ancestor in ancestors(shard, parents))",
            "all(done(ancestor) for ancestor in ancestors(None, parents))",
            "all(done(ancestor) for ancestor in ancestors(shard, None))",
            "all(done(ancestor) for ancestor in ancestors(parents))",
            "all(done(ancestor) for ancestor in ancestors(shard, ))",
        )
    ]
    assert all(each.source.startswith("def ") for each in made)
    assert texts > 0, "the message of an illegal transition is one for people"
    assert not any("is not possible in" in each.change for each in made)


def test_every_module_that_is_named_exists() -> None:
    assert [name for name in MODULES if not (PACKAGE / f"{name}.py").exists()] == []


def test_a_mutant_is_noticed_by_a_broken_promise_a_failure_or_a_schedule_that_does_not_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failing = mutants.tried(of("def movable(state, shard):\n    raise TypeError('a mutant')\n"), SEEDS)
    assert (failing.after, "a failure of ours" in failing.what) == (1, True)
    held = "def finish_if_done(state, shard, now):\n    return False\n"
    broken = mutants.tried(of(held, function="finish_if_done"), range(60))
    assert (broken.after > 0, "BrokenError" in broken.what) == (True, True)
    monkeypatch.setattr(mutants, "HANGS", 0.5)
    hanging = mutants.tried(of("def movable(state, shard):\n    while True:\n        pass\n"), SEEDS)
    assert (hanging.after, hanging.what) == (1, "it runs for 0.5 s")


def test_a_mutant_that_changes_nothing_is_not_noticed_and_leaves_this_process_alone() -> None:
    same = mutants.tried(of("def movable(state, shard):\n    return not shard in state.in_flight\n"), SEEDS)
    assert (same.after, same.what) == (0, "")


def test_a_method_is_replaced_where_it_is() -> None:
    source = "def take(self, consumers):\n    yield from ()\n"
    lost = mutants.tried(of(source, "coordinator/parking", "Parking.take"), SEEDS)
    assert lost.after > 0
