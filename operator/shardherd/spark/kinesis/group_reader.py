"""What Spark calls of a query that reads Kinesis in a ConsumerGroup: the agent says which records there are, as of Kafka.

`source` makes it where the pod's environment names a stream. The agent's ranges are positions of the group; here they become
tasks, which read them as those of a query by itself do.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition

from shardherd.clock import boot_time
from shardherd.core.consumer.tracker import ReadRange
from shardherd.core.model.nouns import ShardId
from shardherd.source.kinesis.client import Kinesis, KinesisUnavailableError
from shardherd.source.kinesis.listing import ListedShard, list_shards
from shardherd.source.kinesis.pacing import COUNTED, OF_TASKS
from shardherd.source.kinesis.ranges import ShardRecords
from shardherd.spark.batch_planner import ReaderSettings
from shardherd.spark.decode_stats import CountsAddress
from shardherd.spark.kafka_readers import ShardherdStreamReader
from shardherd.spark.kinesis.options import KinesisSettings, of_pod
from shardherd.spark.kinesis.readers import KinesisSlice, read_slice, slices
from shardherd.spark.offsets import Offsets
from shardherd.spark.options import Settings
from shardherd.spark.schema import Wanted

if TYPE_CHECKING:
    import pyarrow as pa

LIST_TIMEOUT = 60.0
"""Seconds to wait for Kinesis where a task needs to know of a shard."""

RETRY_DELAY = 0.5


@dataclass(eq=False, repr=False)
class GroupSlice(KinesisSlice):
    """One task (without ranges it only warms its worker up), and what it needs to read them."""

    settings: KinesisSettings
    counts_address: CountsAddress | None = None


class KinesisGroupReader(ShardherdStreamReader):
    """The stream reader. It knows the shards that it has made tasks for: what is needed of those does not change."""

    def __init__(self, settings: Settings, wanted: Wanted, slots: int | None = None) -> None:
        super().__init__(settings, wanted, slots)
        self._listed: Mapping[str, ListedShard] = {}

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Nothing: Kinesis tells no end of an open shard."""
        return None

    def _tasks(
        self,
        ranges: Mapping[ShardId, ReadRange],
        reader: ReaderSettings,
        first: Offsets,
        last: Offsets,
    ) -> list[InputPartition]:
        assert reader.kinesis is not None
        ours = self._settings
        share = COUNTED if ours.limits.counted else OF_TASKS
        settings = of_pod(reader.kinesis, fail_on_data_loss=ours.fail_on_data_loss, values=ours.values, of_tasks=share)
        found = [self._records(settings, shard, each) for shard, each in sorted(ranges.items()) if each.start < each.stop]
        made = [each.ranges for each in slices(found, reader.slots) if isinstance(each, KinesisSlice)] if found else []
        if last.warm > first.warm:
            made += [()] * (max(1, reader.slots or 1) - len(made))
        return [GroupSlice(each, settings, reader.counts_address) for each in made]

    def _records(self, settings: KinesisSettings, shard: ShardId, each: ReadRange) -> ShardRecords:
        """What a task reads. Of a shard that is listed no more, as its records are gone, it finds that out."""
        name = shard.rpartition("/")[2]
        if name not in self._listed:
            self._listed = listed(settings)
        known = self._listed.get(name)
        if known is None:
            return ShardRecords(name, each.start, each.stop, None, 0)
        return ShardRecords(name, each.start, each.stop, known.hashes, known.begin)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, GroupSlice):  # Spark's own, for a batch without a task
            return iter(())
        return read_slice(partition, partition.settings, self._wanted, None, partition.counts_address)


def listed(settings: KinesisSettings) -> Mapping[str, ListedShard]:
    """Every shard that there is. Raises KinesisRefusedError, and KinesisUnavailableError after a while."""
    kinesis, deadline = Kinesis(settings.access), boot_time() + LIST_TIMEOUT
    while True:
        try:
            return {each.id: each for each in list_shards(kinesis)}
        except KinesisUnavailableError:
            if boot_time() >= deadline:
                raise
            time.sleep(RETRY_DELAY)
