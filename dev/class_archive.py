"""Lets Spark start sooner where it does not run for long: an archive of its loaded classes, and Java's quick options.

The demo and the tests that start drivers as processes call it. Java's class data sharing (JEP 350) maps classes that an earlier
JVM had loaded and verified: a driver starts with half of the CPU time. The archive belongs to one Java and one installed Spark,
whose jars it names by path and time, so it is kept by both. It must not be used where figures are compared.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import distribution
from pathlib import Path

from dev.cluster.paths import REPOSITORY, cache

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
"""Nobody here runs long enough for Java's better compiler and collector to pay."""

TRAINING = Path(__file__).with_name("class_training.py")
SAID = 2_000
"""Characters of what Java said, when there is no archive."""


def options(say: Callable[[str], None]) -> str:
    """For `SPARK_SUBMIT_OPTS` or `JAVA_TOOL_OPTIONS`: how a driver starts soonest here. Makes the archive, if there is none.

    With the latter Spark's launcher is told of the archive, too. It cannot use it, as its class path is another one, and
    without `-Xlog:disable` would say so on its stdout, which is a command to run.
    """
    archive = class_archive(say)
    return f"{QUICK} -XX:SharedArchiveFile={archive} -Xshare:auto -Xlog:disable" if archive else QUICK


def class_archive(say: Callable[[str], None]) -> Path | None:
    """The archive of the Spark that is installed here; None where Java makes none, after having said why."""
    folder = cache() / "classes"
    place, known = _key()
    archive = folder / f"spark-{place}-{known}.jsa"
    if archive.exists():
        return archive
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if archive.exists():
            return archive
        began = time.monotonic()
        partial = archive.with_suffix(".partial")
        done = train(f"{QUICK} -XX:ArchiveClassesAtExit={partial}")
        if done.returncode != 0 or not partial.exists():
            partial.unlink(missing_ok=True)
            say(f"Spark's classes are not archived, and each driver starts some seconds later: {done.stderr[-SAID:].strip()}")
            return None
        for older in folder.glob(f"spark-{place}-*.jsa"):
            older.unlink()
        partial.rename(archive)
        say(f"an archive of Spark's classes was made in {time.monotonic() - began:.0f} s: drivers start sooner from now on")
        return archive


def train(java_options: str) -> subprocess.CompletedProcess[str]:
    """Run the query of `class_training` to its end, on a JVM with these options and none from the environment."""
    environment = {name: text for name, text in os.environ.items() if not name.startswith(("SPARK_", "JAVA_TOOL"))}
    return subprocess.run(
        [sys.executable, "-m", "dev.class_training"],
        env=environment | {"PYSPARK_PYTHON": sys.executable, "SPARK_SUBMIT_OPTS": java_options},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )


def _key() -> tuple[str, str]:
    """What stands for the place of the jars that Spark loads, and for their state and the Java that PySpark starts."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java") or "java"
    version = subprocess.run([java, "-version"], capture_output=True, text=True, check=True).stderr
    jars = Path(str(distribution("pyspark").locate_file("pyspark/jars")))
    known = [f"{jar.name} {(found := jar.stat()).st_size} {found.st_mtime_ns}" for jar in sorted(jars.iterdir())]
    return _digest(str(jars)), _digest(version, *known, TRAINING.read_text(), QUICK)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]
