"""Where partitions are closed that a group reads up to a time only, as brokers say what is where."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence, Set

import pytest

from shardherd.adapters.kafka.catalogue import Look
from shardherd.adapters.kafka.endings import Endings
from shardherd.core.model.nouns import ShardId, ShardInfo
from shardherd.ports import SourceUnavailableError
from shardherd.source.kafka.partitions import Partition
from tests.builders import info, shard

TIME = 1_769_857_200.0
LOOK = Look(0.0, frozenset())


class Brokers:
    """Of each partition the first record of the time or after it, and where its log ends; without a leader neither is known."""

    def __init__(self, first: dict[int, int], ends: dict[int, int] | None = None) -> None:
        self.first, self.ends = first, ends or {}
        self.away = False
        self.asked: list[object] = []

    async def log_ends(self, look: Look, wanted: Set[Partition]) -> Mapping[Partition, int]:
        assert look is LOOK
        if self.away:
            raise SourceUnavailableError("no leader answers")
        self.asked.append({number for _, number in wanted})
        return {each: self.ends.get(each[1], 100) for each in wanted if each[1] in self.first}

    async def since(self, look: Look, wanted: Set[Partition], milliseconds: int) -> Mapping[Partition, int]:
        assert look is LOOK
        self.asked.append(milliseconds)
        return {each: self.first[each[1]] for each in wanted if each[1] in self.first}


def endings(brokers: Brokers, now: float = TIME + 1.0, timestamp: float = TIME) -> Endings:
    return Endings(timestamp, brokers, lambda: now)


def closed(found: Endings, *shards: ShardInfo) -> tuple[dict[str, tuple[int, int]], Sequence[ShardId]]:
    """Of each shard where it begins and ends now, all of which are closed; and those that are not known."""
    known, unknown = asyncio.run(found.closed(LOOK, shards))
    assert not any(each.open for each in known)
    return {each.shard.removeprefix("t/"): (each.begin, each.end) for each in known}, unknown


def test_a_shard_is_closed_at_its_first_record_of_that_time_and_where_its_log_ends_without_one() -> None:
    """Which is not where the look has it: that may be of before the time, or of before an open transaction."""
    brokers = Brokers({0: 40, 1: -1}, {1: 70})
    made = endings(brokers)
    assert closed(made, info("0"), info("1", end=60)) == ({"0": (0, 40), "1": (0, 70)}, ())
    assert closed(made, info("0", end=200), info("1", end=90)) == ({"0": (0, 40), "1": (0, 70)}, ()), "what comes late is not"
    assert brokers.asked == [{0, 1}, 1_769_857_200_000], "once, the end of the log first"


def test_a_shard_without_a_leader_is_not_known_and_asked_for_again() -> None:
    brokers = Brokers({0: 40})
    made = endings(brokers)
    assert closed(made, info("0"), info("1")) == ({"0": (0, 40)}, (shard("1"),))
    brokers.first[1] = 7
    assert closed(made, info("0"), info("1")) == ({"0": (0, 40), "1": (0, 7)}, ())
    assert brokers.asked == [{0, 1}, 1_769_857_200_000, {1}, 1_769_857_200_000]


def test_where_no_leader_of_the_others_answers_those_that_are_known_are_read() -> None:
    brokers = Brokers({0: 40})
    made = endings(brokers)
    brokers.away = True
    with pytest.raises(SourceUnavailableError, match="no leader answers"):
        closed(made, info("0"), info("1"))
    brokers.away = False
    closed(made, info("0"), info("1"))
    brokers.away = True
    assert closed(made, info("0"), info("1")) == ({"0": (0, 40)}, (shard("1"),))


def test_what_has_not_changed_of_a_shard_is_not_made_anew() -> None:
    made = endings(Brokers({0: 40}))
    (first,), _ = asyncio.run(made.closed(LOOK, [info("0")]))
    (second,), _ = asyncio.run(made.closed(LOOK, [info("0", end=200)]))
    assert second is first


def test_where_retention_has_deleted_what_there_was_before_the_end_nothing_is_left() -> None:
    made = endings(Brokers({0: 40}))
    assert closed(made, info("0", begin=30)) == ({"0": (30, 40)}, ())
    assert closed(made, info("0", begin=60)) == ({"0": (40, 40)}, ())


def test_a_topic_that_is_made_anew_ends_elsewhere() -> None:
    brokers = Brokers({0: 40})
    made = endings(brokers)
    assert closed(made, info("0", source_id="one")) == ({"0": (0, 40)}, ())
    brokers.first[0] = 5
    assert closed(made, info("0", source_id="two")) == ({"0": (0, 5)}, ())


@pytest.mark.parametrize("before_1970", [-0.001, -0.002, -31_536_000.0])
def test_a_time_before_1970_is_not_asked_for_as_the_begin_or_the_end_of_the_log(before_1970: float) -> None:
    """Kafka takes -1 for the end and -2 for the begin."""
    brokers = Brokers({0: 40})
    assert closed(endings(brokers, timestamp=before_1970), info("0")) == ({"0": (0, 40)}, ())
    assert brokers.asked == [{0}, 0]


def test_nothing_is_read_before_that_time_and_the_error_says_so() -> None:
    brokers = Brokers({0: 40})
    with pytest.raises(SourceUnavailableError, match="endingTimestamp 2026-01-31T11:00:00Z is not past"):
        closed(endings(brokers, TIME - 1.0), info("0"))
    assert brokers.asked == []
