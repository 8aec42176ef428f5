"""Logs as one JSON object or one line of text a record, with the fields group, shard, consumer and epoch where they apply.

`cli` calls `configure` once. Every module logs by the standard library: `logger.info("moved", extra=fields(group=...))`. Sends
nothing anywhere but standard error.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

FIELDS = ("group", "shard", "consumer", "epoch")
"""Names of the fields, in the order in which text logs show them."""

# Kopf says at INFO what every handler returns, and at WARNING that it does not handle signals, which is what we want of it.
_QUIET = {
    "kopf": logging.WARNING,
    "kopf._core.reactor.running": logging.ERROR,
    "kafka": logging.ERROR,
    "aiohttp.access": logging.WARNING,
}


def fields(
    *, group: object | None = None, shard: str | None = None, consumer: str | None = None, epoch: int | None = None
) -> dict[str, Any]:
    """The `extra` of a log record: only what applies."""
    values = {"group": None if group is None else str(group), "shard": shard, "consumer": consumer, "epoch": epoch}
    return {name: value for name, value in values.items() if value is not None}


class JsonFormatter(logging.Formatter):
    """One JSON object a record: time (RFC 3339, UTC), level, logger, message, our fields, and the exception.

    `always` are fields that every record has, unless it says something else itself.
    """

    def __init__(self, always: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._always = dict(always or {})

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **self._always,
        }
        entry.update({name: record.__dict__[name] for name in FIELDS if name in record.__dict__})
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False, default=str)


class TextFormatter(logging.Formatter):
    """One line a record: time, level, logger, message, `name=value` of our fields; the exception on the lines after it."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S.%f")[:-3]
        values = [f"{name}={record.__dict__[name]}" for name in FIELDS if name in record.__dict__]
        line = " ".join([time, f"{record.levelname:<7}", f"{record.name}:", record.getMessage(), *values])
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def configure(log_format: str, level: str) -> None:
    """Make standard error the only place of logs, in `json` or `text`, from `level` on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name, quiet in _QUIET.items():
        logging.getLogger(name).setLevel(quiet)
