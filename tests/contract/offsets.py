"""What every OffsetStore must do."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shardherd.core.model.nouns import ShardId
from shardherd.ports import CommitFencedError, OffsetStore, SourceUnavailableError, UnknownShardsError

Open = Callable[[], OffsetStore]


class OffsetsContract:
    """A subclass gives the fixtures `topic` (of 3 partitions) and `open_store`, which opens the same group's offsets again."""

    def unwritable(self, topic: str) -> ShardId:
        """A shard of which no position can be committed."""
        return shard(topic, 99)

    async def test_a_new_group_has_no_positions(self, topic: str, open_store: Open) -> None:
        store = open_store()
        await store.take_over()

        assert await store.read([shard(topic, 0), shard(topic, 1)]) == {}

    async def test_no_shards_have_no_positions(self, open_store: Open) -> None:
        store = open_store()
        await store.take_over()

        assert await store.read([]) == {}

    async def test_a_commit_is_durable_when_it_returns(self, topic: str, open_store: Open) -> None:
        store = open_store()
        await store.take_over()

        await store.commit({shard(topic, 0): 5, shard(topic, 1): 7}, {})
        await store.commit({shard(topic, 1): 8}, {})

        assert await store.read([shard(topic, 0), shard(topic, 1), shard(topic, 2)]) == {
            shard(topic, 0): 5,
            shard(topic, 1): 8,
        }

    async def test_position_zero_is_a_position(self, topic: str, open_store: Open) -> None:
        store = open_store()
        await store.take_over()

        await store.commit({shard(topic, 0): 0}, {})

        assert await store.read([shard(topic, 0)]) == {shard(topic, 0): 0}

    async def test_a_position_may_go_back(self, topic: str, open_store: Open) -> None:
        store = open_store()
        await store.take_over()

        await store.commit({shard(topic, 0): 9}, {})
        await store.commit({shard(topic, 0): 3}, {})

        assert await store.read([shard(topic, 0)]) == {shard(topic, 0): 3}

    async def test_a_position_is_read_with_the_note_that_it_was_committed_with(self, topic: str, open_store: Open) -> None:
        store = open_store()
        await store.take_over()
        assert await store.notes([shard(topic, 0)]) == {}

        note = "1 6a1f2c34-0000-4000-8000-000000000001 9223372036854775807 9223372036854775807 " + "x" * 300
        await store.commit({shard(topic, 0): 5, shard(topic, 1): 7}, {shard(topic, 0): note, shard(topic, 1): "1 u 2 3 "})
        await store.commit({shard(topic, 1): 8, shard(topic, 2): 9}, {})

        everything = [shard(topic, number) for number in range(3)]
        assert await store.notes(everything) == {shard(topic, 0): note}
        assert await store.read(everything) == {shard(topic, 0): 5, shard(topic, 1): 8, shard(topic, 2): 9}

    async def test_taking_over_fences_the_earlier_writer(self, topic: str, open_store: Open) -> None:
        old, new = open_store(), open_store()
        await old.take_over()
        await old.commit({shard(topic, 0): 5}, {})

        await new.take_over()
        with pytest.raises(CommitFencedError):
            await old.commit({shard(topic, 0): 6}, {})

        assert await new.read([shard(topic, 0)]) == {shard(topic, 0): 5}

    async def test_a_fenced_writer_stays_fenced(self, topic: str, open_store: Open) -> None:
        old, new = open_store(), open_store()
        await old.take_over()
        await new.take_over()

        for offset in (6, 7):
            with pytest.raises(CommitFencedError):
                await old.commit({shard(topic, 0): offset}, {})

        await new.commit({shard(topic, 0): 1}, {})
        assert await new.read([shard(topic, 0)]) == {shard(topic, 0): 1}

    async def test_a_fenced_writer_may_take_over_again(self, topic: str, open_store: Open) -> None:
        old, new = open_store(), open_store()
        await old.take_over()
        await new.take_over()
        await old.take_over()

        await old.commit({shard(topic, 0): 6}, {})
        with pytest.raises(CommitFencedError):
            await new.commit({shard(topic, 0): 7}, {})

        assert await old.read([shard(topic, 0)]) == {shard(topic, 0): 6}

    async def test_nobody_commits_without_taking_over(self, topic: str, open_store: Open) -> None:
        store = open_store()

        with pytest.raises(CommitFencedError):
            await store.commit({shard(topic, 0): 5}, {})

    async def test_a_commit_is_all_or_nothing(self, topic: str, open_store: Open) -> None:
        store = open_store()
        await store.take_over()
        await store.commit({shard(topic, 0): 5}, {})

        with pytest.raises(SourceUnavailableError):
            await store.commit({shard(topic, 0): 6, self.unwritable(topic): 1}, {})

        assert await store.read([shard(topic, 0)]) == {shard(topic, 0): 5}
        await store.commit({shard(topic, 0): 7}, {})
        assert await store.read([shard(topic, 0)]) == {shard(topic, 0): 7}

    async def test_positions_that_are_forgotten_are_gone_with_their_notes_and_the_others_stay(
        self, topic: str, open_store: Open
    ) -> None:
        store = open_store()
        await store.take_over()
        first, second, unknown = shard(topic, 0), shard(topic, 1), shard(f"{topic}-that-was-never-there", 0)
        await store.commit({first: 5, second: 7}, {first: "1 u 2 3 ", second: "1 u 2 3 "})

        await store.forget([first, shard(topic, 2), unknown])

        assert await store.read([first, second]) == {second: 7}
        assert await store.notes([first, second]) == {second: "1 u 2 3 "}
        await store.forget([])
        await store.commit({first: 1}, {})
        assert await store.read([first, second]) == {first: 1, second: 7}


class SourceOffsetsContract(OffsetsContract):
    """Of a store that the source itself keeps, which so knows what there is."""

    async def test_shards_that_the_source_does_not_have_are_named(self, topic: str, open_store: Open) -> None:
        store = open_store()
        await store.take_over()
        unknown = frozenset({shard(topic, 98), shard(topic, 99), shard(f"{topic}-that-was-never-there", 0)})

        with pytest.raises(UnknownShardsError) as refused:
            await store.commit({shard(topic, 0): 6, **dict.fromkeys(unknown, 1)}, {})

        assert refused.value.shards == unknown
        assert await store.read([shard(topic, 0)]) == {}


def shard(topic: str, partition: int) -> ShardId:
    return ShardId(f"{topic}/{partition}")
