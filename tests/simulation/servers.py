"""What survives every process: the API server with a Lease and a ConfigMap, and Kafka with offsets and producer epochs.

The adapters here stand where the real ones do. The Lease is held by the real `LeaseLeadership`.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from shardherd.adapters.kubernetes.api import ApiError, ApiUnavailableError
from shardherd.core.group import ownership as codec
from shardherd.core.group.notes import parse
from shardherd.core.group.records import PositionCopies
from shardherd.core.model.nouns import GroupIdentity, GroupSpec, KinesisSource, Offset, ShardId, ShardInfo
from shardherd.ports import (
    CommitFencedError,
    Discovered,
    OffsetStore,
    OutcomeUnknownError,
    OwnershipConflictError,
    OwnershipGoneError,
    OwnershipTooLargeError,
    OwnershipUnavailableError,
    ShardSource,
    SourceUnavailableError,
    StoredCopies,
    StoredOwnership,
)
from tests.simulation.history import History
from tests.simulation.history_entries import BrokenError
from tests.simulation.kinesis import ServedTable, SimulatedKinesisSource, SimulatedPositions
from tests.simulation.leaderless import PartialView
from tests.simulation.network import Network, Process
from tests.simulation.retention import Retention

KEPT = 30
"""Earlier contents of the ConfigMap that somebody may have a copy of."""


class ApiServer:
    """A Lease and a ConfigMap with resource versions."""

    def __init__(self, history: History) -> None:
        self.lease: dict[str, Any] | None = None
        self.stored: StoredOwnership | None = None
        self.owner = history.uid
        """The UID of the group whose ownership and copies are stored."""
        self.limit: int | None = None
        """Bytes of ownership that are taken, if there is a limit."""
        self._older: deque[bytes] = deque(maxlen=KEPT)
        self.copies = StoredCopies(PositionCopies(), "")
        self.versions = 0
        self.written_at: dict[str, float] = {}
        """When each coordinator last wrote the ownership, or saw that what it wrote still stands."""
        self._history = history

    def touch(self) -> None:
        """Somebody changes something else in the ConfigMap: only its version is another."""
        if self.stored is not None:
            self.stored = replace(self.stored, version=self._version())

    def put_back(self, rng: random.Random) -> bool:
        """Somebody writes what was stored before, as a change of his own. False: there was nothing else."""
        older = [data for data in self._older if self.stored is not None and data != self.stored.data]
        if not older:
            return False
        # Mostly what was true not long ago.
        data = older[-min(len(older), 1 + int(rng.expovariate(0.2)))]
        # The API server notes who wrote what, and so it shows by whom that is.
        self.stored = StoredOwnership(data, self._version(), foreign=True)
        self._history.put_back(codec.loads(data))
        return True

    def delete(self) -> None:
        """Somebody deletes the ConfigMap."""
        self.stored = None
        self._history.lose()

    def collect(self) -> None:
        """What belongs to a group that was deleted is deleted with it."""
        self.stored, self.copies = None, StoredCopies(PositionCopies(), "")

    def load(self, reader: str, uid: str) -> StoredOwnership | None:
        if uid != self._owner():
            return None
        if self._history.writer == reader:
            # It sees that nobody else has written: that proves as much as a write.
            self.written_at[reader] = self._history.now
        return self.stored

    def save(self, data: bytes, expected: str | None, writer: str, uid: str, *, grows: bool = False) -> str:
        if uid != self._history.uid:
            self._history.counts["writes of an ownership whose group was deleted"] += 1
            raise OwnershipConflictError("the group was deleted")
        if uid != self._owner():
            # What a group of the same name has left is replaced.
            self.collect()
        if uid != self.owner:
            self._older.clear()
        current = self.stored.version if self.stored is not None else None
        if current is None and expected is not None:
            raise OwnershipGoneError("the ownership was deleted")
        if current != expected:
            self._history.counts["conflicts of writes"] += 1
            raise OwnershipConflictError(f"the ownership is at version {current}, not {expected}")
        if grows and self.limit is not None and len(data) > self.limit:
            self._history.counts["writes of an ownership that is too large"] += 1
            raise OwnershipTooLargeError(f"the ownership takes {len(data)} bytes, over the limit of {self.limit}")
        self._history.store(codec.loads(data), writer)
        self.owner = uid
        self.written_at[writer] = self._history.now
        self.stored = StoredOwnership(data, self._version())
        self._older.append(data)
        return self.stored.version

    def _owner(self) -> str:
        """Whose ownership this is, as far as there is any."""
        return self.owner if self.stored is not None else self._history.uid

    def load_copies(self, uid: str) -> StoredCopies:
        return self.copies if uid == self._owner() else StoredCopies(PositionCopies(), "")

    def save_copies(self, copies: PositionCopies, expected: str, uid: str) -> str:
        if uid != self._history.uid:
            raise OwnershipConflictError("the group was deleted")
        if self.copies.version != expected:
            self._history.counts["conflicts of copies"] += 1
            raise OwnershipConflictError(f"the copies are at version {self.copies.version!r}, not {expected!r}")
        self.copies = StoredCopies(copies, self._version())
        return self.copies.version

    def lease_call(self, method: str, body: Any) -> Any:
        if method == "GET":
            if self.lease is None:
                raise ApiError("there is no such lease", 404, "NotFound")
            return {**self.lease, "spec": dict(self.lease["spec"]), "metadata": dict(self.lease["metadata"])}
        if method == "POST" and self.lease is not None:
            raise ApiError("the lease exists", 409, "AlreadyExists")
        if method == "PUT" and (
            self.lease is None or body["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]
        ):
            raise ApiError("the lease was changed", 409, "Conflict")
        metadata = {**body["metadata"], "resourceVersion": self._version()}
        self.lease = {**body, "metadata": metadata}
        return {**self.lease, "spec": dict(body["spec"]), "metadata": dict(metadata)}

    def _version(self) -> str:
        self.versions += 1
        return str(self.versions)


class LeaseApi:
    """Stands where KubernetesApi does, for the Lease."""

    def __init__(self, process: Process, network: Network, server: ApiServer) -> None:
        self._process, self._network, self._server = process, network, server

    async def acall(self, method: str, path: str, body: Any = None, *, timeout: float = 10.0, **_: Any) -> Any:
        return await self._network.call(
            self._process,
            "kube",
            "lease",
            lambda: self._server.lease_call(method, body),
            timeout,
            ApiUnavailableError,
            lambda message: ApiError(message, 429, "TooManyRequests"),
        )


class SimulatedOwnership:
    """OwnershipStore over the network."""

    def __init__(self, process: Process, network: Network, server: ApiServer) -> None:
        self._process, self._network, self._server = process, network, server

    async def load(self, group: GroupIdentity) -> StoredOwnership | None:
        return await self._network.call(
            self._process,
            "kube",
            "load",
            lambda: self._server.load(self._process.name, group.uid),
            5.0,
            OwnershipUnavailableError,
            OwnershipUnavailableError,
        )

    async def save(self, group: GroupIdentity, data: bytes, expected: str | None, *, grows: bool = False) -> str:
        return await self._network.call(
            self._process,
            "kube",
            "save",
            lambda: self._server.save(data, expected, self._process.name, group.uid, grows=grows),
            5.0,
            OutcomeUnknownError,
            OwnershipUnavailableError,
        )

    async def load_copies(self, group: GroupIdentity) -> StoredCopies:
        return await self._network.call(
            self._process,
            "kube",
            "load copies",
            lambda: self._server.load_copies(group.uid),
            5.0,
            OwnershipUnavailableError,
            OwnershipUnavailableError,
        )

    async def save_copies(self, group: GroupIdentity, copies: PositionCopies, expected: str) -> str:
        taken = replace(copies, offsets=dict(copies.offsets))
        return await self._network.call(
            self._process,
            "kube",
            "save copies",
            lambda: self._server.save_copies(taken, expected, group.uid),
            5.0,
            OutcomeUnknownError,
            OwnershipUnavailableError,
        )


class Kafka:
    """Shards, durable positions, and the epoch of the one producer that may change them."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.committed: dict[ShardId, Offset] = {}
        history.offsets = self.committed
        self.notes: dict[ShardId, str] = {}
        self.retention = Retention(history)
        self.epoch = 0
        self.initialised: dict[int, str] = {}
        """Which coordinator got which epoch."""
        self.failed_at: dict[str, float] = {}
        """When a commit of each coordinator last came to nothing, or to nothing that it knows of."""
        self.forcing: set[tuple[ShardId, Offset]] = set()
        """Positions that a user has asked for and that are not durable yet."""
        self.unanswered: dict[ShardId, Offset] = {}
        """Positions that a user has asked for and does not know the fate of."""
        self.leaderless: set[ShardId] = set()
        """Shards of which no look can tell how far they reach."""
        self.table = ServedTable(self)
        """Where the positions are in place of Kafka's offsets, if the source is Kinesis."""

    def infos(self) -> tuple[ShardInfo, ...]:
        """Raises SourceUnavailableError if none of the shards is there, as for a topic that does not exist."""
        present = [shard for shard in self.history.shards.values() if shard.present]
        if not present:
            raise SourceUnavailableError("the topic does not exist")
        return tuple(ShardInfo(s.name, s.begin, s.end, s.open, s.parents, s.source_id) for s in present)

    def initialise(self, writer: str, proven_at: float) -> int:
        """A new producer epoch; every earlier one is fenced."""
        failed = self.failed_at.pop(writer, None)
        if failed is not None and proven_at < failed - 1.0:  # another retake may be on its way
            raise BrokenError(
                f"{writer} takes the offsets over again after the commit that failed at {failed:.3f}, and last proved that it"
                f" leads at {proven_at:.3f}"
            )
        self.epoch += 1
        self.initialised[self.epoch] = writer
        return self.epoch

    def commit(
        self,
        epoch: int,
        offsets: Mapping[ShardId, Offset],
        notes: Mapping[ShardId, str],
        writer: str,
        resets: Mapping[ShardId, str] = MappingProxyType({}),
    ) -> None:
        """`resets` are the ids of those that were being made when this was asked for."""
        if epoch != self.epoch:
            self.history.counts["commits fenced"] += 1
            raise CommitFencedError(f"another producer has epoch {self.epoch}, this one had {epoch}")
        if away := [shard for shard in offsets if not self.history.shards[shard].present]:
            raise SourceUnavailableError(f"cannot commit {away}: there is no such partition")
        self.lands(offsets, notes, writer, resets)

    def lands(
        self, offsets: Mapping[ShardId, Offset], notes: Mapping[ShardId, str], writer: str, resets: Mapping[ShardId, str]
    ) -> None:
        """These positions are durable now, wherever they are kept."""
        for shard, offset in offsets.items():
            note, again = parse(notes.get(shard, "")), self.committed.get(shard) == offset
            if note is not None and note.source_id not in ("", self.history.shards[shard].source_id):
                self.history.land_before(again=again)
                self.forcing.discard((shard, offset))
                if note.forced:
                    # The coordinator does not know of another one yet, and fences the holder all the same.
                    self.history.ends_grant(shard, offset)
            elif (self.history.sets(shard, offset) or self.history.knows_no_more(resets.get(shard))) and not (
                again and note is not None and not note.forced
            ):
                # While a reset is being made, no user sets the positions that are its own. One that is committed again as it
                # is, and does not say that it is forced, asks for nothing: the reset may have set it, and it was read on since.
                self.history.reset(shard, offset)
                self.history.ends_grant(shard, offset)
            elif (shard, offset) in self.forcing:
                self.forcing.remove((shard, offset))
                self.history.force(shard, offset)
                self.history.ends_grant(shard, offset)
            elif not again or self.history.shards[shard].durable is None:
                self.history.land(shard, offset, writer)
            if again:
                self.history.counts["positions committed again as they were"] += 1
            self.committed[shard] = offset
            self.retention.committed(shard)
        self.notes.update(notes)

    def forget(self, shard: ShardId) -> None:
        """Its offset is gone."""
        self.notes.pop(shard, None)
        if self.committed.pop(shard, None) is not None:
            self.history.forget(shard)

    def drop_asked(self, shard: ShardId, asking: Collection[tuple[ShardId, Offset]]) -> None:
        """This shard went, or is another one: no user asks it any more for a position of whose fate he does not know.

        What somebody is still `asking` for may yet be done, and then it is done to the shard that bears the name by then.
        """
        self.unanswered.pop(shard, None)
        self.forcing = {each for each in self.forcing if each[0] != shard or each in asking}

    def begin_anew(self, *, keeps_offsets: bool) -> None:
        """Another group of the same name uses this Kafka group from now on."""
        self.forcing, self.unanswered = set(), {}
        self.table.collect()
        if not keeps_offsets:
            self.committed.clear()
            self.notes.clear()

    def expire(self) -> None:
        """The broker forgets what was not committed again for long."""
        for shard in list(self.committed):
            kept = self.history.shards[shard].present and not self.history.sightings.another(self.history.stored, shard)
            if self.retention.due(shard, kept=kept):
                self.history.counts["offsets that expired"] += 1
                self.forget(shard)


