"""The stored form of a group's ownership: JSON, versioned, in columns so that it compresses well.

Written and read by the coordinator's runtime. What was written once can be read by every later version, or is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Set
from typing import Any, TypeVar

from msgspec.structs import astuple

from shardherd.core.group.records import ConsumerRecord, GroupRecord, Ownership, ShardRecord
from shardherd.core.model.errors import OwnershipDamagedError, OwnershipFormatError
from shardherd.core.model.messages import Seconds
from shardherd.core.model.naming import split
from shardherd.core.model.nouns import (
    ConsumerId,
    Growth,
    Incarnation,
    ResetReport,
    ResetRow,
    ResetState,
    ResetTo,
    ShardId,
    ShardState,
)

T = TypeVar("T")

FORMAT = 1
"""The next one is 3: 2 is what stands where the store keeps an ownership in parts, for versions that know of none."""

STATES = (ShardState.WAIT, ShardState.NOT_ALLOC, ShardState.ALREADY_ALLOC, ShardState.TRANSFER, ShardState.OVER)
"""Numbers of the states in the stored form; never reorder."""


def encode(ownership: Ownership) -> dict[str, Any]:
    """A JSON-able value. `decode` gives the same ownership back, but for the times of states."""
    shards = list(ownership.shards.values())
    names = sorted(
        {name for record in shards for name in (record.holder, record.next_consumer, record.last_holder) if name is not None}
    )
    runs = sorted(
        {(record.incarnation.pod_uid, record.incarnation.start) for record in shards if record.incarnation is not None}
    )
    name_index = {name: at for at, name in enumerate(names)}
    run_index = {run: at for at, run in enumerate(runs)}

    def name(value: ConsumerId | None) -> int:
        return -1 if value is None else name_index[value]

    def run(value: Incarnation | None) -> int:
        return -1 if value is None else run_index[value.pod_uid, value.start]

    group = ownership.group
    return {
        "format": FORMAT,
        "group": {
            "uid": group.uid,
            "leaderEpoch": group.leader_epoch,
            "groupEpoch": group.group_epoch,
            "revision": group.revision,
            "discovered": group.discovered,
            "epochFloor": group.epoch_floor,
            "growths": [
                [each.topic, each.before, each.after, [list(end) for end in each.ends]]
                for each in group.growths
                if not each.keeps
            ],
            **({"keeping": keeping} if (keeping := [_encode_keeping(each) for each in group.growths if each.keeps]) else {}),
            "rebuilding": group.rebuilding,
            "reset": _encode_reset(group.reset),
            # Mostly the same: kept once.
            "lastReset": None if group.last_reset == group.reset else _encode_reset(group.last_reset),
            "resetIds": list(group.reset_ids),
            "resetSources": [list(each) for each in group.reset_sources],
            "resetLeftOut": list(group.reset_left_out),
            # Only where there are cells, and their state was ever lost or discarded.
            **({"state": state} if any(state := _state(group)) else {}),
            **({"counts": [list(each) for each in group.counts]} if group.counts else {}),
            **({"sessionTimeout": group.session_timeout} if group.session_timeout else {}),
        },
        "consumers": [_encode_consumer(consumer) for consumer in ownership.consumers.values()],
        "names": names,
        "runs": [list(value) for value in runs],
        "shards": {
            "shard": [record.shard for record in shards],
            "state": [STATES.index(record.state) for record in shards],
            "start": [record.start for record in shards],
            "started": [int(record.started) for record in shards],
            "holder": [name(record.holder) for record in shards],
            "run": [run(record.incarnation) for record in shards],
            "next": [name(record.next_consumer) for record in shards],
            "last": [name(record.last_holder) for record in shards],
            "epoch": [record.owner_epoch for record in shards],
            "since": [record.held_since_epoch for record in shards],
            "revision": [record.revision for record in shards],
            "source": [record.source_id for record in shards],
            "parents": {record.shard: list(record.parents) for record in shards if record.parents},
            # Only of groups that read up to a time.
            **({"ends": ends} if (ends := {record.shard: list(record.end) for record in shards if record.end}) else {}),
        },
    }


def decode(data: object) -> Ownership:
    """The ownership that was encoded.

    Raises OwnershipFormatError if another version wrote it, OwnershipDamagedError if it is nothing that any version wrote.
    """
    found = data.get("format") if isinstance(data, Mapping) else None
    if isinstance(found, int) and found != FORMAT:
        raise OwnershipFormatError(
            f"the stored ownership has format {found}, this version reads {FORMAT}; run the version that wrote it, or a later"
            f" one"
        )
    try:
        if not isinstance(data, Mapping) or found != FORMAT:
            raise TypeError(f"its format is {found!r}")
        return _decode(data)
    except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
        raise OwnershipDamagedError(f"the stored ownership is damaged: {type(error).__name__}: {error}") from error


def loads(text: bytes) -> Ownership:
    """The ownership of a text that `dumps` gave. Raises as `decode` does."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OwnershipDamagedError(f"the stored ownership is damaged: it is not JSON: {error}") from error
    return decode(data)


