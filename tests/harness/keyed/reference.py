"""What one query of each kind makes of the records, which never moves and is no group's; and the rows of a folder of tables."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, TypeAlias

from deltalake import DeltaTable

from tests.harness.keyed import application
from tests.harness.keyed.application import QUERIES
from tests.harness.keyed.records import Records
from tests.harness.quick_spark import inherited

ROOT = Path(__file__).resolve().parents[3]
WITHIN = 300.0
"""Seconds for all that it reads."""

Rows: TypeAlias = "dict[str, Counter[tuple[Any, ...]]]"


class Reference:
    """The queries, which have begun to run here and end by themselves, once they have read all that there is."""

    def __init__(self, folder: Path, records: Records) -> None:
        self._tables = folder / "one"
        self._log = folder / "one.log"
        topics = [records.clicks, records.views]
        command = [sys.executable, application.__file__, str(self._tables), *topics, records.bootstrap]
        own = {key: text for key, text in inherited().items() if not key.startswith("SHARDHERD_")}
        own |= {"PYTHONPATH": str(ROOT / "operator")}
        with self._log.open("wb") as log:
            self._running = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env=own)

    def rows(self) -> Rows:
        """What they have written in the end."""
        assert self._running.wait(WITHIN) == 0, self._log.read_text()[-4000:]
        return tables(self._tables)


def tables(folder: Path) -> Rows:
    """The rows of each table, and how often each is there."""
    found = {}
    for name in QUERIES:
        path = str(folder / name)
        rows = DeltaTable(path).to_pyarrow_table().to_pylist() if DeltaTable.is_deltatable(path) else []
        found[name] = Counter(tuple(row.values()) for row in rows)
    return found
