"""What one Kafka cluster holds of the topics that our groups read, looked at once for all of them.

Called by the sources of the groups that share a connection. One look asks for everything that is registered, so that ten groups
cost as many requests as one, and its shards are one value for all of them. Decides nothing about shards.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

import kafka.errors as errors
from kafka.protocol.admin import DescribeLogDirsRequest, ListGroupsRequest

from shardherd.adapters.kafka.connection import KafkaConnection, Wire
from shardherd.clock import boot_time
from shardherd.core.group.topics import PatternError, check, selects
from shardherd.core.model.nouns import ShardInfo
from shardherd.ports import SourceUnavailableError
from shardherd.source.kafka import lookup
from shardherd.source.kafka.partitions import EARLIEST, LATEST, Partition, shard_of

log = logging.getLogger(__name__)

LOOK_TIMEOUT = 5.0
"""Seconds that one look may take."""

FRESH, FRESH_SHARE, FRESH_MOST = 0.4, 4.0, 2.0
"""A look this young (seconds) serves another group too; below half of the discovery interval of 1 s. One that took long, by its
very many partitions, serves for so many times as long as it took, but never for more than the last of these (seconds)."""

BORN_WITHIN = 60.0
"""A partition that was not there so many seconds ago, in a topic that was, begins at 0. Its broker takes a while to say so."""

BEGIN_MAX_AGE = 10.0
"""Begin offsets move by retention only; they are asked for this often (seconds)."""

SIZES_MAX_AGE = 20.0
"""Sizes of logs serve to know the mean size of records; they are asked for this often (seconds), and only if somebody wants."""

GROUPS_MAX_AGE = 1.0
"""A broker lists all of its groups to show one; a list this young (seconds) serves others too."""


@dataclass(frozen=True)
class Interest:
    """The topics that one group reads: names, or a pattern that the whole name must match. It means none of Kafka's own."""

    topics: tuple[str, ...]
    pattern: str = ""

    def matches(self, topic: str, *, internal: bool) -> bool:
        """Whether the group reads this topic, which may be one of Kafka's own."""
        return not (internal and self.pattern) and selects(self.topics, self.pattern, topic)


@dataclass(frozen=True)
class Extent:
    """The first readable and the next-to-be-written offset of one partition."""

    begin: int
    end: int


@dataclass(frozen=True)
class Look:
    """One look at the cluster: topic ids and extents, and which topics do not exist. `leaderless` have no known extent.

    `leaders` are the nodes that lead partitions. `shards` are those of each topic, by their numbers, without their sizes; those
    of a topic in which nothing has changed are the very ones of the look before. `internal` are Kafka's own topics.
    """

    taken: float
    interests: frozenset[Interest]
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    extents: Mapping[Partition, Extent] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    leaderless: frozenset[Partition] = frozenset()
    leaders: Mapping[Partition, int] = field(default_factory=dict)
    shards: Mapping[str, tuple[ShardInfo, ...]] = field(default_factory=dict)
    internal: frozenset[str] = frozenset()

    def of(self, interest: Interest, topic: str) -> bool:
        """Whether a topic is one that the group with this interest reads; the look is one for many groups."""
        return interest.matches(topic, internal=topic in self.internal)


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """What a broker's list says of a Kafka group: the protocol that it is of, and its state."""

    type: str
    state: str


