"""Every command of the documentation is typed by a test, or stands in a table with the reason why it is not. Nothing is run."""

from __future__ import annotations

import ast
import subprocess

import pytest

from tests.harness.typed import COMMANDS, ROOT, RULES, Command, Rule, rule_of


def test_commands_are_found_on_many_pages_with_all_of_their_lines() -> None:
    assert len({each.page for each in COMMANDS}) > 15
    (install,) = (each for each in COMMANDS if each.page == "README.md" and each.text.startswith("helm install"))
    assert len(install.text.splitlines()) == 3
    (copies,) = (each for each in COMMANDS if each.text.startswith("offsets=$("))
    assert copies.text.endswith("))))')")


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_a_test_types_it_or_a_reason_says_why_none_does(command: Command) -> None:
    assert rule_of(command) is not None, "have a test type it, or write into tests/harness/typed.py why none can"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.command)
def test_a_rule_is_about_a_command_and_names_a_test_that_exists_or_a_reason(rule: Rule) -> None:
    assert [each for each in COMMANDS if rule_of(each) is rule] != []
    assert bool(rule.by) != bool(rule.reason)
    if rule.by:
        file, _, name = rule.by.partition("::")
        tree = ast.parse((ROOT / file).read_text())
        assert name in {each.name for each in tree.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_a_shell_understands_every_command() -> None:
    for block in {(each.page, each.block) for each in COMMANDS if each.block}:
        script = "\n".join(each.text for each in COMMANDS if (each.page, each.block) == block)
        done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), block


def test_a_command_that_nobody_knows_is_of_no_test() -> None:
    assert rule_of(Command("README.md", 1, "kubefoo apply")) is None
    assert rule_of(Command("README.md", 1, "skopeo copy a b")) is not None
