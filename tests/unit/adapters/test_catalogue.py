"""Which partitions the catalogue takes for new ones, which begin at 0 before their broker says so; what groups share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import kafka.errors as errors
import pytest
from kafka.errors import CoordinatorNotAvailableError
from kafka.protocol.metadata import MetadataRequest

from shardherd.adapters.kafka import catalogue as module
from shardherd.adapters.kafka.catalogue import BORN_WITHIN, Catalogue, Extent, Interest, ListedGroup, Look
from shardherd.adapters.kafka.connection import KafkaConnection, Wire
from shardherd.adapters.kafka.source import KafkaShardSource
from shardherd.core.model.nouns import KafkaSource, ShardId, ShardInfo
from shardherd.ports import Discovered, SourceUnavailableError
from shardherd.source.kafka import lookup
from shardherd.source.kafka.partitions import EARLIEST, Partition

INTERESTS = frozenset({Interest(("t", "u"))})


def after(last: Look | None) -> Catalogue:
    """A catalogue whose last look was this one. It is asked nothing that needs a connection."""
    catalogue = Catalogue(cast("KafkaConnection", None))
    catalogue._last = last
    return catalogue


def look(*leaderless: tuple[str, int]) -> Look:
    """At second 100 there were t/0 and u/0, and those without a known extent."""
    extents = {("t", 0): Extent(7, 9), ("u", 0): Extent(0, 0)}
    return Look(100.0, INTERESTS, {"t": "id-t", "u": "id-u"}, extents, {}, frozenset(leaderless))


def test_partitions_of_a_topic_that_was_seen_whole_a_moment_ago_are_new() -> None:
    assert after(look())._grown({"t": "id-t", "u": "id-u"}, 101.0) == {"t", "u"}


@pytest.mark.parametrize(
    ("last", "now"),
    [(None, 101.0), (look(), 100.0 + BORN_WITHIN + 1.0)],
    ids=["the first look", "a look of long ago"],
)
def test_what_was_not_looked_at_just_now_may_be_old(last: Look | None, now: float) -> None:
    assert after(last)._grown({"t": "id-t", "u": "id-u"}, now) == frozenset()


def test_a_topic_that_was_not_seen_whole_may_have_old_partitions() -> None:
    assert after(look(("t", 1)))._grown({"t": "id-t", "u": "id-u"}, 101.0) == {"u"}


def test_a_topic_that_was_made_again_is_another_one() -> None:
    assert after(look())._grown({"t": "id-of-another", "u": "id-u"}, 101.0) == {"u"}


def test_a_topic_that_was_not_there_is_not_taken_for_grown() -> None:
    assert after(look())._grown({"new": "id-new", "t": "id-t", "u": "id-u"}, 101.0) == {"t", "u"}


def test_the_shards_of_a_topic_in_which_nothing_changed_are_not_made_anew() -> None:
    extents = {("t", 10): Extent(0, 5), ("t", 9): Extent(0, 5), ("u", 0): Extent(0, 7)}
    ids, zones = {"t": "id-t", "u": "id-u"}, {("t", 9): "a"}
    before = module._shards(extents, ids, zones, {})

    after = module._shards({**extents, ("u", 0): Extent(0, 8)}, ids, zones, before)

    nine = ShardInfo(ShardId("t/9"), 0, 5, source_id="id-t", zone="a")
    assert after == {
        "t": (nine, ShardInfo(ShardId("t/10"), 0, 5, source_id="id-t")),
        "u": (ShardInfo(ShardId("u/0"), 0, 8, source_id="id-u"),),
    }
    assert after["t"] is before["t"]


class Brokers:
    """A connection that answers each look after so many seconds, with one shard in each of two topics."""

    def __init__(self, takes: float, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.looks, self._takes = 100.0, 0, takes
        monkeypatch.setattr(module, "boot_time", lambda: self.now)

    async def run(self, _what: str, _work: Any, _within: float) -> Look:
        self.looks += 1
        self.now += self._takes
        shards = {name: (ShardInfo(ShardId(f"{name}/0"), 0, self.looks),) for name in ("t", "u")}
        return Look(self.now, INTERESTS | {Interest(("t",)), Interest((), "[tu]")}, {"t": "id-t", "u": "id-u"}, shards=shards)


@pytest.mark.parametrize(("takes", "serves"), [(0.01, 0.4), (0.2, 0.8), (3.0, 2.0)], ids=["quick", "slow", "very slow"])
async def test_a_look_serves_other_groups_for_longer_the_longer_it_took(
    takes: float, serves: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers = Brokers(takes, monkeypatch)
    catalogue = Catalogue(cast(KafkaConnection, brokers))
    await catalogue.look(Interest(("t", "u")))

    brokers.now += serves - 0.01
    await catalogue.look(Interest(("t", "u")))
    assert brokers.looks == 1

    brokers.now += 0.02
    await catalogue.look(Interest(("t", "u")))
    assert brokers.looks == 2


async def leave() -> None:
    """Nobody else uses the connection."""


async def test_groups_of_one_topic_have_one_value_of_its_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers(0.01, monkeypatch)
    connection = cast(KafkaConnection, brokers)
    catalogue = Catalogue(connection)
    await catalogue.look(Interest(("t", "u")))

    def source(*topics: str, pattern: str = "") -> KafkaShardSource:
        return KafkaShardSource(connection, catalogue, KafkaSource("b:9092", topics, pattern, "g"), leave)

    known = catalogue._last
    assert known is not None
    assert (await source("t").discover()).shards is (await source("t").discover()).shards
    assert (await source("t", "u").discover()).shards == known.shards["t"] + known.shards["u"]
    assert (await source(pattern="[tu]").discover()).shards == known.shards["t"] + known.shards["u"]


@pytest.mark.parametrize("before_1970", [-0.001, -0.002, -31_536_000.0])
async def test_a_time_before_1970_is_not_looked_up_as_the_begin_or_the_end_of_the_log(
    before_1970: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka takes -1 for the end and -2 for the begin."""
    connection, asked = cast(KafkaConnection, Brokers(0.01, monkeypatch)), []
    catalogue = Catalogue(connection)

    async def first_since(_look: Look, _interest: Interest, milliseconds: int, *, undecided: bool) -> dict[Partition, int]:
        asked.append((milliseconds, undecided))
        return {("t", 0): 0}

    monkeypatch.setattr(catalogue, "first_since", first_since)
    source = KafkaShardSource(connection, catalogue, KafkaSource("b:9092", ("t",), "", "g"), leave)

    assert await source.positions_at(before_1970) == {ShardId("t/0"): 0}
    assert asked == [(0, False)]


