"""Kafka's offsets of a group are gone: what docs/day-two.md says to type brings them back from the operator's copies."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from dev.cluster import Cluster
from shardherd.adapters.kubernetes.copies import ConfigMapCopies
from shardherd.core.group.records import PositionCopies
from shardherd.core.model.nouns import GroupIdentity, Offset, ShardId
from tests.harness.cluster import Names
from tests.harness.long import long
from tests.integration.controller.bench import RESOURCE, ROOT, fill_topic, unique, until
from tests.integration.controller.process import operating
from tests.integration.controller.test_rollout import SHARDS, group

RECORDS = 40
"""Records of each shard. Consumers come to its end: one that reads on brings its positions back by its next checkpoints."""


def commands(section: str) -> str:
    """What a section of the runbook says to type."""
    text = (ROOT / "docs" / "day-two.md").read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return "\n".join(re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))


def typed(cluster: Cluster, folder: Path, script: str) -> str:
    """What a shell prints in which kubectl leads to this cluster."""
    kubectl = folder / "kubectl"
    kubectl.write_text(f'#!/bin/sh\nexec "{cluster.tools.kubectl}" --kubeconfig "{cluster.kubeconfig}" "$@"\n')
    kubectl.chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], env=environment, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@long
@pytest.mark.timeout(300)
async def test_lost_positions_come_back_by_the_commands_of_the_runbook(cluster: Cluster, names: Names, tmp_path: Path) -> None:
    namespace, topic = unique(names, "restore"), unique(names, "restore")
    fill_topic(cluster, topic, SHARDS, RECORDS)
    with operating(cluster, namespace, tmp_path) as operator:
        operator.start()
        with group(operator, topic, "restored", end=lambda _: RECORDS) as rollout:
            resource = operator.api.call("GET", rollout.path)
            identity = GroupIdentity(namespace, "restored", resource["metadata"]["uid"])
            # As the operator would have written it: each is below what is durable by then.
            copies = {ShardId(shard): Offset(len(rollout.kubelet.of(shard))) for shard in rollout.shards}
            await ConfigMapCopies(operator.api).save_copies(identity, PositionCopies(copies), "")
            begins = {shard: int(copies[ShardId(shard)]) for shard in rollout.shards}
            assert max(begins.values()) < RECORDS

            def read() -> dict[str, list[int]]:
                return {shard: [item.begin for item in rollout.kubelet.of(shard)] for shard in begins}

            until(lambda: read() == {shard: list(range(RECORDS)) for shard in begins}, read)
            assert operator.end() == 0
            cluster.kafka_tool("kafka-consumer-groups", "--delete", "--group", f"{namespace}.restored")
            operator.start()
            cluster.kubectl("-n", namespace, "wait", RESOURCE, "restored", "--for=condition=CheckpointLost", "--timeout=60s")

            typed(
                cluster,
                tmp_path,
                commands("Restore").replace("clickstream", "restored").replace("-n streams", f"-n {namespace}"),
            )

            twice = {shard: sorted([*range(RECORDS), *range(begin, RECORDS)]) for shard, begin in begins.items()}
            until(lambda: read() == twice, lambda: (rollout.status(), begins, read(), rollout.kubelet.failures))
            lost = [item for item in rollout.status()["conditions"] if item["type"] == "CheckpointLost"]
            assert [(item["status"], item["reason"]) for item in lost] == [("False", "CheckpointsKept")]
