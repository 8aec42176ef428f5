"""The state folder: all that one local operator keeps. Decides where things are and what they are called, nothing else."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from shardherd.adapters.local.database import Database
from shardherd.adapters.local.machine import Machine
from shardherd.adapters.local.objects import Objects

LONGEST = 29
"""Bytes of a folder's path below which sockets still have a path that the kernel takes, which has at most 107. The longest are
those of Spark's Python workers: it names them itself, by 42 signs, in `Machine.temporary`."""

LONGEST_LINK = 45
"""Bytes of its short name, below which the sockets of its pods have such a path."""

KEPT = (
    *("operator.lock", "operator.log", "state.db", "state.db-wal", "state.db-shm", "token.key", "token.key.new", "short"),
    *("logs", "pods", "t", "volumes"),
)
"""What is kept in it. Somebody may have named a folder in which there is more."""

_NOT_INHERITED = ("SHARDHERD_", "KUBERNETES_", "PYSPARK_", "SPARK_")


class StateError(Exception):
    """A state folder that cannot be used. The message names it and the remedy."""


class State:
    """The state folder at `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()

    @property
    def lock(self) -> Path:
        """The process that holds its lock is the operator."""
        return self.folder / "operator.lock"

    @property
    def database(self) -> Path:
        """The file with all objects."""
        return self.folder / "state.db"

    @property
    def log(self) -> Path:
        """What an operator in the background writes."""
        return self.folder / "operator.log"

    def make(self) -> None:
        """Make the folder, and the short name for it if it needs one. Raises StateError."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise StateError(f"{self.folder} cannot be made a folder ({error.strerror}): name another by --state") from error
        if len(os.fsencode(self.folder)) <= LONGEST:
            return
        digest = hashlib.sha256(os.fsencode(self.folder)).hexdigest()[:8]
        name = f"shardherd-{os.getuid()}-{digest}"
        # Some batch systems give each job a folder for what is temporary, of any length.
        short = Path(tempfile.gettempdir(), name)
        if len(os.fsencode(short)) > LONGEST_LINK:
            short = Path("/tmp", name)
        for link, target in ((short, self.folder), (self.folder / "short", short)):
            if not link.is_symlink() or link.readlink() != target:
                link.unlink(missing_ok=True)
                link.symlink_to(target)

    def there(self) -> State:
        """Itself. Raises StateError if nothing was ever started here."""
        if not self.database.exists():
            raise StateError(
                f"{self.folder} is no state folder: start one with `shardherd local up`, or name another by --state"
            )
        return self

    def objects(self) -> Objects:
        """Everything that is kept here. Raises DatabaseError."""
        return Objects(Database(self.database))

    def machine(self, python: str, environment: Mapping[str, str]) -> Machine:
        """Where pods run. They inherit `environment` but for the variables of shardherd and Spark."""
        kept = {name: value for name, value in environment.items() if not name.startswith(_NOT_INHERITED)}
        # By itself Spark asks for the machine's name, which many a laptop cannot resolve.
        return Machine(self.folder, python, {**kept, "SPARK_LOCAL_IP": "127.0.0.1"})

    def remove(self) -> list[str]:
        """Remove all that is kept here, and the folder if there is nothing else in it; what there is. Raises StateError."""
        link = self.folder / "short"
        if link.is_symlink():
            link.readlink().unlink(missing_ok=True)
        for kept in (self.folder / name for name in KEPT):
            if kept.is_dir() and not kept.is_symlink():
                shutil.rmtree(kept, ignore_errors=True)
            else:
                kept.unlink(missing_ok=True)
        left = sorted(each.name for each in self.folder.iterdir())
        if not left:
            try:
                self.folder.rmdir()
            except OSError as error:
                raise StateError(f"{self.folder} is empty now, and cannot be removed: {error.strerror}") from error
        return left
