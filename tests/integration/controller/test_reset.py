"""A reset as its user sees it: kubectl, the real operator and broker, and consumers on the real protocol."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from dev.cluster import Cluster
from tests.harness.cluster import Names
from tests.harness.long import long
from tests.integration.controller.bench import RESOURCE, fill_topic, unique, until
from tests.integration.controller.process import OperatorProcess, operating
from tests.integration.controller.test_rollout import RECORDS, SHARDS, Rollout, group


@pytest.fixture(scope="module")
def operator(cluster: Cluster, names: Names, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    with operating(cluster, unique(names, "reset"), tmp_path_factory.mktemp("reset")) as process:
        process.start()
        yield process


@pytest.fixture(scope="module")
def topic(cluster: Cluster, names: Names) -> str:
    """A topic of four partitions with 600 records each: more than are read in a test."""
    topic = unique(names, "reset")
    fill_topic(cluster, topic, SHARDS, RECORDS)
    return topic


class Reset:
    """What its user types, and what is shown."""

    def __init__(self, rollout: Rollout) -> None:
        self._rollout = rollout
        self._cluster, self._namespace = rollout.operator.cluster, rollout.operator.namespace

    def kubectl(self, *arguments: str) -> str:
        return self._cluster.kubectl("-n", self._namespace, *arguments)

    def declare(self, **spec: Any) -> None:
        """`kubectl patch`, as docs/day-two.md has it."""
        self.kubectl("patch", RESOURCE, self._rollout.name, "--type=merge", "-p", json.dumps({"spec": spec}))

    def until(self, state: str) -> dict[str, Any]:
        """`status.reset` once it is in this state. `kubectl wait` knows it, too."""
        self.kubectl("wait", RESOURCE, self._rollout.name, f"--for=jsonpath={{.status.reset.state}}={state}", "--timeout=60s")
        found: dict[str, Any] = self._rollout.status()["reset"]
        return found


def test_a_reset_is_tried_then_made_then_read_from(operator: OperatorProcess, topic: str) -> None:
    with group(operator, topic, "again") as rollout:
        reset = Reset(rollout)
        reset.declare(reset={"id": "r1", "to": "Earliest", "dryRun": True})
        planned = reset.until("Planned")
        assert (planned["shards"], [row["after"] for row in planned["rows"]]) == (4, [0, 0, 0, 0])
        rollout.until_all_are_read()

        reset.declare(reset={"dryRun": False})
        assert "set spec.paused to true" in reset.until("PauseFirst")["message"]
        rollout.until_all_are_read()

        reset.declare(paused=True)
        done = reset.until("Done")
        read = {shard: len(rollout.kubelet.of(shard)) for shard in rollout.shards}
        assert done["recordsRepeated"] == sum(row["before"] for row in done["rows"]) > 0
        assert {name: rollout.status()["lastReset"][name] for name in ("id", "to", "shards", "fieldManager")} == {
            "id": "r1",
            "to": "Earliest",
            "shards": 4,
            "fieldManager": "kubectl-patch",
        }
        # Events are written beside what they tell of.
        for reason in ("ResetPlanned", "ResetWaits", "ResetDone"):
            until(lambda reason=reason: reason in reset.kubectl("describe", RESOURCE, "again"))  # type: ignore[misc]
        until(lambda: [line for line in operator.logged() if "ResetDone: reset r1 to Earliest" in line["message"]])

        reset.declare(paused=False)
        begins = dict.fromkeys(rollout.shards, 0)
        until(
            lambda: all(
                len([item for item in rollout.kubelet.of(shard) if item.begin == begins[shard]]) == 2
                for shard in rollout.shards
            ),
            lambda: (rollout.status(), read),
        )
        rollout.until_all_are_read()
        assert rollout.status()["lastReset"]["time"] == done["time"], "it was made once"


@long
def test_an_offset_that_a_shard_does_not_have_changes_nothing(operator: OperatorProcess, topic: str) -> None:
    with group(operator, topic, "refused") as rollout:
        reset = Reset(rollout)
        reset.declare(paused=True, reset={"id": "r1", "to": "Offsets", "offsets": {f"{topic}/0": 5, f"{topic}/1": 601}})
        refused = reset.until("Refused")
        assert refused["message"] == (
            f"Nothing was changed: spec.reset.offsets sets {topic}/1 to 601, and it has 0 to 600. Correct it, with another id."
        )
        assert "lastReset" not in rollout.status()
        reset.declare(paused=False)
        rollout.until_all_are_read()
        for shard in rollout.shards:
            assert [item.begin for item in rollout.kubelet.of(shard)] == list(range(len(rollout.kubelet.of(shard))))
