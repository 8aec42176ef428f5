"""What whoever reads Kinesis leans on, asked of each service that tests have in its place."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from botocore.exceptions import ClientError

from shardherd.adapters.kinesis.access import Access
from shardherd.adapters.kinesis.source import KinesisShardSource
from shardherd.adapters.kinesis.stream import KinesisStream
from shardherd.core.model.nouns import KinesisSource, ShardId, ShardState
from shardherd.source.kinesis import searching
from shardherd.source.kinesis.client import AccessKeys, Kinesis, KinesisRefusedError, StreamAccess
from shardherd.source.kinesis.listing import ListedShard, describe, list_shards
from shardherd.source.kinesis.pacing import Pace, Share
from shardherd.source.kinesis.range_reading import read_ranges
from shardherd.source.kinesis.ranges import RecordsLostError, ShardRecords
from shardherd.source.kinesis.searching import Bounds, Found, Search
from shardherd.source.kinesis.shard_reader import (
    BEGINNING,
    NumberError,
    ShardGoneError,
    ShardReader,
    after,
    at,
    of_position,
    since,
)
from shardherd.worker import Record, kinesis_fetching
from shardherd.worker.kinesis_fetching import KinesisFetcher
from shardherd.worker.stream import Wanted
from tests.harness.kinesis import REGION, Service, merge, split, stream
from tests.harness.kinesis_group import KinesisGroup
from tests.harness.kinesis_load import Sink, Writer, worker_of
from tests.harness.memory_secrets import MemorySecrets
from tests.unit.worker.test_worker import running

FIRST = "shardId-000000000000"
MIDDLE = 2**127
WHOLE = 1 << 20
HOUR = 3600.0
IN_TWO_MOMENTS = 2.0
"""Seconds after which a stream of the same name has other numbers: these hold its time in seconds."""


def pace() -> Pace:
    """The limits of Kinesis are no matter of these tests."""
    return Pace(Share(1e6, 1e15))


def write(client: Any, *values: str) -> list[int]:
    """Write these under one key; the numbers that they have got."""
    entries = [{"PartitionKey": "k", "Data": value.encode()} for value in values]
    answer = client.put_records(StreamName="orders", Records=entries)
    return [int(each["SequenceNumber"]) for each in answer["Records"]]


class KinesisContract:
    """Subclasses have a fixture `service`."""

    @pytest.fixture
    def orders(self, service: Service, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
        """A writer of the stream `orders`, which has one shard."""
        monkeypatch.setattr(kinesis_fetching, "LOOK_INTERVAL", 0.05)
        monkeypatch.setattr(kinesis_fetching, "LIST_INTERVAL", 0.05)
        monkeypatch.setattr("shardherd.adapters.kinesis.stream.LIST_INTERVAL", 0.05)
        with stream(service, "orders") as client:
            yield client

    @pytest.fixture
    def reading(self, service: Service) -> Kinesis:
        """Whoever reads it."""
        return Kinesis(StreamAccess("orders", REGION, service.url, lambda: AccessKeys("key", "secret")))

    @pytest.fixture
    def seen(self, service: Service, reading: Kinesis) -> Iterator[KinesisShardSource]:
        """What the operator sees of it."""
        with ThreadPoolExecutor(4) as threads:
            access = Access(MemorySecrets(), "demo", "", own_identity=True)
            source = KinesisSource("orders", REGION, service.url, "aws", "Earliest")
            stream = KinesisStream(reading, access, threads)
            stream.search = Search(reading, pace(), service.now)
            yield KinesisShardSource(stream, source, _nothing, wall=service.now)

    def test_a_stream_says_when_it_was_made_and_for_how_long_it_keeps_records(self, orders: Any, reading: Kinesis) -> None:
        said = describe(reading)
        assert (said.name, said.retention) == ("orders", 24 * 3600.0)
        assert said.arn.endswith(":stream/orders")
        assert abs(said.created - time.time()) < 60

    def test_a_stream_that_is_not_there_is_named(self, reading: Kinesis) -> None:
        for ask in (describe, list_shards):
            with pytest.raises(KinesisRefusedError, match="stream orders cannot be read in"):
                ask(reading)

    def test_after_a_split_and_a_merge_every_shard_names_its_parents(self, orders: Any, reading: Kinesis) -> None:
        (first,) = list_shards(reading)
        assert (first.end, first.parents, first.hashes) == (None, (), (0, 2**128 - 1))
        split(orders, "orders", first.id)
        parent, low, high = list_shards(reading)
        assert parent.end is not None
        assert parent.end > parent.begin > 2**180
        assert [(each.parents, each.end) for each in (low, high)] == [((first.id,), None)] * 2
        assert (low.hashes[0], low.hashes[1] + 1, high.hashes[1]) == (0, high.hashes[0], 2**128 - 1)
        merge(orders, "orders", low.id, high.id)
        *_, low, high, child = list_shards(reading)
        assert (child.parents, child.end, low.end is None, high.end is None) == ((low.id, high.id), None, False, False)

    def test_the_token_of_the_next_page_of_a_list_goes_with_no_name(self, orders: Any) -> None:
        with pytest.raises(ClientError, match="InvalidArgumentException"):
            orders.list_shards(StreamName="orders", NextToken="more")

    def test_records_have_numbers_in_their_order_and_a_closed_shard_ends_above_them(
        self, orders: Any, reading: Kinesis
    ) -> None:
        numbers = write(orders, "a", "b", "c")
        (first,) = list_shards(reading)
        split(orders, "orders", FIRST)
        closed, *_ = list_shards(reading)
        assert closed.end is not None
        assert first.begin <= numbers[0] < numbers[1] < numbers[2] < closed.end
        assert closed.begin == first.begin

    def test_a_closed_shard_has_its_records_and_then_ends_and_its_children_have_the_others(
        self, orders: Any, reading: Kinesis
    ) -> None:
        write(orders, "a", "b", "c")
        split(orders, "orders", FIRST)
        write(orders, "of a child")
        reader, found = ShardReader(reading, FIRST, (BEGINNING,)), []
        while not (answer := reader.read(2)).over:
            found += [each.data for each in answer.records]
        found += [each.data for each in answer.records]
        assert found == [b"a", b"b", b"c"]
        assert (reader.read(2).records, reader.read(2).over) == ([], True)
        _, *children = list_shards(reading)
        assert [
            [each.data for each in ShardReader(reading, child.id, (BEGINNING,)).read().records] for child in children
        ].count([b"of a child"]) == 1

    def test_a_shard_is_read_from_a_number_on_or_after_it(self, orders: Any, reading: Kinesis) -> None:
        _, second, third = write(orders, "a", "b", "c")
        assert [each.number for each in ShardReader(reading, FIRST, (at(second),)).read().records] == [second, third]
        assert [each.number for each in ShardReader(reading, FIRST, (after(second),)).read().records] == [third]

    def test_an_answer_says_for_how_long_records_follow_and_nothing_where_none_do(
        self, service: Service, orders: Any, reading: Kinesis
    ) -> None:
        write(orders, "a", "b", "c")
        service.pass_time(60.0)
        reader = ShardReader(reading, FIRST, (BEGINNING,))
        assert reader.read(2).behind == pytest.approx(60.0, abs=20.0)
        assert [reader.read(2).behind for _ in range(2)] == [0.0, 0.0]

    def test_what_comes_next_has_so_many_records_and_so_much_time_as_it_is_bounded_to(
        self, service: Service, orders: Any, reading: Kinesis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(searching, "LOOKED_AT", 3)
        (shard,) = list_shards(reading)
        early = write(orders, *"abc")
        service.pass_time(600.0)
        late = write(orders, *"defg")
        service.pass_time(600.0)

        def parts(bounds: Bounds) -> list[tuple[int, int]]:
            looks, found, position = Search(reading, pace(), service.now), [], shard.begin
            while (each := looks.next(shard, position, bounds)) is not None:
                found.append((each.first, each.stop))
                position = each.stop
            return found

        assert parts(Bounds(HOUR, records=5)) == [(early[0], late[1] + 1), (late[2], late[3] + 1)]
        assert parts(Bounds(60.0)) == [(early[0], late[0]), (late[0], late[2] + 1), (late[3], late[3] + 1)]

    def test_a_number_of_no_shard_is_refused_and_a_shard_that_is_not_there_is_gone(self, orders: Any, reading: Kinesis) -> None:
        write(orders, "a")
        with pytest.raises(NumberError):
            ShardReader(reading, FIRST, (at(7),)).read()
        with pytest.raises(ShardGoneError, match="shardId-000000000007 of orders is gone"):
            ShardReader(reading, "shardId-000000000007", (BEGINNING,)).read()

    def test_what_comes_next_begins_at_a_record_and_ends_after_one(self, orders: Any, reading: Kinesis) -> None:
        (shard,) = list_shards(reading)
        looks, bounds = Search(reading, pace()), Bounds(span=3600.0)
        first, second = write(orders, "a", "b")
        assert looks.next(shard, 0, bounds) == Found(first, second + 1)
        assert looks.next(shard, second + 1, bounds) is None
        (third,) = write(orders, "c")
        for each in (looks, Search(reading, pace())):
            assert each.next(shard, second + 1, bounds) == Found(third, third + 1)

    def test_an_iterator_that_has_expired_is_got_anew_after_the_last_record(
        self, service: Service, orders: Any, reading: Kinesis
    ) -> None:
        write(orders, "a", "b", "c")
        reader = ShardReader(reading, FIRST, (BEGINNING,))
        assert [each.data for each in reader.read(2).records] == [b"a", b"b"]
        said = orders.get_shard_iterator(StreamName="orders", ShardId=FIRST, ShardIteratorType="TRIM_HORIZON")
        service.pass_time(301.0)
        with pytest.raises(ClientError, match="ExpiredIteratorException"):
            orders.get_records(ShardIterator=said["ShardIterator"])
        assert [each.data for each in reader.read(2).records] == [b"c"]

    def test_where_a_stream_was_made_anew_a_number_of_the_deleted_one_is_refused_and_a_position_is_at_the_beginning(
        self, service: Service, reading: Kinesis
    ) -> None:
        with stream(service, "orders") as client:
            deleted, *_ = write(client, "of the deleted one")
            before = describe(reading)
        service.pass_time(IN_TWO_MOMENTS)
        with stream(service, "orders") as client:
            write(client, "a")
            (shard,) = list_shards(reading)
            with pytest.raises(NumberError):
                ShardReader(reading, FIRST, (at(deleted),)).read()
            reader = ShardReader(reading, FIRST, of_position(deleted + 1, shard.begin))
            assert [each.data for each in reader.read().records] == [b"a"]
            assert describe(reading).source_id != before.source_id

    # --- retention -------------------------------------------------------------------------------------------------------

    def test_what_is_older_than_the_retention_is_gone_and_whoever_asks_for_it_gets_the_oldest_left(
        self, service: Service, orders: Any, reading: Kinesis
    ) -> None:
        begun = service.now()
        first, _ = write(orders, "a", "b")
        service.pass_time(25 * HOUR)
        write(orders, "c")
        for start in (BEGINNING, at(first), after(first), since(begun)):
            assert [each.data for each in ShardReader(reading, FIRST, (start,)).read().records] == [b"c"]

    def test_a_range_whose_records_are_gone_is_an_error_that_names_them(
        self, service: Service, orders: Any, reading: Kinesis
    ) -> None:
        first, second = write(orders, "a", "b")
        service.pass_time(25 * HOUR)
        write(orders, "c")
        with pytest.raises(
            RecordsLostError, match=f"shard orders/{FIRST}: the records from {first} up to {second + 1} are lost"
        ):
            list(read_ranges(reading, pace(), [ShardRecords(FIRST, first, second + 1)], ("value",)))

    @pytest.mark.parametrize("fail", [True, False])
    def test_a_worker_that_retention_has_caught_up_with_ends_or_goes_on_at_the_oldest_left(
        self, service: Service, orders: Any, reading: Kinesis, fail: bool
    ) -> None:
        read, _ = write(orders, "read", "lost")
        service.pass_time(10 * HOUR)
        (left,) = write(orders, "left")
        service.pass_time(23 * HOUR)
        fetcher = KinesisFetcher(reading, fail_on_data_loss=fail, clock=service.now)
        deadline = time.monotonic() + 30

        def fetch() -> list[tuple[int, int]]:
            while not (parts := fetcher.fetch({ShardId(f"orders/{FIRST}"): Wanted(read + 1, WHOLE)}, behind=True)):
                assert time.monotonic() < deadline
            return [(each.asked, each.next) for each in parts]

        try:
            if fail:
                with pytest.raises(RecordsLostError, match=f"records from {read + 1} up to {left} are lost.*for 24 h"):
                    fetch()
            else:
                assert fetch() == [(read + 1, left + 1)]
        finally:
            fetcher.close()

    async def test_the_operator_sees_the_oldest_record_left_where_a_group_has_lost_some(
        self, service: Service, orders: Any, seen: KinesisShardSource
    ) -> None:
        shard = ShardId(f"orders/{FIRST}")
        read, _ = write(orders, "read", "lost")
        assert [each.oldest for each in (await seen.discover()).shards] == [0]
        service.pass_time(10 * HOUR)
        (left,) = write(orders, "left")
        arrived = service.now()
        service.pass_time(23 * HOUR)
        assert await seen.written_at({shard: read + 1}) == {shard: pytest.approx(arrived, abs=30.0)}
        assert [each.oldest for each in (await seen.discover()).shards] == [left]

    def test_a_closed_shard_whose_records_are_gone_ends_all_the_same(
        self, service: Service, orders: Any, reading: Kinesis
    ) -> None:
        write(orders, "a", "b")
        split(orders, "orders", FIRST)
        service.pass_time(25 * HOUR)
        reader, deadline = ShardReader(reading, FIRST, (BEGINNING,)), time.monotonic() + 30
        while not (answer := reader.read(1)).over:
            assert (answer.records, time.monotonic() < deadline) == ([], True)
        assert answer.records == []

    # --- ranges and readers ----------------------------------------------------------------------------------------------

    def test_a_range_has_the_same_records_whenever_it_is_read(self, orders: Any, reading: Kinesis) -> None:
        numbers = write(orders, *"abcdef")

        def values() -> list[bytes]:
            found = read_ranges(reading, pace(), [ShardRecords(FIRST, numbers[1], numbers[4])], ("value",))
            return [row["value"] for batch in found for row in batch.to_pylist()]

        assert values() == [b"b", b"c", b"d"]
        write(orders, "later")
        assert values() == [b"b", b"c", b"d"]
        split(orders, "orders", FIRST)
        assert values() == [b"b", b"c", b"d"]

    def test_a_worker_reads_a_closed_shard_to_the_end_that_its_listing_says(self, orders: Any, reading: Kinesis) -> None:
        write(orders, "a", "b")
        split(orders, "orders", FIRST)
        closed, *_ = list_shards(reading)
        assert closed.end is not None
        fetcher, position = KinesisFetcher(reading, fail_on_data_loss=True), closed.begin
        shard, deadline = ShardId(f"orders/{FIRST}"), time.monotonic() + 30
        try:
            while position < closed.end:
                assert time.monotonic() < deadline
                for part in fetcher.fetch({shard: Wanted(position, WHOLE)}, behind=True):
                    position = part.next
            assert (position, fetcher.fetch({shard: Wanted(position, WHOLE)}, behind=False)) == (closed.end, [])
        finally:
            fetcher.close()

    async def test_the_operator_sees_how_far_shards_reach_and_where_a_time_is(
        self, orders: Any, reading: Kinesis, seen: KinesisShardSource
    ) -> None:
        begun, shard = time.time(), ShardId(f"orders/{FIRST}")
        first, second = write(orders, "a", "b")
        (info,) = (await seen.discover(ends=True)).shards
        assert (info.shard, info.open, info.parents, info.end) == (shard, True, (), second + 1)
        assert info.begin <= first
        assert await seen.log_ends([shard]) == {shard: second + 1}
        assert await seen.positions_at(begun - 60) == {shard: first}
        arrived = (await seen.written_at({shard: first}))[shard]
        assert arrived is not None
        assert abs(arrived - begun) < 60
        assert await seen.written_at({shard: second + 1}) == {shard: None}

    async def test_of_a_quiet_shard_the_end_is_after_its_last_record_and_of_an_empty_one_it_is_its_beginning(
        self, service: Service, orders: Any, reading: Kinesis, seen: KinesisShardSource
    ) -> None:
        shard = ShardId(f"orders/{FIRST}")
        (listed,) = list_shards(reading)
        assert await seen.log_ends([shard]) == {shard: listed.begin}
        *_, last = write(orders, "a", "b")
        service.pass_time(2 * HOUR)
        quiet = Search(reading, pace(), service.now)
        assert quiet.newest(listed) == last
        assert quiet.first_since(listed, service.now() - HOUR) is None
        assert await seen.positions_at(time.time() + HOUR) == {shard: last + 1}

    async def test_of_a_time_that_is_to_come_the_end_is_the_position(self, orders: Any, seen: KinesisShardSource) -> None:
        """So it is too for who asks by a clock that is ahead."""
        *_, last = write(orders, "a", "b")
        assert await seen.positions_at(time.time() + 3600) == {ShardId(f"orders/{FIRST}"): last + 1}

    def test_a_stream_that_splits_and_merges_under_load_is_read_once_and_every_key_in_order(
        self, service: Service, orders: Any, reading: Kinesis
    ) -> None:
        sink, writer = Sink(), Writer(orders)
        with KinesisGroup(service, "orders", consumers=2) as group:
            first, second = worker_of(group, "played-0", sink), worker_of(group, "played-1", sink)
            with running(first) as raised, running(second) as others:
                writer.write()
                split(orders, "orders", FIRST)
                writer.write()
                group.until("both read", lambda: len(sink) == len(writer) and len(set(group.holders().values())) == 2)
                low, high = (each.id for each in list_shards(reading) if each.end is None)
                split(orders, "orders", low)
                writer.write()
                *_, adjacent = (each.id for each in list_shards(reading) if each.end is None and each.hashes[1] < MIDDLE)
                merge(orders, "orders", adjacent, high)
                writer.write()
                group.until("all generations are read", lambda: len(sink) == len(writer), within=30)
                listed = list_shards(reading)
                ends = {f"orders/{each.id}": end for each in listed if (end := each.end) is not None}
                group.until("closed shards are over", lambda: over(group, ends))
        assert (sink.rows, raised, others) == (writer.written, [], [])
        assert generations(listed) == [0, 1, 1, 2, 2, 3]

    def test_a_shard_that_was_read_to_its_end_is_nobodys_after_a_reset_then_read_again_and_over_again(
        self, service: Service, orders: Any, reading: Kinesis
    ) -> None:
        """Each shard is: the children are not free to wait for it once more, so keys are in order in each shard alone."""
        sink, writer, states = Followed(), Writer(orders), list[dict[str, ShardState]]()
        with (
            KinesisGroup(service, "orders", consumers=1) as group,
            running(worker_of(group, "played-0", sink)) as raised,
        ):
            writer.write()
            split(orders, "orders", FIRST)
            writer.write()
            closed, *children = list_shards(reading)
            parent, low, high = (f"orders/{each.id}" for each in (closed, *children))
            ends = {parent: closed.end or 0}
            group.until("all is read, and the parent is over", lambda: len(sink) == len(writer) and over(group, ends))
            once = sink.by_shard()
            states.append(group.states())

            group.reset_to_the_beginning("anew", lambda: states.append(group.states()))

            group.until("all is read again", lambda: len(sink) == 2 * len(writer) and over(group, ends), within=30)
            states.append(group.states())
            group.until("it is told", lambda: len(group.told("ShardRevived")) > 0)
            assert group.told("ShardRevived") == [
                f"finished shard {parent} is read again from {closed.begin}; descendants of {parent} were read before it, so"
                f" the order of its keys can break: {low}, {high}"
            ]
        before, paused, after = (tuple(seen[shard] for shard in (parent, low, high)) for seen in states)
        held = (ShardState.ALREADY_ALLOC, ShardState.ALREADY_ALLOC)
        assert (before, paused, after) == ((ShardState.OVER, *held), (ShardState.NOT_ALLOC, *held), (ShardState.OVER, *held))
        assert (sink.by_shard(), raised) == ({place: [*numbers, *numbers] for place, numbers in once.items()}, [])


class Followed(Sink):
    """A sink that notes the shard of each record, too, in the order of the calls."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[tuple[str, str, int]] = []

    def write(self, shard: ShardId, record: Record) -> None:
        # First here: who sees the record counted finds it.
        self.order.append((shard, (record.key or b"").decode(), int(record.value or b"")))
        super().write(shard, record)

    def by_shard(self) -> dict[tuple[str, str], list[int]]:
        """The numbers of each shard and key."""
        found: dict[tuple[str, str], list[int]] = {}
        for shard, key, number in list(self.order):
            found.setdefault((shard, key), []).append(number)
        return found

    def too_early(self, listed: tuple[ListedShard, ...]) -> list[tuple[str, str]]:
        """Each shard, and its parent, of which something was processed before the last of the parent."""
        shards = [shard for shard, _, _ in self.order]
        first = {shard: shards.index(shard) for shard in set(shards)}
        last = {shard: place for place, shard in enumerate(shards)}
        return [
            (each.id, parent)
            for each in listed
            for parent in each.parents
            if first[f"orders/{each.id}"] < last[f"orders/{parent}"]
        ]


async def _nothing() -> None:
    return None


def over(group: KinesisGroup, ends: dict[str, int]) -> bool:
    """Whether these are checkpointed to their ends, and are over."""
    return ends.items() <= group.checkpoints().items() and {group.states().get(each) for each in ends} == {ShardState.OVER}


def generations(listed: tuple[ListedShard, ...]) -> list[int]:
    """How many splits and merges each shard comes from, along its longest line."""
    found: dict[str, int] = {}
    for each in listed:
        found[each.id] = 1 + max((found[parent] for parent in each.parents), default=-1)
    return list(found.values())
