"""One group that reads thousands of topics by a pattern, while topics appear and vanish. Called by __main__.

A topic counts as right once the group's status has as many shards as there are partitions since it was made, or deleted. Topics
appear for a while, then vanish for as long, then both in turn: those that vanish then are of another size, so that each number
of shards is that after one change and no other. All of it is done twice: what grows by the rows of shards that are gone, which
are kept for an hour, is seen by the difference. At the end the group must show the shards that the broker has, no more and no
fewer.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Sequence
from typing import NamedTuple

from kafka import KafkaAdminClient

from benchmarks.operator.figures import use
from benchmarks.operator.town import GROUPS, Operator, Town, wait_until
from benchmarks.table import Row

GROUP, PREFIX = "churn", "churn-"
PARTITIONS = 5
FEWER = 2
"""Partitions of the topics that vanish while others appear."""
RATE = 10
"""Topics that appear or vanish a second."""

ENOUGH = 0.9
"""The part of RATE that the broker must keep up with."""

PATIENCE = 300.0
"""Seconds within which what has appeared, or vanished, is counted, or the operator has failed."""

LOOK = 0.05
"""Seconds between two looks at the group's status."""

SETTLED = 5.0
"""Seconds of rest after which memory is read."""

ROUNDS = 2


SECONDS_GOAL, CORE_GOAL, MEMORY_GOAL = 10.0, 50.0, 300.0
"""Until nearly all that has come or gone is counted; percent of a core meanwhile; and MiB. No peer does this."""

OURS = "no peer does this: the goal is our own"


class Change(NamedTuple):
    """A topic that is made with so many partitions; one that is deleted has so many below zero."""

    topic: str
    partitions: int


class Late(NamedTuple):
    """Seconds until 99 of 100 changes were counted, and seconds of a core in a second."""

    p99: float
    core: float


def many_topics(place: Town, operator: Operator, topics: int, seconds: int, within: float) -> list[Row]:
    """All of them at once, then RATE more a second for so many seconds, then as many less, then both in turn; twice."""
    admin = KafkaAdminClient(bootstrap_servers=place.cluster.kafka_bootstrap, request_timeout_ms=120_000)
    try:
        return _many_topics(place, operator, admin, topics, seconds, within)
    finally:
        admin.close()


