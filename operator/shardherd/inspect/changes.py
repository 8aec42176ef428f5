"""What commands that change a group write, as merge patches; and what became of a reset. Pure; the operator does the rest."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardherd.controller.names import CORDONED_LABEL
from shardherd.core.model.nouns import ConsumerId, ResetState, ResetTo
from shardherd.core.model.positions import MAX_OFFSET
from shardherd.core.model.times import is_time
from shardherd.core.model.wording import count
from shardherd.inspect.answers import Answer, Section, keyed
from shardherd.inspect.observed import InspectError, Observed

Patch = dict[str, Any]

SETTLED = frozenset({ResetState.PLANNED.value, ResetState.REFUSED.value, ResetState.DONE.value, ResetState.PAUSE_FIRST.value})
"""States of a reset that do not change by waiting."""

_TIME = re.compile(r"(?a:\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d([.]\d{1,6})?(Z|[+-]\d\d:\d\d))")


@dataclass(frozen=True, slots=True)
class Reset:
    """A reset as the command line asks for it: `to` is Earliest, Latest or a time; or offsets for single shards."""

    id: str
    to: str = ""
    offsets: tuple[str, ...] = ()
    shards: tuple[str, ...] = ()
    dry_run: bool = True
    discard_state: bool = False


def paused(wanted: bool) -> Patch:
    """Pause a group, or resume it."""
    return {"spec": {"paused": wanted}}


def cordoned(wanted: bool) -> Patch:
    """Of a driver's pod: have its consumer hold nothing, or take shards again."""
    return {"metadata": {"labels": {CORDONED_LABEL: "true" if wanted else None}}}


def pausing(observed: Observed, wanted: bool) -> Answer:
    """What is said of it; `changed` is False if it was so before."""
    name, waits = observed.identity, None
    changed = bool(observed.spec.get("paused", False)) is not wanted
    if not changed:
        said = f"{name} {'is paused already' if wanted else 'was not paused'}: nothing was changed"
    elif wanted:
        waits = "micro-batches end and are checkpointed, then nothing is read until it is resumed"
        said = f"{name} is paused: {waits}"
    else:
        said = f"{name} is resumed"
    data = {"group": str(name), "paused": wanted, "changed": changed, "waits": waits, "message": said}
    return Answer(data, (Section(lines=(said,)),))


def draining(observed: Observed, consumer: str, undo: bool) -> tuple[Answer, bool]:
    """What is said of it, and whether anything is to be changed. Raises InspectError if there is no such consumer."""
    drivers = {pod.name: pod for pod in observed.drivers()}
    pod = drivers.get(ConsumerId(consumer))
    if pod is None:
        if unread := [each for each in observed.unseen if each.startswith("pods:")]:
            raise InspectError(f"which consumers group {observed.identity} has could not be read: {unread[0]}")
        there = ", ".join(sorted(drivers)) or "none yet"
        raise InspectError(f"{consumer!r} is no consumer of group {observed.identity}: there are {there}", 4)
    held, waits = sum(1 for shard in observed.picture().shards if shard.holder == consumer), None
    changed = pod.cordoned is undo
    if undo:
        said = f"{consumer} {'takes shards again' if changed else 'was not drained: nothing was changed'}"
    elif not changed:
        said = f"{consumer} is drained already, and holds {count(held, 'shard')}: nothing was changed"
    else:
        said = f"{consumer} is to give up its {count(held, 'shard')} and gets none, until `drain --undo` or its pod is replaced"
    if not undo and held:
        waits = f"{consumer} has yet to give up {count(held, 'shard')}"
    data = {
        "group": str(observed.identity),
        "consumer": consumer,
        "drained": not undo,
        "shards": held,
        "changed": changed,
        "waits": waits,
        "message": said,
    }
    return Answer(data, (Section(lines=(said,)),)), changed


