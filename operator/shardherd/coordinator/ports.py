"""What the coordinator is built from, and how it says that it may not go on. Decides nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

from shardherd.core.assignors import ASSIGNORS, Assignors
from shardherd.ports import (
    Clock,
    CoordinatorMetrics,
    EventRecorder,
    Leadership,
    OwnershipStore,
    SourceConnector,
    TokenReviewer,
)


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


class LeadershipLostError(Exception):
    """This process may not answer any more and must end; the message says what proved it."""
