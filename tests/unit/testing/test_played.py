"""The played group, as tests of applications use it: plain consumers, and drivers whose micro-batches are called for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shardherd.client import AsyncConsumer
from shardherd.client.pod import consumer_of_pod
from shardherd.core.model.errors import ConsumerStoppedError, FencedEpochError
from shardherd.testing import PlayedGroup, Record

PAGE = Path(__file__).resolve().parents[3] / "docs" / "laptop.md"
ALL = ("records/0", "records/1", "records/2", "records/3")


@pytest.fixture
def group() -> Iterator[PlayedGroup]:
    with PlayedGroup(shards=4) as group:
        for shard in ALL:
            group.append(shard, "a", "b", "c")
        yield group


class Sink:
    """An application's function, and the records that it was called with, by micro-batch."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, list[str]]] = []

    def __call__(self, records: list[Record], batch_id: int) -> None:
        self.calls.append((batch_id, [f"{each.shard}@{each.offset}={each.value.decode()}" for each in records]))


def read(*shards: str) -> list[str]:
    return [f"{shard}@{offset}={value}" for shard in shards for offset, value in enumerate("abc")]


# --- plain consumers ---------------------------------------------------------------------------------------------------------


def test_a_consumer_is_given_all_shards_and_what_it_saves_is_checkpointed(group: PlayedGroup) -> None:
    with group.consumer("played-0") as consumer:
        for _ in ALL:
            with consumer.take() as shard:
                values = [record.value for record in group.records(shard.name, shard.position)]
                assert values == [b"a", b"b", b"c"]
                shard.save_checkpoint(shard.position + len(values), now=True)
        assert group.held_by("played-0") == ALL
    assert group.checkpoints() == dict.fromkeys(ALL, 3)
    assert group.holders() == {}


def test_a_shard_that_is_revoked_in_a_block_is_wanted_and_moves_when_the_block_ends(group: PlayedGroup) -> None:
    with group.consumer("played-0") as consumer:
        with consumer.take() as shard:
            assert shard.name == "records/0"
            group.revoke("records/0")
            group.until("it is wanted", lambda: shard.wanted)
            assert "records/0" not in group.holders()
            shard.save_checkpoint(2, now=False)
        group.until("it is somebody else's", lambda: group.holders().get("records/0") == "others")
        assert consumer.held() == ALL[1:]
        assert group.checkpoints()["records/0"] == 2

        group.grant("played-0", "records/0")
        group.until("it is back", lambda: consumer.held() == ALL)
        positions: dict[str, int] = {}
        while "records/0" not in positions:
            with consumer.take() as shard:
                positions[shard.name] = shard.position
        assert positions["records/0"] == 2


def test_shards_are_held_by_whom_they_are_granted_to_and_the_rest_as_the_assignor_says(group: PlayedGroup) -> None:
    with group.consumer("played-0") as first, group.consumer("played-1") as second:
        group.until("they share", lambda: (len(first.held()), len(second.held())) == (2, 2))
        group.grant("played-1", *ALL[:3])
        group.until("three are the second's", lambda: second.held()[:3] == ALL[:3])
        assert set(first.held()) | set(second.held()) == set(ALL)


async def test_what_a_killed_consumer_did_not_checkpoint_is_read_again_and_its_late_checkpoint_refused(
    group: PlayedGroup,
) -> None:
    async with group.async_consumer("played-0") as first:
        with pytest.raises((FencedEpochError, ConsumerStoppedError)):
            await save_after_the_kill(group, first)
    assert group.checkpoints()["records/0"] == 1


async def save_after_the_kill(group: PlayedGroup, first: AsyncConsumer) -> None:
    async with first.take() as shard:
        await shard.save_checkpoint(1, now=True)
        group.kill("played-0")
        async with group.async_consumer("played-1") as second:
            await group.becomes("they are the second's", lambda: second.held() == ALL)
            async with second.take() as again:
                assert (again.name, again.position) == (shard.name, 1) == ("records/0", 1)
        await shard.save_checkpoint(3, now=True)


async def test_the_environment_of_a_pod_is_enough_to_join(group: PlayedGroup) -> None:
    async with consumer_of_pod(group.environment("played-0")) as consumer, consumer.take() as shard:
        await shard.save_checkpoint(3, now=True)
    assert group.checkpoints()["records/0"] == 3


# --- drivers -----------------------------------------------------------------------------------------------------------------