class Catalogue:
    """The shared look. Groups register their interest while their source is open.

    With `read_committed` a partition ends where its first open transaction begins, not where its log does.
    """

    def __init__(self, connection: KafkaConnection, *, read_committed: bool = False) -> None:
        self._connection = connection
        self._read_committed = read_committed
        self._interests: list[Interest] = []
        self._looking = asyncio.Lock()
        self._last: Look | None = None
        self._made_anew: dict[str, str] = {}
        self._took = 0.0
        self._begins: dict[Partition, int] = {}
        self._begins_taken = 0.0
        self._sizes: Mapping[Partition, int] = {}
        self._sizes_taken = float("-inf")
        self._listing: dict[int, asyncio.Lock] = {}
        self._groups: dict[int, tuple[float, Mapping[str, ListedGroup]]] = {}

    def register(self, interest: Interest) -> None:
        if interest.pattern:
            try:
                check(interest.pattern)
            except PatternError as error:
                raise SourceUnavailableError(
                    f"spec.source.kafka.topicPattern {interest.pattern!r} is not a regular expression of RE2: {error}"
                ) from error
        self._interests.append(interest)

    def unregister(self, interest: Interest) -> None:
        self._interests.remove(interest)

    async def look(self, interest: Interest) -> Look:
        """A look that covers `interest` and is fresh. Raises SourceUnavailableError."""
        async with self._looking:
            last, begun = self._last, boot_time()
            fresh = min(max(FRESH, FRESH_SHARE * self._took), FRESH_MOST)
            if last is not None and interest in last.interests and begun - last.taken < fresh:
                return last
            wanted = frozenset([*self._interests, interest])
            self._last = await self._connection.run("list its topics", lambda wire: self._take(wire, wanted), LOOK_TIMEOUT)
            self._took = boot_time() - begun
            return self._last

    def leaders(self, interest: Interest) -> Mapping[Partition, int]:
        """The brokers that led the partitions of interest at the last look; none if it did not cover them."""
        look = self._last
        if look is None or interest not in look.interests:
            return {}
        return {partition: node for partition, node in look.leaders.items() if look.of(interest, partition[0])}

    async def sizes(self, look: Look) -> Mapping[Partition, int]:
        """Bytes of each partition's log at its leader, as far as the brokers show them. Asked anew at most every SIZES_MAX_AGE.

        Raises SourceUnavailableError if the cluster cannot be reached.
        """
        async with self._looking:
            if boot_time() - self._sizes_taken >= SIZES_MAX_AGE or not look.extents.keys() <= self._sizes.keys():
                self._sizes = await self._connection.run(
                    "ask how large its logs are", lambda wire: _sizes(wire, look.leaders), LOOK_TIMEOUT
                )
                self._sizes_taken = boot_time()
            return self._sizes

    async def groups(self, node: int) -> Mapping[str, ListedGroup]:
        """The Kafka groups that this broker coordinates, by their ids. Raises SourceUnavailableError."""
        # A broker that hangs keeps nobody from asking another.
        async with self._listing.setdefault(node, asyncio.Lock()):
            taken, found = self._groups.get(node, (float("-inf"), {}))
            if boot_time() - taken < GROUPS_MAX_AGE:
                return found
            taken = boot_time()
            found = await self._connection.run("list its groups", lambda wire: _groups(wire, node), LOOK_TIMEOUT)
            self._groups[node] = (taken, found)
            return found

    async def first_since(
        self, look: Look, interest: Interest, milliseconds: int, *, undecided: bool = False
    ) -> Mapping[Partition, int]:
        """Of each partition of interest the offset of its first record at or after this time; one without is absent.

        With `undecided` also where a transaction is open. Raises SourceUnavailableError also if a partition's leader has just
        moved, or if it has none.
        """
        leaders = {partition: node for partition, node in look.leaders.items() if look.of(interest, partition[0])}
        led = leaders.keys()
        if lost := sorted(each for each in (look.extents.keys() | look.leaderless) - led if look.of(interest, each[0])):
            # Absent it would be taken for one that has no record so young.
            raise SourceUnavailableError(f"{lost[0][0]}/{lost[0][1]} has no leader; start its broker")
        found = await self._connection.run(
            "look up offsets by time",
            lambda wire: _offsets(wire, leaders, milliseconds, read_committed=self._read_committed and not undecided),
            LOOK_TIMEOUT,
        )
        if missing := sorted(leaders.keys() - found.keys()):
            raise SourceUnavailableError(f"the leader of {missing[0][0]}/{missing[0][1]} has moved; it is looked up again")
        return {partition: offset for partition, offset in found.items() if offset >= 0}

    async def log_ends(self, look: Look, wanted: Set[Partition]) -> Mapping[Partition, int]:
        """Where these partitions end, as their leaders say now; one that none answers for is absent.

        Never of the look: that may be seconds old, and keeps what it knew of a partition whose leader did not answer.
        """
        return await self._of_logs(look, wanted, LATEST, "look up where its logs end")

    async def since(self, look: Look, wanted: Set[Partition], milliseconds: int) -> Mapping[Partition, int]:
        """Of each of these partitions the offset of its first record at or after this time, -1 if it has none; one that no
        leader answers for is absent. Of open transactions, too: where those begin a log only seems to end. Raises
        SourceUnavailableError.
        """
        return await self._of_logs(look, wanted, milliseconds, "look up offsets by time")

    async def _of_logs(self, look: Look, wanted: Set[Partition], which: int, what: str) -> Mapping[Partition, int]:
        """These offsets, as `_offsets` has them, of whole logs."""
        leaders = {partition: node for partition, node in look.leaders.items() if partition in wanted}
        if not leaders:
            return {}
        return await self._connection.run(what, lambda wire: _offsets(wire, leaders, which, read_committed=False), LOOK_TIMEOUT)

    async def _take(self, wire: Wire, interests: frozenset[Interest]) -> Look:
        found = await _topics(wire, interests)
        taken = boot_time()
        last = self._last if self._last is not None else Look(taken, frozenset())
        # A broker names a new topic before it has put away the logs of the one before, and shows where those end until then. So
        # what was seen last counts once more, as if this look had been taken a moment before.
        made_anew = {name: each for name, each in found.ids.items() if last.topic_ids.get(name, each) != each}
        of_before = frozenset(name for name, each in made_anew.items() if self._made_anew.get(name) != each)
        ids = {topic: last.topic_ids[topic] if topic in of_before else topic_id for topic, topic_id in found.ids.items()}
        leaders = {partition: node for partition, node in found.leaders.items() if partition[0] not in of_before}
        leaderless = {partition for partition in found.leaderless if partition[0] not in of_before}
        begins = await self._begin_offsets(wire, leaders, ids)
        end_offsets = await _offsets(wire, leaders, LATEST, read_committed=self._read_committed)
        grown = self._grown(ids, taken)
        extents = {partition: Extent(begins[partition], end) for partition, end in end_offsets.items() if partition in begins}
        for partition in (leaders.keys() | leaderless) - extents.keys():
            # Another topic of the same name has nothing of the one before.
            if partition in last.extents and last.topic_ids.get(partition[0]) == ids[partition[0]]:
                extents[partition] = last.extents[partition]
            elif partition[0] in grown:
                extents[partition] = Extent(0, 0)
        missing = frozenset((leaders.keys() | leaderless) - extents.keys())
        missing |= {partition for partition in last.leaderless if partition[0] in of_before}
        extents |= {partition: extent for partition, extent in last.extents.items() if partition[0] in of_before}
        leaders |= {partition: node for partition, node in last.leaders.items() if partition[0] in of_before}
        refused = {topic: error.__name__ for topic, error in found.refused.items()}
        # Only now: a look that failed has shown nothing.
        self._made_anew = made_anew
        zones = {partition: found.racks.get(node, "") for partition, node in leaders.items()}
        shards = _shards(extents, ids, zones, last.shards)
        return Look(taken, interests, ids, extents, refused, missing, leaders, shards, frozenset(found.internal))

    def _grown(self, ids: Mapping[str, str], now: float) -> frozenset[str]:
        """The topics of which any partition that was not seen before is a new one."""
        last = self._last
        if last is None or now - last.taken > BORN_WITHIN:
            return frozenset()
        whole = {partition[0] for partition in last.extents} - {partition[0] for partition in last.leaderless}
        return frozenset(name for name in whole if last.topic_ids.get(name) == ids.get(name))

    async def _begin_offsets(
        self, wire: Wire, leaders: Mapping[Partition, int], ids: Mapping[str, str]
    ) -> dict[Partition, int]:
        last_ids = self._last.topic_ids if self._last is not None else {}
        known = {partition for partition in self._begins if last_ids.get(partition[0]) == ids.get(partition[0])}
        if boot_time() - self._begins_taken >= BEGIN_MAX_AGE or not leaders.keys() <= known:
            self._begins = await _offsets(wire, leaders, EARLIEST, read_committed=self._read_committed)
            self._begins_taken = boot_time()
        return self._begins


