"""Names and times: one natural order of names, which topics a source names, and times as Kubernetes writes them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from shardherd.core.model.naming import consumer_key, shard_key, split
from shardherd.core.model.nouns import ConsumerId, ShardId
from shardherd.core.model.times import rfc3339, seconds_since_1970


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("clicks/12", ("clicks", 12)),
        ("a/b/3", ("a/b", 3)),
        ("7", ("7", -1)),
        ("clicks/x", ("clicks/x", -1)),
        ("/5", ("", 5)),
        ("s/shardId-000000000012", ("s", 12)),
    ],
)
def test_a_shard_is_a_topic_and_a_partition_or_a_topic_of_its_own(name: str, parts: tuple[str, int]) -> None:
    assert split(ShardId(name)) == parts
    assert shard_key(ShardId(name)) == (*parts, name)


def test_shards_are_in_the_order_of_their_numbers() -> None:
    names = [ShardId(name) for name in ("b/1", "clicks/x", "a/10", "a/9", "a/010")]
    assert sorted(names, key=shard_key) == ["a/9", "a/010", "a/10", "b/1", "clicks/x"]


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("g-12", ("g-", 12, "g-12")),
        ("2nd-g", ("2nd-g", -1, "2nd-g")),
        ("g", ("g", -1, "g")),
        ("1X", ("1X", -1, "1X")),
        ("12", ("", 12, "12")),
        ("g9-0", ("g9-", 0, "g9-0")),
    ],
)
def test_a_consumer_is_a_prefix_and_an_ordinal(name: str, key: tuple[str, int, str]) -> None:
    assert consumer_key(ConsumerId(name)) == key


@pytest.fixture
def _elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine whose clock shows another time than UTC."""
    with monkeypatch.context() as changed:
        changed.setenv("TZ", "EST+5")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("_elsewhere")
def test_a_time_is_written_in_utc_and_to_the_second_and_read_back() -> None:
    assert rfc3339(1_700_000_000.75) == "2023-11-14T22:13:20Z"
    assert seconds_since_1970("2023-11-14T22:13:20Z") == 1_700_000_000.0
    with pytest.raises(ValueError, match="yesterday"):
        seconds_since_1970("yesterday")
