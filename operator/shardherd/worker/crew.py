"""Where a program's own code runs: a thread for each call that is under way, and one event loop for its coroutines.

Never the loop of the session, whose heartbeats must go on whatever a program does. Threads are daemons: one that hangs does not
keep the process. How much runs at once is its callers' decision.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

from shardherd.consumer.contained import named

log = logging.getLogger(__name__)

COROUTINES = "coroutines"
"""How the thread of the coroutines is named, after its crew."""

SHOWN = 5
"""How many of the last calls are shown of a thread."""

Work = Callable[[], Any]

T = TypeVar("T")


class Call:
    """Something that runs elsewhere. `ended` gets its result or exception on the loop that asked for it."""

    def __init__(self, ended: asyncio.Future[Any], cancel: Callable[[], None] | None = None) -> None:
        self.ended = ended
        self._cancel = cancel

    @property
    def can_be_cancelled(self) -> bool:
        """Whether it is a coroutine. A thread goes on until it returns."""
        return self._cancel is not None

    def cancel(self) -> None:
        """Ask a coroutine to end."""
        if self._cancel is not None:
            self._cancel()


class Crew(Protocol):
    """Runs work outside of the session's loop."""

    def call(self, work: Work) -> Call:
        """A function in a thread."""
        ...

    def spawn(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Call:
        """A coroutine, on the program's own loop."""
        ...


def is_async(method: Callable[..., Any]) -> bool:
    """Whether calling it makes a coroutine."""
    return inspect.iscoroutinefunction(method)


def begun(crew: Crew, method: Callable[..., Any], *arguments: Any) -> Call:
    """Call a function in a thread, or a coroutine."""
    work = partial(method, *arguments) if arguments else method
    return crew.spawn(work) if is_async(method) else crew.call(work)


class ThreadCrew:
    """Threads that are kept for the next call, and a loop in a thread of its own once a coroutine is to run."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._idle: list[SimpleQueue[Callable[[], None]]] = []
        self._inboxes: list[SimpleQueue[Callable[[], None]]] = []
        self._threads: list[threading.Thread] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    @property
    def runs_here(self) -> bool:
        """Whether this thread is one of it."""
        return threading.current_thread() in self._threads

    def call(self, work: Work) -> Call:
        home = asyncio.get_running_loop()
        ended: asyncio.Future[Any] = home.create_future()
        try:
            inbox = self._idle.pop()
        except IndexError:  # not looked at before: calls come from two loops
            inbox = self._hire()

        def done(result: Any, error: BaseException | None) -> None:
            self._idle.append(inbox)
            _settle(ended, result, error)

        def body() -> None:
            result, error = None, None
            try:
                result = work()
            except BaseException as raised:  # noqa: BLE001 - whatever it is, the one who asked for it hears of it
                error = raised
            _tell(home, done, result, error)

        inbox.put(body)
        return Call(ended)

    def spawn(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Call:
        home = asyncio.get_running_loop()
        ended: asyncio.Future[Any] = home.create_future()
        loop = self._coroutines()
        running: list[asyncio.Task[Any]] = []

        def begin() -> None:
            task = loop.create_task(_awaited(work))
            running.append(task)
            task.add_done_callback(lambda done: _tell(home, _settle, ended, *_outcome(done)))

        def cancel() -> None:
            loop.call_soon_threadsafe(lambda: running[0].cancel())

        loop.call_soon_threadsafe(begin)
        return Call(ended, cancel)

    def turned(self) -> asyncio.Future[Any]:
        """Done once the loop of the coroutines has turned; at once if there is none yet."""
        home = asyncio.get_running_loop()
        turned: asyncio.Future[Any] = home.create_future()
        if self._loop is None:
            turned.set_result(None)
        else:
            self._loop.call_soon_threadsafe(_tell, home, _settle, turned, None, None)
        return turned

    def where_the_loop_is(self) -> str:
        """The last calls of the thread of the coroutines, as a traceback shows them."""
        frames = sys._current_frames()
        thread = next((each for each in self._threads if each.name == f"{self._name}-{COROUTINES}"), None)
        frame = None if thread is None or thread.ident is None else frames.get(thread.ident)
        return "".join(traceback.format_stack(frame)[-SHOWN:]) if frame is not None else ""

    def close(self) -> None:
        """End the threads, each once what it runs has returned. Coroutines that still run are cancelled."""
        self._closed = True
        for inbox in self._inboxes:
            inbox.put(_nothing)
        if (loop := self._loop) is not None:
            loop.call_soon_threadsafe(loop.stop)

    def _hire(self) -> SimpleQueue[Callable[[], None]]:
        inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()

        def live() -> None:
            while not self._closed:
                # Not kept in a name: an idle thread would keep the records of its last batch.
                inbox.get()()

        self._inboxes.append(inbox)
        self._start(live, f"{len(self._inboxes)}")
        return inbox

    def _start(self, live: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=live, name=f"{self._name}-{name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _coroutines(self) -> asyncio.AbstractEventLoop:
        if (loop := self._loop) is None:
            loop = self._loop = asyncio.new_event_loop()
            loop.set_default_executor(DaemonThreads(f"{self._name}-to-thread"))

            def live() -> None:
                while not self._closed:
                    try:
                        loop.run_forever()
                    except BaseException:
                        # asyncio passes these on from a task: whoever waits for that one hears of it, and all others go on.
                        log.exception("a coroutine of the program has raised what ends a process; the others go on")
                _end_all(loop)

            self._start(live, COROUTINES)
        return loop


class DaemonThreads(ThreadPoolExecutor):
    """What `asyncio.to_thread` of a program runs in: as many threads as are usual. Those of Python's own pool keep the process
    until they end, without a word, after everything else has."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self._given: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        # How many threads wait for something, and have nothing given to them yet.
        self._free = threading.Semaphore(0)
        self._live = 0

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """See Executor. Called on the loop alone."""
        future: Future[T] = Future()

        def run() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(fn(*args, **kwargs))
                except StopIteration as error:  # asyncio's future refuses it, and whoever awaits that would wait for ever
                    future.set_exception(Raised(error))
                except BaseException as error:  # noqa: BLE001 - whatever it is, the one who asked for it hears of it
                    future.set_exception(error)

        self._given.put(run)
        if not self._free.acquire(blocking=False) and self._live < self._max_workers:
            self._live += 1
            threading.Thread(target=self._go_on, name=f"{self._name}-{self._live}", daemon=True).start()
        return future

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:  # noqa: ARG002 - as Executor's
        """End the threads, each once it has nothing to do: nobody waits for that."""
        for _ in range(self._live):
            self._given.put(None)

    def _go_on(self) -> None:
        while (run := self._given.get()) is not None:
            run()
            self._free.release()


def _nothing() -> None:
    """Wakes a thread."""


def _end_all(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel what runs on a loop, and close it once that has ended."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks))
    loop.close()


async def _awaited(work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    # Also what cannot even be called fails in the task: nobody would hear of it elsewhere.
    return await work()


def _outcome(task: asyncio.Task[Any]) -> tuple[Any, BaseException | None]:
    if task.cancelled():
        return None, CancelledInCrewError("it was cancelled")
    error = task.exception()
    return (None, error) if error is not None else (task.result(), None)


class CancelledInCrewError(Exception):
    """A coroutine was cancelled. Not asyncio's own error, which would cancel whoever waits for it."""


def _settle(ended: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if ended.cancelled():
        return
    if error is None:
        ended.set_result(result)
        return
    # A future refuses StopIteration, and passes on what ends a process to the loop itself.
    ended.set_exception(error if isinstance(error, Exception) and not isinstance(error, StopIteration) else Raised(error))
    ended.exception()  # seen: who gave it up does not look any more


class Raised(Exception):  # noqa: N818 - it stands for another one
    """Stands for an exception that a future cannot carry."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(named(error))
        self.__cause__ = error


def _tell(home: asyncio.AbstractEventLoop, done: Callable[..., None], *arguments: Any) -> None:
    """Tell the loop that asked, unless it is over: then nobody waits."""
    if not home.is_closed():
        try:
            home.call_soon_threadsafe(done, *arguments)
        except RuntimeError:
            if not home.is_closed():
                raise