def _many_topics(
    place: Town, operator: Operator, admin: KafkaAdminClient, topics: int, seconds: int, within: float
) -> list[Row]:
    begun = time.monotonic()
    names = [f"{PREFIX}{number:05d}" for number in range(topics)]
    place.create_topics_in_parts(names, PARTITIONS)
    print(f"{topics:,} topics of {PARTITIONS} partitions were made in {time.monotonic() - begun:.1f} s", flush=True)
    used, begun, total = use(operator.pid), time.monotonic(), topics * PARTITIONS
    place.create_group(GROUP, {"topicPattern": f"{PREFIX}.*"}, shardsPerConsumer=total)
    wait_until("all topics of the pattern to be counted", lambda: _shards(place) == total, within)
    took = time.monotonic() - begun
    wait_until("pod to be wanted", lambda: _status(place).get("desiredReplicas") == 1, within)
    time.sleep(SETTLED)
    before = use(operator.pid)
    print(
        f"{total:,} shards of one pattern: counted after {took:.1f} s and {before.cpu - used.cpu:.1f} CPU seconds;"
        f" {before.resident:.0f} MiB",
        flush=True,
    )
    found: list[Late] = []
    for number in range(ROUNDS):
        # Never the same names: what is kept of those that are gone would be taken for theirs.
        names = [f"{PREFIX}more-{number}-{each:05d}" for each in range(RATE * seconds)]
        going = [f"{PREFIX}less-{number}-{each:05d}" for each in range(RATE * seconds // 2)]
        appear, vanish = [Change(name, PARTITIONS) for name in names], [Change(name, -PARTITIONS) for name in names]
        found.append(_round(place, operator, admin, "appear", appear, total))
        found.append(_round(place, operator, admin, "vanish", vanish, total + len(names) * PARTITIONS))

        place.create_topics_in_parts(going, FEWER)
        _await_count(place, total + len(going) * FEWER)
        coming = [Change(f"{PREFIX}turn-{number}-{each:05d}", PARTITIONS) for each in range(len(going))]
        both = [each for pair in zip(coming, (Change(name, -FEWER) for name in going), strict=True) for each in pair]
        found.append(_round(place, operator, admin, "appear and vanish", both, total + len(going) * FEWER))
        total += len(coming) * PARTITIONS
        time.sleep(SETTLED)
        now = use(operator.pid)
        print(
            f"afterwards {now.resident:.0f} MiB, at most {now.most:.0f} MiB; {place.stored(GROUP):,.0f} KiB in ConfigMaps",
            flush=True,
        )
    there = _partitions(admin)
    if (_shards(place), there) != (total, total):
        raise SystemExit(
            f"the group counts {_shards(place)} shards and the broker has {there}, of {total} that there should be"
        )
    what = f"{RATE} topics a second come and go beside {topics:,}"
    latest, busiest = max(each.p99 for each in found), 100 * max(each.core for each in found)
    return [
        Row(f"{what}: counted, p99", latest, SECONDS_GOAL, 1.0, "s", note=OURS),
        Row(f"{what}: of a core", busiest, CORE_GOAL, 1.0, "%", note=OURS),
        Row(f"{what}: resident memory at its most", use(operator.pid).most, MEMORY_GOAL, 1.0, "MiB", note=OURS),
    ]


def _round(place: Town, operator: Operator, admin: KafkaAdminClient, what: str, changes: Sequence[Change], total: int) -> Late:
    used, begun = use(operator.pid), time.monotonic()
    late, rate = _change(place, admin, changes, total)
    cpu = (use(operator.pid).cpu - used.cpu) / (time.monotonic() - begun)
    nearly_all = statistics.quantiles(late, n=100, method="inclusive")[98]
    print(
        f"{rate:.1f} topics a second {what}: counted {statistics.median(late):.2f} s later,"
        f" p99 {nearly_all:.2f} s, at most {max(late):.2f} s; {cpu:.0%} of a core",
        flush=True,
    )
    return Late(nearly_all, cpu)


def _change(place: Town, admin: KafkaAdminClient, changes: Sequence[Change], total: int) -> tuple[list[float], float]:
    """Make or delete these topics, RATE a second. How long after each the group has counted it; how many a second they were.

    Raises SystemExit if the broker was too slow for so many.
    """
    totals = list(itertools.accumulate((each.partitions for each in changes), initial=total))
    after = {shards: number for number, shards in enumerate(totals)}
    assert len(after) == len(totals), "each number of shards is that after one change"
    changed: list[float] = []
    seen: list[tuple[float, int]] = []
    begun = time.monotonic()

    def look() -> int:
        count = _shards(place)
        if count in after and (not seen or seen[-1][1] < after[count]):
            seen.append((time.monotonic(), after[count]))
        return count

    for number, change in enumerate(changes):
        while time.monotonic() < begun + number / RATE:
            look()
            time.sleep(LOOK)
        if change.partitions > 0:
            wanted = {change.topic: {"num_partitions": change.partitions, "replication_factor": 1}}
            admin.create_topics(wanted, wait_for_metadata=False)
        else:
            admin.delete_topics([change.topic])
        changed.append(time.monotonic())
    rate = len(changes) / (changed[-1] - begun)
    if rate < ENOUGH * RATE:
        raise SystemExit(f"the broker has made or deleted {rate:.1f} topics a second only, of {RATE}")
    wait_until("all changes to be counted", lambda: look() == totals[-1], PATIENCE, every=LOOK)

    def counted(number: int) -> float:
        """When the status first had the shards after so many changes, or after more."""
        return next(at for at, done in seen if done >= number)

    return [max(0.0, counted(number) - since) for number, since in enumerate(changed, 1)], rate


def _await_count(place: Town, shards: int) -> None:
    wait_until("the topics that were made to be counted", lambda: _shards(place) == shards, PATIENCE)


def _status(place: Town) -> dict[str, object]:
    status: dict[str, object] = place.api.call("GET", f"{GROUPS}/{GROUP}").get("status", {})
    return status


def _shards(place: Town) -> int:
    shards = _status(place).get("shards", {})
    assert isinstance(shards, dict)
    return int(shards.get("total", 0))


def _partitions(admin: KafkaAdminClient) -> int:
    """How many partitions the broker has of topics that match."""
    names = [name for name in admin.list_topics() if name.startswith(PREFIX)]
    return sum(len(each["partitions"]) for each in admin.describe_topics(names))