def _shards(
    extents: Mapping[Partition, Extent],
    ids: Mapping[str, str],
    zones: Mapping[Partition, str],
    before: Mapping[str, tuple[ShardInfo, ...]],
) -> dict[str, tuple[ShardInfo, ...]]:
    """The shards of each topic. A thousand groups hold what is returned here: what is as it was before is not made anew."""
    found: dict[str, list[ShardInfo]] = {}
    for (topic, number), extent in sorted(extents.items()):
        zone = zones.get((topic, number), "")
        info = ShardInfo(shard_of(topic, number), extent.begin, extent.end, source_id=ids[topic], zone=zone)
        found.setdefault(topic, []).append(info)
    made = {topic: tuple(infos) for topic, infos in found.items()}
    return {topic: known if (known := before.get(topic)) == infos else infos for topic, infos in made.items()}


async def _groups(wire: Wire, node: int) -> dict[str, ListedGroup]:
    listing = await wire.send(ListGroupsRequest(), node)
    if listing.error_code:
        raise errors.for_code(listing.error_code)(f"listing the groups of broker {node}")
    return {
        listed.group_id: ListedGroup(
            getattr(listed, "group_type", None) or "unknown", getattr(listed, "group_state", None) or ""
        )
        for listed in listing.groups
    }


async def _topics(wire: Wire, interests: Iterable[Interest]) -> lookup.Topics:
    """Metadata of every topic of interest."""
    everything = any(interest.pattern for interest in interests)
    names = sorted({name for interest in interests for name in interest.topics})

    def wanted(name: str, internal: bool) -> bool:
        return any(interest.matches(name, internal=internal) for interest in interests)

    found = lookup.Topics()
    response = await wire.send(lookup.topics_request(None if everything else names))
    lookup.add_topics(found, response, wanted)
    if everything and (absent := sorted(set(names) - {topic.name for topic in response.topics})):
        # One that does not exist is reported as missing.
        lookup.add_topics(found, await wire.send(lookup.topics_request(absent)), lambda _name, _internal: True)
    return found


