"""Mutation testing of the core: mutmut changes one place of it after the other, and each time a quick test must fail.

`make mutation` runs it on the whole core, `make mutation MODULES="group/fsm assignors/sticky"` on some of its modules. It works
on a copy in the cache, since mutmut wants a layout of its own. A mutant that never ends is noticed too. Which survivors change
nothing that matters, and why, is written down in tests/mutation.md; any other makes it exit with 1.
"""

from __future__ import annotations

import argparse
import ast
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

from dev.cluster.paths import REPOSITORY, cache

CORE = REPOSITORY / "operator" / "shardherd" / "core"
TESTS = ("unit/core", "unit/controller", "unit/spark/test_tracker.py")
READ_BY_TESTS = ("crds", "charts", "docs")
NOTICED = ("killed", "timeout")
NOT_ON_MUTANTS = ("tests/unit/core/test_fsm.py::test_only_the_table_says_what_state_a_shard_enters",)
"""Tests that read the source itself, in which all mutants lie side by side."""

EXPLAINED = REPOSITORY / "tests" / "mutation.md"

PROJECT = """\
[tool.mutmut]
source_paths = ["src"]
only_mutate = [{modules}]
also_copy = ["tests", {read}]
pytest_add_cli_args = ["-p", "no:cacheprovider", "-W", "ignore", {deselected}]
pytest_add_cli_args_test_selection = [{tests}]
use_git_change_detection = false

[tool.pytest.ini_options]
pythonpath = ["src", "."]
addopts = "--import-mode=importlib"
asyncio_mode = "auto"
"""

CONFTEST = """\
from hypothesis import settings

# The same examples for every mutant, however busy the machine is.
settings.register_profile("mutation", deadline=None, derandomize=True, database=None)
settings.load_profile("mutation")
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m dev.mutation", description=__doc__)
    parser.add_argument(
        "modules", nargs="*", default=every_module(), metavar="MODULE", help="of the core, as group/fsm; default: all"
    )
    parser.add_argument("--workers", type=int, default=2)
    chosen = parser.parse_args()
    place = prepare(chosen.modules)
    tool = Path(sys.executable).parent / "mutmut"
    ended = subprocess.run([tool, "run", "--max-children", str(chosen.workers)], cwd=place, check=False)
    return report(place, tool) if ended.returncode == 0 else ended.returncode


def every_module() -> list[str]:
    return sorted(str(path.relative_to(CORE).with_suffix("")) for path in CORE.rglob("*.py") if path.name != "__init__.py")


def prepare(modules: list[str]) -> Path:
    """A copy of the code and the tests of the core in the layout that mutmut knows."""
    place = cache() / "mutation" / REPOSITORY.name
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(
        REPOSITORY / "operator" / "shardherd", place / "src" / "shardherd", ignore=shutil.ignore_patterns("__pycache__")
    )
    for file in copied():
        target = place / file.relative_to(REPOSITORY)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)
    (place / "tests" / "conftest.py").write_text(CONFTEST)
    for folder in READ_BY_TESTS:
        shutil.copytree(REPOSITORY / folder, place / folder)
    project = PROJECT.format(
        read=", ".join(f'"{folder}"' for folder in READ_BY_TESTS),
        modules=", ".join(f'"src/shardherd/core/{module}.py"' for module in modules),
        tests=", ".join(f'"tests/{tests}"' for tests in TESTS),
        deselected=", ".join(f'"--deselect={test}"' for test in NOT_ON_MUTANTS),
    )
    (place / "pyproject.toml").write_text(project)
    return place


def copied() -> list[Path]:
    """The files of the tests that are run, and of what they import of other tests' folders."""
    chosen = [REPOSITORY / "tests" / tests for tests in TESTS]
    left = [file for each in chosen for file in (each.rglob("*") if each.is_dir() else [each]) if file.is_file()]
    found: set[Path] = set()
    while left:
        file = left.pop()
        if file not in found and "__pycache__" not in file.parts:
            found.add(file)
            left += imported(file)
    return sorted(found)


def imported(file: Path) -> list[Path]:
    """The modules of tests that a file imports by `from tests... import`; none if it is no module."""
    if file.suffix != ".py":
        return []
    named = [node.module or "" for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ImportFrom)]
    return [REPOSITORY / Path(*name.split(".")).with_suffix(".py") for name in named if name.startswith("tests.")]


def report(place: Path, tool: Path) -> int:
    """Print what became of the mutants by module, and each survivor that is not explained."""
    completed = subprocess.run([tool, "results", "--all", "true"], cwd=place, check=True, capture_output=True, text=True).stdout
    verdicts: dict[str, Counter[str]] = {}
    explained = EXPLAINED.read_text() if EXPLAINED.exists() else ""
    unexplained = []
    for name, verdict in re.findall(r"^\s+(shardherd\.core\.\S+): (.+)$", completed, re.MULTILINE):
        verdicts.setdefault("/".join(name.split(".")[2:-1]), Counter())[verdict] += 1
        if verdict not in NOTICED and f"`{change_of(place, tool, name)}`" not in explained:
            unexplained.append((name, verdict))
    for module, counts in sorted(verdicts.items()):
        print(f"{module}: " + ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())))
    for name, verdict in unexplained:
        print(f"{verdict}, not explained in {EXPLAINED.relative_to(REPOSITORY)}: {name}: {change_of(place, tool, name)}")
    total = sum((counts for counts in verdicts.values()), Counter[str]())
    noticed = sum(total[verdict] for verdict in NOTICED)
    print(f"noticed: {noticed}/{total.total()}, {len(unexplained)} of the others unexplained")
    return 1 if unexplained or not total else 0


def change_of(place: Path, tool: Path, name: str) -> str:
    """What a mutant changes, in one line: the old text and the new one."""
    difference = subprocess.run([tool, "show", name], cwd=place, check=True, capture_output=True, text=True).stdout
    lines = [line for line in difference.splitlines() if line[:1] in "-+" and line[:3] not in ("---", "+++")]
    old = " ".join(line[1:].strip() for line in lines if line[0] == "-")
    new = " ".join(line[1:].strip() for line in lines if line[0] == "+")
    return f"{old} -> {new}"


if __name__ == "__main__":
    sys.exit(main())
