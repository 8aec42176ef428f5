"""What is said of how a shard, or a whole group, is read; and what each word means.

Given by `core.planning.verdicts`; the table of docs/day-two.md is made from it. Users see the values, so none ever changes.
Decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class Verdict(StrEnum):
    """How a shard is read. In the order in which the verdict of a group is chosen: it is that of its worst shard."""

    STALLED = "Stalled"
    STOPPED = "Stopped"
    LAGGING = "Lagging"
    REWOUND = "Rewound"
    UNKNOWN = "Unknown"
    OK = "OK"


MEANINGS: Mapping[Verdict, str] = MappingProxyType(
    {
        Verdict.STALLED: "there is something to read, somebody holds the shard and does not get on: its position stands",
        Verdict.STOPPED: "there is something to read, its position stands, and nobody is meant to read it now: no consumer "
        "holds it, or has held it for a minute, or the group or its holder is paused, or its conditions name what else keeps "
        "it",
        Verdict.LAGGING: "it is read, and its lag does not fall: for a minute or longer it was never below what it was at the "
        "begin of that time, and it is more than its consumer reads in two steps",
        Verdict.REWOUND: "its position was set back, and it has not come to where it was before",
        Verdict.UNKNOWN: "it cannot be said: the source does not answer, its position or its end is not known or does not fit "
        "the other, or the operator that leads has not looked for long enough",
        Verdict.OK: "there is nothing to read, or the lag falls, or its consumer waits as it should: for its trigger, or until "
        "the shards that come before are read",
    }
)
