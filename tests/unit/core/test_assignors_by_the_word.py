"""The assignors against what they are said to do, shard by shard in plain loops, on some hundreds of problems of one seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from shardherd.core.assignors import NOBODY, Problem
from shardherd.core.assignors.kafka import ranges, round_robin
from shardherd.core.assignors.names import kept
from shardherd.core.assignors.sticky import shares, sticky, too_many
from shardherd.core.model.nouns import ConsumerId
from tests.unit.core.assigning import C, partitions


def problems(count: int, shards: int, consumers: int, zones: int = 0) -> Iterator[Problem]:
    """Up to so many shards and consumers: any holders, some shards on their way, some consumers that may not receive.

    With zones, some shards and consumers have one.
    """
    draw = random.Random(20)
    for _ in range(count):
        rows, members = draw.randrange(1, shards + 1), draw.randrange(1, consumers + 1)
        held = [draw.randrange(NOBODY, members) for _ in range(rows)]
        asked = Problem.of(partitions(t=rows), [ConsumerId(f"c{at}") for at in range(members)])
        asked.pending[:] = [holder != NOBODY and draw.random() < 0.3 for holder in held]
        asked.receives[:] = [draw.random() < 0.8 for _ in range(members)]
        asked.receives[draw.randrange(members)] = True
        where = [
            np.array([draw.randrange(NOBODY, zones) for _ in range(length)]) if zones else None for length in (rows, members)
        ]
        yield replace(asked, current=np.array(held), shard_zones=where[0], consumer_zones=where[1])


def least_loaded(loads: list[int], room: list[int], among: list[int]) -> int | None:
    """Who of these gets the next shard: the least loaded with room, the first in order of those."""
    return min((at for at in among if room[at] > 0), key=lambda at: (loads[at], at), default=None)


def unevenness_and_moves(problem: Problem, assignment: tuple[int, ...]) -> tuple[int, int]:
    """The sum of the squared loads, and how many settled shards change hands."""
    loads = [assignment.count(at) for at in range(len(problem.consumers))]
    was = zip(problem.current.tolist(), problem.pending.tolist(), assignment, strict=True)
    return sum(load**2 for load in loads), sum(old not in (NOBODY, new) and not pending for old, pending, new in was)


def test_sticky_is_as_even_as_can_be_and_moves_the_fewest_settled_shards() -> None:
    for asked in problems(150, shards=5, consumers=3):
        receivers = np.flatnonzero(asked.receives).tolist()
        choices = [{*receivers, holder} - {NOBODY} for holder in asked.current.tolist()]
        best = min(unevenness_and_moves(asked, assignment) for assignment in product(*choices))
        assert unevenness_and_moves(asked, tuple(sticky(asked).tolist())) == best


@pytest.mark.parametrize("zones", [0, 1, 3])
def test_sticky_moves_shards_in_the_order_that_it_promises(zones: int) -> None:
    for asked in problems(150, shards=90, consumers=5, zones=zones):
        answer = sticky(asked)
        shares = asked.loads(answer).tolist()
        everybody = range(len(shares))
        current, pending = asked.current.tolist(), asked.pending.tolist()
        of_shards = [NOBODY] * len(current) if asked.shard_zones is None else asked.shard_zones.tolist()
        of_consumers = [NOBODY] * len(shares) if asked.consumer_zones is None else asked.consumer_zones.tolist()

        # What is on its way goes first, then what is of another zone, then what is the last in order.
        for giver in everybody:
            held = [row for row, holder in enumerate(current) if holder == giver]
            held.sort(key=lambda row: (not pending[row] and 1 + (of_shards[row] == of_consumers[current[row]]), -row))
            for row in held[: max(0, len(held) - shares[giver])]:
                current[row] = NOBODY
        loads = [current.count(at) for at in everybody]
        room = [shares[at] - loads[at] for at in everybody]
        free = [row for row, holder in enumerate(current) if holder == NOBODY]

        # What is free goes to its zone first, zone by zone; the rest to anybody.
        zoned = [
            (row, [at for at in everybody if of_consumers[at] == of_shards[row]]) for row in free if of_shards[row] != NOBODY
        ]
        for row, among in [*sorted(zoned, key=lambda each: of_shards[each[0]]), *((row, list(everybody)) for row in free)]:
            taker = least_loaded(loads, room, among) if current[row] == NOBODY else None
            if taker is not None:
                current[row] = taker
                loads[taker] += 1
                room[taker] -= 1
        assert answer.tolist() == current


@pytest.mark.parametrize(
    ("total", "loads", "settled", "receives", "expected"),
    [
        (7, [0, 0, 0], [0, 0, 0], [1, 1, 1], [3, 2, 2]),
        (7, [2, 3, 2], [2, 3, 2], [1, 1, 1], [2, 3, 2]),
        # The larger share spares the settled third shard of one, not the third on its way to the other, who has more.
        (7, [4, 3, 0], [2, 3, 0], [1, 1, 1], [2, 3, 2]),
        (7, [3, 4, 0], [2, 1, 0], [1, 1, 1], [2, 3, 2]),
        # Who may not receive keeps what is no more than a share; what the others share is the rest.
        (9, [0, 2, 0], [0, 2, 0], [1, 0, 1], [4, 2, 3]),
        (9, [0, 3, 0], [0, 3, 0], [1, 0, 1], [3, 3, 3]),
        (9, [0, 9, 0], [0, 9, 0], [1, 0, 1], [3, 3, 3]),
        (10, [0, 3, 0], [0, 3, 0], [1, 0, 1], [4, 3, 3]),
        # With one of them full the share grows, and another is full then too.
        (12, [0, 4, 0], [0, 4, 0], [1, 0, 0], [8, 4, 0]),
    ],
)
def test_shares(total: int, loads: list[int], settled: list[int], receives: list[int], expected: list[int]) -> None:
    answer, _ = shares(total, np.array(loads), np.array(settled), np.array(receives, dtype=np.bool_))
    assert answer.tolist() == expected


@pytest.mark.parametrize(
    ("total", "loads", "settled", "expected"),
    [
        (6, [2, 0, 1], [2, 0, 1], None),
        (7, [1, 0, 2], [1, 0, 2], ([2, 0, 1], [False, True, True], False)),
        # Who has a third settled shard needs the larger share; the other two do not, of whom one has more on its way.
        (8, [3, 3, 0], [3, 2, 0], None),
        (7, [3, 3, 0], [3, 3, 0], ([0, 1], [False, True], True)),
        (7, [3, 3, 0], [2, 2, 0], None),
    ],
)
def test_whose_larger_share_might_be_anothers(
    total: int, loads: list[int], settled: list[int], expected: tuple[list[int], list[bool], bool] | None
) -> None:
    _, spare = shares(total, np.array(loads), np.array(settled), np.ones(3, dtype=np.bool_))
    assert (spare and (spare.members.tolist(), spare.lacking.tolist(), spare.give)) == expected


def test_more_consumers_than_sixteen_bits_can_number_give_up_what_they_should() -> None:
    many = 2**16 + 1
    asked = Problem.of(partitions(t=5), [ConsumerId(f"c{at}") for at in range(many)])
    asked.current[:] = [1, 1, many - 1, many - 1, 0]
    surplus = np.zeros(many, dtype=np.int64)
    surplus[[1, many - 1]] = 1
    assert too_many(asked, surplus).tolist() == [1, 3]


def test_what_nobody_holds_goes_shard_by_shard_to_the_least_loaded_that_may_receive() -> None:
    for asked in problems(200, shards=20, consumers=5):
        receivers = np.flatnonzero(asked.receives).tolist()
        expected = asked.current.tolist()
        loads = asked.loads(asked.current).tolist()
        for row in np.flatnonzero(asked.current == NOBODY).tolist():
            expected[row] = min(receivers, key=lambda at: (loads[at], at))
            loads[expected[row]] += 1
        assert kept(asked, asked.current).tolist() == expected


def subscribed(count: int) -> Iterator[Problem]:
    """Four topics of any sizes, three consumers of any of them."""
    draw = random.Random(20)
    for _ in range(count):
        names = partitions(**{f"t{topic}": draw.randrange(8) for topic in range(4)})
        yield Problem.of(
            names,
            C,
            {name: draw.choice(C) for name in names if draw.random() < 0.5},
            subscriptions={consumer: [f"t{topic}" for topic in range(4) if draw.random() < 0.6] for consumer in C},
        )


def test_range_gives_each_topic_to_its_readers_in_blocks() -> None:
    for asked in subscribed(100):
        assert asked.subscribed is not None
        expected = []
        for topic in sorted(set(asked.topics.tolist())):
            readers = np.flatnonzero(asked.subscribed[:, topic]).tolist()
            size = asked.topics.tolist().count(topic)
            base, extra = divmod(size, len(readers)) if readers else (0, 0)
            expected += [reader for place, reader in enumerate(readers) for _ in range(base + (place < extra))] or [
                NOBODY
            ] * size
        assert ranges(asked).tolist() == expected


def test_round_robin_passes_over_who_does_not_read() -> None:
    for asked in subscribed(100):
        assert asked.subscribed is not None
        expected, turn = [], 0
        for topic in asked.topics.tolist():
            order = [(turn + step) % len(C) for step in range(len(C))]
            taker = next((at for at in order if asked.subscribed[at, topic]), NOBODY)
            turn = turn if taker == NOBODY else taker + 1
            expected.append(taker)
        assert round_robin(asked).tolist() == expected
