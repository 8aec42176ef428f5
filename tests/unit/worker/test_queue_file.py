"""A queue in a file: what another run finds, what of a damaged file is left, its bound, and what is cleaned up."""

from __future__ import annotations

import fcntl
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from shardherd.core.model.nouns import Offset, ShardId
from shardherd.worker import Record
from shardherd.worker.queue_file import CLEAN_AFTER, MAGIC, Kept, QueueFile, clean

SHARD = ShardId("t/0")
GROUP = "group-uid"


def record(offset: Offset, size: int = 1) -> Record:
    return Record(offset, b"k", b"v" * size, 1_700_000_000_000 + offset, (("h", None), ("i", b"1")))


def opened(folder: Path, **given: Any) -> QueueFile:
    settings = {"epoch": 1, "held_since": 1, "position": 0, "most": 100_000, **given}
    return QueueFile(folder, settings.pop("group", GROUP), settings.pop("shard", SHARD), **settings)


def found(folder: Path, **given: Any) -> list[tuple[Offset, set[str]]]:
    """What another run finds; it leaves all as it was."""
    file = opened(folder, **{"epoch": 2, **given})
    file.close(delete=False)
    return [(each.record.offset, set(each.taken)) for each in file.kept]


def written(folder: Path, *offsets: Offset) -> Path:
    """A file as a process leaves it that was killed."""
    file = opened(folder)
    for offset in offsets:
        file.append(record(offset))
    return file.path


def test_a_restarted_process_finds_the_records_and_which_outputs_have_them(tmp_path: Path) -> None:
    file = opened(tmp_path)
    for offset in (3, 4, 7):
        file.append(record(offset))
    file.taken("a", [3, 4])
    file.taken("b", [4])
    again = opened(tmp_path, epoch=2)
    assert again.kept == [
        Kept(record(3), frozenset("a")),
        Kept(record(4), frozenset("ab")),
        Kept(record(7), frozenset()),
    ]
    assert (again.warning, again.path.stat().st_mode & 0o777) == ("", 0o600)


def test_what_is_before_the_position_is_over(tmp_path: Path) -> None:
    written(tmp_path, 0, 1, 2)
    assert found(tmp_path, position=2) == [(2, set())]


def test_what_a_later_run_has_written_is_found_by_the_one_after_it(tmp_path: Path) -> None:
    written(tmp_path, 0, 1)
    second = opened(tmp_path, epoch=2)
    second.taken("a", [0])
    second.append(record(2))
    assert found(tmp_path, epoch=3) == [(0, {"a"}), (1, set()), (2, set())]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"epoch": 3, "held_since": 2}, "is of epoch 1, and this shard was elsewhere or reset since: what is in it is dropped"),
        ({"position": 0, "held_since": 1, "epoch": 2}, "is of epoch 1, and this shard was elsewhere or reset since"),
    ],
    ids=["another consumer had it", "the position went back"],
)
def test_a_file_of_an_earlier_ownership_is_dropped_by_its_identity(tmp_path: Path, given: dict[str, int], why: str) -> None:
    first = opened(tmp_path, position=5)
    first.append(record(6))
    again = opened(tmp_path, **given)
    assert (again.kept, why in again.warning) == ([], True)
    assert found(tmp_path, epoch=4, held_since=given["held_since"]) == [], "and it is written anew"


def test_two_groups_and_two_shards_have_files_of_their_own(tmp_path: Path) -> None:
    written(tmp_path, 1)
    other = opened(tmp_path, shard=ShardId("t/1"))
    other.append(record(2))
    assert (found(tmp_path, group="other"), found(tmp_path), found(tmp_path, shard=ShardId("t/1"))) == (
        [],
        [(1, set())],
        [(2, set())],
    )


