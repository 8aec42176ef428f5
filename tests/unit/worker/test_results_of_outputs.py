"""What a call of an output returns: nothing, what it has not taken, or what nothing can be made of. In simulated time."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Sequence
from typing import Any

import pytest

from shardherd.core.model.nouns import Offset
from shardherd.worker import Output, Record, TransactionalOutput
from tests.unit.worker.scene import A, Scene, story
from tests.unit.worker.taken import Place, outputs, refuses


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_what_write_returns_must_be_of_its_batch(caplog: pytest.LogCaptureFixture) -> None:
    place = Place()

    class Lies(Output):
        async def write(self, records: Sequence[Record]) -> Any:
            await place.write(records)
            return [Record(7, None, None, 0, ())] if len(place.batches) == 1 else None

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 2)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: place.batches == [[0, 1], [0, 1]])

    story(body, factory=outputs(Lies))
    assert "ValueError: write returned records that it was not given, of the offsets [7]" in told(caplog)[0]


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        (False, "False"),
        (True, "True"),
        (0, "0"),
        (2, "2"),
        ("", "''"),
        ("away", "'away'"),
        (b"", "b''"),
        ({}, "{}"),
        ({"errors": 0}, "{'errors': 0}"),
        ((2, []), "(2, [])"),
        ([1], "[1]"),
        (map(str, ()), "<map object at "),
    ],
)
def test_what_write_returns_is_nothing_or_records_and_anything_else_takes_no_record(
    result: Any, shown: str, caplog: pytest.LogCaptureFixture
) -> None:
    place = Place()

    class Says(Output):
        async def write(self, records: Sequence[Record]) -> Any:
            await place.write(records)
            return result if len(place.batches) == 1 else None

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 2)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: len(place.batches) == 1)
        await asyncio.sleep(0.4)
        assert scene.coordinator.checkpoints == []
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 2)])
        assert place.batches == [[0, 1], [0, 1]]

    story(body, factory=outputs(Says), save_interval=0.1)
    (said,) = told(caplog)
    assert said.startswith(f"output Says: took none of 2 records from 0 on: TypeError: write of Says returned {shown}")
    assert said.endswith(
        f", of type {type(result).__name__}, and must return None where it has taken all records, or a list of those of the"
        " batch that it has not taken; trying again in 0.5 s"
    )


@pytest.mark.parametrize("kind", [list, tuple, set, frozenset, dict.fromkeys])
def test_what_is_not_taken_may_be_any_collection_of_records(kind: Any) -> None:
    place = Place(refuses(1))

    class Says(Output):
        async def write(self, records: Sequence[Record]) -> Any:
            refused = kind(await place.write(records))
            return refused.keys() if isinstance(refused, dict) else refused

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 3)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 3)])
        assert place.batches == [[0, 1, 2], [1]]

    story(body, factory=outputs(Says), save_interval=0.1)


def test_a_function_whose_coroutine_nobody_awaits_takes_no_record(caplog: pytest.LogCaptureFixture) -> None:
    class Late(Output):
        def write(self, records: Sequence[Record]) -> Any:
            async def rest() -> None: ...

            return rest()

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 2)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: bool(told(caplog)))
        assert scene.coordinator.checkpoints == []

    story(body, factory=outputs(Late), save_interval=0.1)
    assert ", of type coroutine, and must return None where it has taken all records" in told(caplog)[0]


def test_exactly_once_no_position_passes_a_batch_of_which_records_were_said_not_to_be_taken() -> None:
    stands: list[Offset | None] = [None]
    asked: list[Offset | None] = []

    class Keeps(TransactionalOutput):
        async def position(self, grant: Any) -> Offset | None:
            asked.append(stands[0])
            return stands[0]

        async def write_once(self, records: Sequence[Record], grant: Any, before: Offset | None, position: Offset) -> Any:
            stands[0] = position
            return [record for record in records if record.offset == 2]

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 5)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: "does not say its position" in scene.processing.troubles.get(A, ""))
        assert re.fullmatch(
            r"output Keeps: does not say its position: TypeError: write_once of Keeps returned \[Record\(.*\], of type list,"
            " and must return None, or raise where it does not take all records",
            scene.processing.troubles[A],
        )
        await asyncio.sleep(100.0)
        assert (asked, scene.coordinator.checkpoints) == ([None], [])
        scene.coordinator.assign()
        await scene.until(lambda: scene.coordinator.named == [])
        assert scene.coordinator.checkpoints == []

    story(body, factory=outputs(Keeps, guarantee="exactly-once"), save_interval=0.1)
