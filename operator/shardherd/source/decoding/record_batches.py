"""Turns the raw bytes of a Fetch answer into rows, or Arrow record batches: all formats, codecs, transactions and gaps.

Decides which records of a shard's bytes are in a range and visible. `range_reader` calls it in Spark's Python workers, and
`worker`, which takes rows: Arrow is imported by those who want it. It does no input or output. Damaged bytes end in a
CorruptRecordsError that names the shard and the batch's offset, never in other rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import google_crc32c
import numpy as np
import numpy.typing as npt

from shardherd.core.model.nouns import Offset, ShardId
from shardherd.source.decoding import codecs, compiled_records
from shardherd.source.decoding import legacy_formats as legacy
from shardherd.source.decoding import record_layout as layout
from shardherd.source.decoding.record_rows import Room, Rows, rows_of
from shardherd.source.decoding.transactions import Aborted, Batch, hidden

if TYPE_CHECKING:
    import pyarrow as pa

ARROW_BYTES = 32 * 1024 * 1024
"""Uncompressed bytes after which an Arrow batch is closed; a larger Kafka batch makes a larger one.

With half of it records of 160 bytes cost a tenth more, here and in the JVM.
"""

ARROW_ROWS = 256 * 1024
"""Rows after which an Arrow batch is closed."""

GROUP_BYTES = 1024 * 1024
"""Uncompressed bytes that are decompressed before they are decoded: they should still be in the processor's cache."""

ROOMS = 3
"""Rooms that are used in turn where little is decoded at a time: who takes rows has two of them."""

SPARE = 2
"""Answers that are decoded little by little, at the same time, for which memory is kept: fresh memory costs more than what is
written into it."""

LARGEST_SPARE = 4 * 1024 * 1024
"""Bytes of a decompressed group of batches above which its memory is not kept."""

REASONS = {
    layout.BAD_LENGTH: "it is shorter than its header",
    layout.BAD_FORMAT: "its format is unknown",
    layout.BAD_COUNT: "its offsets and record count contradict each other",
    layout.BAD_VARINT: "a number in it is cut off or too long",
    layout.BAD_RECORD: "a record's lengths contradict each other",
    layout.BAD_OFFSET: "a record's offset is not in its batch, or not above the one before it",
    layout.TRAILING_BYTES: "bytes are left over after its last record",
    layout.BAD_BATCH_ORDER: "it starts below the end of the batch before it",
    layout.BAD_TIMESTAMP: "a record's time is beyond what Spark's timestamps can say (is it in nanoseconds?): leave the column "
    "timestamp out of the query's schema, or go on after this batch",
    layout.BAD_HEADERS: "a record's headers do not fit the record",
}


class CorruptRecordsError(ValueError):
    """The bytes of a shard are not what Kafka promises. Names the shard, the offset, and what is wrong."""


@dataclass(frozen=True, slots=True)
class Scan:
    """The batches in one shard's bytes that may hold visible records, and where the next Fetch goes on.

    `next_offset` is past the last whole batch, visible or not; the asked offset if there is none. `size` is
    how many bytes the whole batches have together, `largest_batch` how many the largest one has.
    """

    data: npt.NDArray[np.uint8]
    batches: npt.NDArray[np.int64]
    next_offset: Offset
    size: int = 0
    largest_batch: int = 0


@dataclass(slots=True)
class _Memory:
    arena: codecs.Arena
    rooms: deque[Room]


_spare: list[_Memory] = []
"""Of this process. Taken out by who uses it."""


def _fresh() -> _Memory:
    return _Memory(codecs.Arena(), deque(maxlen=ROOMS))


def _taken() -> _Memory:
    try:
        return _spare.pop()
    except IndexError:  # not looked at before: others take it in other threads
        return _fresh()


