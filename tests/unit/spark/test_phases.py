"""What a consumer tells that it is about, from its warm-up on, and that it reads what it has waited for."""

from __future__ import annotations

import asyncio

from shardherd.core.model.nouns import Phase, ShardId
from shardherd.spark.agent import KEEP_WARM_AFTER
from shardherd.spark.flow import Limits
from shardherd.spark.offsets import Offsets
from tests.unit.spark.simulated import GROUP, Scene, story

A = ShardId("clicks/0")


async def reported(scene: Scene) -> tuple[Phase | None, float, float]:
    """What the next heartbeat tells: the phase, for how long, and in how many seconds it goes on."""
    count = len(scene.coordinator.heartbeats)
    await scene.until(lambda: len(scene.coordinator.heartbeats) > count)
    last = scene.coordinator.heartbeats[-1]
    return last.phase, round(last.phase_age, 1), round(last.goes_on_in, 1)


async def holding(scene: Scene, records: int) -> Offsets:
    """Warm, and with one shard that has so many records."""
    end = await scene.agent.latest(Offsets(GROUP), None)
    end = await scene.agent.latest(end, None)
    scene.coordinator.assign((A, 4, 0))
    await scene.until(lambda: scene.agent.tracker.shards == (A,))
    scene.end_offsets.end_offsets = {A: records}
    return end


def test_a_consumer_tells_that_it_warms_up_is_idle_reads_and_waits_for_its_sink() -> None:
    async def body(scene: Scene) -> None:
        assert (await reported(scene))[0] == Phase.WARMING
        start = await holding(scene, 0)
        assert (await reported(scene))[0] == Phase.IDLE
        scene.end_offsets.end_offsets[A] = 100
        end = await scene.agent.latest(start, None)
        assert await reported(scene) == (Phase.READING, 0.0, 0.0)
        assert await reported(scene) == (Phase.READING, 3.0, 0.0)
        scene.agent.set_writing(True)
        assert await reported(scene) == (Phase.WRITING, 0.0, 0.0)
        assert await reported(scene) == (Phase.WRITING, 3.0, 0.0)
        scene.agent.finished(end)
        assert (await reported(scene))[0] == Phase.IDLE

    story(body)


def test_a_consumer_that_cannot_see_whether_there_is_more_to_read_is_not_idle() -> None:
    async def body(scene: Scene) -> None:
        await holding(scene, 0)
        scene.end_offsets.away = True
        assert (await reported(scene))[0] == Phase.READING
        scene.end_offsets.away = False
        assert (await reported(scene))[0] == Phase.IDLE

    story(body)


def test_the_next_micro_batch_is_read_before_its_sink_can_wait() -> None:
    async def body(scene: Scene) -> None:
        end = await scene.agent.latest(await holding(scene, 100), None)
        scene.agent.set_writing(True)
        scene.end_offsets.end_offsets[A] = 200
        await scene.agent.latest(end, None)
        assert (await reported(scene))[0] == Phase.READING

    story(body)


def test_a_query_between_two_triggers_waits_until_the_next() -> None:
    async def body(scene: Scene) -> None:
        end = await scene.agent.latest(await holding(scene, 100), None)
        scene.agent.trigger_interval = 600.0
        asked = scene.loop.time()
        scene.agent.finished(end)
        scene.end_offsets.end_offsets[A] = 200
        phase, _, left = await reported(scene)
        assert (phase, left) == (Phase.WAITING, round(600.0 - (scene.loop.time() - asked), 1))
        await asyncio.sleep(600.0)
        assert (await reported(scene))[0] == Phase.READING, "it should have asked"

    story(body)


def test_a_query_whose_trigger_fires_at_once_and_that_does_not_ask_waits_for_nothing() -> None:
    async def body(scene: Scene) -> None:
        await holding(scene, 100)
        assert (await reported(scene))[0] == Phase.READING

    story(body)


def test_few_records_wait_until_the_longest_delay_though_workers_are_kept_warm_meanwhile() -> None:
    async def body(scene: Scene) -> None:
        scene.agent.query_began(Limits(min_records=1000, max_delay=900.0))
        begun = scene.loop.time()
        start = await holding(scene, 10)
        phase, _, left = await reported(scene)
        assert (phase, 890.0 < left < 900.0) == (Phase.WAITING, True)
        empty = 0
        while not (end := await scene.agent.latest(start, None)).shards or end.shards[A].start == end.shards[A].stop:
            empty += end.warm > start.warm
            start = end
            assert scene.loop.time() - begun < 1000.0, "it is never read"
        assert 900.0 <= scene.loop.time() - begun < 901.0
        assert empty == 900.0 // (KEEP_WARM_AFTER + 1.0)
        assert (end.shards[A].start, end.shards[A].stop) == (0, 10)

    story(body)


def test_nobody_says_that_it_waits_for_longer_than_a_coordinator_believes() -> None:
    async def body(scene: Scene) -> None:
        end = await scene.agent.latest(await holding(scene, 100), None)
        scene.agent.trigger_interval = 1e9
        scene.agent.finished(end)
        scene.end_offsets.end_offsets[A] = 200
        assert await reported(scene) == (Phase.WAITING, 0.0, 86_400.0)

    story(body)