class SimulatedConnector:
    """SourceConnector over the network."""

    def __init__(self, process: Process, network: Network, kafka: Kafka, proven_at: Callable[[], float]) -> None:
        self._parts = (process, network, kafka, proven_at)

    def source(self, spec: GroupSpec) -> ShardSource:
        process, network, kafka, _ = self._parts
        kafka.history.sightings.begin(process.name)
        if isinstance(spec.source, KinesisSource):
            return SimulatedKinesisSource(process, network, kafka.history)
        return SimulatedSource(process, network, kafka)

    def offsets(self, spec: GroupSpec) -> OffsetStore:
        if isinstance(spec.source, KinesisSource):
            process, network, kafka, proven_at = self._parts
            return SimulatedPositions(process, network, kafka.table, spec.identity, proven_at)
        return SimulatedOffsets(*self._parts)


class SimulatedSource:
    """ShardSource over the network."""

    def __init__(self, process: Process, network: Network, kafka: Kafka) -> None:
        self._process, self._network, self._kafka = process, network, kafka
        self._partial = PartialView()

    async def discover(self, *, sizes: bool = False, ends: bool = False) -> Discovered:
        infos = await self._network.call(
            self._process, "kafka", "discover", self._kafka.infos, 10.0, SourceUnavailableError, SourceUnavailableError
        )
        history, looked = self._kafka.history, self._partial.look(infos, self._kafka.leaderless)
        if not looked.shards:
            raise SourceUnavailableError(f"{looked.unlooked[0]} has no leader")
        history.sightings.looked(self._process.name, looked.shards, history.now, looked.unlooked)
        history.counts["shards that could not be looked at"] += len(looked.unlooked)
        return looked

    async def positions_at(self, timestamp: float) -> Mapping[ShardId, Offset]:
        """Records have no times here, so none is young enough."""
        return await self._network.call(
            self._process, "kafka", "times", dict, 10.0, SourceUnavailableError, SourceUnavailableError
        )

    async def written_at(self, positions: Mapping[ShardId, Offset]) -> Mapping[ShardId, float | None]:
        """Records have no times here, so the source does not tell."""
        return await self._network.call(
            self._process, "kafka", "times", dict, 10.0, SourceUnavailableError, SourceUnavailableError
        )

    async def log_ends(self, shards: Sequence[ShardId]) -> Mapping[ShardId, Offset]:
        """Where the shards end now, of those that have a leader."""
        kafka = self._kafka

        def ends() -> dict[ShardId, Offset]:
            return {shard: kafka.history.shards[shard].end for shard in shards if shard not in kafka.leaderless}

        return await self._network.call(
            self._process, "kafka", "ends", ends, 10.0, SourceUnavailableError, SourceUnavailableError
        )

    async def live_members(self) -> tuple[str, ...]:
        return await self._network.call(
            self._process, "kafka", "members", lambda: (), 10.0, SourceUnavailableError, SourceUnavailableError
        )

    async def close(self) -> None:
        """Nothing to close."""


