"""What the replicas of a topic mean for producers with acks=all: whether they can write, and what an outage loses.

`shardherd doctor` says it of the topics that a group reads, the Kafka sink of the one that it writes, when it begins. Pure.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from shardherd.core.model.wording import count, verb


class Level(Enum):
    """How bad it is: nothing can be written; something could be lost, or stop; nothing."""

    BAD = "bad"
    NOTE = "note"
    OK = "ok"


class Durability(NamedTuple):
    """`said` is for people, and so is `remedy`, which is there where nothing can be written."""

    level: Level
    said: str
    remedy: str = ""


def durability(have: int, in_sync: int, leaderless: int, least: int) -> Durability:
    """Of the fewest replicas of a partition, the fewest that are in sync, the partitions that nobody leads, and
    `min.insync.replicas`, 0 if that is not known."""
    if leaderless:
        led = verb(leaderless, "has", "have")
        said = f"{count(leaderless, 'partition')} {led} no leader, and can be neither read nor written"
        return Durability(Level.BAD, said, "start the brokers that have them")
    if least > have:
        said = f"min.insync.replicas is {least}, and there are {have}: producers with acks=all cannot write"
        return Durability(Level.BAD, said, "lower min.insync.replicas of the topic, or give it more replicas")
    if in_sync < least:
        said = f"{in_sync} of {have} are in sync, and min.insync.replicas is {least}: producers with acks=all cannot write"
        return Durability(Level.BAD, said, "see which brokers are away, or behind")
    if have == 1:
        return Durability(Level.NOTE, "1 replica: what is written is lost with its broker's disk")
    if in_sync < have:
        return Durability(Level.NOTE, f"{in_sync} of {have} are in sync")
    if not least:
        return Durability(Level.OK, f"{have} replicas")
    if least == 1:
        said = f"min.insync.replicas is 1 of {have}: what one broker alone has is told to be written, and can be lost with it"
        return Durability(Level.NOTE, said)
    if least == have:
        said = f"min.insync.replicas is {least} of {have}: while one broker is away, producers with acks=all cannot write"
        return Durability(Level.NOTE, said)
    return Durability(Level.OK, f"{have} replicas, of which producers with acks=all need {least}")
