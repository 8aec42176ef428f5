"""What a line of the log looks like."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator

import pytest

from shardherd.telemetry.logs import JsonFormatter, TextFormatter, configure, fields
from tests.unit.core.planning.builders import IDENTITY


def record(**extra: object) -> logging.LogRecord:
    """A record of 2023-11-14T22:13:20.250Z."""
    made = logging.LogRecord("shardherd.test", logging.INFO, "file", 1, "moved %d", (3,), None)
    made.created = 1_700_000_000.25
    made.__dict__.update(extra)
    return made


def test_a_json_line_carries_the_fields_that_apply() -> None:
    line = JsonFormatter().format(record(**fields(group=IDENTITY, shard="clicks/0", epoch=0)))
    assert json.loads(line) == {
        "time": "2023-11-14T22:13:20.250Z",
        "level": "INFO",
        "logger": "shardherd.test",
        "message": "moved 3",
        "group": "shop/clicks",
        "shard": "clicks/0",
        "epoch": 0,
    }


def test_a_text_line_ends_with_them() -> None:
    line = TextFormatter().format(record(**fields(group=IDENTITY, consumer="clicks-0")))
    assert line == "22:13:20.250 INFO    shardherd.test: moved 3 group=shop/clicks consumer=clicks-0"


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()])
def test_an_exception_is_told(formatter: logging.Formatter) -> None:
    made = record()
    try:
        raise ValueError("broken")
    except ValueError:
        made.exc_info = sys.exc_info()
    assert "ValueError: broken" in formatter.format(made)


@pytest.fixture
def _logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.usefixtures("_logging_as_before")
def test_configuring_sends_every_log_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    configure("text", "WARNING")
    logging.getLogger("shardherd.test").info("quiet")
    logging.getLogger("shardherd.test").warning("loud", extra=fields(group="shop/clicks"))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.endswith("WARNING shardherd.test: loud group=shop/clicks\n")
    assert "quiet" not in captured.err