def test_a_file_that_is_none_of_this_shard_is_not_believed(tmp_path: Path) -> None:
    path = written(tmp_path, 1)
    path.rename(path.with_name("t%2F1.queue"))
    again = opened(tmp_path, shard=ShardId("t/1"))
    assert (again.kept, again.warning) == ([], f"{again.path} is no queue of this shard: it is written anew")


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_damaged_tail_is_detected_and_told_and_what_is_before_it_is_kept(tmp_path: Path, cut: int) -> None:
    path = written(tmp_path, 0, 1, 2)
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    again = opened(tmp_path, epoch=2)
    assert [each.record.offset for each in again.kept] == [0, 1]
    last = (len(whole) - len(written_head(tmp_path))) // 3
    begins = len(whole) - last
    assert again.warning == (f"{path} is damaged: {last - cut} bytes from {begins} on are dropped, and read again from Kafka")
    again.append(record(2))
    assert found(tmp_path, epoch=3) == [(0, set()), (1, set()), (2, set())]


def written_head(folder: Path) -> bytes:
    empty = opened(folder / "empty")
    return empty.path.read_bytes()


def test_a_byte_that_is_wrong_anywhere_is_detected_and_no_record_is_ever_made_up(tmp_path: Path) -> None:
    path = written(tmp_path, 0, 1, 2)
    whole = path.read_bytes()
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :])
        again = opened(tmp_path, epoch=2)
        kept = [each.record for each in again.kept]
        assert kept == [record(offset) for offset in range(len(kept))]
        assert (len(kept) < 3, "is damaged: " in again.warning) == (True, True)
        again.close(delete=False)


def test_garbage_after_the_last_frame_is_told(tmp_path: Path) -> None:
    path = written(tmp_path, 0)
    with path.open("ab") as file:
        file.write(b"\0" * 100)
    again = opened(tmp_path, epoch=2)
    assert ([each.record.offset for each in again.kept], "100 bytes from" in again.warning) == ([0], True)


def test_a_record_that_failed_before_it_was_queued_ends_what_is_known(tmp_path: Path) -> None:
    file = opened(tmp_path)
    file.append(record(0))
    file.hole(1)
    file.append(record(2))
    assert found(tmp_path) == [(0, set())]


@pytest.mark.parametrize("mended", ["append", "gone", "no_hole"])
def test_a_record_that_failed_and_is_queued_or_passed_over_later_ends_nothing(tmp_path: Path, mended: str) -> None:
    file = opened(tmp_path)
    file.append(record(0))
    file.hole(1)
    file.append(record(2))
    file.append(record(1)) if mended == "append" else getattr(file, mended)(1)
    assert [offset for offset, _ in found(tmp_path)] == ([0, 1, 2] if mended == "append" else [0, 2])


def test_what_was_passed_over_does_not_come_back(tmp_path: Path) -> None:
    file = opened(tmp_path)
    for offset in (0, 1, 2):
        file.append(record(offset))
    file.gone(1)
    assert [offset for offset, _ in found(tmp_path)] == [0, 2]


def test_a_file_that_is_written_anew_keeps_what_is_left_its_outputs_and_its_holes(tmp_path: Path) -> None:
    file = opened(tmp_path)
    for offset in (0, 1, 2, 3):
        file.append(record(offset))
    file.hole(4)
    file.append(record(5))
    before = file.size
    file.over([0, 1])
    file.rewrite([Kept(record(2), frozenset("a")), Kept(record(3), frozenset()), Kept(record(5), frozenset())])
    assert (file.size < before, file.size) == (True, file.path.stat().st_size)
    file.taken("b", [2])
    assert found(tmp_path) == [(2, {"a", "b"}), (3, set())]


def test_a_file_is_bounded_in_bytes_and_its_place_is_used_again(tmp_path: Path) -> None:
    file = opened(tmp_path, most=4000)
    queue: list[Record] = []
    biggest = 0
    for offset in range(500):
        if file.full:
            file.over(each.offset for each in queue)
            file.taken("a", [each.offset for each in queue])
            queue = []
        assert not file.full
        if file.overgrown:
            file.rewrite([Kept(each, frozenset()) for each in queue])
        queue.append(record(offset, size=100))
        file.append(queue[-1])
        biggest = max(biggest, file.path.stat().st_size)
    assert 4000 <= biggest < 4700, "the bound, and what is written between two looks"
    assert found(tmp_path, position=queue[0].offset, most=4000) == [(each.offset, set()) for each in queue]


