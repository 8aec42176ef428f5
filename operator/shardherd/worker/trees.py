"""Records that become trees of tuples: stages that emit to each other, and a record that is done when its whole tree is.

A user's TreeProcessor is one more RecordProcessor to `delivery`, which gives a record again whose tree failed or whose time is
over. It decides in which order tuples are processed; when a tree is done is `core.consumer.trees`' rule.
"""

from __future__ import annotations

import logging
import random
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any

from shardherd.consumer.contained import text_of
from shardherd.core.consumer.trees import Acker, Verdict
from shardherd.core.model.nouns import Place
from shardherd.worker.crew import is_async
from shardherd.worker.options import WorkerOptionError
from shardherd.worker.record_processor import Ack, RecordProcessor
from shardherd.worker.records import Record
from shardherd.worker.unfinished import check_done

log = logging.getLogger(__name__)


class Tuple:
    """A value on its way to a stage. `ids` are its ids in each tree that it belongs to, none if it is in none."""

    __slots__ = ("emitted", "ids", "over", "stage", "value")

    def __init__(self, stage: str, value: Any, ids: dict[int, int]) -> None:
        self.stage = stage
        self.value = value
        self.ids = ids
        self.emitted = 0
        self.over = False


class Out:
    """What a stage emits by, while it runs, and acknowledges by, then or later and from any thread."""

    def __init__(self, forest: _Forest, input_: Tuple) -> None:
        self._forest = forest
        self._input = input_
        self._closed = False

    def emit(self, stage: str, value: Any, anchors: Sequence[Tuple] | None = None) -> None:
        """A new tuple for this stage. It belongs to the trees of its anchors: of the tuple in hand, unless others are given.

        With no anchors, `()`, it belongs to none: nobody waits for it, and what it fails by is only logged.
        """
        if self._closed:
            raise RuntimeError("a stage emits while it runs only; afterwards it may acknowledge")
        self._forest.emit(stage, value, (self._input,) if anchors is None else anchors)

    def ack(self, tuple_: Tuple) -> None:
        """The tuple is processed. Needed of stages that are in `manual` only."""
        self._forest.ack(tuple_)

    def fail(self, tuple_: Tuple, reason: str | BaseException = "") -> None:
        """Its trees fail, at once: their records are processed again."""
        self._forest.fail(tuple_, reason)

    def close(self) -> None:
        self._closed = True


class TreeProcessor(RecordProcessor):
    """Processes each record as a tree of tuples. `root` emits the first; methods named as stages take them, and emit more.

    A tuple is acknowledged when its method returns, and fails when it raises; methods in `manual` call `out.ack` and `out.fail`
    themselves. `tracked` False is the switch for less: a record is done when `root` has begun, whatever becomes of its tree.
    """

    manual: frozenset[str] = frozenset()
    tracked: bool = True

    def root(self, record: Record, out: Out) -> None:
        """Emit the first tuples of a record. If it emits none, the record is done."""
        raise NotImplementedError

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if wrong := wrong_manual(cls.manual):
            raise WorkerOptionError(f"manual of {cls.__name__} {wrong}")
        # Which other methods are stages, `emit` alone tells: those are found out when they are called.
        for name in ("root", *sorted(cls.manual)):
            if (method := getattr(cls, name, None)) is not None and is_async(method):
                raise WorkerOptionError(f"{name} of {cls.__name__} must be a function, not a coroutine: nobody awaits a stage")

    def process(self, record: Record, ack: Ack) -> None:
        if self._forest is None:
            self._forest = _Forest(self)
        self._forest.plant(record, ack)

    def gone(self, record: Record) -> None:
        if self._forest is not None:
            self._forest.gone(record)

    _forest: _Forest | None = None


def wrong_manual(manual: Any, processor: TreeProcessor | None = None) -> str:
    """What the stages in `manual` must be and are not, empty if they can be; of a processor that was made each is a method."""
    if not isinstance(manual, Collection) or isinstance(manual, str) or not all(isinstance(each, str) for each in manual):
        return f"must be a set of names of stages, also of one alone, as in {{'split'}}, not {manual!r}"
    if processor is not None and (unknown := sorted(each for each in manual if not callable(getattr(processor, each, None)))):
        return f"names {', '.join(unknown)}, and there is no such method: what it does not name is acknowledged when it returns"
    return ""


