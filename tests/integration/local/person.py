"""A person who has only README.md: installs what is in `dist/`, types its commands, and looks at the page in a browser.

Whatever is typed must stand in README.md, word for word but for the broker's address. Decides nothing: tests say what is broken
and what the person should be told.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import distribution
from pathlib import Path
from typing import Any, TypeVar

import pyarrow.dataset as ds
import yaml
from kafka import KafkaAdminClient, KafkaProducer

from dev.cluster.broker import Broker
from dev.release import packages
from dev.release.packages import uv
from dev.release.source import working_tree
from shardherd.controller.merge import merge
from tests.harness.browser import Browser
from tests.harness.quick_spark import OPTIONS

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[3]
README = (ROOT / "README.md").read_text()
WITHIN = 400.0
"""Seconds for anything that a test waits for: other tests may have the machine."""

GROUP = TOPIC = "clickstream"


def block(language: str, word: str) -> str:
    """The first block of README.md in this language that has the word in it."""
    blocks: list[str] = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    return next(each for each in blocks if word in each)


COMMANDS = frozenset(
    line.partition("  #")[0].strip() for each in re.findall(r"```sh\n(.*?)```", README, re.DOTALL) for line in each.splitlines()
)
"""Every command of README.md."""

STATUS = "shardherd status --local"
EXPLAIN = "shardherd explain --local clickstream"
INSTALL = "pip install 'dist/shardherd-0.1.0-py3-none-any.whl[local,spark,cli]'"


def installed(folder: Path) -> Path:
    """The programs of a fresh environment that has what README.md installs on one machine, from a `dist/` that is made here.

    The packages that it stands on are those of the lock files: README's command then finds all of them, or fails. Spark is
    the one that runs the tests, by a link, as it comes as source and takes minutes to build.
    """
    assert INSTALL in COMMANDS
    packages.build(working_tree(ROOT, os.environ), folder / "dist")
    locked = "".join((ROOT / "requirements" / f"{name}.lock").read_text() for name in ("cli", "spark"))
    entries = re.split(r"\n(?=\S)", re.sub(r"^\s*#.*\n?", "", locked, flags=re.MULTILINE).strip())
    (folder / "packages.lock").write_text("\n".join(each for each in entries if not each.startswith("pyspark==")))
    environment = {
        **{name: text for name, text in os.environ.items() if not name.startswith("PYTHON")},
        "VIRTUAL_ENV": str(folder / "environment"),
        "UV_SYSTEM_CERTS": "1",
        "UV_NATIVE_TLS": "1",
    }

    def run(*arguments: str) -> None:
        done = subprocess.run([uv(), *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-4000:]

    run("venv", "--python", "3.11", "environment")
    run("pip", "install", "--no-deps", "--require-hashes", "--only-binary", ":all:", "-r", "packages.lock")
    (packages_folder,) = (folder / "environment" / "lib").glob("python3*/site-packages")
    spark = distribution("pyspark")
    for name in {file.parts[0] for file in spark.files or () if file.parts[0].startswith("pyspark")}:
        (packages_folder / name).symlink_to(str(spark.locate_file(name)))
    run(*INSTALL.replace("'", "").split(), "--offline")
    return folder / "environment" / "bin"


class Person:
    """A folder with README's application and its manifest, a terminal, and a browser."""

    def __init__(self, folder: Path, programs: Path, broker: Broker, browser: Browser) -> None:
        self.folder = folder
        self.broker = broker
        self._programs = programs
        self._browser = browser
        self._written = 0
        folder.mkdir()
        (folder / "app.py").write_text(block("python", "shardherd.spark"))
        self.declare()

    # --- what is typed -------------------------------------------------------------------------------------------------------

    def declare(self, **spec: Any) -> None:
        """Write README's manifest to its file, with this in it, and with short times so that tests are."""
        quick = {
            "heartbeatInterval": "1s",
            "sessionTimeout": "10s",
            "initialAssignmentDelay": "1s",
            "scaling": {"maxReplicas": 1},
            "application": {"driver": {"memory": "640m"}},
        }
        manifest = merge(merge(yaml.safe_load(block("yaml", "kind: ConsumerGroup")), {"spec": quick}), {"spec": spec})
        (self.folder / "consumergroup.yaml").write_text(yaml.safe_dump(manifest))

    def types(self, command: str) -> str:
        """Type a command of README.md, which must end well; what it printed."""
        assert command in COMMANDS, f"README.md does not have {command!r}"
        return self._type(command)

    def breaks(self, command: str) -> None:
        """Type a command that README.md need not have: it breaks something."""
        self._type(command)

    def _type(self, command: str) -> str:
        done = self._done(command)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def _done(self, command: str) -> subprocess.CompletedProcess[str]:
        program, *arguments = command.replace("localhost:9092", self.broker.bootstrap).split()
        kept = {name: text for name, text in os.environ.items() if not name.startswith(("PYTHON", "SHARDHERD_", "SPARK_"))}
        environment = {**kept, "PATH": f"{self._programs}:{kept['PATH']}", "JAVA_TOOL_OPTIONS": os.environ[OPTIONS]}
        return subprocess.run(
            [str(self._programs / program), *arguments],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=WITHIN,
        )

    def closes(self) -> None:
        """End all that runs."""
        if (self.folder / ".shardherd").exists():
            self._done("shardherd local down")

    # --- what is read --------------------------------------------------------------------------------------------------------

    def is_told(self, reason: str, message: str, *, means: str, remedy: str) -> None:
        """Wait until page and command line tell of this, in these words and no others. `message` is a regular expression."""
        said, means, remedy = f"{reason}: {message}", re.escape(means), re.escape(remedy)
        self.sees(".answers", rf"{said}\n+It means: {means}\.\n+What to do: {remedy}\.\n")
        self.reads(EXPLAIN, rf"{said}\n  means   {means}\n  remedy  {remedy}\n")

    def reads(self, command: str, pattern: str) -> str:
        """Type a command again and again until it says this; what it said then."""

        def said() -> str:
            found = self.types(command)
            return found if re.search(pattern, found) else ""

        return self.until(f"{command!r} says {pattern}", said, lambda: self.types(command))

    def sees(self, selector: str, pattern: str) -> str:
        """Look at an element of the page until it says this; what it said then."""

        def said() -> str:
            self._browser.look()
            found = self._browser.text(selector)
            return found if re.search(pattern, found) else ""

        return self.until(f"the page says {pattern}", said, lambda: self._browser.text("body"))

    def opens_the_page(self) -> None:
        """Go to the address that README's command says."""
        self._browser.open(self.types("shardherd page --local").strip())
        self.sees("article h2", f"default/{GROUP}")

    def until(self, what: str, holds: Callable[[], T], shows: Callable[[], str]) -> T:
        """Wait until it holds; what it gave. `shows` is what there is instead."""
        deadline = time.monotonic() + WITHIN
        while not (found := holds()):
            assert time.monotonic() < deadline, f"not within {WITHIN:g} s: {what}\n{shows()}"
            time.sleep(0.1)
        return found

    # --- records -------------------------------------------------------------------------------------------------------------

    @property
    def rows(self) -> Path:
        """The folder of README's sink."""
        return self.folder / ".shardherd" / "volumes" / "default" / "clickstream-data" / "rows"

    def shards(self) -> int:
        """How many partitions the topic has."""
        with administrator(self.broker) as admin:
            (found,) = admin.describe_topics([TOPIC])
        return len(found["partitions"])

    def writes(self, each: int = 100) -> None:
        """Write so many records to every partition that there is."""
        producer = KafkaProducer(bootstrap_servers=self.broker.bootstrap, acks="all")
        partitions = sorted(producer.partitions_for(TOPIC))
        sent = []
        for _ in range(each * len(partitions)):
            value = b"%d" % self._written
            sent.append(producer.send(TOPIC, value=value, partition=partitions[self._written % len(partitions)]))
            self._written += 1
        for future in sent:
            future.get(60)
        producer.close()

    def awaits_all_rows(self) -> None:
        """Wait until every record that was ever written is a row of the sink."""
        wanted = {b"%d" % number for number in range(self._written)}
        self.until("every record is a row", lambda: wanted == self._values(), lambda: self.types(EXPLAIN))

    def _values(self) -> set[Any]:
        files = [str(file) for file in self.rows.glob("*/*.parquet")]
        return set(ds.dataset(files, format="parquet").to_table(columns=["value"])["value"].to_pylist()) if files else set()

    def is_well(self) -> None:
        """Write, wait until all is read, and until the command line and the page say that all is well."""
        self.writes()
        self.awaits_all_rows()
        self.sees("article > .said", r"^Consuming: \d consumers? reads? \d shards\.$")
        self.reads(STATUS, r"default/clickstream +True ")
        self.reads(EXPLAIN, r"(?s)^(?!.*  remedy )")


@contextmanager
def administrator(broker: Broker) -> Iterator[KafkaAdminClient]:
    """Who makes and deletes topics."""
    found = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    yield found
    found.close()
