"""One account of what the shards of a stream allow, for all processes of a machine that read it: a driver's and its tasks'.

When a shard may be asked again is the time of a file, in seconds since the machine was started. Called by `spark.kinesis`,
whose micro-batches have a shard read now by one process and then by another. Without a place for files each process has an
account of its own.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from shardherd.clock import boot_time
from shardherd.source.kinesis.pacing import LONGEST_DELAY, OF_LOOKS, WHOLE, Pace, Share

log = logging.getLogger(__name__)

FARTHEST = LONGEST_DELAY + 10 * 1024 * 1024 / OF_LOOKS.rate
"""Seconds ahead that a shard can be due at the most: what is later was written before the machine was started anew."""

ALONE = "each process keeps to the limits of Kinesis by itself, as they cannot share what they know: %s"

LOOKED = 0.05
"""Seconds for which what others have written is not looked at again."""


class SharedPace(Pace):
    """As `Pace`, whatever other processes with the same `folder` have asked and been answered."""

    def __init__(self, folder: Path, share: Share = WHOLE, *, now: Callable[[], float] = boot_time) -> None:
        super().__init__(share)
        self._folder = folder
        self._now = now
        self._looked: dict[str, tuple[float, float]] = {}
        """When the file of each shard was looked at last, and until when its shard is not due by it."""
        self._told = False

    def due(self, shard: str) -> float:
        return max(super().due(shard), self._of_others(shard))

    def asked(self, shard: str, now: float) -> None:
        """Who asks at the same time as another process, as neither could know of the other, waits for both afterwards."""
        super().asked(shard, max(now, self._read(shard)))
        self._tell(shard)

    def answered(self, shard: str, size: int, records: int = 0, took: float = 0.0) -> None:
        super().answered(shard, size, records, took)
        self._tell(shard)

    def not_before(self, shard: str, due: float) -> None:
        super().not_before(shard, due)
        self._tell(shard)

    def refused(self, shard: str, now: float) -> None:
        super().refused(shard, now)
        self._tell(shard)

    def _of_others(self, shard: str) -> float:
        now = self._now()
        at, found = self._looked.get(shard, (float("-inf"), 0.0))
        if now - at >= LOOKED:
            found = self._read(shard)
            self._looked[shard] = (now, found)
        return found

    def _read(self, shard: str) -> float:
        """When the shard is due, as anybody has written since the machine was started; 0 if nobody has."""
        try:
            found = (self._folder / shard).stat().st_mtime_ns / 1e9
        except OSError:  # nobody has written it; or nobody can read it, which who writes it tells of
            return 0.0
        return found if found <= self._now() + FARTHEST else 0.0

    def _tell(self, shard: str) -> None:
        """Never an earlier time than somebody else has written."""
        due = max(super().due(shard), self._read(shard))
        try:
            self._write(shard, int(due * 1e9))
        except OSError as error:  # a folder that is full, or not ours any more, must end nobody's reading
            if not self._told:
                log.warning(ALONE, error)
            self._told = True
        self._looked[shard] = (self._now(), due)

    def _write(self, shard: str, when: int) -> None:
        path = self._folder / shard
        try:
            os.utime(path, ns=(when, when))
        except FileNotFoundError:
            # With the folder, too, if somebody has cleaned up: all in it is of long ago to who goes by its times.
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.touch(mode=0o600)
            os.utime(path, ns=(when, when))


def pace_of(stream: Iterable[str], within: Path | None = None, share: Share = WHOLE) -> Pace:
    """The account that this machine's processes of one user have of a stream, which these texts name."""
    name = hashlib.sha256("\n".join(stream).encode()).hexdigest()[:16]
    folder = (within or Path(tempfile.gettempdir())) / f"shardherd-kinesis-{os.getuid()}" / name
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid != os.getuid():
            raise PermissionError(f"{folder} belongs to another user")
        made = SharedPace(folder, share)
        (folder / ".probe").touch()
    except OSError as error:
        log.warning(ALONE, error)
        return Pace(share)
    return made
