"""A group that reads Kinesis, as a whole on a real API server: who holds what and its positions are in ConfigMaps there."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shardherd.core.model.nouns import GroupSpec, KinesisSource, ShardId, ShardState
from shardherd.source.kinesis import environment
from tests.harness.kinesis import REGION, PlayedKinesis, open_shards, stream, update_count
from tests.harness.kinesis_load import put_round
from tests.integration.coordinator.rig import SETTINGS, Rig, becomes
from tests.integration.coordinator.scenes import Scene, more_rounds
from tests.integration.coordinator.workers import SEQUENCES, Workers

KEYS = [f"key-{number}" for number in range(20)]
SECRET = {"accessKeyId": "played", "secretAccessKey": "played"}


@dataclass
class KinesisLoad:
    """Puts a round of records at a time, every other one aggregated as the producer library does it."""

    client: Any
    stream: str
    keys: list[str]
    rounds: int = 0
    over: bool = False

    def write(self) -> None:
        while not self.over:
            put_round(self.client, self.stream, self.keys, self.rounds)
            self.rounds += 1
            time.sleep(0.02)

    def close(self) -> None:
        """Nothing is open between two rounds."""


async def scene(rig: Rig, service: PlayedKinesis, name: str, folder: Path) -> Scene:
    """An ordered group of two workers that reads the stream of this name from its beginning. Whoever calls it ends it."""
    secret = {"metadata": {"name": name, "labels": {"shardherd.dev/kafka-credentials": "true"}}, "stringData": SECRET}
    await rig.kubernetes.api.acall("POST", f"/api/v1/namespaces/{rig.namespace}/secrets", secret)
    keys = folder / "keys"
    keys.mkdir()
    for key, text in SECRET.items():
        (keys / key).write_text(text)
    source = KinesisSource(name, REGION, service.url, name, "Earliest")
    identity, settings = await rig.pods(name, 2), replace(SETTINGS, ordered=True)
    spec = GroupSpec(identity, source, settings, wanted=2, service_account=name)
    coordinator = await rig.coordinator()
    coordinator.server.coordination.apply(spec)
    of_pod = {
        environment.STREAM: name,
        environment.REGION: REGION,
        environment.ENDPOINT: service.url,
        environment.CREDENTIALS: str(keys),
    }
    return Scene(rig, Workers(rig, coordinator, spec, folder, SEQUENCES, of_pod))


async def test_each_key_is_read_in_order_while_the_count_of_shards_is_updated_under_load(
    rig: Rig, name: str, kinesis: PlayedKinesis, tmp_path: Path
) -> None:
    """Doubled and halved. The parents are read late, another coordinator takes the lead from one that lives on, and a worker is
    killed: what reads on has the positions in the ConfigMap only."""
    with stream(kinesis, name, 2) as client:
        played = await scene(rig, kinesis, name, tmp_path)
        try:
            await played.start()
            load = played.load(KinesisLoad(client, name, KEYS))
            await becomes(lambda: set(played.read.of) == set(KEYS))
            parents = [ShardId(f"{name}/{shard}") for shard in open_shards(client, name)]
            played.workers.hold_up(*parents)
            await more_rounds(load)
            await asyncio.to_thread(update_count, client, name, 4)
            await becomes(lambda: played.waiting() == 4)
            former = await played.replace_leader()
            await played.replace_worker(0)
            await more_rounds(load)
            assert played.waiting() == 4
            played.workers.hold_up()
            await becomes(lambda: played.waiting() == 0)
            await asyncio.to_thread(update_count, client, name, 2)
            await becomes(lambda: len(played.view.shards) == 8 and played.waiting() == 0)
            await more_rounds(load)
            await played.caught_up()
            await becomes(lambda: not former.leads)
            over = {ShardState.OVER: 6, ShardState.ALREADY_ALLOC: 2}
            await becomes(lambda: Counter(row.state for row in played.view.shards) == over)
            assert min(row.checkpoint or 0 for row in played.view.shards) > 2**63
        finally:
            await played.end()
    assert played.read.disorder() == []
    assert set(played.read.of) == set(KEYS)
