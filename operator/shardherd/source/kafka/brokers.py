"""Kafka's brokers for readers: raw Fetch answers for many shards at once, and where shards begin and end.

`range_reader` fetches with it, `end_offsets` watches the ends of shards, and `listing` asks what there is. One serves a
process. It decides which broker is asked for what; `cluster_connection` has the connections, and says which errors are worth
another try. It knows nothing of ownership.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import kafka.errors as kafka_errors

from shardherd.clock import boot_time
from shardherd.core.model.nouns import Offset, ShardId
from shardherd.core.model.security import Security
from shardherd.source.kafka import lookup
from shardherd.source.kafka.cluster_connection import TRANSIENT, ClusterConnection, Leaders, SourceRefusedError, explained
from shardherd.source.kafka.fetch_memory import FetchMemory, Turns
from shardherd.source.kafka.fetching import Fetched, fetched
from shardherd.source.kafka.leader_epochs import Diverged, EndOffsets, LogChecks, Mark
from shardherd.source.kafka.partitions import EARLIEST, LATEST, Partition, partition_of, shard_of
from shardherd.source.kafka.raw_fetch import Asked, Question, RawFetch
from shardherd.source.kafka.replicas import BEHIND_FOR, Replicas

log = logging.getLogger(__name__)

SHARD_FETCH_BYTES = 4 * 1024 * 1024
"""Most bytes of one shard in a Fetch answer. A single larger batch still comes whole: Kafka always sends the first one."""


class Brokers(ClusterConnection):
    """Connections to one Kafka, as `security` says.

    `committed` is read_committed: shards end, and are read, before the first transaction that is still open. `rack` is where we
    are: records are read from a replica there, if the brokers name one.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        security: Security | None = None,
        *,
        name: str = "shardherd",
        committed: bool = False,
        rack: str = "",
    ) -> None:
        super().__init__(bootstrap_servers, security, name=name)
        self.committed = committed
        self._silent: frozenset[ShardId] = frozenset()
        self._turns = Turns()
        self._replicas = Replicas(rack)

    def begin_fetch(
        self,
        positions: Mapping[ShardId, Offset],
        timeout: float,
        *,
        shard_bytes: int | Mapping[ShardId, int] = SHARD_FETCH_BYTES,
        memory: FetchMemory = FetchMemory(),  # noqa: B008 - it cannot be changed
        checks: LogChecks | None = None,
    ) -> Callable[[], list[Fetched]]:
        """Send one Fetch a broker for these shards, and return a function that waits for all the answers.

        `shard_bytes` bounds what comes of each shard; a single larger batch still comes whole for the first one. As many
        brokers are asked as there is `memory` for, the others at the next call. `checks` is what must hold of the logs.

        Shards that were not asked for are left out, and so are those whose leader cannot be reached while another answers.
        Errors come from the returned function: BrokersUnavailableError when nothing came within `timeout` seconds,
        SourceRefusedError.
        """
        known = LogChecks() if checks is None else checks
        return self.begin(lambda: self._fetch(positions, shard_bytes, memory, known), timeout, positions)

    async def fetch(
        self,
        positions: Mapping[ShardId, Offset],
        timeout: float,
        *,
        shard_bytes: Mapping[ShardId, int],
        memory: FetchMemory,
        checks: LogChecks,
    ) -> list[Fetched]:
        """The same for an event loop, which goes on meanwhile."""
        found: list[Fetched] = await self.ask(lambda: self._fetch(positions, shard_bytes, memory, checks), timeout, positions)
        return found

    def cuts(self, marks: Mapping[ShardId, Mark], timeout: float) -> dict[ShardId, Offset]:
        """Where each log ended under epochs up to its mark's, of every shard whose leader answered; -1 if it cannot say.

        Below the mark's offset, the log was cut off there. Raises BrokersUnavailableError, SourceRefusedError.
        """
        found: dict[ShardId, Offset] = self.begin(lambda: self._cuts(marks), timeout, marks)()
        return found

    def end_offsets(self, shards: Iterable[ShardId], timeout: float) -> EndOffsets:
        """The end of each shard whose leader answered. Raises BrokersUnavailableError, SourceRefusedError."""
        wanted = tuple(shards)
        found: EndOffsets = self.begin(lambda: self._end_offsets(wanted), timeout, wanted)()
        return found

    def log_ends(self, shards: Iterable[ShardId], timeout: float) -> dict[ShardId, Offset]:
        """The same of logs, behind what open transactions hold back, too."""
        wanted = tuple(shards)
        found: EndOffsets = self.begin(lambda: self._log_ends(wanted), timeout, wanted)()
        return found

    def offsets(self, times: Mapping[ShardId, int], timeout: float) -> dict[ShardId, Offset]:
        """The first offset at or after each time (milliseconds, EARLIEST or LATEST), of every shard whose leader answered.

        It is -1 where no record has reached that time. Raises BrokersUnavailableError, SourceRefusedError.
        """
        found: dict[ShardId, Offset] = self.begin(lambda: self._offsets(times), timeout, times)()
        return found

    async def _fetch(
        self,
        positions: Mapping[ShardId, Offset],
        shard_bytes: int | Mapping[ShardId, int],
        memory: FetchMemory,
        checks: LogChecks,
    ) -> list[Fetched]:
        leaders, troubles = await self.by_leader(positions)
        leader_of = {shard: leaders[led] for shard in positions if (led := partition_of(shard)) in leaders}
        route = self._replicas.route(leader_of, self.has_replica, boot_time())
        at_once, answer_bytes = memory.among(len(route.shards))
        turn = {node: route.shards[node] for node in self._turns.next(route.shards, at_once)}
        # One look at the epochs for all that follows: what is read is what was verified.
        epochs = {shard: self.epoch_of(partition_of(shard)) for shards in turn.values() for shard in shards}
        unread = await self._verify(leaders, epochs, positions, checks, troubles)
        found = [part for part in unread.values() if part is not None]
        futures = []
        for node, shards in turn.items():
            wanted = [shard for shard in shards if shard not in unread]
            asked: dict[str, list[Asked]] = {}
            for shard in wanted:
                topic, partition = partition_of(shard)
                most = shard_bytes if isinstance(shard_bytes, int) else shard_bytes[shard]
                asked.setdefault(topic, []).append(Asked(partition, positions[shard], most, epochs[shard]))
            if asked:
                ids = {topic: self.topic_id(topic) for topic in asked}
                rack = self._replicas.rack_for(node, route)
                request = RawFetch(Question(asked, ids, answer_bytes, self.committed, rack))
                names = {topic_id: name for name, topic_id in ids.items()}
                futures.append((node, wanted, names, self.send_to(request, node)))
        outside: dict[Partition, int] = {}
        for node, wanted, names, future in futures:
            followed = [shard for shard in wanted if leader_of[shard] != node]
            try:
                response = await future
            except TRANSIENT as error:
                troubles.append(error)
                for shard in followed:
                    self._replicas.failed(shard, boot_time())
                continue
            if response.error_code:
                troubles.append(kafka_errors.for_code(response.error_code)("the whole Fetch"))
                continue
            for topic in response.responses:
                name = topic.topic or names[topic.topic_id]
                topic_id = str(topic.topic_id) if not topic.topic else ""
                for part in topic.partitions:
                    shard = ShardId(f"{name}/{part.partition_index}")
                    code = kafka_errors.for_code(part.error_code)
                    if code is kafka_errors.NoError:
                        each = fetched(shard, positions[shard], part, topic_id, committed=self.committed)
                        if shard in followed and not each.data and each.said:
                            # That there is nothing only the leader knows.
                            self._replicas.failed(shard, boot_time(), BEHIND_FOR)
                        elif part.preferred_read_replica in (-1, node):
                            found.append(each)
                        else:
                            self._replicas.named(shard, part.preferred_read_replica, boot_time())
                    elif shard in followed:
                        # Its leader is asked the same, and what that one says counts.
                        self._replicas.failed(shard, boot_time())
                    elif code is kafka_errors.OffsetOutOfRangeError:
                        outside[name, part.partition_index] = node
                    elif issubclass(code, TRANSIENT):
                        troubles.append(code(f"shard {shard}"))
                    else:
                        raise SourceRefusedError(f"shard {shard}: Kafka refuses to read it: {explained(code, name)}")
        if outside:
            starts, start_troubles = await self._list(outside, EARLIEST)
            end_offsets, end_troubles = await self._list(outside, LATEST)
            troubles += start_troubles + end_troubles
            for shard in starts.keys() & end_offsets.keys():
                found.append(Fetched(shard, positions[shard], b"", end_offsets[shard], start=starts[shard]))
        self.finish_round(troubles, any(part.said for part in found))
        return found

    async def _verify(
        self,
        leaders: Leaders,
        epochs: Mapping[ShardId, int],
        positions: Mapping[ShardId, Offset],
        checks: LogChecks,
        troubles: list[Any],
    ) -> dict[ShardId, Fetched | None]:
        """The shards that are not to be read now: their logs are not those of `checks`, or nobody said so (None)."""
        found: dict[ShardId, Fetched | None] = {}
        marks: dict[ShardId, tuple[Mark, ...]] = {}
        for shard, epoch in checks.marked(epochs).items():
            if (ahead := checks.ahead(shard, epoch)) is not None:
                # We may be behind: the leaders are looked up.
                troubles.append(kafka_errors.FencedLeaderEpochError(f"shard {shard}"))
                found[shard] = self._diverged(shard, positions[shard], Diverged(ahead.epoch, epoch))
            elif doubts := checks.doubtful(shard, epoch):
                marks[shard] = doubts
        while marks:
            asked = {shard: doubts[0] for shard, doubts in marks.items()}
            epoch_ends, more = await self._epoch_end_offsets(leaders, epochs, asked)
            troubles += more
            for shard, mark in asked.items():
                if shard not in epoch_ends:
                    found[shard] = None
                    continue
                if 0 <= epoch_ends[shard] < mark.offset:
                    diverged = Diverged(mark.epoch, epochs[shard], epoch_ends[shard])
                    found[shard] = self._diverged(shard, positions[shard], diverged)
                if shard in found or len(marks[shard]) == 1:
                    checks.verified(shard, epochs[shard])
            marks = {shard: doubts[1:] for shard, doubts in marks.items() if doubts[1:] and shard not in found}
        return found

    def _diverged(self, shard: ShardId, at: Offset, diverged: Diverged) -> Fetched:
        topic_id = self.topic_id(partition_of(shard)[0])
        return Fetched(shard, at, b"", at, str(topic_id) if topic_id else "", diverged=diverged)

    async def _cuts(self, marks: Mapping[ShardId, Mark]) -> dict[ShardId, Offset]:
        leaders, troubles = await self.by_leader(marks)
        epochs = {shard_of(*partition): self.epoch_of(partition) for partition in leaders}
        epoch_ends, more = await self._epoch_end_offsets(leaders, epochs, marks)
        self.finish_round(troubles + more, bool(epoch_ends))
        return epoch_ends

    async def _epoch_end_offsets(
        self, leaders: Leaders, epochs: Mapping[ShardId, int], marks: Mapping[ShardId, Mark]
    ) -> tuple[dict[ShardId, Offset], list[Any]]:
        """Where each log ended under epochs up to its mark's, as its leader says; -1 if that cannot be known.

        `epochs` are those under which they are led, as far as we know.

        Raises SourceRefusedError.
        """
        found = await lookup.epoch_end_offsets(
            self.send_to,
            leaders,
            {partition_of(shard): epoch for shard, epoch in epochs.items()},
            {partition_of(shard): mark.epoch for shard, mark in marks.items()},
        )
        return {shard_of(*partition): offset for partition, offset in found.offsets.items()}, self._troubles_in(found)

    def _troubles_in(self, found: lookup.Answers) -> list[Any]:
        """What is wrong with what was not answered. Raises what is not over at the next try."""
        for error in found.failed.values():
            if not isinstance(error, TRANSIENT):
                raise error
        for (topic, number), refusal in found.refused.items():
            if not issubclass(refusal, TRANSIENT):
                raise SourceRefusedError(f"shard {shard_of(topic, number)}: Kafka refuses its end: {explained(refusal, topic)}")
        refused = (refusal(f"shard {shard_of(*partition)}") for partition, refusal in found.refused.items())
        return [*found.failed.values(), *refused]

    async def _end_offsets(self, shards: Iterable[ShardId]) -> EndOffsets:
        leaders, troubles = await self.by_leader(shards)
        found, more = await self._list(leaders, LATEST)
        self.finish_round(troubles + more, bool(found))
        silent = frozenset(shards) - found.keys()
        if silent != self._silent:
            self._silent = silent
            if silent:
                log.warning("Kafka does not say where %s end, trying on: %s", ", ".join(sorted(silent)[:5]), troubles + more)
        return found

    async def _log_ends(self, shards: Iterable[ShardId]) -> EndOffsets:
        leaders, troubles = await self.by_leader(shards)
        found, more = await self._list(leaders, LATEST, committed=False)
        self.finish_round(troubles + more, bool(found))
        return found

    async def _offsets(self, times: Mapping[ShardId, int]) -> dict[ShardId, Offset]:
        leaders, troubles = await self.by_leader(times)
        found, more = await self._list(leaders, {partition_of(shard): at for shard, at in times.items()})
        self.finish_round(troubles + more, bool(found))
        return found

    async def _list(
        self, leaders: Leaders, at: int | Mapping[Partition, int], *, committed: bool | None = None
    ) -> tuple[EndOffsets, list[Any]]:
        """The first offsets at a time (EARLIEST and LATEST too), and what is wrong with the missing ones.

        Raises SourceRefusedError.
        """
        decided = self.committed if committed is None else committed
        found = await lookup.offsets(self.send_to, leaders, at, committed=decided)
        end_offsets = EndOffsets(
            {shard_of(*partition): offset for partition, offset in found.offsets.items()},
            {shard_of(*partition): epoch for partition, epoch in found.epochs.items()},
        )
        return end_offsets, self._troubles_in(found)
