"""A plain consumer whose calls are interrupted: by what a signal's handler raises, as at Ctrl-C, or as its client is closed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

from shardherd.client import Consumer, ConsumerClient
from shardherd.core.model.nouns import ConsumerId, Incarnation
from shardherd.testing import PlayedGroup


class InterruptedByAlarmError(Exception):
    """What the handler raises."""


@contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    """The block is interrupted after so many seconds, wherever it is."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise InterruptedByAlarmError

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_who_is_interrupted_while_it_waits_for_a_shard_keeps_none_of_the_later_ones() -> None:
    with PlayedGroup(shards=1) as group, group.consumer("played-0") as consumer:
        group.revoke("records/0")
        group.until("somebody else has it", lambda: group.holders() == {"records/0": "others"})

        # The exception is kept, and with its traceback all that the call had.
        with pytest.raises(InterruptedByAlarmError) as kept, interrupted_after(0.2), consumer.take():
            raise AssertionError("there is nothing to take")
        group.grant("played-0", "records/0")
        with interrupted_after(10), consumer.take() as shard:
            taken = shard.name
        drained = consumer.drain(10)

    assert (taken, drained, kept.type) == ("records/0", True, InterruptedByAlarmError)


def test_a_client_that_is_closed_ends_a_call_that_waits_in_another_thread() -> None:
    client = ConsumerClient("http://127.0.0.1:1", "demo", "clicks", lambda: "t")
    consumer = Consumer(client, ConsumerId("clicks-0"), Incarnation("uid", 1), group_uid="group")
    consumer.__enter__()
    ended: list[str] = []

    def wait_for_a_shard() -> None:
        try:
            with consumer.take():
                raise AssertionError("there is nothing to take")
        except RuntimeError as error:
            ended.append(str(error))

    waiting = threading.Thread(target=wait_for_a_shard, daemon=True)
    waiting.start()
    client.close()
    waiting.join(10)
    with pytest.raises(RuntimeError) as later:
        client.group()

    assert (waiting.is_alive(), ended, str(later.value)) == (False, ["this client is closed"], "this client is closed")
