"""What the coordinator and the controller need from outside, named for the need.

Each port has a real adapter and an in-memory twin in `shardherd.adapters`; both pass the same contract tests. Nothing here
has behaviour. Ports that the coordinator awaits are coroutines of its own event loop; `Coordination` is called from threads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from shardherd.core.group.records import PositionCopies
from shardherd.core.model.nouns import ConsumerId, GroupIdentity, GroupSpec, GroupView, Incarnation, Offset, ShardId, ShardInfo


class PortError(Exception):
    """A port could not do its work. The message names what was tried and what to do about it."""


class OwnershipConflictError(PortError):
    """Somebody else wrote the ownership since we read it: this coordinator no longer leads."""


class OwnershipGoneError(OwnershipConflictError):
    """The ownership was removed since we read it: its group is being deleted, or somebody deleted it by hand."""


class OutcomeUnknownError(PortError):
    """A write may or may not have happened. Read back, or prove leadership and start again."""


class OwnershipUnavailableError(PortError):
    """The ownership could not be read or was surely not written; it may work later."""


GROWTH_LIMIT = 8 * 900 * 1024
"""Bytes, compressed, beyond which an ownership does not grow by what could stay out of it."""


class OwnershipTooLargeError(PortError):
    """The ownership would grow beyond GROWTH_LIMIT. Nothing was written; what made it grow has to stay out."""


class SourceUnavailableError(PortError):
    """The source cannot be reached or refuses us; it may come back."""


class UnknownShardsError(SourceUnavailableError):
    """The source does not have some of the shards, or does not have them yet. Nothing was written."""

    def __init__(self, message: str, shards: frozenset[ShardId]) -> None:
        """`shards` are all of those that it does not have."""
        super().__init__(message)
        self.shards = shards


class CommitFencedError(PortError):
    """Another coordinator has taken over the offsets of this group."""


class SecretRefusedError(PortError):
    """A Secret that the operator may not use, or that lacks a key. The message names it and what to do."""


class SecretUnavailableError(PortError):
    """A Secret that cannot be read now; it may be later."""


class ReviewUnavailableError(PortError):
    """A token could not be reviewed now. The caller should retry; it is not refused."""


class Clock(Protocol):
    """Time. `now` is seconds that never go back and go on while the machine is suspended, `wall` is seconds since 1970."""

    def now(self) -> float: ...

    def wall(self) -> float: ...


@dataclass(frozen=True, slots=True)
class StoredOwnership:
    """The bytes of a group's ownership and the version to compare with at the next write.

    `damage` says why the bytes cannot be had; there are none then. `foreign`: as far as the store can tell, no coordinator
    wrote these bytes. Somebody did by hand, or put an older copy back.
    """

    data: bytes
    version: str
    damage: str = ""
    foreign: bool = False


@dataclass(frozen=True, slots=True)
class StoredCopies:
    """A group's copies of positions, and the version to compare with at the next write."""

    copies: PositionCopies
    version: str


class OwnershipStore(Protocol):
    """Who holds what, and copies of positions: two things of a group, each written by compare-and-swap."""

    async def load(self, group: GroupIdentity) -> StoredOwnership | None:
        """The last written ownership, or None if there is none. Raises OwnershipUnavailableError."""
        ...

    async def save(self, group: GroupIdentity, data: bytes, expected: str | None, *, grows: bool = False) -> str:
        """Write if the stored version is `expected` (None: it must not exist). Returns the new version.

        `grows`: it lets in what could stay out. Only that is ever refused for its size, with OwnershipTooLargeError: there is
        always room for who died, who came, and what moves. Raises OwnershipConflictError if the version is another,
        OutcomeUnknownError if it may have happened, and OwnershipUnavailableError if it surely did not happen.
        """
        ...

    async def load_copies(self, group: GroupIdentity) -> StoredCopies:
        """The copies of positions that were written last; no offsets if there are none. Raises OwnershipUnavailableError."""
        ...

    async def save_copies(self, group: GroupIdentity, copies: PositionCopies, expected: str) -> str:
        """Replace the copies of positions if their version is `expected`. Returns the new version.

        Raises OwnershipConflictError if it is another, OutcomeUnknownError if it may have happened, and
        OwnershipUnavailableError. After any of them some copies may have been replaced, and some be missing.
        """
        ...


@dataclass(frozen=True, slots=True)
class Discovered:
    """What one look at a source showed: the shards whose extents it knows.

    `unlooked` are there too, and how far they reach cannot be known now: in Kafka, a partition that has no leader since before
    anybody looked. `missing` says in a sentence what else is named and is not there, empty if nothing is.
    """

    shards: tuple[ShardInfo, ...]
    unlooked: tuple[ShardId, ...] = ()
    missing: str = ""


