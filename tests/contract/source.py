"""What every ShardSource must do."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import pytest

from shardherd.core.model.nouns import ShardId, ShardInfo
from shardherd.ports import ShardSource, SourceUnavailableError


class SourceLab(Protocol):
    """What a test may do to the source's cluster."""

    async def create(self, topic: str, partitions: int) -> None: ...

    async def grow(self, topic: str, partitions: int) -> None: ...

    async def delete(self, topic: str) -> None: ...

    async def recreate(self, topic: str, partitions: int) -> None: ...

    async def append(self, topic: str, partition: int, records: int, since: float | None = None) -> None:
        """So many records, one a second from this time on, in seconds since 1970; by default from now on."""
        ...

    rack: str
    """Of the broker that leads every partition."""

    def transaction(
        self, topic: str, partition: int, records: int, since: float | None = None
    ) -> AbstractAsyncContextManager[None]:
        """So many records of a transaction that is open while the context lasts, and committed then. `since` as in `append`."""
        ...

    def open(
        self,
        topics: tuple[str, ...],
        pattern: str,
        group_id: str,
        *,
        read_committed: bool = False,
        ending_timestamp: float | None = None,
    ) -> ShardSource: ...

    def open_unreachable(self) -> tuple[ShardSource, str]:
        """A source at an address where nobody listens, and that address."""
        ...

    def member(self, topic: str, group_id: str) -> AbstractAsyncContextManager[str]:
        """A member of the Kafka group while the context lasts; its client id."""
        ...

    async def eventually(self, what: Callable[[], Awaitable[bool]]) -> None: ...


