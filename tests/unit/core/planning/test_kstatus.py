"""What tools that know nothing of us make of a group: those that go by kstatus, whose rules these are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from shardherd.core.model.nouns import ShardState
from shardherd.core.planning.observed import Observation, Owned, OwnedSet, Trouble
from tests.unit.core.planning.builders import consumers, declared, observation, pods, shards, status_of, view


def kstatus(generation: int, written: Mapping[str, Any]) -> str:
    """As `GetStatus` of sigs.k8s.io/cli-utils has it for a resource of which it knows no more."""
    if written["observedGeneration"] != generation:
        return "InProgress"
    for condition in written["conditions"]:
        if condition["status"] == "True" and condition["type"] in ("Reconciling", "Stalled"):
            return "InProgress" if condition["type"] == "Reconciling" else "Failed"
    (ready,) = [condition for condition in written["conditions"] if condition["type"] == "Ready"]
    return "Current" if ready["status"] == "True" else "InProgress"


def shown(seen: Observation, generation: int = 1) -> str:
    return kstatus(generation, status_of(seen))


WITHOUT_IMAGE = Trouble("ImageUnavailable", "Pod clicks-1 cannot get the image.")
QUOTA = ("FailedCreate", 'pods "clicks-1" is forbidden: exceeded quota: small')


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        pytest.param(observation(), "Current", id="it reads"),
        pytest.param(
            observation(view=view((*shards(6), *shards(2, ShardState.TRANSFER)), consumers=consumers(4, 4))),
            "Current",
            id="shards move",
        ),
        pytest.param(observation(view=None, stateful_set=None, consumers=()), "InProgress", id="it is new"),
        pytest.param(observation(consumers=(*pods(0), *pods(1, ready=False))), "InProgress", id="a consumer starts"),
        pytest.param(observation(stateful_set=OwnedSet(replicas=1), consumers=pods(0)), "InProgress", id="it grows"),
        pytest.param(
            observation(view=view(shards(8), source_reachable=False, source_error="no broker answers")),
            "InProgress",
            id="its source is away",
        ),
        pytest.param(
            observation(consumers=(*pods(0), *pods(1, ready=False, trouble=WITHOUT_IMAGE))), "Failed", id="it has no image"
        ),
        # Pods are missing too, so it is Reconciling as well.
        pytest.param(observation(consumers=pods(0), warnings=(QUOTA,)), "Failed", id="the quota is used up"),
        pytest.param(observation(service=Owned(ours=False), stateful_set=None, consumers=()), "Failed", id="its name is taken"),
        pytest.param(observation(declared=declared(deleting=True)), "InProgress", id="it is deleted"),
    ],
)
def test_it_says(seen: Observation, said: str) -> None:
    assert shown(seen) == said


def test_of_a_declaration_that_was_not_looked_at_yet_it_says_nothing_final() -> None:
    assert shown(observation(), generation=2) == "InProgress"
