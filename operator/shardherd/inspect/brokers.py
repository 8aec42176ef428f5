"""What brokers say of the topics of groups, judged for who reads them: a part of what `doctor` says. Pure.

Nobody tells a broker how a producer is set. What can be seen of producers is what the topic demands of them, whether those that
wrote lately have an id, and the transactions that are open; the last line says that the rest is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from shardherd.adapters.kafka.connection import MOST_ANSWER
from shardherd.adapters.kafka.survey import Survey, TopicSurvey
from shardherd.core.model.wording import count, some, verb
from shardherd.core.planning.durability import durability
from shardherd.inspect.checks import BAD, NOTE, OK, UNKNOWN, Check
from shardherd.source.kafka.fetch_memory import FETCH_MEMORY

TOPICS = 3
"""So many topics of which the same is said are named."""

LATE = 0.8
"""A group that is behind by this part of the time for which records are kept will lose some soon."""

QUIET = 900.0
"""Seconds without a write after which an open transaction is forgotten, not slow: brokers let none be longer, by default."""

ANSWERS = 3
"""A worker has room for so many of the largest answers, if it keeps to its memory."""

UNTOLD = "no broker is told acks, retries, delivery.timeout.ms, linger.ms or the partitioner: see the producers' configuration"


@dataclass(frozen=True, slots=True)
class Asked:
    """What came of asking the brokers of one group: `found`, or why there is none. `behind`: the age of its lag in seconds."""

    group: str
    found: Survey | None = None
    refused: str = ""
    read_committed: bool = False
    behind: float | None = None


@dataclass(frozen=True, slots=True)
class Said:
    """Of one topic: about what, how it is, in which words, and the remedy."""

    about: str
    verdict: str
    message: str
    remedy: str = ""


def judged(asked: Sequence[Asked], wall: float, elsewhere: str = "") -> Iterator[Check]:
    """The lines of the brokers, group by group.

    `elsewhere`: how to ask from where the brokers can be reached. With it, it is not bad that they cannot be from here.
    """
    for each in asked:
        if each.found is None:
            verdict, more = (UNKNOWN, f"; to ask from inside of the cluster: {elsewhere}") if elsewhere else (BAD, "")
            yield Check(f"broker of {each.group}, from here", verdict, f"{each.refused}{more}")
            continue
        yield Check(
            f"broker of {each.group}, from here",
            OK,
            f"{count(each.found.brokers, 'broker')} of Kafka {each.found.version} by what they serve",
        )
        for topic, why in each.found.missing.items():
            yield Check(f"topics of {each.group}", BAD, f"{topic}: {why}", "create the topic, or let the group's user read it")
        yield from _folded(
            each.group, [(topic.name, said) for topic in each.found.topics for said in _topic(topic, each, wall)]
        )
    if any(each.found is not None for each in asked):
        yield Check("producers' settings", UNKNOWN, UNTOLD)


def _folded(group: str, found: Iterable[tuple[str, Said]]) -> Iterator[Check]:
    """What is so of several topics is said once."""
    topics: dict[Said, list[str]] = {}
    for topic, said in found:
        topics.setdefault(said, []).append(topic)
    for said in sorted(topics, key=lambda said: _ABOUT.index(said.about)):
        yield Check(f"{said.about} of {group}", said.verdict, f"{some(topics[said], TOPICS)}: {said.message}", said.remedy)


_ABOUT = ("settings", "replicas", "retention", "batches", "timestamps", "producers")
"""In this order."""


def _topic(topic: TopicSurvey, asked: Asked, wall: float) -> Iterator[Said]:
    settings = topic.settings or {}
    if topic.settings is None:
        refused = topic.settings_refused or "they were not told"
        yield Said("settings", UNKNOWN, f"{refused} (it takes DESCRIBE_CONFIGS on the topic)")
    yield _replicas(topic, settings)
    if settings:
        yield from _retention(settings, asked.behind)
        yield from _batches(settings)
        yield _timestamps(settings)
    yield _producers(topic, wall, read_committed=asked.read_committed)


def _replicas(topic: TopicSurvey, settings: Mapping[str, str]) -> Said:
    least = int(settings.get("min.insync.replicas", 0))
    found = durability(topic.replicas, topic.in_sync, topic.leaderless, least)
    return Said("replicas", found.level.value, found.said, found.remedy)


def _retention(settings: Mapping[str, str], behind: float | None) -> Iterator[Said]:
    policies = settings.get("cleanup.policy", "delete")
    if "compact" in policies:
        said = "compacted: of records with the same key a group that is behind may see the last one only"
        yield Said("retention", NOTE, said)
    if "delete" not in policies:
        return
    kept, size = int(settings.get("retention.ms", -1)), int(settings.get("retention.bytes", -1))
    limits = [
        *([f"for {_time(kept / 1000)}"] if kept >= 0 else []),
        *([f"up to {size} bytes a partition"] if size >= 0 else []),
    ]
    said = f"records are kept {' and '.join(limits) or 'for ever'}"
    if behind is None:
        yield Said("retention", OK, said)
    elif 0 <= kept <= behind * 1000 / LATE:
        said = f"{said}, and the group is {_time(behind)} behind: records go before they are read"
        yield Said(
            "retention", BAD, said, "keep them for longer (retention.ms) until the group has caught up; see `shardherd lag`"
        )
    else:
        yield Said("retention", OK, f"{said}, and the group is {_time(behind)} behind")


def _batches(settings: Mapping[str, str]) -> Iterator[Said]:
    if "max.message.bytes" not in settings:
        return
    most = int(settings["max.message.bytes"])
    said = f"up to {most} bytes (max.message.bytes)"
    if most > MOST_ANSWER:
        said = f"{said}: the operator takes answers of {MOST_ANSWER}, and cannot tell the age of the lag at a larger batch"
        yield Said("batches", BAD, said, "lower max.message.bytes of the topic")
    elif most * ANSWERS > FETCH_MEMORY:
        said = f"{said}: a worker needs {most * ANSWERS} bytes for batches like that, more than maxFetchBytesPerTask by default"
        yield Said("batches", NOTE, said)
    else:
        yield Said("batches", OK, said)


def _timestamps(settings: Mapping[str, str]) -> Said:
    if settings.get("message.timestamp.type") == "LogAppendTime":
        return Said("timestamps", OK, "the brokers' (LogAppendTime)")
    return Said("timestamps", OK, "the producers' (CreateTime): the age of the lag is as right as their clocks")


def _producers(topic: TopicSurvey, wall: float, *, read_committed: bool) -> Said:
    known = topic.producers
    if known is None:
        refused = topic.producers_refused or "they were not told"
        return Said("producers", UNKNOWN, refused)
    if not known.known:
        return Said("producers", OK, "none with an id wrote lately; one without may write a record twice when it tries again")
    said = f"{known.known} with an id (idempotent or transactional) wrote lately"
    if not known.open or known.quiet_since is None:
        return Said("producers", OK, f"{said}, no transaction is open")
    quiet = max(0.0, wall - known.quiet_since)
    said = f"{said}, {count(known.open, 'transaction')} {verb(known.open, 'is', 'are')} open"
    if quiet < QUIET:
        return Said("producers", OK, said)
    said = f"{said}, one without a write for {_time(quiet)}"
    if not read_committed:
        return Said("producers", NOTE, said)
    remedy = "find who began it, and end it: kafka-transactions.sh find-hanging, then abort"
    return Said("producers", BAD, f"{said}: the group reads nothing that comes after it", remedy)


def _time(seconds: float) -> str:
    """A time in its largest unit."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
