"""A queue of records in a file, which outlives its process: what is in it, and which outputs have what.

Kept by `outputs` for each shard. It decides what of a file may still be used, and what of a damaged one is left. A file is a
log of frames, each with its length and its checksum; it is written anew when it has grown too long, and whenever it is opened.
No record is lost with it, as no position passes one that is not done: it is read and sent again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import struct
import time
import zlib
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import msgspec

from shardherd.core.model.nouns import Offset, ShardId
from shardherd.worker.records import Record

log = logging.getLogger(__name__)

MAGIC = b"shardherd queue 1\n"

CLEAN_AFTER = 3600.0
"""Seconds that a process lets pass before it takes a file that nobody uses for that of a shard that will not come back."""

LONGEST_NAME = 255
"""Most bytes of a file's name in the usual file systems. A topic may have a name of 249, to which its partition comes."""

_SUFFIX = ".queue"

_FRESH = ".new"
"""The suffix of a file while it is written anew. A process that is killed meanwhile leaves it."""

_FRAME = struct.Struct("<II")


class _Opened(msgspec.Struct, tag="opened", array_like=True, frozen=True):
    """Under `epoch` all from `position` on was accounted for here."""

    group: str
    shard: str
    epoch: int
    position: int


class _Record(msgspec.Struct, tag="record", array_like=True, frozen=True):
    record: Record
    taken: tuple[str, ...] = ()


class _Taken(msgspec.Struct, tag="taken", array_like=True, frozen=True):
    output: str
    offsets: tuple[int, ...]


class _Gone(msgspec.Struct, tag="gone", array_like=True, frozen=True):
    """It is not to be sent any more."""

    offset: int


class _Hole(msgspec.Struct, tag="hole", array_like=True, frozen=True):
    """It failed before it could be queued, and is to come again: what an opened file knows ends here."""

    offset: int


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_Opened | _Record | _Taken | _Gone | _Hole)


class Kept(NamedTuple):
    """A record that is in the file, and which outputs have it."""

    record: Record
    taken: frozenset[str]


class QueueFile:
    """The file of a shard that is held. `kept` is what an earlier run has left, from `position` on; `told` what became of it.

    `most` bytes are its bound. Where it cannot be opened there is none, and a write that fails ends it: what goes on goes on
    without it.
    """

    def __init__(
        self, folder: Path, group: str, shard: ShardId, *, epoch: int, held_since: int, position: Offset, most: int
    ) -> None:
        self.path = folder / group / _name(shard)
        self._most = most
        self._head = _Opened(group, shard, epoch, position)
        # The bytes of every record that is not over, and what must not be forgotten with it.
        self._live: dict[Offset, int] = {}
        self._bytes = self._size = 0
        self._holes: set[Offset] = set()
        self.kept: list[Kept] = []
        self.warning = ""
        self._file = -1
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.kept, self.warning = self._read(held_since)
            self._rewrite(self.kept)
        except OSError as error:
            self._go_without(folder, error)

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._size

    @property
    def full(self) -> bool:
        """Whether nothing should be added now. Half of the bound is for what is over, so that it is seldom written anew."""
        return bool(self._live) and self._bytes >= self._most // 2

    @property
    def broken(self) -> bool:
        """Whether there is no file: it could not be opened, or a write has failed."""
        return self._file < 0

    def append(self, record: Record) -> None:
        """It is in the queue."""
        frame = _frame(_Record(record))
        self._holes.discard(record.offset)
        self._live[record.offset] = len(frame)
        self._bytes += len(frame)
        self._write(frame)

    def hole(self, offset: Offset) -> None:
        """It could not be queued, and comes again."""
        if offset not in self._holes:
            self._holes.add(offset)
            self._write(_frame(_Hole(offset)))

    def no_hole(self, offset: Offset) -> None:
        """It does not come again: if it is not queued now, nothing of it is to be sent."""
        if offset in self._holes:
            self.gone(offset)

    def taken(self, output: str, offsets: Collection[Offset]) -> None:
        """An output has these."""
        if offsets:
            self._write(_frame(_Taken(output, tuple(offsets))))

    def gone(self, offset: Offset) -> None:
        """It is passed over."""
        self._holes.discard(offset)
        self._write(_frame(_Gone(offset)))

    def over(self, offsets: Iterable[Offset]) -> None:
        """These are finished by all: their place is free."""
        for offset in offsets:
            self._bytes -= self._live.pop(offset, 0)

    @property
    def overgrown(self) -> bool:
        """Whether it is to be written anew."""
        return not self.broken and self._size > self._most

    def rewrite(self, left: Iterable[Kept]) -> None:
        """Write it anew, with what is not over."""
        if self.broken:
            return
        try:
            if self._is_ours():
                self._rewrite(left)
            else:
                os.close(self._file)
                self._file = -1
        except OSError as error:
            self._break(error)

    def close(self, *, delete: bool) -> None:
        """It is used no more here; if the shard is somebody else's now, by nobody."""
        if self.broken:
            return
        try:
            if delete and self._is_ours():
                self.path.unlink()
        except OSError as error:  # nobody takes it for the queue of a shard that was elsewhere meanwhile
            log.warning("%s cannot be deleted: %s", self.path, error)
        os.close(self._file)
        self._file = -1

    def _read(self, held_since: int) -> tuple[list[Kept], str]:
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return [], ""
        frames, end = _frames(data)
        warning = ""
        if end < len(data):
            warning = f"{self.path} is damaged: {len(data) - end} bytes from {end} on are dropped, and read again from Kafka"
        head, group = self._head, frames[0] if frames else None
        if not isinstance(group, _Opened) or (group.group, group.shard) != (head.group, head.shard):
            return [], warning or f"{self.path} is no queue of this shard: it is written anew"
        if group.epoch < held_since or group.position > head.position:
            return [], warning or (
                f"{self.path} is of epoch {group.epoch}, and this shard was elsewhere or reset since: what is in it is dropped"
            )
        return _left(frames, head.position), warning

    def _rewrite(self, left: Iterable[Kept]) -> None:
        fresh = self.path.with_suffix(_FRESH)
        with contextlib.suppress(FileNotFoundError):
            fresh.unlink()
        file = os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Holes first: no beginning of this file may seem to know what is after one.
            parts = [MAGIC, _frame(self._head), *(_frame(_Hole(offset)) for offset in sorted(self._holes))]
            self._live, self._bytes = {}, 0
            for each in left:
                parts.append(_frame(_Record(each.record, tuple(sorted(each.taken)))))
                self._live[each.record.offset] = len(parts[-1])
                self._bytes += len(parts[-1])
            data = b"".join(parts)
            _write_all(file, data)
            fresh.replace(self.path)
        except BaseException:
            os.close(file)
            with contextlib.suppress(OSError):  # it takes room that there may be too little of
                fresh.unlink()
            raise
        if self._file >= 0:
            os.close(self._file)
        self._file, self._size = file, len(data)

    def _write(self, frame: bytes) -> None:
        if self.broken:
            return
        try:
            _write_all(self._file, frame)
            self._size += len(frame)
        except OSError as error:
            self._break(error)

    def _go_without(self, folder: Path, error: OSError) -> None:
        """There is no file to begin with. What an earlier run has left there is as whole as before."""
        log.error(
            "the queue of shard %s has no file in queue_directory %s: %s; its records wait in memory only, and another run"
            " reads them again: make it a folder that this process may write to, with room in it",
            self._head.shard,
            folder,
            error,
        )

    def _break(self, error: OSError) -> None:
        """What is in the file may have a gap now: nobody must take it for whole."""
        log.error("%s cannot be written, and is not used any more: %s; records wait in memory only", self.path, error)
        with contextlib.suppress(OSError):  # what is whole of it then ends before the gap, as nothing more is written
            self.path.unlink()
        os.close(self._file)
        self._file = -1

    def _is_ours(self) -> bool:
        """Whether nobody else has begun a file in its place: another run of this shard may be under way already."""
        try:
            there = self.path.stat()
        except FileNotFoundError:
            return False
        mine = os.fstat(self._file)
        return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)


