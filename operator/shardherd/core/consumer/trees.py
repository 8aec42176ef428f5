"""Which trees of tuples are finished: an acker as Storm's, which keeps 20 bytes for each, however many tuples it has.

Kept by `worker.trees` for each shard. A tree begins as a root, whose id it is named by; each tuple of it that is acknowledged
sends the XOR of its own id and of those that it emitted. Every id is sent twice, by who emits and by who acknowledges, so what
is left is 0 once all are. Decides nothing about what comes again; ids are drawn by its caller, at random of 64 bits.
"""

from __future__ import annotations

from array import array
from enum import Enum

TASK_LIMIT = 2**32 - 2
_EARLY, _FAILED_EARLY = 0, 2**32 - 1


class Verdict(Enum):
    """How a tree ended."""

    DONE = "done"
    FAILED = "failed"


class Acker:
    """Up to `most` trees at a time. In the low bits of a root's id is its place, so nothing is kept to find it by."""

    def __init__(self, most: int) -> None:
        if most < 1:
            raise ValueError(f"an acker is for 1 tree or more, not {most}")
        self._places = 1 << max(1, most - 1).bit_length()
        self._roots = array("Q", [0]) * self._places
        self._values = array("Q", [0]) * self._places
        self._tasks = array("I", [0]) * self._places
        self._hint = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def bytes_per_tree(self) -> int:
        """Of what is kept for one."""
        return self._roots.itemsize + self._values.itemsize + self._tasks.itemsize

    def root(self, drawn: int) -> int:
        """The id of a new tree's root, made of what was drawn. Its messages may come in any order. ValueError if full."""
        if self._count == self._places:
            most = self._places
            raise ValueError(f"{most} trees are not finished: this acker has no place for another")
        while self._roots[self._hint]:
            self._hint = (self._hint + 1) % self._places
        place, mask = self._hint, self._places - 1
        # 0 stands for no tree.
        root = ((drawn & ~mask) | place) or self._places
        self._roots[place], self._values[place], self._tasks[place] = root, 0, _EARLY
        self._count += 1
        return root

    def start(self, root: int, task: int) -> Verdict | None:
        """The message of who emitted the root: its value begins with the root's id. `task` is who will be told.

        What came before it has waited: 0 means done only from now on.
        """
        if not 0 <= task <= TASK_LIMIT - 1:
            raise ValueError(f"a task is a number from 0 to {TASK_LIMIT - 1}, not {task}")
        if not self.knows(root):
            return None
        place = self._place(root)
        if self._tasks[place] == _FAILED_EARLY:
            return self._end(root, Verdict.FAILED)
        self._tasks[place] = task + 1
        return self.ack(root, root)

    def ack(self, root: int, value: int) -> Verdict | None:
        """The message of who acknowledged a tuple of this tree. None: it is not finished, or over already."""
        if not self.knows(root):
            return None
        place = self._place(root)
        self._values[place] ^= value
        done = self._values[place] == 0 and self._tasks[place] not in (_EARLY, _FAILED_EARLY)
        return self._end(root, Verdict.DONE) if done else None

    def fail(self, root: int) -> Verdict | None:
        """A tuple of this tree failed, and with it the tree, at once. None: it is over already, or has not started."""
        if not self.knows(root):
            return None
        if self._tasks[self._place(root)] in (_EARLY, _FAILED_EARLY):
            self._tasks[self._place(root)] = _FAILED_EARLY
            return None
        return self._end(root, Verdict.FAILED)

    def forget(self, root: int) -> None:
        """The tree is over for another reason, such as its time. What still comes of it changes nothing."""
        if self.knows(root):
            self._end(root, Verdict.FAILED)

    def knows(self, root: int) -> bool:
        """Whether the tree is not over."""
        return root != 0 and self._roots[self._place(root)] == root

    def task(self, root: int) -> int:
        """Who is told of this tree; it has started and is not over."""
        return self._tasks[self._place(root)] - 1

    def _place(self, root: int) -> int:
        return root & (self._places - 1)

    def _end(self, root: int, verdict: Verdict) -> Verdict:
        place = self._place(root)
        self._roots[place] = 0
        self._hint = place
        self._count -= 1
        return verdict
