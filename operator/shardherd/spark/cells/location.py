"""The locations of cells on shared storage: where each is, what its log says, and whether the storage can be trusted.

`runner` asks. It goes by Hadoop's file systems, as Spark does, so that a mounted path and a URI are the same to it. It must not
write there but for the probe: what is in a location is Spark's.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

from py4j.java_gateway import is_instance_of
from py4j.protocol import Py4JError, Py4JJavaError

from shardherd.spark.cells.logged import Logged, batches, furthest, offsets_in, positions
from shardherd.spark.offsets import Offsets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WARNS = "org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager"
"""The logger of what creates files."""

FILES = "spark.sql.streaming.checkpointFileManagerClass"
"""Spark's setting of what creates files."""

LOCAL_FILES = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
"""What creates them on a mounted path: like Spark's default it looks whether there is one and then renames. But the default
starts a process to follow a link some thirty times in a micro-batch, which takes longer than all that is written."""

REFUSED = "org.apache.hadoop.fs.FileAlreadyExistsException"
"""What Spark's logs take for a refusal; some storages raise one that is derived from it."""

REMEDY = (
    "set spec.state.checkpoint to storage that creates a file only if there is none of its name: a ReadWriteMany claim, HDFS, "
    "ABFS, GCS, or S3 with conditional writes"
)


class LocationError(RuntimeError):
    """The storage of the group's state cannot be used. Names the location and the remedy."""


class Locations:
    """Below `root`, a path or a URI, for one group."""

    def __init__(self, spark: SparkSession, root: str, group_uid: str) -> None:
        self._spark = spark
        self._root = root.rstrip("/")
        self.group = group_uid

    def of(self, cell: int, generation: int) -> str:
        """The checkpoint location of a cell's query."""
        return f"{self._root}/{self.group}/{generation}/cells/{cell}"

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """While a cell's query is started: on a mounted path `LOCAL_FILES` creates its files, unless the user says what does.

        It is not set for ever, as the application's other queries may have their files elsewhere.
        """
        conf = self._spark.conf
        if not self._mounted or conf.get(FILES, None) is not None:
            yield
            return
        conf.set(FILES, LOCAL_FILES)
        try:
            yield
        finally:
            conf.unset(FILES)

    @cached_property
    def _mounted(self) -> bool:
        """Whether it is a path, and no other storage's URI."""
        return str(self._path(self._root).getFileSystem(self._hadoop()).getUri().getScheme()) == "file"

    def check(self) -> None:
        """Create a file twice, as Spark's logs are created: the second must be refused. Raises LocationError."""
        # In a folder of its own, which takes with it what is left of the file that is refused.
        folder = f"{self._root}/{self.group}/.probe-{uuid.uuid4().hex}"
        probe = f"{folder}/file"
        managers = self._jvm.org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager
        try:
            with self.used():
                manager = managers.create(self._path(folder), self._spark._jsparkSession.sessionState().newHadoopConf())
            manager.mkdirs(self._path(folder))
            try:
                self._create(manager, probe)
                try:
                    with self._without_warnings():
                        self._create(manager, probe)
                except Py4JJavaError as error:
                    if is_instance_of(self._spark.sparkContext._gateway, error.java_exception, REFUSED):
                        return
                    raise
            finally:
                manager.delete(self._path(folder))
        except Py4JError as error:
            raise LocationError(
                f"nothing can be written below {self._root}, where the state of this group is kept: {_said(error)}. Check that "
                "the claim of spec.state.checkpoint is mounted and may be written, or the URI, its file system and credentials"
            ) from error
        raise LocationError(
            f"{self._root}, where the state of this group is kept, lets a file be created over another one: two consumers "
            f"could both believe that they run a cell; {REMEDY}"
        )

    def logged(self, cell: int, generation: int) -> Logged | None:
        """What Spark's log of this cell says, None if there is none. Raises LocationError, OffsetsError."""
        location = self.of(cell, generation)
        try:
            system = self._path(location).getFileSystem(self._hadoop())
            planned = batches(self._names(system, f"{location}/offsets"))
            if not planned:
                return None
            finished = batches(self._names(system, f"{location}/commits"))
            ends = {each: self._offsets(system, f"{location}/offsets/{each}") for each in {planned[-1], *finished[-1:]}}
            return Logged(furthest(ends[planned[-1]]), positions(ends[finished[-1]]) if finished else {})
        except Py4JError as error:
            raise LocationError(f"the log of cell {cell} at {location} cannot be read: {_said(error)}") from error

    def _offsets(self, system: Any, name: str) -> list[Offsets]:
        stream = system.open(self._path(name))
        try:
            text = str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()
        return offsets_in(text, self.group)

    def _names(self, system: Any, folder: str) -> list[str]:
        path = self._path(folder)
        if not system.exists(path):
            return []
        return [str(each.getPath().getName()) for each in system.listStatus(path)]

    @contextlib.contextmanager
    def _without_warnings(self) -> Iterator[None]:
        """Spark warns of the very error that is hoped for, with its stack: a user would take that for the application's own."""
        log4j = self._jvm.org.apache.logging.log4j
        context = log4j.core.LoggerContext.getContext(False)
        if context.getConfiguration().getLoggers().containsKey(WARNS):
            yield  # somebody has said how much he wants to hear
            return
        log4j.core.config.Configurator.setLevel(WARNS, log4j.Level.ERROR)
        try:
            yield
        finally:
            # Not its level of before: a logger with a level of its own passes by Spark's default one.
            context.getConfiguration().removeLogger(WARNS)
            context.updateLoggers()

    def _create(self, manager: Any, name: str) -> None:
        stream = manager.createAtomic(self._path(name), False)
        try:
            stream.write(1)
            stream.close()
        except Py4JJavaError:
            stream.cancel()
            raise

    @property
    def _jvm(self) -> Any:
        return self._spark._jvm

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(name)

    def _hadoop(self) -> Any:
        return self._spark._jsc.hadoopConfiguration()


def _said(error: Py4JError) -> str:
    return str(error.java_exception) if isinstance(error, Py4JJavaError) else str(error)
