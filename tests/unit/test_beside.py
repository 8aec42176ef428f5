"""Processes of pytest that are one run, on tests that are written here."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

BESIDE = ("--beside", "tests/integration/local", "--beside", "tests/integration/spark,tests/chart")
ALONE = ("--alone", "tests/integration/local/test_demo.py,tests/e2e")
WITHIN = 300.0
"""Seconds for anything that a test waits for: others may have the machine."""

CONFTEST = """\
import os, signal, time
from pathlib import Path
import pytest
from tests.harness.beside import say
from tests.harness.tiers import pytest_collection_modifyitems, pytest_runtest_logreport, pytest_runtest_setup

HERE = Path(os.environ["PYTEST_TREE"])

def pytest_addoption(parser):
    parser.addoption("--no-skips", action="store_true")
    parser.addoption("--keep", action="store_true")

def pytest_configure():
    signal.signal(signal.SIGTERM, signal.default_int_handler)

def pytest_unconfigure(config):
    if config.getoption("--beside-of") is not None:
        (HERE / "ended").touch()

@pytest.fixture
def tell(pytestconfig):
    return lambda line: say(pytestconfig, line)

@pytest.fixture
def other():
    def wait(name):
        deadline = time.monotonic() + 300
        while not (HERE / name).exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
    return wait

@pytest.fixture
def tidy():
    yield
    (HERE / "tidied").touch()
