"""What a span says of a request of a consumer, at the consumer's end of it and at the operator's. Decides nothing.

`client.traced` and `adapters.traces` call it. Neither records nor credentials may be among it.
"""

from __future__ import annotations

from shardherd.core.model.nouns import CheckpointRequest, Heartbeat, Leave

OK, GIVEN_UP = "ok", "given up"
"""Outcomes of what was not refused."""


def about(request: object) -> dict[str, str | int]:
    """Attributes of a heartbeat, a checkpoint or a leave; none of anything else."""
    match request:
        case Heartbeat():
            return {
                "shardherd.consumer": request.consumer,
                "shardherd.heartbeat": request.seq,
                "shardherd.shards.held": len(request.held),
                "shardherd.phase": request.phase.value if request.phase is not None else "",
            }
        case CheckpointRequest():
            return {"shardherd.consumer": request.consumer, "shardherd.shards": len(request.checkpoints)}
        case Leave():
            return {"shardherd.consumer": request.consumer}
    return {}
