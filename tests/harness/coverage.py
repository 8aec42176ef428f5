"""Whether the quick tests take every branch of the core: `pytest -p tests.harness.coverage` fails if they do not.

A plugin of pytest. It measures from before the first import of the core to the end of the quick tests, so that the slow tiers,
which come after them, cost nothing more. It says nothing about a run in which a quick test has failed.
"""

from __future__ import annotations

import io

import coverage
import pytest

QUICK = ("unit", "property")


class CoreCoverage:
    """Measures for as long as the quick tests run. `missing` is what they did not take, None while that is not known."""

    def __init__(self) -> None:
        self.missing: str | None = None
        self._failed = False
        self._measuring = coverage.Coverage(data_file=None, config_file=False, branch=True, source_pkgs=["shardherd.core"])
        self._ended = False
        self._measuring.start()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if item.nodeid.split("/")[1] not in QUICK:
            self._end()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed = self._failed or report.failed

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self._end()
        if self.missing and not self._failed:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.missing is not None:
            result = self.missing or "100 % of the lines and branches of shardherd.core were taken"
            terminalreporter.section("what the quick tests take of the core")
            terminalreporter.write_line(result)

    def _end(self) -> None:
        if self._ended:
            return
        self._ended = True
        self._measuring.stop()
        if not self._failed:
            table = io.StringIO()
            whole = self._measuring.report(show_missing=True, skip_covered=True, file=table) == 100
            self.missing = "" if whole else table.getvalue()


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    early_config.pluginmanager.register(CoreCoverage())
