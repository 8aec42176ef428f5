"""What every OwnershipStore must do."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from shardherd.core.group.records import PositionCopies
from shardherd.core.model.nouns import GroupIdentity, ShardId
from shardherd.ports import (
    OwnershipConflictError,
    OwnershipGoneError,
    OwnershipStore,
    OwnershipTooLargeError,
    StoredCopies,
    StoredOwnership,
)


class OwnershipContract:
    """A subclass gives the fixtures `store` and `group`, a group of which nothing is stored."""

    async def test_nothing_is_stored_of_a_new_group(self, store: OwnershipStore, group: GroupIdentity) -> None:
        assert await store.load(group) is None

    async def test_what_was_saved_is_loaded_with_its_version(self, store: OwnershipStore, group: GroupIdentity) -> None:
        version = await store.save(group, b"first", None)

        assert await store.load(group) == StoredOwnership(b"first", version)

    async def test_the_expected_version_is_replaced(self, store: OwnershipStore, group: GroupIdentity) -> None:
        first = await store.save(group, b"first", None)
        second = await store.save(group, b"second", first)

        assert second != first
        assert await store.load(group) == StoredOwnership(b"second", second)

    async def test_a_writer_that_is_behind_is_refused_and_changes_nothing(
        self, store: OwnershipStore, group: GroupIdentity
    ) -> None:
        first = await store.save(group, b"first", None)
        second = await store.save(group, b"second", first)

        with pytest.raises(OwnershipConflictError, match=group.name):
            await store.save(group, b"late", first)

        assert await store.load(group) == StoredOwnership(b"second", second)

    async def test_a_second_creation_is_refused(self, store: OwnershipStore, group: GroupIdentity) -> None:
        first = await store.save(group, b"first", None)

        with pytest.raises(OwnershipConflictError, match=group.name):
            await store.save(group, b"other", None)

        assert await store.load(group) == StoredOwnership(b"first", first)

    async def test_replacing_what_is_not_there_is_refused(self, store: OwnershipStore, group: GroupIdentity) -> None:
        with pytest.raises(OwnershipGoneError, match=group.name):
            await store.save(group, b"second", "12345")

        assert await store.load(group) is None

    async def test_growth_beyond_the_limit_is_refused_and_changes_nothing(
        self, store: OwnershipStore, group: GroupIdentity
    ) -> None:
        first = await store.save(group, b"first", None)

        with pytest.raises(OwnershipTooLargeError, match=r"would take \d+ bytes compressed, over the limit of 7372800"):
            await store.save(group, random.Random(1).randbytes(7_372_801), first, grows=True)

        assert await store.load(group) == StoredOwnership(b"first", first)
        second = await store.save(group, b"second", first, grows=True)
        assert await store.load(group) == StoredOwnership(b"second", second)

    async def test_what_does_not_grow_is_stored_whatever_its_size(self, store: OwnershipStore, group: GroupIdentity) -> None:
        data = random.Random(1).randbytes(7_372_801)

        first = await store.save(group, data, None)
        assert await store.load(group) == StoredOwnership(data, first)

        second = await store.save(group, b"small", first)
        assert await store.load(group) == StoredOwnership(b"small", second)

    # What fits into one object of an API server; what just does not; what takes several.
    @pytest.mark.parametrize("size", [920_000, 921_601, 3_000_000])
    async def test_up_to_the_limit_everything_is_stored_and_replaced(
        self, store: OwnershipStore, group: GroupIdentity, size: int
    ) -> None:
        first, second = random.Random(1).randbytes(size), random.Random(2).randbytes(size)
        version = await store.save(group, first, None, grows=True)
        assert await store.load(group) == StoredOwnership(first, version)

        version = await store.save(group, second, version, grows=True)

        assert await store.load(group) == StoredOwnership(second, version)

    async def test_of_two_writers_of_something_large_the_one_that_is_behind_is_refused_and_changes_nothing(
        self, store: OwnershipStore, group: GroupIdentity
    ) -> None:
        first = await store.save(group, b"first", None)
        large = random.Random(1).randbytes(2_000_000)
        second = await store.save(group, large, first)

        with pytest.raises(OwnershipConflictError, match=group.name):
            await store.save(group, random.Random(2).randbytes(2_000_000), first)

        assert await store.load(group) == StoredOwnership(large, second)
        third = await store.save(group, b"third", second)
        assert await store.load(group) == StoredOwnership(b"third", third)

    async def test_a_new_group_has_no_copies_of_positions(self, store: OwnershipStore, group: GroupIdentity) -> None:
        assert await store.load_copies(group) == StoredCopies(PositionCopies(), "")

    async def test_copies_are_replaced_as_a_whole(self, store: OwnershipStore, group: GroupIdentity) -> None:
        first, second = ShardId("clicks/0"), ShardId("clicks/1")
        copies = PositionCopies({first: 5, second: 2**63 - 1}, leader_epoch=3, revision=70, refreshed=1_700_000_000.25)
        version = await store.save_copies(group, copies, "")
        assert await store.load_copies(group) == StoredCopies(copies, version)

        after = PositionCopies({second: 8}, 4, 71, 1_700_086_400.0)
        later = await store.save_copies(group, after, version)

        assert later != version
        assert await store.load_copies(group) == StoredCopies(after, later)

    async def test_copies_of_very_many_shards_are_kept_and_what_is_too_many_goes(
        self, store: OwnershipStore, group: GroupIdentity
    ) -> None:
        offsets = random.Random(1)
        many = PositionCopies({ShardId(f"clicks/{number}"): offsets.getrandbits(63) for number in range(100_000)})
        few = PositionCopies({shard: many.offsets[shard] for shard in list(many.offsets)[:10]})
        version = ""
        for copies in (many, few, many, few):
            version = await store.save_copies(group, copies, version)
            assert await store.load_copies(group) == StoredCopies(copies, version)

    async def test_a_copy_that_comes_late_is_refused_and_changes_nothing(
        self, store: OwnershipStore, group: GroupIdentity
    ) -> None:
        shard = ShardId("clicks/0")
        first = await store.save_copies(group, PositionCopies({shard: 1}), "")
        second = await store.save_copies(group, PositionCopies({}), first)

        for expected in ("", first):
            with pytest.raises(OwnershipConflictError, match=group.name):
                await store.save_copies(group, PositionCopies({shard: 7}), expected)

        assert await store.load_copies(group) == StoredCopies(PositionCopies({}), second)

    async def test_a_copy_of_very_many_shards_that_comes_late_changes_nothing(
        self, store: OwnershipStore, group: GroupIdentity
    ) -> None:
        many = PositionCopies({ShardId(f"clicks/{number:05}"): 7 for number in range(40_001)})
        few = PositionCopies(dict(list(many.offsets.items())[:10]))
        first = await store.save_copies(group, few, "")
        # Another one, as a write that changes nothing may have no version of its own.
        later = replace(few, revision=1)
        second = await store.save_copies(group, later, first)

        with pytest.raises(OwnershipConflictError, match=group.name):
            await store.save_copies(group, many, first)

        assert (await store.load_copies(group)).copies == later
        version = (await store.load_copies(group)).version or second
        assert await store.save_copies(group, many, version)
        assert (await store.load_copies(group)).copies == many