"""


class Tree:
    """A folder of tests in tiers, some of which run beside the others, as BESIDE and ALONE say."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "pytest.ini").write_text(
            "[pytest]\naddopts = -ra --import-mode=importlib -p no:cacheprovider -p no:asyncio\n"
        )
        self._write("conftest.py", CONFTEST)
        for each in ("integration/local", "integration/spark", "chart", "e2e"):
            (folder / "tests" / each).mkdir(parents=True)
        (folder / "tests" / "integration" / "local" / "test_demo.py").touch()

    def test(self, path: str, source: str) -> None:
        """A file of tests, which may wait for files that others touch."""
        self._write(
            path, f"import os\nfrom pathlib import Path\nimport pytest\nHERE = Path(os.environ['PYTEST_TREE'])\n{source}"
        )

    def start(self) -> subprocess.Popen[str]:
        """All of them."""
        return subprocess.Popen(
            [sys.executable, "-m", "pytest", "-p", "tests.harness.beside", *BESIDE, *ALONE, "tests"],
            cwd=self.folder,
            env={"PYTHONPATH": str(ROOT), "SHARDHERD_TEST_CLUSTER": "mine", "PYTEST_TREE": str(self.folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self) -> tuple[int, list[str]]:
        """All of them, to their end: its code, and the lines that it printed."""
        process = self.start()
        said, _ = process.communicate()
        return process.returncode, said.splitlines()

    def _write(self, path: str, text: str) -> None:
        file = self.folder / "tests" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def until(holds: Callable[[], bool]) -> None:
    """Wait for what another process does."""
    deadline = time.monotonic() + WITHIN
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def summary(lines: list[str]) -> str:
    """The last line without its ornaments and how long it took."""
    return lines[-1].strip("= ").partition(" in ")[0]


def test_all_processes_run_at_once_and_are_one_run(tree: Tree) -> None:
    tree.test("unit/test_quick.py", "def test_it(): (HERE / 'quick').touch()")
    tree.test(
        "integration/other/test_here.py",
        """
def test_it(other):
    (HERE / 'here').touch()
    other('there')
    other('elsewhere')
    assert os.environ['SHARDHERD_TEST_CLUSTER'] == 'mine'
""",
    )
    tree.test(
        "integration/local/test_there.py",
        """
def test_it(other, tell):
    assert (HERE / 'quick').exists()
    other('here')
    (HERE / 'there').touch()
    tell('told from there')
    assert os.environ['SHARDHERD_TEST_CLUSTER'] == 'mine-2'

@pytest.mark.skip(reason='not to be had')
def test_skipped(): pass
""",
    )
    tree.test("chart/test_last.py", "def test_it(): raise ValueError('wrong there')")
    tree.test(
        "integration/spark/test_elsewhere.py",
        """
def test_it(other):
    other('there')
    (HERE / 'elsewhere').touch()
    assert os.environ['SHARDHERD_TEST_CLUSTER'] == 'mine-3'
""",
    )
    code, lines = tree.run()
    assert (code, summary(lines)) == (1, "1 failed, 4 passed, 1 skipped")
    assert "told from there" in lines
    assert "E   ValueError: wrong there" in [line[:28].rstrip() for line in lines]
    assert "FAILED tests/chart/test_last.py::test_it - ValueError: wrong there" in lines
    assert "SKIPPED [1] tests/integration/local/test_there.py: not to be had" in [
        re.sub(r"\.py:\d+", ".py", line) for line in lines
    ]


def test_a_failure_in_any_closes_the_later_tiers_of_all(tree: Tree) -> None:
    tree.test("integration/spark/test_there.py", "def test_it(): raise ValueError('wrong there')")
    tree.test("integration/other/test_here.py", "def test_it(other): other('ended')")
    tree.test("chart/test_next.py", "def test_it(): (HERE / 'next').touch()")
    tree.test("e2e/test_last.py", "def test_it(): (HERE / 'last').touch()")
    code, lines = tree.run()
    assert (code, summary(lines)) == (1, "1 failed, 1 passed, 2 errors")
    assert not (tree.folder / "next").exists()
    assert not (tree.folder / "last").exists()


def test_what_needs_the_machine_alone_begins_when_the_others_are_over(tree: Tree) -> None:
    tree.test("integration/local/test_there.py", "def test_it(other): other('here')\ndef test_last(): (HERE / 'there').touch()")
    tree.test("integration/other/test_here.py", "def test_it(): (HERE / 'here').touch()")
    tree.test(
        "e2e/test_alone.py",
        "def test_it():\n    assert (HERE / 'there').exists()\n    assert os.environ['SHARDHERD_TEST_CLUSTER'] == 'mine'",
    )
    code, lines = tree.run()
    assert (code, summary(lines)) == (0, "4 passed")


def test_a_file_needs_the_machine_alone_though_its_folder_runs_beside_the_others(tree: Tree) -> None:
    tree.test("integration/local/test_demo.py", "def test_it(): assert (HERE / 'there').exists(); (HERE / 'demo').touch()")
    tree.test("integration/local/test_there.py", "def test_it(other): other('here')\ndef test_last(): (HERE / 'there').touch()")
    tree.test("integration/other/test_here.py", "def test_it(): (HERE / 'here').touch()")
    tree.test("e2e/test_last.py", "def test_it(): assert (HERE / 'demo').exists()")
    code, lines = tree.run()
    assert (code, summary(lines)) == (0, "5 passed")


def test_a_process_begins_with_the_first_tier_of_its_own(tree: Tree) -> None:
    tree.test("integration/local/test_there.py", "def test_it(): (HERE / 'there').touch()")
    tree.test("integration/other/test_here.py", "def test_it(other):\n    other('there')\n    (HERE / 'here').touch()")
    tree.test("chart/test_later.py", "def test_it():\n    assert (HERE / 'here').exists()")
    code, lines = tree.run()
    assert (code, summary(lines)) == (0, "3 passed")


def test_a_process_that_dies_fails_the_run(tree: Tree) -> None:
    tree.test("integration/local/test_there.py", "def test_it(): print('out of memory', flush=True), os._exit(7)")
    code, lines = tree.run()
    assert (code, summary(lines)) == (1, "1 error")
    assert "tests in another process were not run to their end: it ended with 7" in lines


def test_a_process_that_dies_after_its_last_test_fails_the_run(tree: Tree) -> None:
    tree.test(
        "integration/local/test_there.py",
        "import atexit, sys\ndef test_it(): atexit.register(lambda: (sys.__stderr__.write('gone'), os._exit(7)))",
    )
    code, lines = tree.run()
    assert (code, summary(lines)) == (1, "1 passed, 1 error")
    assert "tests in another process were run, but it ended with 7" in lines


def test_a_process_that_dies_before_it_knows_its_tests_fails_the_run_with_what_it_said(tree: Tree) -> None:
    tree.test("integration/local/test_there.py", "def test_it(): pass")
    conftest = tree.folder / "tests" / "conftest.py"
    conftest.write_text(f"import os, sys\nif any('--beside-of' in each for each in sys.argv): os._exit(7)\n{CONFTEST}")
    code, lines = tree.run()
    assert (code, summary(lines)) == (1, "1 error")
    assert "tests in another process were not run to their end: it ended with 7" in lines


def test_a_path_that_there_is_not_is_named(tree: Tree) -> None:
    (tree.folder / "tests" / "e2e").rmdir()
    tree.test("unit/test_quick.py", "def test_it(): pass")
    code, lines = tree.run()
    assert code == pytest.ExitCode.USAGE_ERROR
    assert "ERROR: --beside or --alone names 'tests/e2e', which is not here: correct or remove it" in lines


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_told_to_end_tidies_up_everywhere(tree: Tree, number: signal.Signals) -> None:
    tree.test("integration/local/test_there.py", "def test_it(other, tidy):\n    (HERE / 'there').touch()\n    other('never')")
    process = tree.start()
    until((tree.folder / "there").exists)
    process.send_signal(number)
    process.communicate()
    until((tree.folder / "tidied").exists)


def test_a_run_that_is_killed_before_it_has_heard_all_tidies_up_everywhere(tree: Tree) -> None:
    tree.test(
        "integration/local/test_there.py",
        """
def test_it(other, tell, tidy):
    (HERE / 'there').touch()
    other('stopped')
    tell('heard by nobody')
    (HERE / 'said').touch()
    other('never')
""",
    )
    process = tree.start()
    until((tree.folder / "there").exists)
    process.send_signal(signal.SIGSTOP)
    (tree.folder / "stopped").touch()
    until((tree.folder / "said").exists)
    process.kill()
    process.communicate()
    until((tree.folder / "tidied").exists)
