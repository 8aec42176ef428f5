"""What a program may give as a position: to a checkpoint, or as the result of `process`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shardherd.worker import AsyncCheckpoint, Records
from tests.unit.worker.scene import A, B, Scene, story


@pytest.mark.parametrize("now", [True, False])
def test_a_number_of_numpys_is_a_position(now: bool) -> None:
    async def body(scene: Scene) -> None:
        async def save(records: Records, checkpoint: AsyncCheckpoint) -> None:
            await checkpoint.save(np.int64(records.position + 3), now=now)  # type: ignore[arg-type]  # as programs do

        scene.program.save = save
        scene.program.results = [np.int64(4), ValueError("no more")]
        scene.logs.append(A, 5)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: len(scene.program.batches(A)) == 2)
        assert scene.program.batches(A) == [(0, 5), (4, 5)]
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] in ([(A, 1, 4)], [(A, 1, 5)]))

    story(body, batch_size=5, save_interval=0.1)


@pytest.mark.parametrize("now", [True, False])
@pytest.mark.parametrize("given", [2.5, 3.0, True, float("nan"), "3"], ids=repr)
def test_what_is_no_position_is_refused_by_name_and_keeps_no_other_shard_from_being_saved(given: Any, now: bool) -> None:
    refused: list[str] = []

    async def body(scene: Scene) -> None:
        async def save(records: Records, checkpoint: AsyncCheckpoint) -> None:
            if records.shard == A:
                try:
                    await checkpoint.save(given, now=now)
                except TypeError as error:
                    refused.append(str(error))
                    raise

        scene.program.save = save
        scene.logs.append(A, 5)
        scene.logs.append(B, 5)
        scene.coordinator.assign((A, 1, 0), (B, 1, 0))
        await scene.until(lambda: (B, 1, 5) in scene.coordinator.checkpoints and bool(refused))
        assert refused[0] == f"a checkpoint of shard {A} must be saved at a position, which is an int, not {given!r}"
        assert [each for each in scene.coordinator.checkpoints if each[0] == A] == []

    story(body, save_interval=0.1)


def test_a_result_that_is_no_position_is_refused_by_name() -> None:
    async def body(scene: Scene) -> None:
        scene.program.results = [2.5]
        scene.logs.append(A, 5)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: A in scene.processing.troubles)
        assert "process must return None or a position, which is an int, not 2.5" in scene.processing.troubles[A]

    story(body)