def test_a_function_is_called_with_nothing_to_warm_up_and_then_with_every_record_once(group: PlayedGroup) -> None:
    sink = Sink()
    driver = group.driver("played-0", sink)
    driver.micro_batch()
    group.until("all is checkpointed", lambda: group.checkpoints() == dict.fromkeys(ALL, 3))
    group.append("records/1", "d")
    assert driver.micro_batch() == [Record(None, b"d", "records/1", 3)]
    assert sink.calls == [(0, []), (1, read(*ALL)), (2, ["records/1@3=d"])]
    assert driver.drain()
    assert (group.checkpoints()["records/1"], group.holders()) == (4, {})


def test_what_a_driver_that_dies_had_not_committed_is_read_again_by_the_next_one(group: PlayedGroup) -> None:
    first, second = Sink(), Sink()
    driver = group.driver("played-0", first)
    driver.micro_batch(dies=True)
    assert group.checkpoints() == dict.fromkeys(ALL, 0)
    with pytest.raises(ConsumerStoppedError, match="it was killed"):
        driver.micro_batch()

    group.driver("played-1", second).micro_batch()

    assert second.calls[-1][1] == first.calls[-1][1] == read(*ALL)
    group.until("all is checkpointed", lambda: group.checkpoints() == dict.fromkeys(ALL, 3))


def test_a_driver_that_starts_again_begins_with_the_micro_batch_that_was_not_committed(group: PlayedGroup) -> None:
    sink = Sink()
    driver = group.driver("played-0", sink)
    driver.micro_batch(dies=True)
    again = driver.restart()
    group.until("it holds all again", lambda: group.held_by("played-0") == ALL)
    while [row for _, rows in sink.calls for row in rows] != read(*ALL) * 2:
        again.micro_batch()
    # What was logged was read under a grant that ended with the first start: it is read again in a micro-batch of its own.
    assert sink.calls[1:4] == [(1, read(*ALL)), (1, []), (2, [])]
    group.until("all is checkpointed", lambda: group.checkpoints() == dict.fromkeys(ALL, 3))


def test_a_function_that_fails_commits_nothing_and_ends_its_driver(group: PlayedGroup) -> None:
    def fails(records: list[Record], _: int) -> None:
        if records:
            raise ValueError("no such column")

    driver = group.driver("played-0", fails)
    with pytest.raises(ValueError, match="no such column"):
        driver.micro_batch()
    assert (driver.stopped, group.checkpoints()) == ("it was killed", dict.fromkeys(ALL, 0))


def test_a_shard_that_is_revoked_in_a_micro_batch_moves_once_it_is_checkpointed(group: PlayedGroup) -> None:
    seen = []

    def write(records: list[Record], _: int) -> None:
        if records:
            group.revoke("records/0")
            group.until("it is to be given up", lambda: "records/0" not in group.holders())
            seen.append(group.checkpoints()["records/0"])

    driver = group.driver("played-0", write)
    driver.micro_batch()
    group.until("it is somebody else's", lambda: group.holders().get("records/0") == "others")
    assert (seen, group.checkpoints()["records/0"], driver.held()) == ([0], 3, ALL[1:])


# --- mistakes ----------------------------------------------------------------------------------------------------------------


def test_mistakes_are_named(group: PlayedGroup) -> None:
    with pytest.raises(ValueError, match="there is no shard 'records/9' in the played group: it has records/0, records/1"):
        group.append("records/9", "a")
    with pytest.raises(AssertionError, match=r"not within 0\.01 s: pigs fly; held: {}, checkpointed: {'records/0': 0"):
        group.until("pigs fly", lambda: False, 0.01)
    with pytest.raises(ValueError, match="assignor 'Magic' is none of CooperativeSticky, Range"):
        PlayedGroup(assignor="Magic")


def test_nothing_of_it_is_left(tmp_path: Path) -> None:
    with PlayedGroup() as group:
        token = Path(group.environment("played-0")["SHARDHERD_TOKEN_FILE"])
        assert token.exists()
        driver = group.driver("played-0", Sink())
    assert (token.exists(), driver.stopped) == (False, "it was killed")


def test_the_consumers_example_of_the_page_passes() -> None:
    (example,) = re.findall(r"```python\n# test_consumer\.py\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(example, "test_consumer.py", "exec"), names)
    names["test_a_shard_goes_on_where_it_was_given_up"]()
