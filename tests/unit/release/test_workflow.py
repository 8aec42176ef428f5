"""The workflow of a release: it calls what people call, and runs nothing that is not known by its hash."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / ".github" / "workflows" / "release.yaml").read_text()
WORKFLOW: dict[str, Any] = yaml.safe_load(TEXT)
JOB: dict[str, Any] = WORKFLOW["jobs"]["release"]


def test_it_runs_make_release_and_nothing_else_of_the_project() -> None:
    said = [step["run"] for step in JOB["steps"] if "run" in step]
    assert [each for each in said if not each.startswith(("apt-get ", "git config "))] == ["make release"]
    assert re.search(r"^release:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_every_action_is_known_by_the_hash_of_its_commit() -> None:
    used = re.findall(r"uses: (\S+)", TEXT)
    assert len(used) == 2
    assert [each for each in used if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", each)] == []


def test_it_runs_on_the_base_of_the_images() -> None:
    (base,) = re.findall(r"^ARG BASE=(\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert JOB["container"]["image"] == base


def test_it_may_read_only() -> None:
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert "permissions" not in JOB
    assert "secrets." not in TEXT
