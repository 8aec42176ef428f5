"""The largest group: 100,000 shards are served, and what does not fit its store any more is refused with a condition."""

from __future__ import annotations

import json
from dataclasses import replace

from shardherd import protocol
from shardherd.coordinator.api import MAX_BODY
from shardherd.core.ownership import encode
from tests.unit.coordinator.rig import IDENTITY, Rig, spec_of

LARGEST = 100_000


async def test_a_group_of_a_hundred_thousand_shards_is_served_and_its_requests_fit(rig: Rig) -> None:
    rig.kafka.create_topic("large", LARGEST)
    spec = spec_of()
    rig.runtime.apply(replace(spec, source=replace(spec.source, topics=("large",))))
    consumer = rig.consumer()
    await rig.becomes(lambda: (view := rig.runtime.view(IDENTITY)) is not None and len(view.shards) == LARGEST, within=60)

    async def holds_all() -> bool:
        return len((await consumer.heartbeat()).confirmed) == LARGEST

    await rig.comes_true(holds_all, within=60)

    assert len(protocol.dumps(consumer.beat())) < MAX_BODY
    assert rig.reasons() == []
    assert {row.holder for row in rig.view.shards} == {consumer.name}


async def test_a_group_that_outgrows_its_store_keeps_what_it_has_and_says_so(rig: Rig) -> None:
    (consumer,) = await rig.serving()
    mailbox = rig.group.mailbox
    assert mailbox is not None
    rig.ownership.limit = len(json.dumps(encode(mailbox.group.ownership))) + 100

    rig.kafka.grow_topic("t", 2000)
    await rig.becomes(lambda: rig.reasons() == ["SnapshotTooLarge"])

    assert len(rig.view.shards) == 4
    assert len((await consumer.heartbeat()).confirmed) == 4
    (told,) = [condition.message for condition in rig.view.withheld]
    assert f"bytes compressed, over the limit of {rig.ownership.limit}" in told