def dumps(ownership: Ownership) -> bytes:
    """The stored text of an ownership: equal ownerships give equal texts."""
    return json.dumps(encode(ownership), separators=(",", ":"), sort_keys=True).encode()


def _decode(data: Mapping[str, Any]) -> Ownership:
    group = data["group"]
    names: Sequence[ConsumerId] = data["names"]
    runs = [Incarnation(uid, start) for uid, start in data["runs"]]
    columns = data["shards"]
    lengths = {len(column) for name, column in columns.items() if name not in ("parents", "ends")}
    if len(lengths) != 1:
        raise ValueError(f"the columns of its shards have lengths {sorted(lengths)}")
    shards = {}
    ends = {shard: (source, end) for shard, (source, end) in columns.get("ends", {}).items()}
    for at, shard in enumerate(columns["shard"]):
        shards[ShardId(shard)] = ShardRecord(
            shard=ShardId(shard),
            state=STATES[columns["state"][at]],
            start=columns["start"][at],
            started=bool(columns["started"][at]),
            holder=_at(names, columns["holder"][at]),
            incarnation=_at(runs, columns["run"][at]),
            next_consumer=_at(names, columns["next"][at]),
            last_holder=_at(names, columns["last"][at]),
            owner_epoch=columns["epoch"][at],
            held_since_epoch=columns["since"][at],
            revision=columns["revision"][at],
            parents=tuple(columns["parents"].get(shard, ())),
            source_id=columns["source"][at],
            end=ends.get(shard),
        )
    consumers = [_decode_consumer(consumer) for consumer in data["consumers"]]
    known = {consumer.consumer for consumer in consumers}
    for record in shards.values():
        _check(record, known)
    return Ownership(
        GroupRecord(
            uid=group["uid"],
            leader_epoch=group["leaderEpoch"],
            group_epoch=group["groupEpoch"],
            revision=group["revision"],
            discovered=group["discovered"],
            rebuilding=group.get("rebuilding", False),
            epoch_floor=group.get("epochFloor", 0),
            growths=(
                *(_decode_growth(growth) for growth in group.get("growths", ())),
                *(_decode_keeping(growth) for growth in group.get("keeping", ())),
            ),
            reset=(reset := _decode_reset(group.get("reset"))),
            last_reset=_decode_reset(group.get("lastReset")) or _made(reset),
            reset_ids=tuple(group.get("resetIds", ())),
            reset_sources=tuple((ShardId(shard), source) for shard, source in group.get("resetSources", ())),
            reset_left_out=tuple(map(ShardId, group.get("resetLeftOut", ()))),
            state_generation=(state := group.get("state", (0, 0, ())))[0],
            state_revision=state[1],
            state_lost=tuple(state[2]),
            counts=tuple((topic, number) for topic, number in group.get("counts", ())),
            session_timeout=group.get("sessionTimeout", 0.0),
        ),
        shards,
        {consumer.consumer: consumer for consumer in consumers},
    )


