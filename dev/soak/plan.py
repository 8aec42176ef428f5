"""Decides which faults a run suffers, and when: drawn from a seed, the same for the same seed, kinds and length. Pure.

Called by the command line and by `run`. It does nothing to anybody: `inflict` does. Every kind comes once before any comes
again. What it draws keeps to what the groups declare at that moment, so that a victim exists; one consumer is spared for all
the run, and after half of it no leader is ended, so that something lives long enough for its growth to be seen.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

STATELESS, ORDERED, PLAIN = "stateless", "ordered", "plain"
GROUPS = (STATELESS, ORDERED, PLAIN)

CONSUMERS = 2
"""Consumers of each group at first and in the end, and at most."""

SHARDS, MOST_SHARDS = 4, 12
"""Partitions of each topic at first, and at most."""

SPARED = (STATELESS, 0)
"""The consumer that is never ended: its growth is measured."""

SESSION_S = 30.0
"""`sessionTimeout` of the groups: long enough for two cores on which everybody starts at once."""

GAP_S = (10.0, 30.0)
"""Seconds from the end of one fault to the begin of the next one: short enough that they meet each other's recovery."""

BLINK_S = (2.0, 8.0)
"""Seconds of a pause that everybody must survive: of a consumer within its session, of a leader within its lease."""

TRANCE_S = (SESSION_S + 5.0, SESSION_S + 15.0)
"""Seconds of a pause that ends the session of a consumer."""

LEASE_S = (20.0, 30.0)
"""Seconds of a pause that ends the lease of a leader."""

ASSIGNORS = ("Range", "RoundRobin", "Weighted", "Sticky")


class Kind(StrEnum):
    """What may happen."""

    KILL = "kill"
    DELETE = "delete"
    FREEZE = "freeze"
    BLINK = "blink"
    BROKER = "broker"
    LEADER_KILL = "leader-kill"
    LEADER_DELETE = "leader-delete"
    LEADER_FREEZE = "leader-freeze"
    LEADER_BLINK = "leader-blink"
    GROW = "grow"
    SCALE = "scale"
    ASSIGNOR = "assignor"
    PAUSE = "pause"
    ROLLOUT = "rollout"


ENDS_LEADER = frozenset({Kind.LEADER_KILL, Kind.LEADER_DELETE, Kind.LEADER_FREEZE})
ENDS_CONSUMER = frozenset({Kind.KILL, Kind.DELETE, Kind.FREEZE})
LASTS: dict[Kind, tuple[float, float]] = {
    Kind.FREEZE: TRANCE_S,
    Kind.BLINK: BLINK_S,
    Kind.BROKER: (0.0, 10.0),
    Kind.LEADER_FREEZE: LEASE_S,
    Kind.LEADER_BLINK: BLINK_S,
    Kind.PAUSE: (5.0, 15.0),
}
"""Seconds that a fault of this kind lasts; the others are over at once."""


@dataclass(frozen=True)
class Fault:
    """One fault, `at` seconds after the first could be. `value` is what is declared, or how many partitions there are then."""

    at: float
    kind: Kind
    group: str = ""
    consumer: int = 0
    seconds: float = 0.0
    value: str = ""

    def __str__(self) -> str:
        """For people."""
        victim = f"{self.group}-{self.consumer}" if self.kind in ENDS_CONSUMER | {Kind.BLINK} else self.group
        words = [str(self.kind), victim, self.value, f"for {self.seconds:.0f} s" if self.seconds else ""]
        return f"{self.at:6.0f}s  {' '.join(word for word in words if word)}"


class UnknownKindError(ValueError):
    """A fault was asked for that there is none of."""


def kinds_of(words: str) -> tuple[Kind, ...]:
    """The kinds that FAULTS names: `random` is all of them, `none` none, otherwise their names with commas in between."""
    if words == "random":
        return tuple(Kind)
    if words == "none":
        return ()
    names = [word.strip() for word in words.split(",")]
    if unknown := [name for name in names if name not in set(Kind)]:
        raise UnknownKindError(
            f"FAULTS names {', '.join(map(repr, unknown))}; give random, none, or some of {', '.join(Kind)} with commas"
        )
    return tuple(kind for kind in Kind if kind in names)


@dataclass
class _Declared:
    """What the groups declare once the faults drawn so far have been done."""

    consumers: dict[str, int] = field(default_factory=lambda: dict.fromkeys(GROUPS, CONSUMERS))
    shards: dict[str, int] = field(default_factory=lambda: dict.fromkeys(GROUPS, SHARDS))
    assignors: dict[str, str] = field(default_factory=lambda: dict.fromkeys(GROUPS, "Sticky"))
    rollouts: int = 0


def draw(seed: int, seconds: float, kinds: Sequence[Kind]) -> tuple[Fault, ...]:
    """The faults of a run of so many seconds, the first ones first. All of them are over by its end."""
    chosen, declared = random.Random(seed), _Declared()
    faults: list[Fault] = []
    left, deck = list(kinds), list[Kind]()
    at = chosen.uniform(*GAP_S)
    while left:
        deck = deck or chosen.sample(left, len(left))
        kind = deck.pop()
        lasts = round(chosen.uniform(*LASTS[kind]), 1) if kind in LASTS else 0.0
        if at + lasts > seconds:
            break
        late = kind in ENDS_LEADER and at > seconds / 2
        fault = None if late else _fault(chosen, declared, round(at, 1), kind, lasts)
        if fault is None:
            left.remove(kind)  # it will not be possible later either
        else:
            faults.append(fault)
            at += lasts + chosen.uniform(*GAP_S)
    return tuple(faults)


def _fault(chosen: random.Random, declared: _Declared, at: float, kind: Kind, lasts: float) -> Fault | None:
    """One of this kind, with its victim; None if none is left for it."""
    if kind in ENDS_CONSUMER:
        there = [(group, number) for group in GROUPS for number in range(declared.consumers[group])]
        group, consumer = chosen.choice([each for each in there if each != SPARED])
        return Fault(at, kind, group, consumer, lasts)
    if kind == Kind.BLINK:
        group = chosen.choice(GROUPS)
        return Fault(at, kind, group, chosen.randrange(declared.consumers[group]), lasts)
    if kind == Kind.GROW:
        small = [group for group in GROUPS if declared.shards[group] < MOST_SHARDS]
        if not small:
            return None
        group = chosen.choice(small)
        declared.shards[group] = min(declared.shards[group] + chosen.randint(1, 2), MOST_SHARDS)
        return Fault(at, kind, group, value=str(declared.shards[group]))
    if kind == Kind.SCALE:
        group = chosen.choice(GROUPS)
        declared.consumers[group] = 1 if declared.consumers[group] == CONSUMERS else CONSUMERS
        return Fault(at, kind, group, value=str(declared.consumers[group]))
    if kind == Kind.ASSIGNOR:
        group = chosen.choice(GROUPS)
        declared.assignors[group] = chosen.choice([name for name in ASSIGNORS if name != declared.assignors[group]])
        return Fault(at, kind, group, value=declared.assignors[group])
    if kind == Kind.ROLLOUT:
        declared.rollouts += 1
        return Fault(at, kind, chosen.choice([group for group in GROUPS if group != SPARED[0]]), value=str(declared.rollouts))
    if kind == Kind.PAUSE:
        return Fault(at, kind, chosen.choice(GROUPS), seconds=lasts)
    return Fault(at, kind, seconds=lasts)
