"""What a worker shows to who scrapes: what it did, what it holds, and what fails."""

from __future__ import annotations

import asyncio

from prometheus_client.parser import text_string_to_metric_families

from shardherd.worker.metrics import WorkerMetrics
from tests.unit.worker.scene import A, B, Scene, story

WHO = {"namespace": "shop", "consumergroup": "clicks", "consumer": "clicks-0"}


def shown(scene: Scene) -> dict[tuple[str, ...], float]:
    """Every sample by its name and the labels that are not those of each."""
    page, content_type = WorkerMetrics("shop", "clicks", "clicks-0", scene.processing.counts, scene.processing.picture).page()
    assert content_type.startswith("text/plain")
    found = {}
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            assert sample.labels.items() >= WHO.items()
            rest = tuple(value for name, value in sample.labels.items() if name not in WHO)
            found[(sample.name, *rest)] = sample.value
    return found


def test_what_was_processed_and_what_is_left_is_counted() -> None:
    async def body(scene: Scene) -> None:
        scene.logs.append(A, 25)
        scene.coordinator.assign((A, 1, 5), (B, 1, 0))
        await scene.until(lambda: len(scene.program.seen.get(A, [])) == 20)
        scene.program.takes = 1000.0
        scene.logs.append(A, 10, gap=2)
        await scene.until(lambda: len(scene.program.batches(A)) == 3)
        found = shown(scene)
        expected = {
            ("shardherd_source_records_total",): 20,
            ("shardherd_source_batches_total",): 2,
            ("shardherd_source_batch_duration_seconds_count",): 2,
            ("shardherd_agent_shards",): 2,
            ("shardherd_source_position", A): 25,
            ("shardherd_source_position", B): 0,
            ("shardherd_source_in_flight_records",): 10,
            ("shardherd_worker_lag_records",): 12,
            ("shardherd_worker_failing_shards",): 0,
            ("shardherd_worker_fetched_bytes",): 10 * scene.logs.size,
        }
        assert {key: found[key] for key in expected} == expected
        assert found["shardherd_agent_heartbeats_total", "ok"] >= 1
        assert ("shardherd_agent_heartbeat_age_seconds",) in found

    story(body, batch_size=10)


def test_what_fails_is_counted_by_its_method_and_shown_while_it_does() -> None:
    async def body(scene: Scene) -> None:
        scene.logs.append(A, 10)
        scene.program.failing["initialize"] = [OSError("no disk")]
        scene.program.results = [RuntimeError("the sink is away")] * 3
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: len(scene.program.batches(A)) == 3)
        await asyncio.sleep(0.1)
        found = shown(scene)
        assert found["shardherd_worker_failures_total", "initialize"] == 1
        assert found["shardherd_worker_failures_total", "process"] == 3
        assert found["shardherd_worker_failing_shards",] == 1
        await scene.until(lambda: not scene.processing.troubles)
        found = shown(scene)
        assert (found["shardherd_worker_failing_shards",], found["shardherd_source_records_total",]) == (0, 10)

    story(body)


def test_bad_records_are_counted_by_what_became_of_them() -> None:
    async def body(scene: Scene) -> None:
        scene.processing.counts.bad("skipped")
        scene.processing.counts.bad("truncated", 3)
        found = {key[1:]: value for key, value in shown(scene).items() if key[0] == "shardherd_worker_bad_records_total"}
        assert found == {("skipped",): 1, ("truncated",): 3}

    story(body)


def test_checkpoints_are_counted_by_their_results() -> None:
    async def body(scene: Scene) -> None:
        scene.logs.append(A, 10)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: bool(scene.processing.counts.checkpoints))
        assert scene.processing.counts.checkpoints == {"ok": 1}

    story(body, save_interval=1.0)
