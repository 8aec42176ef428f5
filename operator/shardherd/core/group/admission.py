"""Which groups may be served: no two that share durable positions, and not too many on one topic.

Called by the coordinator's runtime whenever a group comes or goes, or reads something else. A function of all groups' specs: it
does not depend on the order in which a coordinator hears of them. The oldest are admitted first.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from shardherd.core.model.nouns import Condition, GroupIdentity, GroupSpec, KafkaSource, KinesisSource, Source
from shardherd.core.model.reasons import GROUP_ID_TAKEN, TOO_MANY_GROUPS


def refused(specs: Iterable[GroupSpec], most: int) -> Mapping[GroupIdentity, Condition]:
    """Which groups are not admitted, and why. `most` is how many groups may read one topic; 0 means any number.

    The specification's services allow five groups a stream, and never two of one name.
    """
    specs = tuple(specs)
    if _uncontested(specs, most):
        return {}
    found: dict[GroupIdentity, Condition] = {}
    holders: dict[tuple[str, str], GroupIdentity] = {}
    readers: Counter[tuple[str, str]] = Counter()
    for spec in sorted(specs, key=lambda spec: (spec.created, spec.identity.namespace, spec.identity.name)):
        source, place = spec.source, _place(spec.source)
        holder = holders.get((place, source.group_id)) if isinstance(source, KafkaSource) else None
        if holder is not None and isinstance(source, KafkaSource):
            found[spec.identity] = Condition(
                GROUP_ID_TAKEN,
                f"ConsumerGroup {holder} keeps its positions in the Kafka group {source.group_id!r} of the same brokers;"
                " give this one a spec.source.kafka.groupId of its own",
            )
            continue
        topics = tuple(_topics(source)) if most else ()
        full = [topic for topic in topics if readers[place, topic] >= most]
        if full:
            found[spec.identity] = Condition(
                TOO_MANY_GROUPS,
                f"{most} groups read {full[0]} of {_shown(source)} already, and this operator allows no more; delete"
                " one, or raise api.maxGroupsPerSource of the chart",
            )
            continue
        if isinstance(source, KafkaSource):
            holders[place, source.group_id] = spec.identity
        readers.update((place, topic) for topic in topics)
    return found


def _uncontested(specs: Sequence[GroupSpec], most: int) -> bool:
    """Whether all are admitted, whichever are the oldest: so it nearly always is, and nothing need be put in order."""
    sources = [spec.source for spec in specs]
    kept = [(_place(source), source.group_id) for source in sources if isinstance(source, KafkaSource)]
    if len(set(kept)) < len(kept):
        return False
    readers = Counter((_place(source), topic) for source in sources for topic in _topics(source)) if most else {}
    return max(readers.values(), default=0) <= most


def _place(source: Source) -> str:
    """Where topics of one name are the same topic, as far as the source's declaration tells."""
    return _brokers(source.bootstrap_servers) if isinstance(source, KafkaSource) else _shown(source)


def _shown(source: Source) -> str:
    return source.bootstrap_servers if isinstance(source, KafkaSource) else source.endpoint or f"region {source.region}"


@functools.lru_cache(1024)
def _brokers(bootstrap_servers: str) -> str:
    """The cluster, as far as its name tells: the same addresses in any order."""
    return ",".join(sorted(address.strip().lower() for address in bootstrap_servers.split(",")))


def _topics(source: Source) -> Iterator[str]:
    if isinstance(source, KinesisSource):
        yield f"stream {source.name!r}"
        return
    yield from (f"topic {topic!r}" for topic in source.topics)
    if source.topic_pattern:
        yield f"pattern {source.topic_pattern!r}"