async def _offsets(wire: Wire, leaders: Mapping[Partition, int], which: int, *, read_committed: bool) -> dict[Partition, int]:
    """The earliest or latest offsets of the partitions, or their first since a time in milliseconds, -1 if they have none.

    A partition is left out whose leader has moved, or cannot be asked while another can.
    """
    found = await lookup.offsets(wire.send, leaders, which, committed=read_committed)
    for node, error in found.failed.items():
        if wire.refused_by(node):
            raise error
    # A broker that has just stopped still leads for those who have not heard of it. The others are looked at.
    if found.failed and len(found.failed) == len(set(leaders.values())):
        raise list(found.failed.values())[-1]
    for (topic, number), refusal in found.refused.items():
        if not issubclass(refusal, errors.RetriableError):
            raise refusal(f"offsets of {topic}/{number}")
    return found.offsets


async def _sizes(wire: Wire, leaders: Mapping[Partition, int]) -> dict[Partition, int]:
    """Bytes of the partitions at their leaders, one request a leader. None of those whose broker refuses."""
    kind = DescribeLogDirsRequest.DescribableLogDirTopic
    results: dict[Partition, int] = {}
    for node, by_topic in lookup.by_node(leaders).items():
        topics = [kind(topic=topic, partitions=partitions) for topic, partitions in by_topic.items()]
        response = await wire.send(DescribeLogDirsRequest(topics=topics), node)
        refused = {code for code in (response.error_code, *(each.error_code for each in response.results)) if code}
        if refused:
            names = ", ".join(sorted(errors.for_code(code).__name__ for code in refused))
            log.info("broker %s does not show the sizes of its logs: %s", node, names)
        for directory in response.results:
            for topic in directory.topics:
                for partition in topic.partitions:
                    if not partition.is_future_key:
                        results[topic.name, partition.partition_index] = partition.partition_size
    return results
