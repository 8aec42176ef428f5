"""What a program gives a worker: what makes no processor, or is no listener, is refused and not tried again."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any

import pytest

from shardherd.worker import (
    Ack,
    AsyncOperator,
    Checkpoint,
    Listener,
    Processor,
    Record,
    RecordProcessor,
    Records,
    Worker,
    WorkerOptionError,
)
from shardherd.worker.makers import arguments_needed, check_factory, check_listener
from tests.unit.worker.scene import A, Scene, story


class Clicks(Processor):
    def process(self, records: Records, checkpoint: Checkpoint) -> None:
        pass

    def __repr__(self) -> str:
        return "<clicks>"


class Unfinished(AsyncOperator):
    async def invoke(self, record: Record) -> list[Any]:
        return []


class Told(Clicks):
    def __init__(self, url: str, *, user: str, size: int = 1) -> None:
        pass


class Nothing:
    def __repr__(self) -> str:
        return "<nothing>"


class Assigned(Nothing):
    def on_assigned(self, shard: Any, position: Any) -> None:
        pass


def make(url: str) -> Processor:
    return Clicks()


@functools.wraps(make)
def makes_with_what_it_knows(*given: Any, **named: Any) -> Processor:
    return make("postgres://")


MADE = "factory must be a class of processors, or a function that makes one"


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (Clicks(), f"{MADE}, not <clicks>: give the class, Clicks, as each shard has one of its own"),
        ("clicks:Clicks", f"{MADE}, not 'clicks:Clicks'"),
        (None, f"{MADE}, not None"),
        (Processor, f"{MADE}, and Processor does not define process"),
        (Unfinished, f"{MADE}, and Unfinished does not define emit"),
        (Nothing, f"{MADE}, and Nothing has no initialize: derive it from Processor, or another one"),
        (
            Told,
            f"{MADE}, without arguments, and Told needs url, user: give a function that knows them, such as"
            " `lambda: Told(url, user)`",
        ),
        (make, f"{MADE}, without arguments, and make needs url: give a function that knows them, such as `lambda: make(url)`"),
    ],
)
def test_what_makes_no_processors_is_refused_before_the_worker_joins(factory: Any, message: str) -> None:
    with pytest.raises(WorkerOptionError) as refused:
        Worker(factory, environment={}, bootstrap="k:1")
    assert str(refused.value) == message


@pytest.mark.parametrize(
    "factory", [Clicks, lambda: Told("a", user="b"), functools.partial(make, "a"), makes_with_what_it_knows]
)
def test_whatever_can_be_called_without_arguments_may_make_processors(factory: Any) -> None:
    check_factory(factory)


def test_of_what_says_nothing_of_its_arguments_none_are_known() -> None:
    assert arguments_needed(type) == ""


@pytest.mark.parametrize(
    ("listener", "message"),
    [
        (Listener, "listener must be an object, not the class Listener: give one of it, Listener()"),
        (Nothing(), "listener must be a Listener, and <nothing> has no on_assigned: derive its class from Listener"),
        (Assigned(), "listener must be a Listener, and <nothing> has no on_revoked: derive its class from Listener"),
    ],
)
def test_what_cannot_be_told_of_shards_is_refused_before_the_worker_joins(listener: Any, message: str) -> None:
    with pytest.raises(WorkerOptionError) as refused:
        Worker(Clicks, environment={}, bootstrap="k:1", listener=listener)
    assert str(refused.value) == message
    check_listener(Listener())
    check_listener(None)


@dataclass(frozen=True)
class Frozen(RecordProcessor):
    def process(self, record: Record, ack: Ack) -> None:
        ack()


class Fixed(Frozen):
    @property
    def max_pending(self) -> int:  # type: ignore[override]
        return 5


def of_nothing() -> Any:
    return Nothing()


def of_one_without_process() -> Any:
    return RecordProcessor()


def of_a_class() -> Any:
    return Clicks


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (of_nothing, "of_nothing must make a processor, and <nothing> has no initialize: derive its class from Processor, or"),
        (of_one_without_process, "of_one_without_process must make a processor, and RecordProcessor does not define process"),
        (
            Frozen,
            "Frozen is a RecordProcessor, whose max_pending the worker sets: cannot assign to field 'max_pending'; let it be"
            " set, as a frozen dataclass and a property without a setter do not",
        ),
        (Fixed, "Fixed is a RecordProcessor, whose max_pending the worker sets: "),
        (of_a_class, "of_a_class must make a processor, not return the class Clicks: call that there"),
    ],
)
def test_a_function_that_makes_no_processor_ends_the_worker(factory: Any, message: str) -> None:
    async def body(scene: Scene) -> None:
        scene.coordinator.assign((A, 1, 0))
        with pytest.raises(WorkerOptionError, match=re.escape(message)):
            await scene.ended()

    story(body, factory=factory)
