"""The Kinesis that most tests read keeps the contract of the service."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from botocore.exceptions import ClientError

from shardherd.source.kinesis.client import Kinesis
from shardherd.source.kinesis.listing import list_shards
from tests.contract.kinesis import Followed, KinesisContract, generations, over
from tests.harness.kinesis import PlayedKinesis, open_shards
from tests.harness.kinesis_group import KinesisGroup
from tests.harness.kinesis_load import Writer, worker_of
from tests.unit.worker.test_worker import running


class TestPlayed(KinesisContract):
    @pytest.fixture
    def service(self, kinesis: PlayedKinesis) -> PlayedKinesis:
        return kinesis

    def test_the_number_of_shards_is_doubled_by_splits_in_the_middle_and_halved_by_merges_of_neighbours(
        self, orders: Any, reading: Kinesis
    ) -> None:
        for target in (2, 4, 2):
            update(orders, target)
        assert [(each.parents, each.hashes, each.end is None) for each in list_shards(reading)] == [
            ((), part(0, of=1), False),
            *(((name(0),), part(half, of=2), False) for half in range(2)),
            *(((name(1 + quarter // 2),), part(quarter, of=4), False) for quarter in range(4)),
            *(((name(3 + 2 * half), name(4 + 2 * half)), part(half, of=2), True) for half in range(2)),
        ]

    @pytest.mark.parametrize("target", [1, 9])
    def test_less_than_half_and_more_than_double_are_refused(self, orders: Any, reading: Kinesis, target: int) -> None:
        for allowed in (2, 4):
            update(orders, allowed)
        with pytest.raises(ClientError, match=r"LimitExceededException.*open shard count: 4 Target shard count: \d$"):
            update(orders, target)
        assert len(list_shards(reading)) == 7

    def test_a_stream_whose_number_of_shards_is_updated_under_load_is_read_once_every_key_in_order_and_no_child_too_early(
        self, service: PlayedKinesis, orders: Any, reading: Kinesis
    ) -> None:
        """By UpdateShardCount, which kinesalite does not have."""
        sink, writer, enough = Followed(), Writer(orders), threading.Event()

        def write() -> None:
            while not enough.wait(0.01):
                writer.write(1)

        def all_read() -> bool:
            return set(open_shards(orders, "orders")) <= {shard.rpartition("/")[2] for shard in list(sink.shards)}

        with (
            KinesisGroup(service, "orders", consumers=2) as group,
            running(worker_of(group, "played-0", sink)) as raised,
            running(worker_of(group, "played-1", sink)) as others,
            ThreadPoolExecutor(1) as threads,
        ):
            writing = threads.submit(write)
            try:
                for target in (2, 4, 2):
                    group.until("every open shard is read", all_read, within=30)
                    update(orders, target)
                group.until("every open shard is read", all_read, within=30)
            finally:
                enough.set()
            writing.result()
            group.until("all generations are read", lambda: len(sink) == len(writer), within=30)
            listed = list_shards(reading)
            ends = {f"orders/{each.id}": end for each in listed if (end := each.end) is not None}
            group.until("closed shards are over", lambda: over(group, ends))
        assert generations(listed) == [0, 1, 1, 2, 2, 2, 2, 3, 3]
        assert (sink.rows, sink.too_early(listed), raised, others) == (writer.written, [], [], [])


def update(client: Any, target: int) -> None:
    client.update_shard_count(StreamName="orders", TargetShardCount=target, ScalingType="UNIFORM_SCALING")


def name(number: int) -> str:
    return f"shardId-{number:012d}"


def part(number: int, *, of: int) -> tuple[int, int]:
    """The hash keys of one of so many equal parts."""
    return number * 2**128 // of, (number + 1) * 2**128 // of - 1
