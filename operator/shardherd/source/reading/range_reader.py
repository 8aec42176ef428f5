"""Reads ranges of shards from Kafka as Arrow record batches.

Called for every task. One task reads several ranges at once: one Fetch a broker for all of them, and the next one is under way
while the last one is decoded, within the memory that it is given. It reads exactly the ranges that it is given, and knows
nothing of ownership.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from shardherd.clock import boot_time
from shardherd.core.model.nouns import Offset, ShardId
from shardherd.source.decoding import record_batches
from shardherd.source.kafka.brokers import Brokers
from shardherd.source.kafka.cluster_connection import BrokersUnavailableError, TopicGoneError
from shardherd.source.kafka.fetch_memory import FETCH_MEMORY, FetchMemory
from shardherd.source.kafka.fetching import Fetched
from shardherd.source.kafka.leader_epochs import LogChecks, Mark
from shardherd.source.reading.fetch_sizing import FetchSizing
from shardherd.source.reading.lost_records import Losses
from shardherd.source.reading.ranges import ShardRange

if TYPE_CHECKING:
    import pyarrow as pa

Decode: TypeAlias = "Callable[[ShardId, record_batches.Scan, Offset, Offset, Sequence[str]], Iterator[pa.RecordBatch]]"
"""From what was fetched of a shard to the records of a range: see `record_batches.decode`."""

REQUEST_TIMEOUT = 20.0
"""Seconds to wait for one Fetch, connecting included."""

STALL_TIMEOUT = 120.0
"""Seconds without any progress after which a task fails; Spark then tries it again or ends the query. As Spark's own source."""

RETRY_DELAY = 0.1
"""Seconds between tries while no broker can be reached."""


_sizing = FetchSizing()
"""Of this process: a task's first Fetch is sized by what earlier tasks have seen of its shards."""


def _held_back(shard: ShardId, fetched: Sequence[Fetched]) -> str:
    """Why nothing came although the brokers answer, if that is known."""
    held = [part.end for part in fetched if part.shard == shard and part.written > part.end]
    return f": a transaction that is still open holds them back from offset {held[0]} on" if held else ""


def read_ranges(
    brokers: Brokers,
    ranges: Sequence[ShardRange],
    columns: Sequence[str],
    *,
    topic_ids: Mapping[str, str] | None = None,
    fail_on_data_loss: bool = True,
    decode: Decode = record_batches.decode,
    fetch_bytes: int = FETCH_MEMORY,
    marks: Mapping[ShardId, Sequence[Mark]] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Every record of every range as Arrow batches; records of one shard come in order.

    A range may end in offsets that hold no record (compacted, aborted, or a transaction's marker): it is complete when its end
    was passed. `topic_ids` are those of the topics that the ranges were planned for, if they are known. Records that are no
    more are a RangeLostError, or a warning without `fail_on_data_loss`, as is then a topic that is not there for STALL_TIMEOUT.
    Raises CorruptRecordsError, SourceRefusedError, and BrokersUnavailableError once nothing came for STALL_TIMEOUT; each names
    the shard, and so does what `decode` raises. `fetch_bytes` bounds the memory of Kafka's answers. `marks` are what must hold
    of the logs; a log of which one does not hold has lost records.
    """
    stops = {each.shard: each.stop for each in ranges}
    left = {each.shard: each.start for each in ranges if each.start < each.stop}
    checks = LogChecks(marks)
    losses = Losses(stops, topic_ids or {}, checks, fail=fail_on_data_loss)
    progress_at = boot_time()
    hungry: set[ShardId] = set()

    def fetch() -> Callable[[], Sequence[Fetched]] | None:
        if not left:
            return None
        sizes = _sizing.wanted(left, stops, hungry)
        memory = FetchMemory(fetch_bytes, _sizing.largest_batch(left))
        return brokers.begin_fetch(left, REQUEST_TIMEOUT, shard_bytes=sizes, memory=memory, checks=checks)

    answer = fetch()
    while answer is not None:
        try:
            fetched: Sequence[Fetched] = answer()
            trouble: BrokersUnavailableError | None = None
        except BrokersUnavailableError as error:
            fetched, trouble = (), error
            time.sleep(RETRY_DELAY)
        losses.missing(trouble.topic if isinstance(trouble, TopicGoneError) else "", boot_time())
        progressed = False
        scans = []
        if any(part.start is not None or part.diverged is not None for part in fetched):
            # These are answered at once; what may be over soon is not asked for at once again.
            time.sleep(RETRY_DELAY)
        for part in fetched:
            resume = losses.resume(part, boot_time())
            if resume is not None:
                progressed = True
                del left[part.shard]
                if resume < stops[part.shard]:
                    left[part.shard] = resume
            elif part.data:
                scans.append((part, record_batches.scan(part.shard, part.data, part.asked, aborted=part.aborted)))
        hungry = {part.shard for part in fetched} & left.keys()
        for part, scanned in scans:
            if scanned.next_offset > part.asked:
                progressed = True
                hungry.discard(part.shard)
                covered = scanned.next_offset - part.asked
                _sizing.learn(part.shard, scanned.size, covered, scanned.largest_batch)
            # Moved to the back: a batch larger than a Fetch comes whole only for the first shard of a request.
            del left[part.shard]
            if scanned.next_offset < stops[part.shard]:
                left[part.shard] = scanned.next_offset
        answer = fetch()
        for part, scanned in scans:
            # A batch may begin below the offset asked for: with records that the range has not, or that were deleted.
            yield from decode(part.shard, scanned, part.asked, stops[part.shard], columns)
        if progressed:  # counted from here: the time that Spark takes for the rows is no stall
            progress_at = boot_time()
        elif left and boot_time() - progress_at > STALL_TIMEOUT:
            if isinstance(trouble, TopicGoneError) and (gone := losses.without(trouble.topic, left, boot_time())):
                for each in gone:
                    del left[each]
                answer = fetch()  # in place of the one that asks for them
                continue
            shard, position = next(iter(left.items()))
            raise BrokersUnavailableError(
                f"shard {shard}: no record from offset {position} on for {STALL_TIMEOUT:g} s, wanted up to {stops[shard]}"
                + (f": {trouble}" if trouble else _held_back(shard, fetched))
            )