def scan(
    shard: ShardId,
    data: bytes | memoryview,
    asked: Offset,
    *,
    aborted: Collection[Aborted] = (),
    checksums: bool = True,
) -> Scan:
    """Find the whole batches that a Fetch from offset `asked` returned, and leave out those that hold no visible record.

    `aborted` are the aborted transactions that came with the answer (read_committed); without them every record is visible.
    Raises CorruptRecordsError.
    """
    view = np.frombuffer(data, dtype=np.uint8)
    table = np.zeros((compiled_records.count_batches(view) + 1, layout.BATCH_FIELDS), dtype=np.int64)
    count = compiled_records.scan(view, table)
    if count < 0:
        fault = table[-1]
        reason = REASONS[count]
        if count == layout.BAD_FORMAT:
            reason = f"format {fault[layout.FORMAT]} is none of 0, 1 and 2"
        raise _corrupt(shard, int(fault[layout.BASE_OFFSET]), reason, asked=asked)
    found = table[:count]
    if checksums:
        for row in found.tolist():
            _verify(shard, view, row)
    size = int(found[-1, layout.END]) if count else 0
    next_offset = max(asked, int(found[-1, layout.LAST_OFFSET]) + 1) if count else asked
    # Mostly all of them: a consumer that reads record by record looks at an answer for each.
    all_visible = not aborted and int(table[-1, layout.OF_USERS]) == count
    visible = found if all_visible else _visible(shard, view, found, aborted)
    return Scan(view, visible, next_offset, size, int(table[-1, layout.LARGEST]))


def follows(earlier: Scan, later: Scan) -> bool:
    """Whether `joined` may have these two: nothing is in both of them, although each was fetched by itself.

    A Fetch from the middle of a batch brings all of it, and before format 2 nothing says where a compressed one begins.
    """
    batches = later.batches
    first_is_new = len(batches) > 0 and batches[0, layout.FORMAT] == 2
    return bool(first_is_new and batches[0, layout.BASE_OFFSET] >= earlier.next_offset)


def joined(scans: Sequence[Scan]) -> Scan:
    """Scans that follow each other as one, to be decoded at one go: to begin costs as much as a hundred records."""
    begins = [0, *accumulate(len(each.data) for each in scans)]
    tables = []
    for each, begin in zip(scans, begins, strict=False):
        table = each.batches.copy()
        table[:, (layout.POSITION, layout.END)] += begin
        tables.append(table)
    return Scan(
        np.concatenate([each.data for each in scans]),
        np.concatenate(tables),
        scans[-1].next_offset,
        sum(each.size for each in scans),
        max(each.largest_batch for each in scans),
    )


def _verify(shard: ShardId, data: npt.NDArray[np.uint8], row: Sequence[int]) -> None:
    """Compare a batch's checksum with its bytes."""
    position, end = row[layout.POSITION], row[layout.END]
    if row[layout.FORMAT] == 2:
        # From the attributes, the first field after the checksum, to the end.
        actual = google_crc32c.value(data[position - layout.HEADER_SIZE + 21 : end])
    else:
        actual = legacy.checksum(data.data[position:end])
    if actual != row[layout.CHECKSUM]:
        raise _corrupt(shard, row[layout.BASE_OFFSET], "its checksum does not match")


def _visible(
    shard: ShardId, data: npt.NDArray[np.uint8], batches: npt.NDArray[np.int64], aborted: Collection[Aborted]
) -> npt.NDArray[np.int64]:
    """The batches that hold records which a consumer may see, as Kafka's own consumer chooses them."""
    control = (batches[:, layout.ATTRIBUTES] & layout.CONTROL) != 0
    # In formats 0 and 1 that bit has no meaning.
    control &= batches[:, layout.FORMAT] == 2
    keep = ~control & (batches[:, layout.COUNT] > 0)
    if aborted:
        seen = [
            Batch(
                row[layout.LAST_OFFSET],
                row[layout.PRODUCER],
                bool(row[layout.ATTRIBUTES] & layout.TRANSACTIONAL),
                bool(is_control),
            )
            for row, is_control in zip(batches.tolist(), control.tolist(), strict=True)
        ]
        markers = np.flatnonzero(control & np.isin(batches[:, layout.PRODUCER], [each.producer for each in aborted]))
        aborts = dict(zip(markers.tolist(), _aborts(shard, data, batches[markers]), strict=True))
        keep[hidden(seen, aborted, aborts.__getitem__)] = False
    visible: npt.NDArray[np.int64] = batches[keep]
    return visible