def test_one_record_is_taken_however_large_it_is(tmp_path: Path) -> None:
    file = opened(tmp_path, most=100)
    seen = [file.full]
    file.append(record(0, size=1000))
    seen.append(file.full)
    file.over([0])
    assert [*seen, file.full] == [False, True, False]


def test_a_file_that_cannot_be_written_is_told_and_deleted_and_the_queue_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = opened(tmp_path)
    file.append(record(0))

    def full_disk(_: int, __: Any) -> int:
        raise OSError(28, "No space left on device")

    with caplog.at_level(logging.ERROR):
        monkeypatch.setattr(os, "write", full_disk)
        file.append(record(1))
        monkeypatch.undo()
    assert caplog.messages == [
        f"{file.path} cannot be written, and is not used any more: [Errno 28] No space left on device; records wait in memory"
        " only"
    ]
    file.append(record(2))
    file.rewrite([])
    file.close(delete=False)
    assert (file.broken, file.path.exists(), found(tmp_path)) == (True, False, [])


def told_of_no_file(folder: Path, error: str) -> str:
    return (
        f"the queue of shard t/0 has no file in queue_directory {folder}: {error}; its records wait in memory only, and another"
        " run reads them again: make it a folder that this process may write to, with room in it"
    )


@pytest.mark.parametrize(
    ("there", "error"),
    [
        ("", "[Errno 20] Not a directory: '{folder}/group-uid'"),
        ("group-uid", "[Errno 17] File exists: '{folder}/group-uid'"),
        ("group-uid/t%2F0.queue/", "[Errno 21] Is a directory: '{folder}/group-uid/t%2F0.queue'"),
        ("group-uid/t%2F0.new/", "[Errno 21] Is a directory: '{folder}/group-uid/t%2F0.new'"),
    ],
    ids=[
        "a file in the place of the folder",
        "a file in the place of the group's",
        "a folder in the place of the file",
        "beside it",
    ],
)
def test_a_folder_that_cannot_be_used_is_told_and_the_queue_goes_on_without_a_file(
    tmp_path: Path, there: str, error: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "queues"
    (folder / there).parent.mkdir(parents=True, exist_ok=True)
    (folder / there).mkdir() if there.endswith("/") else (folder / there).write_text("something else")
    file = opened(folder)
    assert caplog.messages == [told_of_no_file(folder, error.format(folder=folder))]
    assert (file.kept, file.warning, file.broken, file.full) == ([], "", True, False)
    file.append(record(0))
    file.hole(1)
    file.taken("a", [0])
    file.rewrite([])
    file.close(delete=True)
    assert clean(folder, GROUP, began=0.0) == []


def test_a_disk_that_is_full_at_the_beginning_leaves_what_was_found_and_takes_no_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, 0, 1)

    def full_disk(_: int, __: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full_disk)
    file = opened(tmp_path, epoch=2)
    monkeypatch.undo()
    assert caplog.messages == [told_of_no_file(tmp_path, "[Errno 28] No space left on device")]
    assert (file.broken, [each.record.offset for each in file.kept]) == (True, [0, 1])
    assert list(path.parent.iterdir()) == [path]
    file.close(delete=False)
    assert found(tmp_path, epoch=3, position=1) == [(1, set())]


def test_a_file_that_cannot_be_deleted_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = opened(tmp_path)

    def read_only(_: Path) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "unlink", read_only)
    file.close(delete=True)
    monkeypatch.undo()
    assert (caplog.messages, file.broken) == ([f"{file.path} cannot be deleted: [Errno 30] Read-only file system"], True)


