"""A real Spark application ends at any step of a micro-batch, and goes on with and without what Spark has logged."""

from __future__ import annotations

import re
import shutil
import time
from collections import Counter

import pytest

from shardherd.spark.driver_runtime import EXIT_STOPPED
from tests.harness.long import long
from tests.integration.spark.drivers import START, Driver, Site, produce
from tests.integration.spark.scripted import ScriptedCoordinator
from tests.integration.spark.test_consumers import warm

STEPS = ("planned", "written", "committed", "checkpointed")
"""How far a micro-batch has come: Spark has logged its offsets, its rows, its end; or its checkpoint is durable."""

UNKNOWN = ("written", "committed")
"""The steps at which rows are in the sink and the coordinator does not know of it."""

PROVEN = "committed"
"""The step at which Spark's checkpoint location says so, for as long as it is there."""


class Application:
    """One consumer, run after run, and what was written to its topic."""

    def __init__(self, site: Site, coordinator: ScriptedCoordinator, topic: str, **environment: str) -> None:
        self.written: Counter[tuple[str, int]] = Counter()
        self._site, self._coordinator, self._topic = site, coordinator, topic
        self._environment = environment
        self._starts = 0
        self.start()

    def start(self) -> None:
        self._starts += 1
        self.driver: Driver = self._site.start("clicks-0", self._starts, **self._environment)

    def stop_at(self, step: str) -> None:
        """Write more records, and wait until the application has come so far with them, and no further."""
        rows = len(self._site.rows())
        self._coordinator.commits = step != "committed"
        trap = {"planned": "wait", "written": "hold"}.get(step)
        if trap:
            (self._site.sink / f"{trap}-{self.driver.name}").touch()
        self.written += produce(self._site.bootstrap, self._topic, 4, 10, first=self.written.total() // 4)

        def reached() -> bool:
            if step == "planned":
                return (self._site.sink / f"waits-{self.driver.name}").exists()
            if step == "written":
                return len(self._site.rows()) > rows
            if step == "committed":
                # The records may come in several micro-batches, each of which is committed after its rows are written.
                return len(self._site.rows()) == rows + 40 and self._logged("offsets") == self._logged("commits")
            return self.all_durable()

        self._site.wait_until(reached, f"a micro-batch is {step}")

    def kill(self) -> Counter[tuple[str, int]]:
        """Kill it; returns what it has written of which no position is durable."""
        self.driver.kill()
        return self.ended()

    def ended(self) -> Counter[tuple[str, int]]:
        """The same, once it has ended."""
        deadline = time.monotonic() + 30
        while self.driver.children():
            assert time.monotonic() < deadline, "the JVM and the workers live on"
            time.sleep(0.02)
        durable = self._coordinator.positions()
        self._coordinator.commits = True
        return Counter((shard, offset) for shard, offset in self._site.counted() if offset >= durable[shard])

    def until_warm(self) -> None:
        """Wait until this very run is ready: before, a signal ends Python itself."""

        def ready() -> bool:
            heartbeat = self._coordinator.heartbeats["clicks-0"]
            return heartbeat.incarnation.start == self._starts and heartbeat.ready

        self._coordinator.wait_until(ready, f"run {self._starts} is warm", START)

    def all_durable(self) -> bool:
        return sum(self._coordinator.positions().values()) == self.written.total()

    def _logged(self, log: str) -> set[str]:
        """The micro-batches that are in this log of Spark's: those that it has begun, or finished."""
        return {path.name for path in (self._site.folder / "checkpoints").rglob(f"{log}/[0-9]*")}


@long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("location", ["with", "without"])
def test_an_application_that_is_killed_at_any_step_repeats_what_it_wrote_and_did_not_checkpoint(
    site: Site, coordinator: ScriptedCoordinator, topic: str, location: str
) -> None:
    coordinator.grant("clicks-0", *(f"{topic}/{number}" for number in range(4)))
    application = Application(site, coordinator, topic)
    warm(coordinator, application.driver)
    repeated: Counter[tuple[str, int]] = Counter()

    for step in STEPS:
        application.stop_at(step)
        unknown = application.kill()
        assert bool(unknown) == (step in UNKNOWN), step
        if (location, step) != ("with", PROVEN):
            repeated += unknown
        if location == "without":
            shutil.rmtree(site.folder / "checkpoints")
        application.start()
        coordinator.wait_until(application.all_durable, f"it goes on after it was killed when {step}", START)
        assert site.counted() == application.written + repeated, step

    application.until_warm()
    assert application.driver.terminate() == 0


@long
@pytest.mark.timeout(600)
def test_an_application_that_hears_nothing_of_its_coordinator_ends_in_the_middle_of_a_micro_batch(
    site: Site, coordinator: ScriptedCoordinator, topic: str
) -> None:
    coordinator.grant("clicks-0", *(f"{topic}/{number}" for number in range(4)))
    application = Application(site, coordinator, topic, SHARDHERD_COORDINATOR_LOSS_LIMIT_MS="10000")
    warm(coordinator, application.driver)
    application.stop_at("written")

    coordinator.silent = True

    assert application.driver.process.wait(60) == EXIT_STOPPED
    said = application.driver.log.read_text()
    (silent,) = re.findall(r"stopping: no heartbeat of clicks-0 was acknowledged for (\d+) s \(limit 10 s\)", said)
    assert int(silent) >= 10
    repeated = application.ended()
    assert repeated
    coordinator.silent = False
    application.start()
    coordinator.wait_until(application.all_durable, "the next run goes on", START)
    assert site.counted() == application.written + repeated
    assert application.driver.terminate() == 0