class Listing:
    """A connection over which each broker lists one group of its own; `hangs` is the one that never answers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.asked, self.hangs = 100.0, list[int](), -1
        monkeypatch.setattr(module, "boot_time", lambda: self.now)

    async def run(self, _what: str, work: Any, _within: float) -> Any:
        return await work(self)

    async def send(self, _request: Any, node: int) -> Any:
        self.asked.append(node)
        if node == self.hangs:
            await asyncio.Event().wait()
        group = SimpleNamespace(group_id=f"of-{node}", group_type="consumer", group_state="Stable")
        return SimpleNamespace(error_code=0 if node < 9 else 15, groups=[group])


async def test_a_list_of_a_brokers_groups_serves_all_who_ask_for_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    listing = Listing(monkeypatch)
    catalogue = Catalogue(cast("KafkaConnection", listing))
    of_one = {"of-1": ListedGroup("consumer", "Stable")}

    assert list(await asyncio.gather(*(catalogue.groups(1) for _ in range(5)))) == [of_one] * 5
    assert await catalogue.groups(2) == {"of-2": ListedGroup("consumer", "Stable")}
    assert listing.asked == [1, 2]

    listing.now += 1.0
    assert (await catalogue.groups(1), listing.asked) == (of_one, [1, 2, 1])


async def test_a_broker_that_cannot_list_its_groups_is_no_broker_without_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    listing = Listing(monkeypatch)
    catalogue = Catalogue(cast("KafkaConnection", listing))
    with pytest.raises(CoordinatorNotAvailableError, match="listing the groups of broker 9"):
        await catalogue.groups(9)

    listing.hangs = 1
    waiting = asyncio.create_task(catalogue.groups(1))
    assert await catalogue.groups(2) == {"of-2": ListedGroup("consumer", "Stable")}, "another does not wait for it"
    waiting.cancel()


class OneTopic:
    """Brokers that name one topic under an id, with a leader for its partition 0 only, which has just moved."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.id, self.now = "id-t", 100.0
        monkeypatch.setattr(module, "_topics", self._topics)
        monkeypatch.setattr(module, "_offsets", self._offsets)
        monkeypatch.setattr(module, "boot_time", lambda: self.now)

    async def _topics(self, _wire: Any, _interests: Any) -> Any:
        return lookup.Topics({"t": self.id}, {}, {("t", 0): 0}, {("t", 1)})

    async def _offsets(self, _wire: Any, _leaders: Any, _which: int, *, read_committed: bool) -> dict[Any, int]:
        return {}