class ShardSource(Protocol):
    """A group's view of its source and of its durable positions there. One connection a group."""

    async def discover(self, *, sizes: bool = False, ends: bool = False) -> Discovered:
        """All shards now, with begin and end offsets, and zones where the source knows them.

        What cannot be had of some keeps nothing of the others back. Raises SourceUnavailableError if nothing can be had of any.

        With `sizes` also how many bytes they have, as far as the source shows it to us: not doing so is no error. With `ends`
        also where open shards end now, if that is looked for only where it is asked for.
        """
        ...

    async def positions_at(self, timestamp: float) -> Mapping[ShardId, Offset]:
        """Of every shard the position of its first record at or after this time, in seconds since 1970.

        A shard that has none is absent. Raises SourceUnavailableError, also if any shard cannot be looked at now.
        """
        ...

    async def written_at(self, positions: Mapping[ShardId, Offset]) -> Mapping[ShardId, float | None]:
        """When the first record at or after each position was written, in seconds since 1970, as its timestamp says.

        None if there is none yet that the group may read. Costs a bounded amount: a shard that the source did not tell of, or
        that there was no room for, is absent, and may be asked about again. Raises SourceUnavailableError.
        """
        ...

    async def log_ends(self, shards: Sequence[ShardId]) -> Mapping[ShardId, Offset]:
        """Where the next record of each of these shards is written now, also while the group may not read up to it.

        Asked of the source when it is called, never known from before. A shard that cannot be asked is absent. Raises
        SourceUnavailableError if none can.
        """
        ...

    async def live_members(self) -> tuple[str, ...]:
        """Members that the source's own group protocol sees in this group; must be empty. Raises SourceUnavailableError."""
        ...

    async def close(self) -> None: ...


class OffsetStore(Protocol):
    """Durable positions of one group, written by at most one coordinator at a time."""

    async def take_over(self) -> None:
        """Fence every earlier writer of this group. Must succeed before `read` is believed. Raises SourceUnavailableError."""
        ...

    async def read(self, shards: Sequence[ShardId]) -> Mapping[ShardId, Offset]:
        """The durable positions; a shard without one is absent. Raises SourceUnavailableError."""
        ...

    async def notes(self, shards: Sequence[ShardId]) -> Mapping[ShardId, str]:
        """What was noted with the durable positions; a shard without a position or a note is absent. Raises as `read` does."""
        ...

    async def commit(self, offsets: Mapping[ShardId, Offset], notes: Mapping[ShardId, str]) -> None:
        """Make these positions durable, each with its note if it has one, all or none; they are when this returns.

        A note has at most 400 characters. Raises CommitFencedError, OutcomeUnknownError, SourceUnavailableError (surely not
        written); of this UnknownShardsError, if the others can be committed without these.
        """
        ...

    async def forget(self, shards: Sequence[ShardId]) -> None:
        """Delete the durable positions of these shards, with their notes. One that has none is no error.

        Nothing fences this: it is for whoever has proven that it leads, and for shards that nobody holds. Raises
        SourceUnavailableError.
        """
        ...

    async def close(self) -> None: ...


class SourceConnector(Protocol):
    """Opens what a group's spec names. Opening connects to nothing yet; errors come from the calls."""

    def source(self, spec: GroupSpec) -> ShardSource: ...

    def offsets(self, spec: GroupSpec) -> OffsetStore: ...


CREDENTIALS_LABEL = "shardherd.dev/kafka-credentials"
"""The label, with the value "true", that lets the operator use a Secret."""


class SecretReader(Protocol):
    """Reads Secrets with Kafka credentials, and no others."""

    async def read(self, namespace: str, name: str) -> Mapping[str, bytes]:
        """Every key and value of a Secret that carries our label. Raises SecretRefusedError, SecretUnavailableError."""
        ...


