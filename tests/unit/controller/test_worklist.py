"""One worker a key: wakings are gathered, runs never overlap, failures back off."""

from __future__ import annotations

import asyncio

from shardherd.controller.worklist import Key, Worklist

A, B = ("shop", "a"), ("shop", "b")


class Work:
    """Counts runs; each takes until the test lets it end."""

    def __init__(self) -> None:
        self.runs: list[Key] = []
        self.failures: list[Key] = []
        self.running = 0
        self.most_at_once = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.fail = 0
        self.remains = True
        self.changed = asyncio.Event()

    async def __call__(self, key: Key) -> bool:
        self.runs.append(key)
        self.running += 1
        self.most_at_once = max(self.most_at_once, self.running)
        self.changed.set()
        try:
            await self.gate.wait()
            if self.fail > 0:
                self.fail -= 1
                raise RuntimeError("it failed")
            return self.remains
        finally:
            self.running -= 1

    async def until_runs(self, count: int) -> None:
        """Wait until there were so many runs."""
        while len(self.runs) < count:
            self.changed.clear()
            await asyncio.wait_for(self.changed.wait(), 5)


def worklist(work: Work) -> Worklist:
    return Worklist(work, work.failures.append, min_interval=0.001, first_retry=0.001)


async def under_way() -> tuple[Work, Worklist]:
    """A worklist with a run of A that takes until the test lets it end."""
    work = Work()
    work.gate.clear()
    todo = worklist(work)
    todo.add(A)
    await work.until_runs(1)
    return work, todo


async def test_wakings_during_a_run_become_one_more_run() -> None:
    work, todo = await under_way()
    for _ in range(10):
        todo.add(A)
    work.gate.set()
    await work.until_runs(2)
    await asyncio.sleep(0.02)
    assert work.runs == [A, A]
    await todo.close()


async def test_runs_of_one_key_never_overlap_and_those_of_two_keys_may() -> None:
    work = Work()
    work.gate.clear()
    todo = worklist(work)
    todo.add(A)
    todo.add(B)
    await work.until_runs(2)
    todo.add(A)
    assert (sorted(work.runs), work.most_at_once) == ([A, B], 2)
    work.gate.set()
    await work.until_runs(3)
    assert work.most_at_once == 2
    await todo.close()


async def test_a_failed_run_is_tried_again_and_counted() -> None:
    work = Work()
    work.fail = 2
    todo = worklist(work)
    todo.add(A)
    await work.until_runs(3)
    assert work.failures == [A, A]
    await todo.close()


async def test_news_do_not_wait_until_a_failure_is_tried_again() -> None:
    work = Work()
    work.fail = 1
    todo = Worklist(work, work.failures.append, min_interval=0.001, first_retry=3600.0)
    todo.add(A)
    await work.until_runs(1)
    await asyncio.sleep(0)
    todo.add(A)
    todo.add(A, news=True)
    await work.until_runs(2)
    await todo.close()


async def test_a_key_that_is_gone_may_come_back() -> None:
    work = Work()
    work.remains = False
    todo = worklist(work)
    todo.add(A)
    await work.until_runs(1)
    await asyncio.sleep(0)
    todo.add(A)
    await work.until_runs(2)
    await todo.close()


async def test_closing_ends_a_run_under_way() -> None:
    work, todo = await under_way()
    await todo.close()
    assert work.running == 0


async def cancelled_by_somebody_else(key: Key) -> None:
    """What Kopf and its end do with every task of their loop."""
    (task,) = (task for task in asyncio.all_tasks() if task.get_name() == f"reconcile {'/'.join(key)}")
    task.cancel()
    await asyncio.wait({task})


async def test_a_key_is_worked_on_again_after_somebody_else_cancelled_its_run() -> None:
    work, todo = await under_way()
    await cancelled_by_somebody_else(A)
    work.gate.set()
    todo.add(A)
    await work.until_runs(2)
    await todo.close()


async def test_a_key_is_worked_on_although_somebody_else_cancelled_its_worker_before_the_first_run() -> None:
    work = Work()
    todo = worklist(work)
    todo.add(A)
    await cancelled_by_somebody_else(A)
    assert work.runs == []
    todo.add(A)
    await work.until_runs(1)
    await todo.close()


async def test_closing_ends_also_what_is_added_meanwhile() -> None:
    _, todo = await under_way()
    closing = asyncio.create_task(todo.close())
    await asyncio.sleep(0)
    todo.add(B)
    await closing
    assert [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("reconcile")] == []


async def test_a_key_that_is_dropped_goes_no_further_and_may_come_back() -> None:
    work, todo = await under_way()
    todo.add(B)
    todo.drop(A)
    todo.drop(("shop", "never heard of"))
    work.gate.set()
    await work.until_runs(2)
    await asyncio.sleep(0.01)
    assert (work.runs, work.running) == ([A, B], 0)
    todo.add(A)
    await work.until_runs(3)
    assert (work.runs, work.most_at_once) == ([A, B, A], 2)
    await todo.close()


async def test_a_key_that_is_dropped_before_its_first_run_is_not_worked_on() -> None:
    work = Work()
    todo = worklist(work)
    todo.add(A)
    todo.drop(A)
    await asyncio.sleep(0.01)
    assert work.runs == []