class SourceContract:
    """A subclass gives the fixtures `lab`, and `prefix`, which begins the names of a test's topics and groups."""

    async def test_every_partition_is_a_shard_with_its_extent(self, lab: SourceLab, prefix: str) -> None:
        await lab.create(f"{prefix}a", 3)
        await lab.append(f"{prefix}a", 1, 5)
        source = lab.open((f"{prefix}a",), "", prefix)

        shards = (await source.discover()).shards

        assert [without_id(info) for info in shards] == [
            ShardInfo(info_name(f"{prefix}a", 0), 0, 0),
            ShardInfo(info_name(f"{prefix}a", 1), 0, 5),
            ShardInfo(info_name(f"{prefix}a", 2), 0, 0),
        ]
        assert len({info.source_id for info in shards}) == 1
        assert shards[0].source_id != ""

    async def test_a_shard_is_in_the_zone_of_its_leader(self, lab: SourceLab, prefix: str) -> None:
        await lab.create(f"{prefix}a", 2)

        shards = (await lab.open((f"{prefix}a",), "", prefix).discover()).shards

        assert lab.rack != ""
        assert [info.zone for info in shards] == [lab.rack, lab.rack]

    async def test_sizes_are_shown_where_they_are_asked_for(self, lab: SourceLab, prefix: str) -> None:
        await lab.create(f"{prefix}a", 2)
        await lab.append(f"{prefix}a", 1, 5)
        source = lab.open((f"{prefix}a",), "", prefix)

        unasked = (await source.discover()).shards
        empty, written = (await source.discover(sizes=True)).shards

        assert [info.size for info in unasked] == [None, None]
        assert empty.size == 0
        assert written.size is not None
        assert written.size >= 5

    async def test_a_shard_ends_where_its_group_may_read_to(self, lab: SourceLab, prefix: str) -> None:
        await lab.create(f"{prefix}a", 1)
        await lab.append(f"{prefix}a", 0, 5)
        committed = lab.open((f"{prefix}a",), "", f"{prefix}c", read_committed=True)
        everything = lab.open((f"{prefix}a",), "", f"{prefix}e")

        async with lab.transaction(f"{prefix}a", 0, 3):
            await lab.append(f"{prefix}a", 0, 2)
            (held,), (written,) = (await committed.discover()).shards, (await everything.discover()).shards
        assert (held.end, written.end) == (5, 10)

        async def decided() -> bool:
            return (await committed.discover()).shards[0].end == (await everything.discover()).shards[0].end >= 10

        await lab.eventually(decided)

    async def test_logs_end_where_the_next_record_is_written_whoever_may_read_it(self, lab: SourceLab, prefix: str) -> None:
        await lab.create(f"{prefix}a", 2)
        source = lab.open((f"{prefix}a",), "", prefix, read_committed=True)
        first, second, third = (info_name(f"{prefix}a", number) for number in range(3))
        await lab.append(f"{prefix}a", 1, 5)
        assert await source.log_ends((first, second, third)) == {first: 0, second: 5}
        await lab.append(f"{prefix}a", 1, 2)
        assert await source.log_ends((second,)) == {second: 7}
        async with lab.transaction(f"{prefix}a", 0, 3):
            assert await source.log_ends((first,)) == {first: 3}

    @pytest.mark.parametrize("read_committed", [False, True])
    async def test_a_shard_that_is_read_up_to_a_time_is_closed_there(
        self, lab: SourceLab, prefix: str, read_committed: bool
    ) -> None:
        """Also where a transaction is open before that, behind which its log seems to have nothing."""
        at = float(int(time.time())) - 1000.0
        await lab.create(f"{prefix}a", 3)
        await lab.append(f"{prefix}a", 0, 5, since=at - 3.0)
        await lab.append(f"{prefix}a", 1, 2, since=at - 100.0)
        async with lab.transaction(f"{prefix}a", 1, 3, since=at - 50.0):
            await lab.append(f"{prefix}a", 1, 2, since=at - 1.0)
            source = lab.open((f"{prefix}a",), "", prefix, read_committed=read_committed, ending_timestamp=at)
            shards = (await source.discover()).shards
            assert [(info.begin, info.end, info.open) for info in shards] == [(0, 3, False), (0, 6, False), (0, 0, False)]
            found = await source.positions_at(at - 49.0)
            assert found[info_name(f"{prefix}a", 1)] == 3, "what comes next is not taken for its end"
        await lab.append(f"{prefix}a", 2, 4, since=at - 60.0)

        async def written() -> bool:
            return list((await source.log_ends([info_name(f"{prefix}a", 2)])).values()) == [4]

        await lab.eventually(written)
        assert [info.end for info in (await source.discover()).shards] == [3, 6, 0], "what comes late is not read"

    async def test_until_a_time_has_come_up_to_which_is_read_nothing_is(self, lab: SourceLab, prefix: str) -> None:
        await lab.create(f"{prefix}a", 1)
        source = lab.open((f"{prefix}a",), "", prefix, ending_timestamp=4_102_444_800.0)
        with pytest.raises(SourceUnavailableError, match="endingTimestamp 2100-01-01T00:00:00Z is not past"):
            await source.discover()

    async def test_positions_are_found_by_time(self, lab: SourceLab, prefix: str) -> None:
        await lab.create(f"{prefix}a", 3)
        # Of today: a broker forgets old records.
        early = float(int(time.time())) - 2000.0
        await lab.append(f"{prefix}a", 0, 5, since=early)
        await lab.append(f"{prefix}a", 1, 5, since=early + 1000.0)
        source = lab.open((f"{prefix}a",), "", prefix)
        first, second = info_name(f"{prefix}a", 0), info_name(f"{prefix}a", 1)

        assert await source.positions_at(early + 2.0) == {first: 2, second: 0}
        assert await source.positions_at(early + 2.001) == {first: 3, second: 0}
        assert await source.positions_at(early + 4.5) == {second: 0}
        assert await source.positions_at(early + 1500.0) == {}

    async def test_records_say_when_they_were_written(self, lab: SourceLab, prefix: str) -> None:
        await lab.create(f"{prefix}a", 4)
        early = float(int(time.time())) - 2000.0
        await lab.append(f"{prefix}a", 0, 5, since=early)
        await lab.append(f"{prefix}a", 1, 5, since=early + 1000.0)
        source = lab.open((f"{prefix}a",), "", prefix)
        first, second, third, fourth = (info_name(f"{prefix}a", number) for number in range(4))
        await source.discover()

        assert await source.written_at({first: 0, second: 3}) == {first: early, second: early + 1003.0}
        assert await source.written_at({first: 4, third: 0}) == {first: early + 4.0, third: None}
        assert await source.written_at({first: 5}) == {first: None}
        assert await source.written_at({}) == {}
        assert await source.written_at({info_name(f"{prefix}other", 0): 0}) == {}

        await lab.append(f"{prefix}a", 3, 1, since=early + 7.0)
        assert await source.written_at({fourth: 0}) == {fourth: early + 7.0}

    async def test_new_records_and_partitions_show_up(self, lab: SourceLab, prefix: str) -> None:
        await lab.create(f"{prefix}a", 1)
        source = lab.open((f"{prefix}a",), "", prefix)
        before = (await source.discover()).shards

        await lab.grow(f"{prefix}a", 2)
        await lab.append(f"{prefix}a", 1, 4)

        async def seen() -> bool:
            return [without_id(info) for info in (await source.discover()).shards] == [
                ShardInfo(info_name(f"{prefix}a", 0), 0, 0),
                ShardInfo(info_name(f"{prefix}a", 1), 0, 4),
            ]

        await lab.eventually(seen)
        assert (await source.discover()).shards[0].source_id == before[0].source_id

    async def test_a_topic_that_was_made_anew_has_another_id(self, lab: SourceLab, prefix: str) -> None:
        await lab.create(f"{prefix}a", 1)
        source = lab.open((f"{prefix}a",), "", prefix)
        before = (await source.discover()).shards

        await lab.recreate(f"{prefix}a", 1)

        async def other() -> bool:
            try:
                found = (await source.discover()).shards
            except SourceUnavailableError:
                return False
            # A topic that is not there at the moment has no shards.
            return bool(found) and found[0].source_id != before[0].source_id

        await lab.eventually(other)

    async def test_several_topics_are_read_together(self, lab: SourceLab, prefix: str) -> None:
        await lab.create(f"{prefix}b", 1)
        await lab.create(f"{prefix}a", 1)
        source = lab.open((f"{prefix}b", f"{prefix}a"), "", prefix)

        assert [info.shard for info in (await source.discover()).shards] == [f"{prefix}a/0", f"{prefix}b/0"]

    async def test_a_pattern_matches_whole_names(self, lab: SourceLab, prefix: str) -> None:
        for name in ("x1", "x2", "x10"):
            await lab.create(prefix + name, 1)
        source = lab.open((), f"{prefix}x.", prefix)

        assert [info.shard for info in (await source.discover()).shards] == [f"{prefix}x1/0", f"{prefix}x2/0"]

    async def test_a_topic_that_does_not_exist_is_named_with_the_remedy(self, lab: SourceLab, prefix: str) -> None:
        source = lab.open((f"{prefix}missing",), "", prefix)

        with pytest.raises(SourceUnavailableError, match=f"topic '{prefix}missing' does not exist .*spec.source.kafka.topics"):
            await source.discover()

    async def test_a_topic_that_is_deleted_keeps_nothing_of_the_others_back(self, lab: SourceLab, prefix: str) -> None:
        await lab.create(f"{prefix}a", 1)
        await lab.create(f"{prefix}b", 1)
        source = lab.open((f"{prefix}b", f"{prefix}a"), "", prefix)
        assert (await source.discover()).missing == ""

        await lab.delete(f"{prefix}b")

        async def gone() -> bool:
            return [info.shard for info in (await source.discover()).shards] == [f"{prefix}a/0"]

        await lab.eventually(gone)
        found = await source.discover()
        assert re.match(f"topic '{prefix}b' does not exist .*spec.source.kafka.topics", found.missing)
        assert found.unlooked == ()
        assert await source.positions_at(time.time()) == {}

        await lab.grow(f"{prefix}a", 2)

        async def grown() -> bool:
            return len((await source.discover()).shards) == 2

        await lab.eventually(grown)

    async def test_a_topic_that_is_created_later_is_found(self, lab: SourceLab, prefix: str) -> None:
        source = lab.open((f"{prefix}late",), "", prefix)
        with pytest.raises(SourceUnavailableError):
            await source.discover()

        await lab.create(f"{prefix}late", 2)

        async def found() -> bool:
            try:
                return len((await source.discover()).shards) == 2
            except SourceUnavailableError:
                return False

        await lab.eventually(found)

    async def test_a_pattern_that_matches_nothing_is_named(self, lab: SourceLab, prefix: str) -> None:
        source = lab.open((), f"{prefix}nothing.*", prefix)

        with pytest.raises(SourceUnavailableError, match=f"topicPattern '{prefix}nothing"):
            await source.discover()

    async def test_a_pattern_that_is_none_is_named(self, lab: SourceLab, prefix: str) -> None:
        source = lab.open((), "(?!internal-).*", prefix)

        with pytest.raises(SourceUnavailableError, match=r"topicPattern .* is not a regular expression of RE2: invalid"):
            await source.discover()

    async def test_a_pattern_that_would_be_tried_for_ages_is_answered_at_once(self, lab: SourceLab, prefix: str) -> None:
        await lab.create(prefix + "a" * 100 + ".", 1)
        source = lab.open((), f"{prefix}(a+)+", prefix)

        with pytest.raises(SourceUnavailableError, match=r"no topic at .* matches"):
            await source.discover()

    async def test_an_unreachable_cluster_is_named(self, lab: SourceLab) -> None:
        source, address = lab.open_unreachable()

        with pytest.raises(SourceUnavailableError, match=f"no Kafka broker answers at {address}"):
            await source.discover()

    async def test_a_group_that_nobody_joined_has_no_members(self, lab: SourceLab, prefix: str) -> None:
        await lab.create(f"{prefix}a", 1)
        source = lab.open((f"{prefix}a",), "", prefix)

        assert await source.live_members() == ()

    async def test_members_are_listed_while_they_are_there(self, lab: SourceLab, prefix: str) -> None:
        await lab.create(f"{prefix}a", 1)
        source = lab.open((f"{prefix}a",), "", prefix)

        async with lab.member(f"{prefix}a", prefix) as client:
            assert [client in member for member in await source.live_members()] == [True]

        async def gone() -> bool:
            return await source.live_members() == ()

        await lab.eventually(gone)

    async def test_a_source_may_be_closed_twice(self, lab: SourceLab, prefix: str) -> None:
        await lab.create(f"{prefix}a", 1)
        source = lab.open((f"{prefix}a",), "", prefix)
        await source.discover()

        await source.close()
        await source.close()


def info_name(topic: str, partition: int) -> ShardId:
    return ShardId(f"{topic}/{partition}")


def without_id(info: ShardInfo) -> ShardInfo:
    return ShardInfo(info.shard, info.begin, info.end, info.open, info.parents)
