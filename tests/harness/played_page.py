"""An operator's page over groups that a test plays: the real server, over views and resources that the test writes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from shardherd.core.model.messages import Seconds
from shardherd.core.model.nouns import ConsumerId, ConsumerView, GroupIdentity, GroupView, Phase, ShardState, ShardView
from shardherd.core.planning.listing import identity_of
from shardherd.page.history import POINTS, History
from shardherd.page.serving import LOOPBACK, PageServer, Views
from tests.unit.inspect.observations import SINCE, resource, run

Json = dict[str, Any]
WALL = 1_795_000_000.0


class Clock:
    """Time that a test moves, as Clock of the ports."""

    def __init__(self) -> None:
        self.time = WALL

    def now(self) -> float:
        return self.time

    def wall(self) -> float:
        return self.time


class Pages:
    """Groups by namespace and name, each a resource and a view, and the page of them once it is served."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.history = History(self.clock.wall)
        self.resources: dict[tuple[str, str], Json] = {}
        self.views: dict[GroupIdentity, GroupView] = {}
        self.made = Views(lambda: self.resources.values(), self.views.get, self.history, self.clock, "1.2.3")
        self._server: PageServer | None = None
        self._port = 0

    def put(self, made: Json, view: GroupView | None = None) -> GroupIdentity:
        """A group is so now. `made` is its resource."""
        identity = identity_of(made)
        self.resources[identity.namespace, identity.name] = made
        self.views.pop(identity, None)
        if view is not None:
            self.views[identity] = view
        return identity

    def drop(self) -> None:
        """There is no group any more."""
        self.resources.clear()
        self.views.clear()

    def passes(self, seconds: float = 5.0) -> None:
        """Time passes, so that the next document is a new one."""
        self.clock.time += seconds

    def hour(self, group: GroupIdentity) -> None:
        """An hour of a history in which a backlog came and was read."""
        view = self.views[group]
        for number in range(POINTS):
            self.clock.time = WALL - (POINTS - number) * 15.0
            backlog = max(0, int(1500 + 1400 * math.sin(number / 24) + 300 * math.sin(number / 5)))
            shards = (
                msgspec.structs.replace(view.shards[0], lag_records=backlog),
                *(msgspec.structs.replace(each, lag_records=0) for each in view.shards[1:]),
            )
            aged = msgspec.structs.replace(view, shards=shards, lag_seconds=None if 60 < number < 80 else backlog // 40)
            self.history.sample({group: aged})
            self.views[group] = aged
        self.clock.time = WALL

    def serve(self) -> str:
        """Serve, where it was served before; the page's address."""
        self._server = PageServer(self._port, self.made, "127.0.0.1", LOOPBACK)
        self._port = self._server.port
        return self.url

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/"

    def away(self) -> None:
        """The operator is gone."""
        if self._server is not None:
            self._server.close()
            self._server = None


def group(shards: int, consumers: int, *, lag: int = 0, name: str = "clicks", **fields: Any) -> tuple[Json, GroupView]:
    """A group whose shards are held in turn; its resource and its view."""
    names = [ConsumerId(f"{name}-{number}") for number in range(consumers)]
    held = tuple(shard(number, names[number % consumers], topic=name, lag=lag) for number in range(shards))
    counts = {"total": shards, "wait": 0, "notAlloc": 0, "alreadyAlloc": shards, "transfer": 0, "over": 0}
    each = f"{shards} shards, {-(-shards // consumers)} for each consumer."
    scaling = {"desired": consumers, "reason": "FollowingShards", "message": each, "time": SINCE}
    status = {
        "shards": counts,
        "readyReplicas": consumers,
        "desiredReplicas": consumers,
        "scaling": scaling,
        **fields.pop("status", {}),
    }
    said = {
        "Ready": ("True", "Consuming", f"{consumers} consumers read {shards} shards."),
        "Reconciling": ("False", "Settled", f"{consumers} consumers as declared."),
        "SourceReachable": ("True", "Discovered", f"{shards} shards found."),
        "ConsumersReady": ("True", "AllReady", f"{consumers} of {consumers} consumers are ready."),
        "Balanced": ("True", "Balanced", f"{consumers} consumers with {-(-shards // consumers)} shards each at most."),
        "ScalingActive": ("True", "FollowingShards", each),
        **fields.pop("conditions", {}),
    }
    return resource(name, status=status, conditions=said, **fields), view(names, held)


def view(names: list[ConsumerId], shards: tuple[ShardView, ...], **fields: Any) -> GroupView:
    """What the coordinator shows: consumers that read."""
    known = tuple(
        ConsumerView(
            each,
            run(each),
            ready=True,
            draining=False,
            shards=sum(shard.holder == each for shard in shards),
            heartbeat_age=Seconds(1.0),
            phase=Phase.READING,
            phase_age=Seconds(4.0),
            zone="eu-1a",
        )
        for each in names
    )
    values: dict[str, Any] = {"source_reachable": True, "discovered": True, "lag_seconds": 3, **fields}
    return GroupView(7, 12, shards, known, **values)


def shard(number: int, holder: str | None, *, topic: str = "clicks", lag: int = 0, **fields: Any) -> ShardView:
    """A shard as the coordinator shows it."""
    usual = ShardState.ALREADY_ALLOC if holder else ShardState.NOT_ALLOC
    values: dict[str, Any] = {"state": usual, "checkpoint": 100, "begin": 0, "end": 100 + lag, "lag_records": lag, **fields}
    return ShardView(f"{topic}/{number}", holder=holder, owner_epoch=number + 1, state_age=Seconds(65.0), **values)  # type: ignore[arg-type]


def moved(picture: GroupView, **holders: Mapping[str, Any]) -> GroupView:
    """The same view with other fields of some shards, which are named by their partition, as `_3`."""
    changed = {int(name.removeprefix("_")): fields for name, fields in holders.items()}
    shards = tuple(
        msgspec.structs.replace(each, **changed[number]) if number in changed else each
        for number, each in enumerate(picture.shards)
    )
    return msgspec.structs.replace(picture, shards=shards)