def whole(topic_id: str) -> Look:
    """At second 100 both partitions of t were there, under this id."""
    return Look(100.0, INTERESTS, {"t": topic_id}, {("t", 0): Extent(7, 900), ("t", 1): Extent(0, 800)})


async def test_a_partition_whose_leader_is_not_known_keeps_its_extent(monkeypatch: pytest.MonkeyPatch) -> None:
    OneTopic(monkeypatch)

    taken = await after(whole("id-t"))._take(cast(Any, None), INTERESTS)

    assert (taken.extents, taken.leaderless) == (whole("id-t").extents, frozenset())


async def test_a_partition_of_a_topic_that_was_made_again_has_nothing_of_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    OneTopic(monkeypatch)

    catalogue = after(whole("id-of-before"))

    catalogue._last = await catalogue._take(cast(Any, None), INTERESTS)
    taken = await catalogue._take(cast(Any, None), INTERESTS)

    assert (taken.extents, taken.shards) == ({}, {})
    assert taken.leaderless == {("t", 0), ("t", 1)}, "a source that shows them so is not read"


async def test_a_look_that_fails_shows_nothing_of_a_topic_that_was_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    OneTopic(monkeypatch)
    failures = [CoordinatorNotAvailableError("of another topic")]

    async def offsets(_wire: Any, leaders: Any, which: int, *, read_committed: bool) -> dict[Any, int]:
        if failures:
            raise failures.pop()
        return dict.fromkeys(leaders, 900)

    monkeypatch.setattr(module, "_offsets", offsets)
    shown = whole("id-of-before")
    catalogue = after(shown)

    with pytest.raises(CoordinatorNotAvailableError):
        await catalogue._take(cast(Any, None), INTERESTS)
    taken = await catalogue._take(cast(Any, None), INTERESTS)

    assert (taken.topic_ids, taken.extents) == (shown.topic_ids, shown.extents)


async def test_a_topic_that_was_made_again_is_shown_once_its_broker_has_put_away_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic, shown = OneTopic(monkeypatch), whole("id-of-before")
    ends = [900, 0]

    async def offsets(_wire: Any, leaders: Any, which: int, *, read_committed: bool) -> dict[Any, int]:
        return dict.fromkeys(leaders, 0 if which == EARLIEST else ends[0])

    monkeypatch.setattr(module, "_offsets", offsets)
    catalogue = after(shown)

    first = catalogue._last = await catalogue._take(cast(Any, None), INTERESTS)
    del ends[0]
    second = catalogue._last = await catalogue._take(cast(Any, None), INTERESTS)
    topic.id = "id-of-after"
    third = await catalogue._take(cast(Any, None), INTERESTS)

    assert (first.topic_ids, first.extents, first.leaderless) == (shown.topic_ids, shown.extents, frozenset())
    assert (second.topic_ids, second.extents, second.leaderless) == (
        {"t": "id-t"},
        {("t", 0): Extent(0, 0)},
        frozenset({("t", 1)}),
    )
    assert (third.topic_ids, third.extents, third.leaderless) == (second.topic_ids, second.extents, second.leaderless)


class Wires:
    """A cluster of two brokers, which lead one partition of `t` each; the second of those has no leader if it is `lost`.

    Those that are `down` answer nothing, and are still named; so do those that have `refused` us.
    """

    def __init__(self) -> None:
        self.lost = False
        self.down: set[int] = set()
        self.refused: set[int] = set()
        self.end = 5

    async def run(self, _what: str, work: Callable[[Wire], Awaitable[Any]], _within: float) -> Any:
        try:
            return await work(cast(Wire, self))
        except errors.KafkaError as error:
            raise SourceUnavailableError(str(error)) from error

    async def send(self, request: Any, node: int | None = None) -> Any:
        if isinstance(request, MetadataRequest):
            led = [SimpleNamespace(partition_index=at, leader_id=-1 if at == 2 and self.lost else at) for at in (1, 2)]
            topic = SimpleNamespace(name="t", error_code=0, topic_id="id-t", is_internal=False, partitions=led)
            return SimpleNamespace(topics=[topic], brokers=[])
        if node in self.down | self.refused:
            raise errors.NodeNotReadyError(f"broker {node}")
        asked = [each.partition_index for topic in request.topics for each in topic.partitions]
        offset = 0 if request.topics[0].partitions[0].timestamp == EARLIEST else self.end
        answers = [SimpleNamespace(partition_index=at, error_code=0, offset=offset, leader_epoch=-1) for at in asked]
        return SimpleNamespace(topics=[SimpleNamespace(name="t", partitions=answers)])

    def refused_by(self, node: int) -> bool:
        return node in self.refused