def resetting(observed: Observed, reset: Reset) -> Patch:
    """The patch that declares it, for the resource as it was observed and no other. Raises InspectError if it is none."""
    before, state = observed.spec.get("reset", {}), observed.status.get("reset", {}).get("state")
    if state in (ResetState.WAITING, ResetState.APPLYING) and not before.get("dryRun", False):
        raise InspectError(f"reset {before.get('id')!r} of {observed.identity} is on its way ({state}): wait for its end")
    declared: Patch = {"id": reset.id, "dryRun": reset.dry_run}
    # What an earlier reset said must not stay beside what this one says.
    declared |= dict.fromkeys(("timestamp", "offsets", "shards"))
    if reset.discard_state or "discardState" in before:
        declared["discardState"] = True if reset.discard_state else None
    if reset.offsets:
        if reset.to or reset.shards:
            raise InspectError("--offset names shards and positions: leave --to and --shard out", 2)
        wanted: Patch = dict.fromkeys(before.get("offsets", ())) | _offsets(reset.offsets)
        declared |= {"to": ResetTo.OFFSETS.value, "offsets": wanted}
    elif reset.to in (ResetTo.EARLIEST, ResetTo.LATEST):
        declared["to"] = reset.to
    elif _TIME.fullmatch(reset.to) and is_time(reset.to):
        declared |= {"to": ResetTo.TIMESTAMP.value, "timestamp": reset.to}
    else:
        raise InspectError(
            f"--to is {reset.to!r}: write Earliest, Latest or a time such as 2026-01-31T12:00:00Z; or --offset topic/0=1200", 2
        )
    if reset.shards:
        declared["shards"] = list(reset.shards)
    if not reset.dry_run and not observed.spec.get("paused", False):
        raise InspectError(
            f"{observed.identity} is not paused, and a reset is made in a paused group only: `shardherd pause"
            f" {observed.identity.name}` first"
        )
    # What somebody else declares meanwhile would be mixed with it.
    version = observed.resource["metadata"].get("resourceVersion")
    return ({"metadata": {"resourceVersion": version}} if version else {}) | {"spec": {"reset": declared}}


def state_of_reset(resource: Mapping[str, Any], reset_id: str) -> str:
    """How far the operator is with this reset; empty until it has seen it."""
    status = resource.get("status", {})
    seen = status.get("observedGeneration", 0) >= resource["metadata"].get("generation", 0)
    found = status.get("reset", {})
    return str(found.get("state", "")) if seen and found.get("id") == reset_id else ""


def reset_answer(resource: Mapping[str, Any], reset_id: str) -> Answer:
    """What became of it: exit code 3 if it was refused or waits."""
    found, state = resource.get("status", {}).get("reset", {}), state_of_reset(resource, reset_id)
    heads: Sequence[str] = ("shard", "before", "after")
    rows = tuple((row["shard"], row.get("before"), row["after"]) for row in found.get("rows", ())) if state else ()
    unseen = f"The operator has not answered yet: {_becomes(resource.get('spec', {}).get('reset', {}), reset_id)}."
    said = [f"{state}: {found.get('message', '')}" if state else unseen]
    if state and "shards" in found:
        again, skipped = found.get("recordsRepeated", 0), found.get("recordsSkipped", 0)
        said.append(f"{count(found['shards'], 'shard')}; {again} records are read again, {skipped} are not read.")
    more = found.get("shards", 0) - len(rows) if state else 0
    sections = (
        Section(lines=tuple(said)),
        Section(heads=("SHARD", "BEFORE", "AFTER"), rows=rows) if rows else Section(),
        Section(lines=(f"... and {count(more, 'more shard')}.",) if more > 0 else ()),
    )
    data = {
        "id": reset_id,
        "state": state or None,
        "message": found.get("message") if state else unseen,
        "shards": found.get("shards") if state else None,
        "recordsRepeated": found.get("recordsRepeated") if state else None,
        "recordsSkipped": found.get("recordsSkipped") if state else None,
        "rows": keyed(heads, rows),
    }
    good = state in (ResetState.PLANNED, ResetState.DONE)
    return Answer(data, sections, 0 if good else 3)


def _becomes(declared: Mapping[str, Any], reset_id: str) -> str:
    """What becomes of a reset that the operator has not seen."""
    if declared.get("id") != reset_id:
        return "another reset was declared in its place" if declared else "it is not declared any more"
    made = "planned once it does" if declared.get("dryRun", False) else "made once it does, if the group is paused then"
    return f"it stays declared, and is {made}"


def _offsets(texts: Sequence[str]) -> dict[str, int]:
    """What each shard is set to. Raises InspectError for what is none, and for a shard that is to be in two places."""
    found: dict[str, int] = {}
    for text in texts:
        shard, equals, offset = text.rpartition("=")
        if not equals or "/" not in shard or re.fullmatch("[0-9]{1,19}", offset) is None or int(offset) > MAX_OFFSET:
            raise InspectError(
                f"--offset is {text!r}: write topic/partition=offset, for example clicks/0=1200; an offset is at most"
                f" {MAX_OFFSET}",
                2,
            )
        if found.get(shard, int(offset)) != int(offset):
            raise InspectError(f"--offset names {shard} twice, with {found[shard]} and {offset}: leave one of them out", 2)
        found[shard] = int(offset)
    return found