def clean(folder: Path, group: str, *, began: float) -> list[Path]:
    """Delete the files of a group that nobody uses and nobody has used since `began`, by the wall clock; returns them.

    Not before a process has run for `CLEAN_AFTER`: the shards of these files may be given to it again.
    """
    deleted: list[Path] = []
    if time.time() - began < CLEAN_AFTER:
        return deleted
    try:
        paths = sorted(path for suffix in (_SUFFIX, _FRESH) for path in (folder / group).glob(f"*{suffix}"))
    except OSError as error:
        log.warning("%s cannot be cleaned up: %s", folder / group, error)
        return deleted
    for path in paths:
        try:
            file = os.open(path, os.O_RDONLY)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(file).st_mtime < began:
                    path.unlink()
                    deleted.append(path)
            finally:
                os.close(file)
        except (BlockingIOError, FileNotFoundError):
            continue
        except OSError as error:  # what is left there must keep no shard from its queue
            log.warning("%s cannot be cleaned up: %s", path, error)
    return deleted


def _name(shard: ShardId) -> str:
    """The name of a shard's file: its own, as far as a file's may be so long."""
    plain = f"{quote(shard, safe='')}{_SUFFIX}"
    if len(plain) <= LONGEST_NAME:
        return plain
    end = f"-{hashlib.sha256(shard.encode()).hexdigest()[:32]}{_SUFFIX}"
    return plain[: LONGEST_NAME - len(end)] + end


def _frame(each: object) -> bytes:
    payload = _ENCODER.encode(each)
    return _FRAME.pack(len(payload), zlib.crc32(payload)) + payload


def _frames(data: bytes) -> tuple[list[object], int]:
    """What is whole, and where that ends."""
    found: list[object] = []
    if not data.startswith(MAGIC):
        return found, 0
    at = len(MAGIC)
    while at + _FRAME.size <= len(data):
        length, checksum = _FRAME.unpack_from(data, at)
        payload = data[at + _FRAME.size : at + _FRAME.size + length]
        if len(payload) < length or zlib.crc32(payload) != checksum:
            break
        try:
            found.append(_DECODER.decode(payload))
        except msgspec.DecodeError:
            break
        at += _FRAME.size + length
    return found, at


def _left(frames: Iterable[object], position: Offset) -> list[Kept]:
    """The records that are not over, from the position on, up to the first that is not accounted for."""
    records: dict[Offset, Record] = {}
    taken: dict[Offset, set[str]] = {}
    holes: set[Offset] = set()
    for each in frames:
        match each:
            case _Record(record, by):
                records[record.offset] = record
                taken[record.offset] = set(by)
                holes.discard(record.offset)
            case _Taken(output, offsets):
                for offset in offsets:
                    taken.get(offset, set()).add(output)
            case _Gone(offset):
                records.pop(offset, None)
                holes.discard(offset)
            case _Hole(offset):
                holes.add(offset)
            case _:
                pass
    end = min((hole for hole in holes if hole >= position), default=None)
    left = sorted(offset for offset in records if offset >= position and (end is None or offset < end))
    return [Kept(records[offset], frozenset(taken[offset])) for offset in left]


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