async def test_a_broker_that_does_not_accept_us_is_not_taken_for_one_that_is_away() -> None:
    wires = Wires()
    wires.refused = {2}
    connection = cast(KafkaConnection, wires)
    source = KafkaShardSource(connection, Catalogue(connection), KafkaSource("b:9092", ("t",), "", "g"), leave)
    with pytest.raises(SourceUnavailableError, match="broker 2"):
        await source.discover()


@pytest.mark.parametrize("by", ["it has no leader", "its broker does not answer"])
async def test_what_cannot_be_looked_at_keeps_nothing_of_the_rest_back(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(module, "boot_time", lambda: now)
    wires = Wires()
    catalogue = Catalogue(cast(KafkaConnection, wires))
    source = KafkaShardSource(cast(KafkaConnection, wires), catalogue, KafkaSource("b:9092", ("t",), "", "g"), leave)
    first, second = (ShardInfo(ShardId(f"t/{at}"), 0, 5, source_id="id-t") for at in (1, 2))
    if by == "it has no leader":
        wires.lost = True
    else:
        wires.down = {2}

    assert await source.discover() == Discovered((first,), (ShardId("t/2"),))
    with pytest.raises(SourceUnavailableError, match=r"t/2 has no leader|the leader of t/2 has moved"):
        await source.positions_at(1.0)

    wires.lost, wires.down, now = False, set(), now + 1.0
    assert await source.discover() == Discovered((first, second))

    # What was seen once is as it was, and the rest goes on.
    wires.end, now = 9, now + 1.0
    wires.lost, wires.down = by == "it has no leader", set() if by == "it has no leader" else {2}
    assert await source.discover() == Discovered((first._replace(end=9), second))
    with pytest.raises(SourceUnavailableError, match=r"t/2 has no leader|the leader of t/2 has moved"):
        await source.positions_at(1.0)


async def test_a_cluster_of_which_no_broker_answers_shows_nothing() -> None:
    wires = Wires()
    wires.down = {1, 2}
    source = KafkaShardSource(
        cast(KafkaConnection, wires), Catalogue(cast(KafkaConnection, wires)), KafkaSource("b:9092", ("t",), "", "g"), leave
    )
    with pytest.raises(SourceUnavailableError, match="broker 2"):
        await source.discover()


class OwnTopics:
    """A broker with a topic of users and one of Kafka's own, of a partition each."""

    async def run(self, _what: str, work: Callable[[Wire], Awaitable[Any]], _within: float) -> Any:
        return await work(cast(Wire, self))

    async def send(self, request: Any, _node: int | None = None) -> Any:
        if isinstance(request, MetadataRequest):
            names = None if request.topics is None else [each.name for each in request.topics]
            partitions = [SimpleNamespace(partition_index=0, leader_id=1)]
            topics = [
                SimpleNamespace(name=name, error_code=0, topic_id=f"id-{name}", is_internal=own, partitions=partitions)
                for name, own in (("clicks", False), ("__consumer_offsets", True))
                if names is None or name in names
            ]
            return SimpleNamespace(topics=topics, brokers=[])
        answers = [SimpleNamespace(partition_index=0, error_code=0, offset=0, leader_epoch=-1)]
        return SimpleNamespace(topics=[SimpleNamespace(name=each.name, partitions=answers) for each in request.topics])


async def test_one_of_kafkas_own_topics_is_read_by_its_name_and_by_no_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(module, "boot_time", lambda: now)
    connection = cast(KafkaConnection, OwnTopics())
    catalogue = Catalogue(connection)
    named, other, pattern = (
        KafkaShardSource(connection, catalogue, KafkaSource("b:9092", topics, matching, "g"), leave)
        for topics, matching in ((("__consumer_offsets",), ""), (("clicks",), ""), ((), ".*"))
    )
    own, clicks = (
        Discovered((ShardInfo(ShardId(f"{topic}/0"), 0, 0, source_id=f"id-{topic}"),))
        for topic in ("__consumer_offsets", "clicks")
    )

    alone = await named.discover()
    now += 10.0
    beside = [await other.discover(), await pattern.discover(), await named.discover()]

    assert (alone, beside) == (own, [clicks, clicks, own])
    assert await pattern.positions_at(0.0) == {ShardId("clicks/0"): 0}
    assert [*catalogue.leaders(Interest((), ".*"))] == [("clicks", 0)]
