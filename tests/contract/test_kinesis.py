"""The Kinesis that most tests read keeps the contract of the service."""

from __future__ import annotations

from typing import Any

import pytest

from shardherd.source.kinesis.client import Kinesis
from shardherd.source.kinesis.listing import list_shards
from tests.contract.kinesis import KinesisContract, generations, over
from tests.harness.kinesis import PlayedKinesis
from tests.harness.kinesis_group import KinesisGroup
from tests.harness.kinesis_load import Sink, Writer, worker_of
from tests.unit.worker.test_worker import running


class TestPlayed(KinesisContract):
    @pytest.fixture
    def service(self, kinesis: PlayedKinesis) -> PlayedKinesis:
        return kinesis

    def test_a_stream_whose_number_of_shards_is_updated_under_load_is_read_once_and_every_key_in_order(
        self, service: PlayedKinesis, orders: Any, reading: Kinesis
    ) -> None:
        """UpdateShardCount, which kinesalite does not have."""
        sink, writer = Sink(), Writer(orders)
        with (
            KinesisGroup(service, "orders", consumers=2) as group,
            running(worker_of(group, "played-0", sink)) as raised,
            running(worker_of(group, "played-1", sink)) as others,
        ):
            for target in (2, 4, 2):
                writer.write()
                orders.update_shard_count(StreamName="orders", TargetShardCount=target, ScalingType="UNIFORM_SCALING")
                writer.write()
            group.until("all generations are read", lambda: len(sink) == len(writer), within=30)
            listed = list_shards(reading)
            ends = {f"orders/{each.id}": end for each in listed if (end := each.end) is not None}
            group.until("closed shards are over", lambda: over(group, ends))
        assert (sink.rows, raised, others) == (writer.written, [], [])
        assert generations(listed) == [0, 1, 1, 2, 2, 2, 2, 3, 3]
