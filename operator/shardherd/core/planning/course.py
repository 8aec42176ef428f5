"""The two decisions that a plan follows from: how many consumers a group has, and how far its rollout is.

Made once for each observation by `plan`; read by its policies, `status` and `conditions`. Holds no rule: those are in `scaling`
and `rollout`.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardherd.core.planning.observed import Observation
from shardherd.core.planning.rollout import Rolling, rolling
from shardherd.core.planning.scaling import Scale, scale


@dataclass(frozen=True, slots=True)
class Course:
    """Both decisions."""

    scale: Scale
    rolling: Rolling

    @classmethod
    def of(cls, observation: Observation) -> Course:
        """Decide both for this observation."""
        scaled = scale(observation)
        return cls(scaled, rolling(observation, scaled))