class _Forest:
    """The trees of one processor. Tuples are processed first in, first out, by the thread that hands out records."""

    def __init__(self, processor: TreeProcessor) -> None:
        self._processor = processor
        self._lock = threading.Lock()
        self._acker = Acker(processor.max_pending)
        self._queue: deque[Tuple] = deque()
        self._acks: dict[int, Ack] = {}
        self._roots: dict[Place, int] = {}

    def plant(self, record: Record, ack: Ack) -> None:
        """Process the whole tree of a record, but for what is acknowledged later."""
        processor, root = self._processor, self._begin(record, ack)
        self._run(Tuple("", record, {root: root} if root else {}), lambda _, out: processor.root(record, out), manual=False)
        while self._queue:
            tuple_ = self._queue.popleft()
            if not tuple_.ids or any(self._acker.knows(each) for each in tuple_.ids):
                self._run(tuple_, getattr(processor, tuple_.stage), manual=tuple_.stage in processor.manual)

    def emit(self, stage: str, value: Any, anchors: Sequence[Tuple]) -> None:
        if not hasattr(self._processor, stage):
            raise ValueError(f"there is no stage {stage!r}: {type(self._processor).__name__} has no method of that name")
        ids: dict[int, int] = {}
        with self._lock:
            for anchor in anchors:
                if anchor.over:
                    raise ValueError(f"a tuple of stage {anchor.stage!r} was acknowledged, and cannot be an anchor any more")
                edge = random.getrandbits(64)
                anchor.emitted ^= edge
                for root in anchor.ids:
                    ids[root] = ids.get(root, 0) ^ edge
        self._queue.append(Tuple(stage, value, ids))

    def ack(self, tuple_: Tuple) -> None:
        done = []
        with self._lock:
            if tuple_.over:
                return
            tuple_.over = True
            for root, id_ in tuple_.ids.items():
                if self._acker.ack(root, id_ ^ tuple_.emitted) is Verdict.DONE:
                    done.append(self._over(root))
        for ack in done:
            ack()

    def fail(self, tuple_: Tuple, reason: str | BaseException) -> list[Ack]:
        """Of the records that it has failed."""
        failed = []
        with self._lock:
            if tuple_.over:
                return []
            tuple_.over = True
            for root in tuple_.ids:
                if self._acker.fail(root) is Verdict.FAILED:
                    failed.append(self._over(root))
        if not tuple_.ids:
            text = text_of(reason) if isinstance(reason, BaseException) else reason
            log.warning("a tuple of stage %s failed, which belongs to no tree: %s", tuple_.stage or "root", text)
        return [ack for ack in failed if ack.fail(reason)]

    def _begin(self, record: Record, ack: Ack) -> int:
        if not self._processor.tracked:
            ack()
            return 0
        with self._lock:
            self._forget(record)
            root = self._acker.root(random.getrandbits(64))
            self._roots[record.place], self._acks[root] = root, ack
            self._acker.start(root, 0)
            return root

    def gone(self, record: Record) -> None:
        """The record is not given any more."""
        with self._lock:
            self._forget(record)

    def _forget(self, record: Record) -> None:
        """If there is a tree of it, its time was over: what of it still comes does not count."""
        if before := self._roots.pop(record.place, 0):
            del self._acks[before]
            self._acker.forget(before)

    def _over(self, root: int) -> Ack:
        ack = self._acks.pop(root)
        self._roots.pop(ack.record.place, None)
        return ack

    def _run(self, tuple_: Tuple, work: Callable[[Tuple, Out], object], *, manual: bool) -> None:
        out = Out(self, tuple_)
        try:
            check_done(tuple_.stage or "root", work(tuple_, out))
        except BaseException as error:  # a program may raise anything
            for ack in self.fail(tuple_, error):
                level = logging.WARNING if ack.tries == 1 else logging.DEBUG
                stage, name = tuple_.stage or "root", ack.record.name
                log.log(level, "stage %s of %s failed, try %d: %s", stage, name, ack.tries, text_of(error), exc_info=error)
        else:
            if not manual:
                self.ack(tuple_)
        finally:
            out.close()
