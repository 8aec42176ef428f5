"""What a reader of a replay is told of a request and its answer."""

from __future__ import annotations

from typing import Any

from shardherd.core.model.nouns import CheckpointReply, CheckpointRequest, Heartbeat, HeartbeatReply


def described(request: Any, outcome: Any) -> str:
    """A request and its answer in one line."""
    if isinstance(request, Heartbeat):
        held = " ".join(f"{each.shard}@{each.owner_epoch}" for each in request.held) or "nothing"
        asked = f"heartbeat {request.seq} at revision {request.revision}, holding {held}"
    elif isinstance(request, CheckpointRequest):
        asked = "checkpoint " + " ".join(f"{each.shard}@{each.owner_epoch}:{each.offset}" for each in request.checkpoints)
    else:
        asked = type(request).__name__.lower()
    if isinstance(outcome, HeartbeatReply):
        confirmed = " ".join(f"{each.shard}@{each.owner_epoch}:{each.position}" for each in outcome.confirmed) or "nothing"
        fenced = "".join(f" fenced {each.shard}@{each.owner_epoch}" for each in outcome.fenced)
        return f"{asked} => revision {outcome.revision}, confirmed {confirmed}{fenced}"
    if isinstance(outcome, CheckpointReply):
        return f"{asked} => " + " ".join(f"{each.shard}:{each.result}" for each in outcome.outcomes)
    return f"{asked} => {outcome!r}"