def _state(group: GroupRecord) -> list[Any]:
    return [group.state_generation, group.state_revision, list(group.state_lost)]


def _decode_growth(data: Sequence[Any]) -> Growth:
    topic, before, after, ends = data
    return Growth(topic, before, after, tuple((ShardId(shard), end) for shard, end in ends))


def _encode_keeping(growth: Growth) -> list[Any]:
    # Numbers, not names: there may be tens of thousands.
    return [growth.topic, growth.before, growth.after, [[split(shard)[1], end] for shard, end in growth.ends]]


def _decode_keeping(data: Sequence[Any]) -> Growth:
    topic, before, after, ends = data
    return Growth(topic, before, after, tuple((ShardId(f"{topic}/{number}"), end) for number, end in ends), keeps=True)


def _encode_reset(report: ResetReport | None) -> dict[str, Any] | None:
    if report is None:
        return None
    return {
        "id": report.id,
        "to": report.to.value,
        "state": report.state.value,
        "message": report.message,
        "time": report.time,
        "shards": report.shards,
        "repeated": report.repeated,
        "skipped": report.skipped,
        "manager": report.manager,
        "rows": [list(column) for column in zip(*map(astuple, report.rows), strict=True)],
    }


def _decode_reset(data: Mapping[str, Any] | None) -> ResetReport | None:
    if data is None:
        return None
    rows = tuple(ResetRow(ShardId(shard), before, after) for shard, before, after in zip(*data["rows"], strict=True))
    plain = {name: data[name] for name in ("id", "message", "shards", "repeated", "skipped", "manager")}
    to, reached, time = ResetTo(data["to"]), ResetState(data["state"]), Seconds(data["time"])
    return ResetReport(to=to, state=reached, time=time, rows=rows, **plain)


def _made(report: ResetReport | None) -> ResetReport | None:
    return report if report is not None and report.state is ResetState.DONE else None


def _check(record: ShardRecord, known: Set[ConsumerId]) -> None:
    """Raises ValueError unless the row is possible: a shard has a holder, and a next consumer, iff its state says so."""
    held = record.state in (ShardState.ALREADY_ALLOC, ShardState.TRANSFER)
    holder = record.holder in known and record.incarnation is not None if held else record.holder is None
    moving = record.next_consumer in known if record.state is ShardState.TRANSFER else record.next_consumer is None
    if not holder or not moving or record.held_since_epoch > record.owner_epoch:
        raise ValueError(f"shard {record.shard} is {record.state}, held by {record.holder} and next {record.next_consumer}")


def _at(values: Sequence[T], index: int) -> T | None:
    return None if index < 0 else values[index]


def _encode_consumer(consumer: ConsumerRecord) -> dict[str, Any]:
    return {
        "consumer": consumer.consumer,
        "run": _encode_run(consumer.incarnation),
        "present": consumer.present,
        "ended": None if consumer.ended is None else _encode_run(consumer.ended),
        "endReason": consumer.end_reason,
        "superseded": list(consumer.superseded),
        "proven": [_encode_run(run) for run in consumer.proven],
        "zone": consumer.zone,
        "capacity": consumer.capacity,
    }


def _decode_consumer(data: Mapping[str, Any]) -> ConsumerRecord:
    return ConsumerRecord(
        consumer=ConsumerId(data["consumer"]),
        incarnation=_decode_run(data["run"]),
        present=data["present"],
        ended=None if data["ended"] is None else _decode_run(data["ended"]),
        end_reason=data["endReason"],
        superseded=tuple(data["superseded"]),
        proven=tuple(_decode_run(run) for run in data["proven"]),
        zone=data.get("zone", ""),
        capacity=data.get("capacity", 1),
    )


def _encode_run(run: Incarnation) -> list[Any]:
    return [run.pod_uid, run.start]


def _decode_run(data: Sequence[Any]) -> Incarnation:
    return Incarnation(data[0], data[1])