def test_a_write_that_fails_where_nothing_can_be_deleted_either_leaves_what_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = opened(tmp_path)
    file.append(record(0))

    def read_only(*_: Any) -> int:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "write", read_only)
    monkeypatch.setattr(Path, "unlink", read_only)
    file.append(record(1))
    monkeypatch.undo()
    file.append(record(2))
    assert (file.broken, found(tmp_path)) == (True, [(0, set())])


@pytest.mark.parametrize(
    ("topic", "name"),
    [
        ("a" * 245, f"{'a' * 245}%2F7.queue"),
        ("a" * 246, f"{'a' * 216}-d935559f6aa65e1957949cc052d9a5bb.queue"),
        ("a" * 249, f"{'a' * 216}-1614a64d7a0419fabd48d859a4cf020c.queue"),
    ],
    ids=["as long as a name may be", "longer", "as long as a topic's may be"],
)
def test_a_name_that_is_too_long_for_a_file_is_cut_and_has_a_digest(tmp_path: Path, topic: str, name: str) -> None:
    shard = ShardId(f"{topic}/7")
    file = opened(tmp_path, shard=shard)
    file.append(record(0))
    assert file.path.name == name
    assert found(tmp_path, shard=shard) == [(0, set())]


@pytest.mark.parametrize("delete", [True, False])
def test_a_file_is_deleted_when_the_shard_is_somebody_elses(tmp_path: Path, delete: bool) -> None:
    file = opened(tmp_path)
    file.append(record(0))
    file.close(delete=delete)
    assert file.path.exists() is not delete


def test_a_run_that_is_late_touches_nothing_of_the_one_after_it(tmp_path: Path) -> None:
    late = opened(tmp_path)
    late.append(record(0))
    now = opened(tmp_path, epoch=2)
    now.append(record(1))
    late.append(record(9))
    late.rewrite([])
    late.close(delete=True)
    assert found(tmp_path, epoch=3) == [(0, set()), (1, set())]


def test_files_of_shards_that_do_not_come_back_are_deleted_once_a_process_has_run_for_an_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = 1_700_000_000.0
    old, young, used = (opened(tmp_path, shard=ShardId(f"t/{number}")) for number in range(3))
    for file in (old, young):
        file.close(delete=False)
    os.utime(old.path, (began - 1, began - 1))
    os.utime(young.path, (began + 1, began + 1))
    os.utime(used.path, (began - 1, began - 1))
    now = [began + CLEAN_AFTER - 1]
    monkeypatch.setattr("shardherd.worker.queue_file.time.time", lambda: now[0])
    assert clean(tmp_path, GROUP, began=began) == [], "not before the first look at what it is given is over"
    now[0] += 1
    assert clean(tmp_path, "nobody", began=began) == []
    assert clean(tmp_path, GROUP, began=began) == [old.path]
    assert (old.path.exists(), young.path.exists(), used.path.exists()) == (False, True, True)


def test_what_cannot_be_cleaned_up_is_told_and_keeps_nothing_from_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    began = 1_700_000_000.0
    odd, old = tmp_path / GROUP / "a.queue", opened(tmp_path)
    odd.mkdir()
    old.close(delete=False)
    for path in (odd, old.path):
        os.utime(path, (began - 1, began - 1))
    monkeypatch.setattr("shardherd.worker.queue_file.time.time", lambda: began + CLEAN_AFTER)
    assert clean(tmp_path, GROUP, began=began) == [old.path]
    assert f"{odd} cannot be cleaned up: " in caplog.text


def test_a_file_in_use_is_locked(tmp_path: Path) -> None:
    file = opened(tmp_path)
    descriptor = os.open(file.path, os.O_RDONLY)
    with pytest.raises(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    file.close(delete=False)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(descriptor)


def test_a_file_begins_with_what_it_is(tmp_path: Path) -> None:
    assert written(tmp_path).read_bytes().startswith(MAGIC)
