"""A group with cells on this machine: real drivers that run `tests.harness.keyed.application`, by the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.harness.keyed import application
from tests.harness.keyed.records import Records
from tests.harness.keyed.reference import Rows
from tests.harness.keyed.trial import CLAIM, Trial, declared
from tests.integration.local.herd import Herd

FOLDER = Path(application.__file__).parent


class KeyedHerd(Herd):
    """How such a group is run here."""

    def __init__(self, folder: Path, bootstrap: str, name: str) -> None:
        super().__init__(folder, bootstrap, name, shards=0)
        self.settle: str | None = None
        self.environment: dict[str, str] = {}
        """What every driver has of it."""

    # --- what a trial asks for -------------------------------------------------------------------------------------------

    @property
    def notes(self) -> Path:
        """Where the application writes."""
        return self.state / "volumes" / "demo" / "notes"

    def begin(self, records: Records, consumers: int) -> None:
        self.up(*self.options(self.manifest(records, consumers)))

    def scale(self, consumers: int) -> None:
        self.run("scale", self.name, str(consumers))

    def kill(self, consumer: str) -> None:
        """Once it runs."""
        self.until(f"{consumer} runs", lambda: self.container(consumer).running())
        self.run("kill", consumer)

    def kill_operator(self) -> None:
        """As a machine that runs out of memory does; another one leads afterwards."""
        super().kill_operator()
        self.up()

    def end(self) -> None:
        self.run("down")

    def holders(self) -> Mapping[str, str | None]:
        """Who holds each shard for good."""
        return {each["shard"]: each["holder"] if each["state"] == "ALREADY_ALLOC" else None for each in self.shards()}

    # --- what only tests of this machine ask for ---------------------------------------------------------------------------

    def manifest(self, records: Records, consumers: int, more: dict[str, Any] | None = None, **environment: str) -> Path:
        spec = declared(records, consumers, "/notes", self.settle)
        spec["application"]["env"] = [
            {"name": name, "value": value} for name, value in {**self.environment, **environment}.items()
        ]
        return self.declare(**spec, **(more or {}))

    def options(self, manifest: Path) -> tuple[str, ...]:
        return ("-f", str(manifest), "--bootstrap", self.bootstrap, "--app-dir", str(FOLDER))

    def apply(self, manifest: Path) -> None:
        self.run("apply", *self.options(manifest))

    def message(self, kind: str) -> str:
        """What the condition says, once it is True."""

        def true() -> str:
            found = self.status().get("conditions", ())
            return next((each["message"] for each in found if each["type"] == kind and each["status"] == "True"), "")

        return self.until(f"{kind} is True", true)

    def location(self, number: int, generation: int = 0) -> Path:
        """Where Spark keeps the log and the state of a cell."""
        (found,) = (self.state / "volumes" / "demo" / CLAIM).glob(f"*/{generation}/cells/{number}")
        return found

    def said(self) -> str:
        """What all drivers have said."""
        return "".join(log.read_text() for log in sorted((self.state / "logs").rglob("*.log")))


class Keyed(Trial[KeyedHerd]):
    """The group on this broker under a name, whose topics are new."""

    def __init__(self, folder: Path, bootstrap: str, name: str) -> None:
        super().__init__(folder, KeyedHerd(folder, bootstrap, name), Records(bootstrap, f"demo.{name}", name))
        self.written: Callable[[], Rows] | None = None
        """What the cells have written, if not to Delta tables."""

    def found(self, generation: int = 0) -> Rows:
        return super().found(generation) if self.written is None else self.written()

    def close(self) -> None:
        self.records.close()
        self.group.close()
