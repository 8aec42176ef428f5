"""Outputs whose queue outlives the process: what another run sends, what it does not read again, and what is deleted."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shardherd.worker import Outputs, Record
from shardherd.worker.queue_file import CLEAN_AFTER
from tests.unit.spark.simulated import GROUP, simulate
from tests.unit.worker.scene import A, Scene
from tests.unit.worker.taken import Place, output, outputs, refuses, waits_for


async def killed(scene: Scene) -> None:
    """As after kill -9: nothing of it goes on, and it says nothing."""
    for holding in list(scene.processing._holdings.values()):
        delivery: Any = holding._delivery
        for task in delivery.queue._tasks:
            task.cancel()


def paths(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.queue"))


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in paths(folder)}


def files(folder: Path) -> list[str]:
    return [path.name for path in paths(folder)]


def test_what_was_queued_is_sent_by_another_run_to_those_that_do_not_have_it_and_not_read_again(tmp_path: Path) -> None:
    away, there = Place(waits_for(asyncio.Event())), Place()

    def marked(_: Outputs, record: Record) -> Record:
        return msgspec.structs.replace(record, value=b"<%b>" % (record.value or b""))

    factory = outputs(output(away, "away"), output(there, "there"), queue_directory=str(tmp_path), select=marked)

    async def first() -> None:
        async with Scene(factory=factory) as scene:
            scene.logs.append(A, 8)
            scene.coordinator.assign((A, 1, 0), since=1)
            await scene.until(lambda: len(there.took) == 8)
            await killed(scene)

    async def second() -> None:
        async with Scene(factory=factory, save_interval=0.5) as scene:
            scene.logs.append(A, 10)
            scene.coordinator.assign((A, 2, 0), since=1)
            await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 2, 10)])
            asked = [wanted[A].position for _, wanted in scene.logs.asked if A in wanted]
            assert 8 in asked

    simulate(first)
    assert (away.took, there.took, files(tmp_path)) == ([], list(range(8)), ["t%2F0.queue"])
    simulate(second)
    assert (away.took, there.took) == (list(range(10)), list(range(10)))
    assert away.values[:1] == [b"<0>"], "it was selected before"


@pytest.mark.parametrize("held_since", [1, 2], ids=["the same consumer's", "another had it"])
def test_a_queue_counts_only_while_the_shard_was_nowhere_else(
    tmp_path: Path, held_since: int, caplog: pytest.LogCaptureFixture
) -> None:
    place, again = Place(refuses(1)), Place()

    async def first() -> None:
        factory = outputs(output(place, "it"), queue_directory=str(tmp_path))
        async with Scene(factory=factory) as scene:
            scene.logs.append(A, 5)
            scene.coordinator.assign((A, 1, 0), since=1)
            await scene.until(lambda: place.took == [0, 2, 3, 4])
            await killed(scene)

    async def second() -> None:
        factory = outputs(output(again, "it"), queue_directory=str(tmp_path))
        async with Scene(factory=factory, save_interval=0.5) as scene:
            scene.logs.append(A, 5)
            scene.coordinator.assign((A, 2, 1), since=held_since)
            await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 2, 5)])

    simulate(first)
    simulate(second)
    assert again.took == ([1] if held_since == 1 else [1, 2, 3, 4])
    told = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING and "epoch" in each.getMessage()]
    assert len(told) == held_since - 1


def test_a_damaged_queue_is_told_and_its_end_is_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place, again = Place(waits_for(asyncio.Event())), Place()

    async def first() -> None:
        async with Scene(factory=outputs(output(place), queue_directory=str(tmp_path))) as scene:
            scene.logs.append(A, 5)
            scene.coordinator.assign((A, 1, 0), since=1)
            await scene.until(lambda: bool(place.batches))
            await killed(scene)

    async def second() -> None:
        async with Scene(factory=outputs(output(again), queue_directory=str(tmp_path)), save_interval=0.5) as scene:
            scene.logs.append(A, 5)
            scene.coordinator.assign((A, 2, 0), since=1)
            await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 2, 5)])

    simulate(first)
    (path,) = paths(tmp_path)
    path.write_bytes(path.read_bytes()[:-3])
    simulate(second)
    assert again.took == [0, 1, 2, 3, 4]
    assert [each.getMessage() for each in caplog.records if "is damaged" in each.getMessage()] != []


def of_an_object(record: Record) -> Record:
    return msgspec.structs.replace(record, value=object())


def of_a_text(record: Record) -> Record:
    return msgspec.structs.replace(record, value="text")


def of_no_headers(record: Record) -> Record:
    return msgspec.structs.replace(record, headers={"name": b"value"})


def of_a_header_of_text(record: Record) -> Record:
    return msgspec.structs.replace(record, headers=(("name", "value"),))


def of_a_header_of_three(record: Record) -> Record:
    return msgspec.structs.replace(record, headers=(("name", b"value", 1),))


def of_a_header_of_no_text(record: Record) -> Record:
    return msgspec.structs.replace(record, headers=((b"name", b"value"),))


def of_half_a_millisecond(record: Record) -> Record:
    return msgspec.structs.replace(record, timestamp=0.5)


def exits(record: Record) -> Record:
    raise SystemExit(record.offset)


@pytest.mark.parametrize(
    "wrong",
    [
        of_an_object,
        of_a_text,
        of_no_headers,
        of_a_header_of_text,
        of_a_header_of_three,
        of_a_header_of_no_text,
        of_half_a_millisecond,
        exits,
    ],
)
def test_a_record_that_could_not_be_queued_is_not_skipped_by_another_run(wrong: Any, tmp_path: Path) -> None:
    place, again = Place(waits_for(asyncio.Event())), Place()
    given: list[int] = []

    def select(_: Outputs, record: Record) -> Record:
        given.append(record.offset)
        return wrong(record) if record.offset == 1 and given.count(1) == 1 else record

    async def first() -> None:
        factory = outputs(output(place), queue_directory=str(tmp_path), select=select, batch_wait=0.1)
        async with Scene(factory=factory, in_order=False) as scene:
            scene.logs.append(A, 5)
            scene.coordinator.assign((A, 1, 0), since=1)
            await scene.until(lambda: bool(place.batches))
            assert (given, scene.processing.counts.failures) == ([0, 1, 2, 3, 4], {"process": 1})
            await killed(scene)

    async def second() -> None:
        factory = outputs(output(again), queue_directory=str(tmp_path), select=select)
        async with Scene(factory=factory, in_order=False, save_interval=0.5) as scene:
            scene.logs.append(A, 5)
            scene.coordinator.assign((A, 2, 0), since=1)
            await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 2, 5)])

    simulate(first)
    simulate(second)
    assert sorted(again.took) == [0, 1, 2, 3, 4]


def test_a_select_that_failed_is_not_skipped_by_another_run(tmp_path: Path) -> None:
    place, again = Place(), Place()
    left: dict[Path, bytes] = {}

    def select(_: Outputs, record: Record) -> Record:
        if record.offset == 2:
            raise ValueError("not yet")
        return record

    async def first() -> None:
        factory = outputs(output(place), queue_directory=str(tmp_path), select=select)
        async with Scene(factory=factory, in_order=False) as scene:
            scene.logs.append(A, 5)
            scene.coordinator.assign((A, 1, 0), since=1)
            await scene.until(lambda: place.took == [0, 1, 3, 4])
            left.update(contents(tmp_path))

    async def second() -> None:
        async with Scene(factory=outputs(output(again), queue_directory=str(tmp_path)), save_interval=0.5) as scene:
            scene.logs.append(A, 5)
            scene.coordinator.assign((A, 2, 2), since=1)
            await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 2, 5)])

    simulate(first)
    for path, data in left.items():  # as a kill would have left it
        path.write_bytes(data)
    simulate(second)
    assert (len(left), again.took) == (1, [2, 3, 4])


def test_a_select_that_failed_and_then_sends_nothing_keeps_no_later_record_from_another_run(tmp_path: Path) -> None:
    place, again = Place(), Place()
    left: dict[Path, bytes] = {}
    failing = [2]

    def select(_: Outputs, record: Record) -> Record | None:
        if record.offset in failing:
            failing.remove(record.offset)
            raise ValueError("not yet")
        return None if record.offset == 2 else record

    async def first() -> None:
        async with Scene(factory=outputs(output(place), queue_directory=str(tmp_path), select=select)) as scene:
            scene.logs.append(A, 5)
            scene.coordinator.assign((A, 1, 0), since=1)
            await scene.until(lambda: place.took == [0, 1, 3, 4])
            left.update(contents(tmp_path))

    async def second() -> None:
        factory = outputs(output(again), queue_directory=str(tmp_path), select=select)
        async with Scene(factory=factory, save_interval=0.5) as scene:
            scene.logs.append(A, 7)
            scene.coordinator.assign((A, 2, 0), since=1)
            await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 2, 7)])

    simulate(first)
    for path, data in left.items():  # as a kill would have left it
        path.write_bytes(data)
    simulate(second)
    assert (len(left), again.took) == (1, [5, 6])


@pytest.mark.parametrize("goes", ["to another consumer", "nowhere"])
def test_a_file_is_deleted_with_its_shard_and_kept_when_the_process_ends_with_records_in_it(tmp_path: Path, goes: str) -> None:
    place = Place(waits_for(asyncio.Event()))

    async def story() -> None:
        factory = outputs(output(place), queue_directory=str(tmp_path))
        async with Scene(factory=factory, revoke_timeout=3.0, drain_timeout=3.0) as scene:
            scene.logs.append(A, 5)
            scene.coordinator.assign((A, 1, 0), since=1)
            await scene.until(lambda: bool(place.batches))
            if goes == "nowhere":
                await scene.consumer.drain(3.0)
            else:
                scene.coordinator.assign()
            await scene.until(lambda: scene.processing.picture().held == ())

    simulate(story)
    assert files(tmp_path) == ([] if goes == "to another consumer" else ["t%2F0.queue"])


def test_files_of_shards_that_do_not_come_back_are_deleted_after_an_hour_although_no_shard_comes_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, began = tmp_path / GROUP, time.time()
    folder.mkdir()
    for name in ("t%2F7.queue", "t%2F8.new"):  # the second one was being written anew when its process was killed
        (folder / name).write_bytes(b"of an earlier run")
        os.utime(folder / name, (1, 1))

    def there() -> list[str]:
        return sorted(path.name for path in folder.iterdir())

    async def story() -> None:
        async with Scene(factory=outputs(output(Place()), queue_directory=str(tmp_path))) as scene:
            monkeypatch.setattr(time, "time", lambda: began + scene.loop.time())
            scene.coordinator.assign((A, 1, 0), since=1)
            await scene.until(lambda: there() == ["t%2F0.queue", "t%2F7.queue", "t%2F8.new"])
            await asyncio.sleep(CLEAN_AFTER + 60.0)
            assert there() == ["t%2F0.queue"]

    simulate(story)


def test_a_queue_that_is_full_on_the_disk_stops_the_intake_until_an_ack(tmp_path: Path) -> None:
    event = asyncio.Event()
    place = Place(waits_for(event))

    async def story() -> None:
        factory = outputs(output(place), queue_directory=str(tmp_path), queue_file_bytes=2000)
        async with Scene(factory=factory, save_interval=0.5) as scene:
            scene.logs.append(A, 100)
            scene.coordinator.assign((A, 1, 0), since=1)
            await scene.until(lambda: bool(place.batches))
            await asyncio.sleep(5.0)
            held = scene.processing.picture().held[0].queued
            assert 5 <= held < 30
            event.set()
            await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 100)])
            assert sum(path.stat().st_size for path in paths(tmp_path)) < 2500

    simulate(story)
    assert place.took == list(range(100))


@pytest.mark.parametrize("when_full", ["wait", "drop"])
def test_a_file_that_is_full_when_it_is_found_is_sent_all_the_same(tmp_path: Path, when_full: str) -> None:
    away, again = Place(waits_for(asyncio.Event())), Place()
    given: dict[str, Any] = {"queue_directory": str(tmp_path), "queue_file_bytes": 400}

    async def first() -> None:
        async with Scene(factory=outputs(output(away), **given)) as scene:
            scene.logs.append(A, 10)
            scene.coordinator.assign((A, 1, 0), since=1)
            await scene.until(lambda: bool(away.batches))
            await killed(scene)

    async def second() -> None:
        async with Scene(factory=outputs(output(again), when_full=when_full, **given), save_interval=0.5) as scene:
            scene.logs.append(A, 10)
            scene.coordinator.assign((A, 2, 0), since=1)
            await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 2, 10)])

    simulate(first)
    simulate(second)
    assert again.took[: len(away.batches[0])] == away.batches[0], "what was kept is not dropped either"


def test_a_folder_that_cannot_be_used_costs_only_that_another_run_reads_again(tmp_path: Path) -> None:
    place, folder = Place(refuses(1)), tmp_path / "queues"
    folder.write_text("no folder")

    async def story() -> None:
        async with Scene(factory=outputs(output(place), queue_directory=str(folder)), save_interval=0.5) as scene:
            scene.logs.append(A, 5)
            scene.coordinator.assign((A, 1, 0), since=1)
            await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 5)])
            assert scene.processing.troubles == {}
            scene.coordinator.assign()
            await scene.until(lambda: scene.processing.picture().held == ())

    simulate(story)
    assert place.batches == [[0, 1, 2, 3, 4], [1]]