class SimulatedOffsets:
    """OffsetStore over the network, with the epoch that its last take_over got."""

    def __init__(self, process: Process, network: Network, kafka: Kafka, proven_at: Callable[[], float]) -> None:
        self._process, self._network, self._kafka, self._proven_at = process, network, kafka, proven_at
        self._epoch = 0
        self._dirty = False

    async def take_over(self) -> None:
        name = self._process.name

        def initialise() -> int:
            self._network.out_of_limbo()
            return self._kafka.initialise(name, self._proven_at())

        self._epoch = await self._network.call(
            self._process, "kafka", "init", initialise, 15.0, SourceUnavailableError, SourceUnavailableError
        )
        self._dirty = False

    async def read(self, shards: Sequence[ShardId]) -> Mapping[ShardId, Offset]:
        def find() -> dict[ShardId, Offset]:
            if self._dirty and self._epoch == self._kafka.epoch:
                # Our own open transaction is ended by a new epoch under our own id.
                self._kafka.epoch += 1
                self._epoch = self._kafka.epoch
                self._kafka.initialised[self._epoch] = self._process.name
            committed = self._kafka.committed
            return {shard: committed[shard] for shard in shards if shard in committed}

        found = await self._network.call(
            self._process, "kafka", "read", find, 10.0, SourceUnavailableError, SourceUnavailableError
        )
        self._dirty = False
        self._kafka.history.hear_positions(self._process.name)
        return found

    async def notes(self, shards: Sequence[ShardId]) -> Mapping[ShardId, str]:
        def find() -> dict[ShardId, str]:
            notes = self._kafka.notes
            return {shard: notes[shard] for shard in shards if shard in notes}

        return await self._network.call(
            self._process, "kafka", "notes", find, 10.0, SourceUnavailableError, SourceUnavailableError
        )

    async def commit(self, offsets: Mapping[ShardId, Offset], notes: Mapping[ShardId, str]) -> None:
        epoch, wanted, noted = self._epoch, dict(offsets), dict(notes)
        resets = self._kafka.history.asked_by_reset(wanted)
        again = all(self._kafka.committed.get(shard) == offset for shard, offset in wanted.items())
        try:
            await self._network.call(
                self._process,
                "kafka",
                "commit",
                lambda: self._kafka.commit(epoch, wanted, noted, self._process.name, resets),
                10.0,
                OutcomeUnknownError,
                SourceUnavailableError,
            )
        except (OutcomeUnknownError, CommitFencedError, SourceUnavailableError) as error:
            if not isinstance(error, SourceUnavailableError):
                self._kafka.failed_at[self._process.name] = self._process.loop.timeline.now
            self._dirty = True
            raise
        if not again:
            self._kafka.history.hear_positions(self._process.name)

    async def forget(self, shards: Sequence[ShardId]) -> None:
        """No group of a world declares it."""
        raise BrokenError(f"offsets of {shards} are to be deleted")

    async def close(self) -> None:
        """Nothing to close."""
