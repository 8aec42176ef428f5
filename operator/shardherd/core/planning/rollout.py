"""How pods are replaced that were made from an older declaration: who goes next, when, and whether to go back.

Called by `plan`, `conditions` and `status`, which all see the same `Rolling`. One consumer at a time, the highest ordinal
first, and only while all others are ready and no shard waits for a holder: so no shard is unread for longer than one
application takes to restart. A consumer either gives its shards to the others first (Drain), or keeps them under its name
(InPlace, with `rejoinGrace`). If a new pod does not become ready within the progress deadline, all pods go back to the last
declaration that ran. Times are wall-clock, as they must survive the operator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardherd.core.model.nouns import ConsumerId, ShardState
from shardherd.core.model.reasons import ROLLED_BACK
from shardherd.core.model.times import seconds_since_1970
from shardherd.core.planning.observed import ConsumerPod, Observation, RolloutStrategy
from shardherd.core.planning.scaling import SETTLE, Scale

PROGRESSING = "Progressing"
COMPLETE = "Complete"
"""States of a rollout, with ROLLED_BACK, which is a reason too."""


@dataclass(frozen=True, slots=True)
class Rolling:
    """Where a rollout is, and its next step.

    `target` is the hash of what pods should run, `proven` that of the last declaration that all of them ran. `updated` of
    `total` consumers run the target and are ready. `progressed` is since when one more is waited for, in seconds since 1970,
    None while none is. `replace` is the pod to delete now, `emptied` the consumers that should hold nothing because their pods
    are about to be replaced, `draining` the one that has yet to give up its shards. `back` tells to go back, `why` what went
    wrong, now or then.
    """

    state: str
    target: str
    proven: str
    updated: int
    total: int
    progressed: float | None
    replace: ConsumerPod | None = None
    emptied: frozenset[ConsumerId] = frozenset()
    draining: ConsumerId | None = None
    back: bool = False
    why: str = ""


def rolling(observation: Observation, scale: Scale) -> Rolling:
    """The rollout as it stands at this observation."""
    declared = observation.declared
    staying = [pod for pod in observation.consumers if pod.ordinal < scale.desired]
    updated = sum(1 for pod in staying if pod.current and pod.ready and not pod.deleting)
    complete = 0 < scale.desired == updated
    before = _before(observation.previous)
    target, proven = declared.template_hash, str(before.get("proven", ""))
    failing = _failing(staying)
    progressed = _progressed(observation, before, updated, failing=bool(failing))
    state, why = (COMPLETE if complete else PROGRESSING), ""
    back = _overdue(observation, before, progressed)
    if declared.rejected:
        state, why = ROLLED_BACK, declared.rejected
    elif back:
        why = _why(observation, failing)
    upcoming = _next(observation, scale, staying)
    drains = upcoming is not None and _drains_first(observation, upcoming)
    in_place = declared.rollout.strategy is RolloutStrategy.IN_PLACE
    going = set() if in_place else {pod.name for pod in staying if pod.deleting and not pod.current and not pod.foreign}
    return Rolling(
        state=state,
        target=target,
        proven=target if complete else proven,
        updated=updated,
        total=scale.desired,
        progressed=progressed,
        replace=None if drains else upcoming,
        emptied=frozenset(going | ({upcoming.name} if upcoming is not None and drains else set())),
        draining=upcoming.name if upcoming is not None and drains else None,
        back=back,
        why=why,
    )


def _before(previous: Mapping[str, object]) -> Mapping[str, object]:
    written = previous.get("rollout")
    return written if isinstance(written, Mapping) else {}


def _progressed(observation: Observation, before: Mapping[str, object], updated: int, *, failing: bool) -> float | None:
    """Since when a new pod has been waited for; None while there is none, or while the reconcile is paused."""
    declared, time, known = observation.declared, before.get("progressTime"), before.get("updated")
    if not failing or declared.settings.paused or declared.pauses.reconcile:
        return None
    if before.get("target") != declared.template_hash or not isinstance(time, str):
        return observation.wall
    if isinstance(known, int) and updated > known:
        return observation.wall
    return seconds_since_1970(time)


def _overdue(observation: Observation, before: Mapping[str, object], progressed: float | None) -> bool:
    """Whether a pod of the new declaration has had its time, and there is another declaration to go back to."""
    declared, existing = observation.declared, observation.stateful_set
    if existing is None or not existing.current or declared.rejected or progressed is None:
        return False
    if existing.fallback in ("", declared.template_hash) or before.get("proven") == declared.template_hash:
        return False
    return observation.wall - progressed >= declared.rollout.progress_deadline


def _failing(staying: list[ConsumerPod]) -> list[ConsumerPod]:
    """New pods that are not ready, or not yet."""
    return [pod for pod in staying if pod.current and not pod.ready and not pod.deleting]


def _why(observation: Observation, failing: list[ConsumerPod]) -> str:
    troubles = [f"{pod.trouble.message.removesuffix('.')}." for pod in failing if pod.trouble is not None]
    deadline = observation.declared.rollout.progress_deadline
    said = troubles[0] if troubles else f"Pod {failing[0].name} was not ready."
    generation = observation.declared.generation
    return f"What generation {generation} declares did not run within spec.rollout.progressDeadline ({deadline:g} s): {said}"


def _next(observation: Observation, scale: Scale, staying: list[ConsumerPod]) -> ConsumerPod | None:
    """The next pod to be replaced while all goes well; those that do not run anyway are no matter of order."""
    existing, declared = observation.stateful_set, observation.declared
    if existing is None or not existing.current or observation.taken or declared.settings.paused or scale.leaving:
        return None
    outdated = [pod for pod in staying if not pod.current and not pod.foreign]
    all_ready = len(staying) == scale.desired and all(pod.ready and not pod.deleting for pod in staying)
    if not outdated or not all_ready or _waits_for_a_holder(observation):
        return None
    return max(outdated, key=lambda candidate: candidate.ordinal)


def _waits_for_a_holder(observation: Observation) -> bool:
    """Whether shards are about to be granted. One that cannot be granted for long must not keep a remedy from rolling out."""
    view, limit = observation.view, observation.declared.settings.release_timeout
    return view is not None and any(
        shard.state is ShardState.NOT_ALLOC and shard.present and shard.state_age < limit for shard in view.shards
    )


def _drains_first(observation: Observation, pod: ConsumerPod) -> bool:
    """Whether this consumer still has to give its shards to others, and there are any to take them."""
    declared = observation.declared
    others = [other for other in observation.consumers if other.ready and not other.deleting and other.name != pod.name]
    if declared.rollout.strategy is RolloutStrategy.IN_PLACE or not any(not other.cordoned for other in others):
        return False
    known = observation.memory.rolling
    if known is None or known[0] != pod.name:
        return True
    waited = observation.now - known[1]
    if waited >= declared.drain_timeout:
        return False
    # A consumer that holds nothing now may be granted a shard before the coordinator has heard.
    return waited < SETTLE or observation.holds(pod.name)