class Leadership(Protocol):
    """Whether this process may answer. Deadlines are on the clock's `now`, counted from the sending of a renewal."""

    async def acquire(self) -> None:
        """Wait until this process leads, and go on renewing until `release`."""
        ...

    def deadline(self) -> float:
        """Until when leadership is certain; in the past when it was lost."""
        ...

    async def lost(self) -> None:
        """Wait until leadership is lost for good."""
        ...

    async def release(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Caller:
    """Who a reviewed token belongs to. `stateful_set` is the controller of the pod, empty if it has none.

    `user` and `groups` are Kubernetes' names for the caller, by which its rights are looked up. `group_uid` is of the
    ConsumerGroup that controls that very StatefulSet, by UIDs and not by names; empty if there is none.
    """

    namespace: str
    service_account: str
    pod: str
    pod_uid: str
    stateful_set: str
    user: str = ""
    groups: tuple[str, ...] = ()
    group_uid: str = ""


class TokenReviewer(Protocol):
    """Says whose token this is."""

    async def review(self, token: str) -> Caller | None:
        """The caller, or None for a token that is not valid for us. Raises ReviewUnavailableError."""
        ...

    async def may(self, caller: Caller, verb: str, namespace: str, name: str) -> bool:
        """Whether Kubernetes lets this caller `verb` the subresource `checkpoints` of the ConsumerGroup.

        Raises ReviewUnavailableError.
        """
        ...


class EventRecorder(Protocol):
    """Tells users of something that happened to a group, as a Kubernetes Event. Never blocks, never raises."""

    def record(self, group: GroupIdentity, reason: str, message: str, *, warning: bool = False) -> None: ...


class CoordinatorMetrics(Protocol):
    """What the coordinator counts. Never blocks, never raises."""

    def heartbeat(self, group: GroupIdentity, result: str) -> None:
        """One heartbeat answered: ok, or an error code."""
        ...

    def checkpoints(self, group: GroupIdentity, result: str, count: int) -> None:
        """So many checkpoints of single shards with this result: ok, unchanged, fenced, withheld, or error."""
        ...

    def rebalance(self, group: GroupIdentity, reason: str, moved: int) -> None:
        """One step that gave shards to consumers, and how many changed hands in it."""
        ...

    def refused(self, reason: str) -> None:
        """One caller that was not let in, by what did not match."""
        ...

    def source_request(self, operation: str, seconds: float) -> None:
        """One request to a source, and how long it took."""
        ...

    def source_error(self, group: GroupIdentity, operation: str) -> None:
        """One request to the group's source that failed."""
        ...


class Coordination(Protocol):
    """What the controller may ask of the coordinator. Changes are made by one thread; views may be made by any.

    Changes are made soon, in the order of the calls.
    """

    def apply(self, spec: GroupSpec, *, new: bool = False) -> None:
        """Create the group or give it this spec; a no-op if nothing changed.

        `new`: as far as its resource tells, no coordinator has ever served it.
        """
        ...

    def forget(self, group: GroupIdentity) -> None:
        """The group was deleted: stop answering for it and close its connections."""
        ...

    def view(self, group: GroupIdentity) -> GroupView | None:
        """A consistent view of the group, or None while the coordinator has not loaded it."""
        ...

    def views(self) -> Mapping[GroupIdentity, GroupView]:
        """The views of all groups, for metrics."""
        ...

    def consumer_died(self, group: GroupIdentity, consumer: ConsumerId, incarnation: Incarnation) -> None:
        """Proof of death: this incarnation, and all earlier starts of its pod, will never act again."""
        ...


Manifest = Mapping[str, Any]
"""A Kubernetes object as JSON gives it."""


class ClusterUnavailableError(PortError):
    """The API server cannot be reached or is too busy; the same call may succeed later."""


class ClusterChangedError(ClusterUnavailableError):
    """An object is where the last reading showed nothing. Nothing was written; the next reading shows it."""


class ClusterRefusedError(PortError):
    """The API server refuses the object, and will until the object or the cluster changes. The message is the server's."""


@dataclass(frozen=True, slots=True)
class GroupObjects:
    """A group's custom resource and what there is of its objects, as one read found them.

    `pods` are the drivers' and the executors'. `warnings` are (reason, message) of recent warning events about the StatefulSet,
    newest last; they are read only while pods are missing. `logs` are the last lines of drivers that keep crashing, by pod UID.
    """

    group: Manifest
    stateful_set: Manifest | None = None
    service: Manifest | None = None
    budget: Manifest | None = None
    pods: tuple[Manifest, ...] = ()
    warnings: tuple[tuple[str, str], ...] = ()
    logs: Mapping[str, str] = field(default_factory=dict)


class Namespaces(Protocol):
    """The namespaces that a label selector chooses. Every call raises as those of `Cluster`."""

    async def chosen(self) -> tuple[frozenset[str], int]:
        """All that match now, and the version of the cluster at which they did. Events of namespaces have one, too."""
        ...

    async def groups(self, namespace: str) -> tuple[str, ...]:
        """The names of the ConsumerGroups that are in a namespace now."""
        ...


class Cluster(Protocol):
    """What the controller reads and writes of Kubernetes. Every call raises ClusterUnavailableError or ClusterRefusedError."""

    async def read(self, namespace: str, name: str) -> GroupObjects | None:
        """The group and its objects, or None if there is no such group.

        Of each object at least what the controller looks at: of its labels and annotations those that begin with
        `shardherd.dev/`, of its owners their UIDs and which one controls it.
        """
        ...

    async def apply(self, manifest: Manifest) -> None:
        """Create the object or give it these fields; fields that were ours and are left out are removed."""
        ...

    async def write_status(self, group: GroupIdentity, status: Manifest) -> None:
        """Replace the status of the custom resource. Does nothing if it is gone."""
        ...

    async def delete_pod(self, namespace: str, name: str, uid: str) -> None:
        """Delete this very pod gracefully. Does nothing if it is gone."""
        ...
