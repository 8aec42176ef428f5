"""Records that become trees of tuples, in a worker."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shardherd.worker import Out, Record, TreeProcessor, Tuple, WorkerOptionError
from tests.unit.worker.acknowledged import Graveyard
from tests.unit.worker.scene import A, Scene, story


class Sentences(TreeProcessor):
    """Each record becomes as many words as its offset has digits, and one more. Counts what was processed."""

    manual = frozenset({"later"})

    def __init__(self, breaks: Callable[[str], bool] = lambda _: False) -> None:
        self.words: list[str] = []
        self.kept: list[tuple[Out, Tuple]] = []
        self.acked: list[int] = []
        self.rooted: list[int] = []
        self.breaks = breaks

    def process(self, record: Record, ack: Any) -> None:
        settle = ack._settle

        def noted(record: Record, tries: int, reason: str | None, bad: bool) -> bool:
            counts: bool = settle(record, tries, reason, bad)
            if reason is None:
                self.acked.append(record.offset)
            return counts

        ack._settle = noted
        super().process(record, ack)

    def root(self, record: Record, out: Out) -> None:
        self.rooted.append(record.offset)
        out.emit("split", f"s{record.offset}")

    def split(self, tuple_: Tuple, out: Out) -> None:
        for word in ("a", "b"):
            out.emit("count", f"{tuple_.value}{word}")

    def count(self, tuple_: Tuple, out: Out) -> None:
        if self.breaks(tuple_.value):
            raise ValueError(tuple_.value)
        self.words.append(tuple_.value)

    def later(self, tuple_: Tuple, out: Out) -> None:
        self.kept.append((out, tuple_))


def test_two_stages_one_ack() -> None:
    sentences = Sentences()

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 2)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 2)])
        assert (sentences.words, sentences.acked) == (["s0a", "s0b", "s1a", "s1b"], [0, 1])

    story(body, factory=lambda: sentences, save_interval=1.0)


def test_a_tuple_that_fails_has_the_whole_record_processed_again_and_the_rest_of_its_tree_is_left(
    caplog: pytest.LogCaptureFixture,
) -> None:
    breaks = {"s0a": iter([True])}
    sentences = Sentences(lambda word: next(breaks.get(word, iter(())), False))

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 1)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 1)])
        assert (sentences.rooted, sentences.words, sentences.acked) == ([0, 0], ["s0a", "s0b"], [0])

    story(body, factory=lambda: sentences, save_interval=1.0)
    said = [(line.levelname, line.getMessage(), line.exc_info is None) for line in caplog.records if "failed" in line.msg]
    assert said == [("WARNING", "stage count of record 0 failed, try 1: s0a", False)]


class Kept(Sentences):
    def split(self, tuple_: Tuple, out: Out) -> None:
        out.emit("later", tuple_.value)


def test_a_tuple_that_is_kept_is_acknowledged_later_and_its_record_with_it() -> None:
    kept = Kept()

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 3)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: len(kept.kept) == 3)
        for out, tuple_ in kept.kept[1:]:
            out.ack(tuple_)
        await asyncio.sleep(5.0)
        assert (scene.coordinator.checkpoints, kept.acked) == ([], [1, 2])
        out, tuple_ = kept.kept[0]
        with pytest.raises(RuntimeError, match="a stage emits while it runs only"):
            out.emit("count", "late")
        out.fail(tuple_, "the sink is away")
        out.ack(tuple_)
        await scene.until(lambda: kept.rooted == [0, 1, 2, 0])
        kept.kept[3][0].ack(kept.kept[3][1])
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 3)])

    story(body, factory=lambda: kept, save_interval=1.0)


def test_a_tree_whose_time_is_over_comes_again_and_what_is_left_of_it_does_not_count() -> None:
    kept = Kept()

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 1)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: kept.rooted == [0, 0])
        (old, first), (new, second) = kept.kept
        old.ack(first)
        await asyncio.sleep(2.0)
        assert (kept.acked, scene.coordinator.checkpoints) == ([], [])
        new.ack(second)
        await scene.until(lambda: scene.coordinator.checkpoints == [(A, 1, 1)])

    story(body, factory=lambda: kept, save_interval=1.0, ack_timeout=10.0)


def test_a_stage_that_never_acknowledges_is_bounded_and_its_records_end_where_bad_ones_do() -> None:
    kept, graves = Kept(), Graveyard()

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 9)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: len(kept.kept) == 2)
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 9)], within=500)
        assert graves.buried == [(A, offset, "not acknowledged within 10 s", 2) for offset in range(9)]

    story(
        body,
        factory=lambda: kept,
        graveyard=graves,
        save_interval=1.0,
        ack_timeout=10.0,
        max_pending=2,
        tries=2,
        bad_records="dead-letter",
        dead_letters="bad",
    )


class Joined(Kept):
    """Every second record joins the tuple that the one before has kept."""

    def later(self, tuple_: Tuple, out: Out) -> None:
        super().later(tuple_, out)
        if len(self.kept) == 2:
            (before, first), (now, second) = self.kept
            now.emit("count", "joined", anchors=(first, second))
            before.ack(first)
            now.ack(second)

    def count(self, tuple_: Tuple, out: Out) -> None:
        if not self.words:
            self.words.append("broken")
            raise ValueError("the join is broken")
        super().count(tuple_, out)


def test_a_tuple_with_two_anchors_belongs_to_two_trees_and_fails_both() -> None:
    joined = Joined()

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 2)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: joined.rooted == [0, 1])
        joined.kept.clear()
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 2)])
        assert (joined.rooted, joined.words, joined.acked) == ([0, 1, 0, 1], ["broken", "joined"], [0, 1])

    story(body, factory=lambda: joined, save_interval=1.0, in_order=False)


def test_records_of_whole_trees_and_trees_that_failed_are_counted() -> None:
    broken = ["s1a"]

    def breaks(word: str) -> bool:
        return word in broken and not broken.remove(word)  # type: ignore[func-returns-value]

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 3)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 3)])
        counts = scene.processing.counts
        assert (counts.records, counts.failures) == (3, {"process": 1})

    story(body, factory=lambda: Sentences(breaks), save_interval=1.0)


class Loose(Sentences):
    def split(self, tuple_: Tuple, out: Out) -> None:
        out.emit("count", "loose", anchors=())


def test_what_is_not_anchored_is_waited_for_by_nobody() -> None:
    loose = Loose(lambda word: word == "loose")

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 1)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 1)])
        assert (loose.rooted, loose.words) == ([0], [])

    story(body, factory=lambda: loose, save_interval=1.0)


class Untracked(Sentences):
    tracked = False


def test_the_switch_for_less_tracks_no_tree_and_accepts_loss() -> None:
    untracked = Untracked(lambda word: word == "s0a")

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 1)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: scene.coordinator.checkpoints[-1:] == [(A, 1, 1)])
        assert (untracked.rooted, untracked.words, untracked.acked) == ([0], ["s0b"], [0])

    story(body, factory=lambda: untracked, save_interval=1.0)


def test_a_stage_that_there_is_not_is_named() -> None:
    class Wrong(Sentences):
        def root(self, record: Record, out: Out) -> None:
            with pytest.raises(ValueError, match="there is no stage 'spilt': Wrong has no method of that name"):
                out.emit("spilt", 1)
            self.rooted.append(record.offset)

    wrong = Wrong()

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 1)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: wrong.acked == [0])

    story(body, factory=lambda: wrong)


def test_a_coroutine_cannot_be_the_root_or_a_stage_that_acknowledges_by_itself() -> None:
    async def later(self: Any, tuple_: Tuple, out: Out) -> None: ...

    why = "of Wrong must be a function, not a coroutine: nobody awaits a stage"
    with pytest.raises(WorkerOptionError, match=f"root {why}"):
        type("Wrong", (TreeProcessor,), {"root": later})
    with pytest.raises(WorkerOptionError, match=f"later {why}"):
        type("Wrong", (TreeProcessor,), {"later": later, "manual": frozenset({"later"})})


@pytest.mark.parametrize("manual", ["count", ["count", 1], None], ids=repr)
def test_what_manual_cannot_be_is_refused_when_the_class_is_defined(manual: Any) -> None:
    message = f"manual of Wrong must be a set of names of stages, also of one alone, as in {{'split'}}, not {manual!r}"
    with pytest.raises(WorkerOptionError, match=re.escape(message)):
        type("Wrong", (TreeProcessor,), {"manual": manual})


def test_a_name_in_manual_that_is_no_stage_ends_the_worker() -> None:
    class Mistyped(Sentences):
        manual = frozenset({"later", "cuont"})

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 1)
        scene.coordinator.assign((A, 1, 0))
        with pytest.raises(WorkerOptionError) as raised:
            await scene.ended()
        assert str(raised.value) == (
            "manual of Mistyped names cuont, and there is no such method: what it does not name is acknowledged when it returns"
        )
        assert scene.coordinator.checkpoints == []

    story(body, factory=Mistyped)


async def _coroutine(self: Any, tuple_: Tuple, out: Out) -> None: ...


def _generator(self: Any, tuple_: Tuple, out: Out) -> Iterator[None]:
    yield None


async def _generator_of_coroutines(self: Any, tuple_: Tuple, out: Out) -> Any:
    yield None


@pytest.mark.parametrize(
    ("stage", "kind"),
    [(_coroutine, "coroutine"), (_generator, "generator"), (_generator_of_coroutines, "async_generator")],
)
def test_a_stage_whose_work_nobody_would_do_fails_its_record(stage: Any, kind: str) -> None:
    class Wrong(Sentences):
        count = stage

    wrong, graves = Wrong(), Graveyard()

    async def body(scene: Scene) -> None:
        scene.logs.append(A, 1)
        scene.coordinator.assign((A, 1, 0))
        await scene.until(lambda: bool(graves.buried))
        why = (
            f"TypeError: what count returned is a {kind}, which nobody awaits or iterates: make it a plain function, which"
            " returns when its work is done"
        )
        assert (wrong.acked, graves.buried) == ([], [(A, 0, why, 1)])

    dead: dict[str, Any] = {"graveyard": graves, "tries": 1, "bad_records": "dead-letter", "dead_letters": "bad"}
    story(body, factory=lambda: wrong, **dead)
