"""What the coordinator is built from, who looks on, and how it says that it may not go on. Decides nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from shardherd.coordinator.routes import Handler
from shardherd.core.assignors import ASSIGNORS, Assignors
from shardherd.core.group.decisions import Decision
from shardherd.core.model.nouns import GroupIdentity
from shardherd.core.model.requests import Request
from shardherd.ports import (
    Clock,
    CoordinatorMetrics,
    EventRecorder,
    Leadership,
    OwnershipStore,
    SourceConnector,
    TokenReviewer,
)

Decide = Callable[[Request, float], Decision]
Exists = Callable[[str, str], Awaitable[bool]]
"""Whether there is a ConsumerGroup of this namespace and name, announced or not. Raises CoordinatorUnavailableError."""


class Observer(Protocol):
    """Looks on while requests are answered, for traces. Changes nothing of them, never blocks, never raises."""

    def answering(self, answer: Handler) -> Handler:
        """What answers every request of the API from now on."""
        ...

    def asked(self, request: Request) -> None:
        """What the caller asks of its group, now that it is let in. Called by the task that answers it."""
        ...

    def deciding(self, group: GroupIdentity, decide: Decide, /) -> Decide:
        """What decides on every request of this group from now on."""
        ...


class Unobserved:
    """An Observer that is out of the way."""

    def answering(self, answer: Handler) -> Handler:
        return answer

    def asked(self, request: Request) -> None:
        pass

    def deciding(self, _group: GroupIdentity, decide: Decide, /) -> Decide:
        return decide


@dataclass(frozen=True, slots=True)
class CoordinatorPorts:
    """The adapters that the composition root hands in, and the assignors that it found."""

    clock: Clock
    leadership: Leadership
    ownership: OwnershipStore
    connector: SourceConnector
    tokens: TokenReviewer
    events: EventRecorder
    metrics: CoordinatorMetrics
    assignors: Assignors = field(default_factory=lambda: ASSIGNORS)
    observer: Observer = field(default_factory=Unobserved)


class LeadershipLostError(Exception):
    """This process may not answer any more and must end; the message says what proved it."""