def _aborts(shard: ShardId, data: npt.NDArray[np.uint8], batches: npt.NDArray[np.int64]) -> list[bool]:
    """Whether each control batch ends a transaction by aborting it: the key of its one record says so.

    There may be thousands, and to decode one by itself costs as much as to decode hundreds.
    """
    keys = [key for rows in _decoded(shard, data, batches.copy(), 0, 1 << 62, ("key",)) for key in rows.keys.list()]
    firsts = np.cumsum(batches[:, layout.COUNT]) - batches[:, layout.COUNT]
    return [
        count > 0 and (key := keys[first]) is not None and len(key) >= 4 and int.from_bytes(key[2:4], "big") == 0
        for first, count in zip(firsts.tolist(), batches[:, layout.COUNT].tolist(), strict=True)
    ]


def decode(shard: ShardId, scanned: Scan, start: Offset, stop: Offset, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The visible records with start <= offset < stop, in order, as Arrow batches of `columns` of `record_columns.SCHEMA`.

    Nothing in the range gives no batch. Raises CorruptRecordsError; what came before the damage has then been given.
    """
    from shardherd.source.decoding.record_columns import arrow_of

    for rows in decode_rows(shard, scanned, start, stop, columns):
        yield arrow_of(rows, columns)


def decode_rows(
    shard: ShardId, scanned: Scan, start: Offset, stop: Offset, columns: Sequence[str], *, most: int | None = None
) -> Iterator[Rows]:
    """The same as rows, of which these columns can be used.

    With `most` about so many uncompressed bytes at a time, in memory that is used again once nobody has these rows any more.
    """
    yield from _decoded(shard, scanned.data, _inside(scanned.batches, start, stop), start, stop, columns, most)


def _inside(batches: npt.NDArray[np.int64], start: Offset, stop: Offset) -> npt.NDArray[np.int64]:
    """A copy of the batches that may hold offsets from `start` up to `stop`."""
    if len(batches) and batches[0, layout.LAST_OFFSET] >= start and batches[-1, layout.BASE_OFFSET] < stop:
        return batches.copy()  # they are in order
    # Where a compressed message of formats 0 and 1 begins is not said.
    begins_before = (batches[:, layout.BASE_OFFSET] < stop) | (batches[:, layout.FORMAT] < 2)
    return batches[(batches[:, layout.LAST_OFFSET] >= start) & begins_before]


def _decoded(
    shard: ShardId,
    data: npt.NDArray[np.uint8],
    batches: npt.NDArray[np.int64],
    start: Offset,
    stop: Offset,
    columns: Sequence[str],
    most: int | None = None,
) -> Iterator[Rows]:
    memory = _fresh() if most is None else _taken()
    try:
        yield from _decoded_in(memory, shard, data, batches, start, stop, columns, most)
    finally:
        if most is not None and len(_spare) < SPARE and len(memory.arena.data) <= LARGEST_SPARE:
            _spare.append(memory)


def _decoded_in(
    memory: _Memory,
    shard: ShardId,
    data: npt.NDArray[np.uint8],
    batches: npt.NDArray[np.int64],
    start: Offset,
    stop: Offset,
    columns: Sequence[str],
    most: int | None,
) -> Iterator[Rows]:
    arena, rooms = memory.arena, memory.rooms
    pending: Room | None = None
    done, rows = 0, batches.tolist()
    left = sum(row[layout.COUNT] for row in rows)
    while done < len(rows):
        if rows[done][layout.FORMAT] < 2:
            if pending is not None:
                yield from pending.rows()
                pending = None
            yield from _legacy(shard, data, rows[done], arena, start, stop)
            done += 1
            continue
        # As many batches as fit the cache are decompressed, and then decoded by one call.
        first, announced, size = done, 0, 0
        arena.clear()
        while done < len(rows) and rows[done][layout.FORMAT] == 2 and (done == first or size < GROUP_BYTES):
            taken = _decompressed(shard, data, batches, done, rows[done], arena)
            announced += rows[done][layout.COUNT]
            size += taken
            done += 1
        if pending is None or not pending.takes(announced, size):
            if pending is not None:
                yield from pending.rows()
            pending = next((room for room in rooms if room.again(shard, columns, announced, size)), None)
            if pending is None:
                pending = _room(shard, columns, announced, size, left, most or ARROW_BYTES)
                if most is not None and size <= LARGEST_SPARE:
                    rooms.append(pending)
        status, at = pending.append(data, arena.data, batches[first:done], size, start, stop)
        if status < 0:
            raise _corrupt(shard, rows[first + at][layout.BASE_OFFSET], REASONS[status])
        left -= announced
    if pending is not None:
        yield from pending.rows()


def _room(shard: ShardId, columns: Sequence[str], rows: int, size: int, left: int, most: int) -> Room:
    """Room for `rows` records of `size` bytes, and as far as an Arrow batch may grow for the `left` ones, if they are alike."""
    each = size / max(rows, 1)
    like_these = int(1.25 * each * left)
    fit = int(2 * most / max(each, 1))
    return Room(shard, columns, max(rows, min(left, ARROW_ROWS, fit)), max(size, min(like_these, most)))


def _decompressed(
    shard: ShardId,
    data: npt.NDArray[np.uint8],
    batches: npt.NDArray[np.int64],
    index: int,
    row: Sequence[int],
    arena: codecs.Arena,
) -> int:
    """Put one batch's records into the arena, if they are compressed, and note where; how many bytes they take."""
    codec, position, end = row[layout.ATTRIBUTES] & layout.CODEC_MASK, row[layout.POSITION], row[layout.END]
    if codec != codecs.NONE:
        try:
            position, end = codecs.decompress(codec, data.data[position:end], arena)
        except codecs.CodecError as error:
            raise _corrupt(shard, row[layout.BASE_OFFSET], str(error)) from error
        batches[index, layout.POSITION], batches[index, layout.END] = position, end
        batches[index, layout.IN_PLACE] = 0
    if row[layout.COUNT] > (end - position) // layout.SMALLEST_RECORD:
        raise _corrupt(shard, row[layout.BASE_OFFSET], f"{row[layout.COUNT]} records cannot be in {end - position} bytes")
    return end - position


def _legacy(
    shard: ShardId, data: npt.NDArray[np.uint8], row: Sequence[int], arena: codecs.Arena, start: Offset, stop: Offset
) -> Iterator[Rows]:
    try:
        found = legacy.messages(data.data[row[layout.POSITION] : row[layout.END]], arena)
    except (legacy.LegacyError, codecs.CodecError) as error:
        raise _corrupt(shard, row[layout.BASE_OFFSET], f"format {row[layout.FORMAT]}: {error}") from error
    rows = [each for each in found if start <= each.offset < stop]
    if not rows:
        return
    try:
        made = rows_of(
            shard,
            [each.offset for each in rows],
            [each.timestamp * 1000 for each in rows],
            [each.timestamp_type for each in rows],
            [each.key for each in rows],
            [each.value for each in rows],
            [()] * len(rows),
        )
    except OverflowError as error:
        raise _corrupt(shard, row[layout.BASE_OFFSET], REASONS[layout.BAD_TIMESTAMP]) from error
    yield made


def _corrupt(shard: ShardId, offset: Offset, reason: str, *, asked: Offset | None = None) -> CorruptRecordsError:
    fetched = "" if asked is None else f" (fetched from offset {asked})"
    return CorruptRecordsError(f"shard {shard}, batch at offset {offset}{fetched}: {reason}")
