"""How full this process's disks and memory are, and what the application says of itself, for heartbeats.

Started by whoever runs a consumer in a pod: the worker, the plain client and the agent. It decides what is measured and how,
and nothing that follows from it. That is done in a thread of its own: a disk that hangs, or an application that takes long to
answer, must not keep a heartbeat.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from shardherd.clock import boot_time
from shardherd.consumer.contained import named
from shardherd.core.model.errors import InvalidRequestError
from shardherd.core.model.gauges import MOST_GAUGES, Gauge, GaugeKind

log = logging.getLogger(__name__)

DISKS = "SHARDHERD_DISKS"
"""Variable with the folders whose disks are measured, with colons between them; by default that in which the process runs."""

EVERY = 5.0
"""Seconds between two measurements: Elasticsearch takes 30."""

FIRST = 5.0
"""Seconds that the first measurement may take: whoever waits for it has not joined its group meanwhile."""

LONG = 15.0
"""Seconds after which a later one is told of, as it hangs; and again when it has taken twice as long."""

MOST_DISKS = MOST_GAUGES - 2

OWN_TOTAL = 10_000
"""In which units an application's own gauge is told, which is a part of one."""

OwnGauge = Callable[[], float]
"""How full the application is by its own measure: 0 is empty, 1 full. Called in a thread of ours."""


class Gauges:
    """The last measurement, which is never older than it takes to make one. The first is waited for, up to `first` seconds."""

    def __init__(
        self,
        read: Callable[[], tuple[Gauge, ...]],
        every: float = EVERY,
        first: float = FIRST,
        now: Callable[[], float] = boot_time,
    ) -> None:
        self._read, self._every, self._now = read, every, now
        self._last: tuple[Gauge, ...] = ()
        # When the measurement under way began, if one is, and after how many seconds it is told of.
        self._began: float | None = None
        self._long = LONG
        self._measured = threading.Event()
        self._stopped = threading.Event()
        threading.Thread(target=self._go_on, name="shardherd-gauges", daemon=True).start()
        if not self._measured.wait(first):
            log.warning(
                "the first measurement has not ended within %g s: nothing is reported until it does. A disk is away, or the"
                " application's gauge hangs: have it return at once what is known already",
                first,
            )

    def __call__(self) -> tuple[Gauge, ...]:
        """With each heartbeat, which is who notices that a measurement hangs: the thread that makes it cannot."""
        began = self._began
        if began is not None and (seconds := self._now() - began) >= self._long:
            self._long = 2 * seconds
            log.warning(
                "a measurement has not ended for %.0f s: what the last one has found is reported until it does. A disk is away,"
                " or the application's gauge hangs: have it return at once what is known already",
                seconds,
            )
        return self._last

    def close(self) -> None:
        """Measure no more."""
        self._stopped.set()

    def _go_on(self) -> None:
        while not self._stopped.is_set():
            self._began, self._long = self._now(), LONG
            self._last = self._read()
            self._began = None
            self._measured.set()
            self._stopped.wait(self._every)


class Measure:
    """Reads the gauges of this process: of disks, of its control group's memory, and its own, if it has one.

    `root` is where the file system begins. What cannot be read is left out, and said once.
    """

    def __init__(self, disks: Sequence[Path], own: OwnGauge | None = None, root: Path = Path("/")) -> None:
        self._disks, self._own, self._root = disks, own, root
        self._said: set[str] = set()

    def __call__(self) -> tuple[Gauge, ...]:
        return (*self._of_disks(), *self._of_memory(), *self._of_its_own())

    def _of_disks(self) -> Iterator[Gauge]:
        for disk in self._disks:
            try:
                found = os.statvfs(disk)
            except OSError as error:
                self._warn(f"disk {disk}", f"the disk of {disk} cannot be measured, and is not reported: {error}")
                continue
            used = (found.f_blocks - found.f_bfree) * found.f_frsize
            # As `df` has it: what is kept for root is nobody's to use.
            total = used + found.f_bavail * found.f_frsize
            if total:
                yield Gauge(GaugeKind.DISK, str(disk), used, total)

    def _of_memory(self) -> Iterator[Gauge]:
        """Of the nearest control group with a limit; as the kubelet counts, without cached files that the kernel can drop."""
        for group in self._control_groups():
            try:
                limit = (group / "memory.max").read_text().strip()
                if limit == "max":
                    continue
                usage = int((group / "memory.current").read_text())
                pages = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            except OSError:
                continue  # there is no such control group here: not in version 1, and not on every machine
            yield Gauge(GaugeKind.MEMORY, "memory", max(0, usage - int(pages.get("inactive_file", 0))), max(1, int(limit)))
            return

    def _control_groups(self) -> Iterator[Path]:
        top = self._root / "sys/fs/cgroup"
        try:
            lines = (self._root / "proc/self/cgroup").read_text().splitlines()
        except OSError:
            lines = []
        here = next((line[3:].strip("/") for line in lines if line.startswith("0::")), "")
        for path in (top / here, *(top / here).parents):
            yield path
            if path == top:
                return

    def _of_its_own(self) -> Iterator[Gauge]:
        if self._own is None:
            return
        try:
            value = float(self._own())
        except BaseException as error:  # noqa: BLE001 - the application's own code: SystemExit would end the thread alone, unseen
            self._warn("own failed", f"the application's gauge failed, and is not reported: {named(error)}")
            return
        if math.isnan(value) or value < 0:
            self._warn(
                "own value",
                f"the application's gauge is {value}, and is not reported: return a number from 0 (empty) to 1 (full)",
            )
            return
        yield Gauge(GaugeKind.OWN, "own", round(min(value, 1.0) * OWN_TOTAL), OWN_TOTAL)

    def _warn(self, what: str, text: str) -> None:
        """Once for each thing that is wrong: the text of an error may be another one each time."""
        if what not in self._said:
            self._said.add(what)
            log.warning("%s", text)


def measure_of(environment: Mapping[str, str], own: OwnGauge | None = None) -> Measure:
    """What a process with this environment measures. Raises InvalidRequestError for a folder that is not there."""
    folders = dict.fromkeys(Path(each) for each in environment.get(DISKS, "").split(":") if each)
    named = list(folders) or [Path.cwd()]
    if missing := [str(each) for each in named if not each.is_dir()]:
        raise InvalidRequestError(f"{DISKS} names {', '.join(missing)}, which is no folder here: name folders that are mounted")
    if len(named) > MOST_DISKS:
        raise InvalidRequestError(f"{DISKS} names {len(named)} folders: name at most {MOST_DISKS}, one on each disk")
    return Measure(named, own)
