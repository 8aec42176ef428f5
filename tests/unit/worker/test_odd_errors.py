"""Errors of a program that cannot say what they are: each is a failure as any other. In simulated time."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest

from shardherd.worker import Ack, AsyncOperator, AsyncProcessor, Output, Outputs, Record, RecordProcessor, Records
from shardherd.worker.crew import Raised
from tests.unit.worker.scene import A, Scene, story


class OddError(Exception):
    """Its text is none, as where `__str__` returns what an API has answered."""

    def __str__(self) -> str:
        return {"status": 503}  # type: ignore[return-value]


TEXT = "<what it says cannot be told: TypeError in its __str__>"


def of_batches(errors: list[OddError]) -> Any:
    class Odd(AsyncProcessor):
        async def process(self, records: Records, checkpoint: Any) -> None:
            if errors:
                raise errors.pop()

    return Odd


def of_records(errors: list[OddError]) -> Any:
    class Odd(RecordProcessor):
        def process(self, record: Record, ack: Ack) -> None:
            if errors:
                raise errors.pop()
            ack()

    return Odd


def of_calls(errors: list[OddError]) -> Any:
    class Odd(AsyncOperator):
        async def invoke(self, record: Record) -> list[int]:
            return [record.offset]

        async def emit(self, result: int) -> None:
            if errors:
                raise errors.pop()

    return Odd


def of_outputs(errors: list[OddError]) -> Any:
    class Odd(Output):
        async def write(self, records: Sequence[Record]) -> None:
            if errors:
                raise errors.pop()

    class Clicks(Outputs):
        outputs = (Odd,)

    return Clicks


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (
            of_batches,
            f"process of <3 records of t/0 from 0 up to 3> failed, attempt 1: OddError: {TEXT}; trying again in 0.5 s",
        ),
        (of_records, f"record 0 failed, try 1: {TEXT}"),
        (of_calls, f"results of record 0 are not emitted, try 1: {TEXT}"),
        (of_outputs, f"output Odd: took none of 3 records from 0 on: OddError: {TEXT}; trying again in 0.5 s"),
    ],
    ids=["process", "process of a record", "emit", "write"],
)
def test_what_cannot_say_what_it_is_is_a_failure_as_any_other(made: Any, said: str, caplog: pytest.LogCaptureFixture) -> None:
    async def body(scene: Scene) -> None:
        scene.logs.append(A, 3)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 3)])
        assert scene.processing.failure is None

    story(body, factory=made([OddError()]), save_interval=0.1)
    assert [line.getMessage() for line in caplog.records if line.levelno == logging.WARNING] == [said]


def test_what_stands_for_another_error_can_be_made_of_one_that_cannot_say_what_it_is() -> None:
    class OddExit(BaseException):
        __str__ = OddError.__str__

    assert str(Raised(OddExit())) == f"OddExit: {TEXT}"
