"""Decides how the chart's archive is made. Called by the command and by tests of what is installed. Renders nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from dev.release.source import ReleaseError, Source


def package(source: Source, out: Path, helm: Path) -> Path:
    """Make the chart's archive in the folder `out` by this helm."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="shardherd-chart-") as scratch:
        chart = Path(scratch) / "shardherd"
        # The definition of the resource is a link out of the chart's folder.
        shutil.copytree(source.repository / "charts" / "shardherd", chart)
        # The times of the files are in the archive.
        for path in chart.rglob("*"):
            os.utime(path, (source.epoch, source.epoch))
        command = [str(helm), "package", str(chart), "--destination", str(out)]
        done = subprocess.run(command, env=source.environment(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ReleaseError(f"helm did not package the chart: {(done.stderr or done.stdout).strip()}")
    return out / f"shardherd-{source.version}.tgz"
