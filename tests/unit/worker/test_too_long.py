"""Values that are longer than the option allows: cut, flagged and counted; the record goes on like any other."""

from __future__ import annotations

import pytest

from shardherd.worker.counts import Counts
from shardherd.worker.options import WorkerOptionError
from shardherd.worker.record_processor import Ack
from shardherd.worker.records import Header, Record, Records, records_of
from shardherd.worker.too_long import shortened
from tests.unit.worker.acknowledged import Kept
from tests.unit.worker.scene import A, Scene, story


def batch(*values: bytes | None, headers: tuple[Header, ...] = ()) -> Records:
    made = [Record(at, b"k", value, at, headers) for at, value in enumerate(values)]
    return records_of(A, made, 0, len(values) + 3)


def test_a_value_that_is_too_long_is_cut_and_its_record_says_how_long_it_was() -> None:
    counts = Counts()
    (found,) = shortened(iter([batch(b"12345", b"123456", None, b"", b"1234567", headers=(("own", b"1"),))]), 5, counts)

    own = ("own", b"1")
    assert [(each.offset, each.key, each.value, each.timestamp, each.headers) for each in found] == [
        (0, b"k", b"12345", 0, (own,)),
        (1, b"k", b"12345", 1, (own, ("shardherd.truncated", b"6"))),
        (2, b"k", None, 2, (own,)),
        (3, b"k", b"", 3, (own,)),
        (4, b"k", b"12345", 4, (own, ("shardherd.truncated", b"7"))),
    ]
    assert (found.position, found.next, found.table.schema, counts.bad_records) == (
        0,
        8,
        batch().table.schema,
        {"truncated": 2},
    )


def test_batches_without_such_a_value_and_all_of_them_without_the_option_stay_as_they_are() -> None:
    counts = Counts()
    fine, long, empty = batch(b"12", None), batch(b"123"), batch()
    assert list(shortened(iter([fine, empty]), 2, counts)) == [fine, empty]
    assert list(shortened(iter([long]), 0, counts)) == [long]
    assert counts.bad_records == {}


def test_a_record_processor_gets_records_that_are_cut_once_though_they_come_again() -> None:
    seen: list[tuple[bytes | None, tuple[tuple[str, bytes | None], ...]]] = []

    def does(record: Record, ack: Ack) -> None:
        seen.append((record.value, record.headers))
        ack.fail("once") if ack.tries == 1 else ack()

    async def body(scene: Scene) -> None:
        scene.logs.offsets[A], scene.logs.ends[A] = [1234], 1235
        scene.coordinator.assign((A, 1, 1234))
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 1235)])
        assert seen == [(b"123", (("shardherd.truncated", b"4"),))] * 2
        assert scene.processing.counts.bad_records == {"truncated": 1}

    story(body, factory=lambda: Kept(does), max_value_bytes=3, save_interval=1.0)


def test_the_option_is_checked() -> None:
    with pytest.raises(WorkerOptionError, match="max_value_bytes must be 0 or more, not -1"):
        story(lambda _: pytest.fail("it must not begin"), max_value_bytes=-1)
