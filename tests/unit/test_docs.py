"""The documentation says what is true: its tables are current, and every reason that a user can meet is explained."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dev.reference import DOCUMENTS, SOURCE, rendered
from shardherd.coordinator import facts
from shardherd.core import catchup, conditions, diagnosis, errors, rollout, sizing
from shardherd.spark.kafka_settings import SETTINGS
from shardherd.spark.options import OPTIONS
from shardherd.spark.schema import MEANINGS

ROOT = Path(__file__).resolve().parents[2]
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()


def constants(module: object) -> set[str]:
    """The reasons that a module defines."""
    values = {value for name, value in vars(module).items() if name.isupper() and isinstance(value, str)}
    return values - {"True", "False", "Unknown"}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.name))
def test_the_tables_of_the_documentation_are_current(document: Path) -> None:
    assert rendered(document) == document.read_text(), "run: python -m dev.reference"


def test_the_page_of_the_source_lists_exactly_its_options() -> None:
    reference = SOURCE.read_text().partition("## Coming from")[0]
    listed = re.findall(r"^\| `([\w.]+)` \| ", reference, re.MULTILINE)
    names = {option.name for option in OPTIONS} | {f"kafka.{setting.name}" for setting in SETTINGS} | set(MEANINGS)
    assert set(listed) == names


def test_every_reason_is_explained() -> None:
    reasons = (
        constants(conditions)
        | constants(sizing)
        | constants(catchup)
        | constants(diagnosis)
        | constants(rollout)
        | constants(facts)
    )
    assert {reason for reason in reasons if f"`{reason}`" not in OPERATIONS} == set()


def test_every_error_code_is_explained() -> None:
    codes = {error.code for error in errors.ShardherdError.__subclasses__()}
    assert {code for code in codes if f"`{code}`" not in OPERATIONS} == set()


@pytest.mark.parametrize(
    "document", ["README.md", "CONTRIBUTING.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
)
def test_every_link_to_a_file_of_ours_leads_somewhere(document: str) -> None:
    text = (ROOT / document).read_text()
    links = {link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", text) if not link.startswith("http")}
    assert {link for link in links if link and not ((ROOT / document).parent / link).exists()} == set()


@pytest.mark.parametrize(("document", "least"), [("safety.md", 50), ("source-values.md", 4)])
def test_every_test_that_a_page_names_exists(document: str, least: int) -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / document).read_text()))
    written = {name for path in (ROOT / "tests").rglob("*.py") for name in re.findall(r"def (test_\w+)\(", path.read_text())}
    assert len(named) > least
    assert named - written == set()


def test_every_rule_of_the_page_on_safety_names_a_test() -> None:
    rows = [row for row in (ROOT / "docs" / "safety.md").read_text().splitlines() if row.startswith("| ")]
    rules = [row for row in rows if not row.startswith("| rule")]
    assert [row for row in rules if "`test_" not in row] == []
