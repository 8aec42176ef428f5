"""Real Spark applications, a real broker, and a coordinator that does what the test says."""

from __future__ import annotations

import re
import threading
import time
import urllib.request
from collections import Counter

from dev.cluster.ports import free_ports
from shardherd.core.model.nouns import Heartbeat, Phase
from tests.integration.spark.drivers import START, Driver, Site, produce
from tests.integration.spark.scripted import ScriptedCoordinator


class Stream:
    """Produces on and on until it is stopped, at the latest with its block; `written` is what must be read in the end."""

    def __init__(self, bootstrap: str, topic: str, shards: int) -> None:
        self.written: Counter[tuple[str, int]] = Counter()
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(bootstrap, topic, shards))

    def __enter__(self) -> Stream:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self, bootstrap: str, topic: str, shards: int) -> None:
        first = 0
        while not self._enough.wait(0.05):
            self.written += produce(bootstrap, topic, shards, 20, first=first)
            first += 20

    def stop(self) -> Counter[tuple[str, int]]:
        self._enough.set()
        self._thread.join()
        return self.written


def read_by(site: Site, run: str, shard: str) -> int:
    return sum(1 for row in site.rows() if row[0] == shard and row[2] == run)


def warm(coordinator: ScriptedCoordinator, *drivers: Driver) -> None:
    consumers = [driver.name.rpartition(".")[0] for driver in drivers]
    coordinator.wait_until(
        lambda: all(name in coordinator.heartbeats and coordinator.heartbeats[name].ready for name in consumers),
        f"{consumers} are warm",
        START,
    )


def scraped(port: int, name: str) -> float:
    """A metric of the application that serves them on this port."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = [line for line in answer.read().decode().splitlines() if line.startswith(name)]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def test_shards_come_and_go_between_micro_batches_and_nothing_is_lost_or_repeated(
    site: Site, coordinator: ScriptedCoordinator, topic: str
) -> None:
    shards = [f"{topic}/{number}" for number in range(4)]
    # No value is JSON, so the second one's all take the slow path.
    (port,) = free_ports(1)
    typed = '{"valueFormat": "json", "valueSchema": "a int"}'
    first = site.start("clicks-0")
    second = site.start("clicks-1", TEST_OPTIONS=typed, SHARDHERD_METRICS_PORT=str(port))
    warm(coordinator, first, second)
    assert not site.rows(), "nothing is read before it is granted"
    with Stream(site.bootstrap, topic, 4) as stream:
        coordinator.grant("clicks-0", *shards)
        site.wait_until(lambda: all(read_by(site, first.name, shard) for shard in shards), "the first reads all shards")
        coordinator.grant("clicks-1", shards[2], shards[3])
        site.wait_until(lambda: all(read_by(site, second.name, shard) for shard in shards[2:]), "the second reads its own")
        coordinator.grant("clicks-0", shards[3])
        moved_at = read_by(site, first.name, shards[3])
        site.wait_until(lambda: read_by(site, first.name, shards[3]) > moved_at, "a shard came back")

        coordinator.grant("clicks-1", *shards)
        assert first.terminate() == 0
        assert coordinator.left == ["clicks-0"]
        site.wait_until(lambda: not first.children(), "the drained application leaves no process behind")
        written = stream.stop()
    coordinator.wait_until(
        lambda: sum(coordinator.positions().values()) == written.total(), "an idle query's last micro-batch is checkpointed"
    )

    assert site.counted() == written
    assert sorted(path.name for path in site.sink.glob("started-*")) == [f"started-{first.name}", f"started-{second.name}"]
    assert second.process.poll() is None, "no query ended or was restarted"
    read = sum(1 for row in site.rows() if row[2] == second.name)
    for counter in ("values", "malformed_values"):  # a worker tells its count by a message of its own
        name = f"shardherd_source_{counter}_total"
        site.wait_until(lambda name=name: scraped(port, name) == read, f"{name} is {read}")  # type: ignore[misc]
    assert second.terminate() == 0


def test_a_killed_application_repeats_its_unfinished_micro_batch_and_no_more(
    site: Site, coordinator: ScriptedCoordinator, topic: str
) -> None:
    shards = [f"{topic}/{number}" for number in range(4)]
    first, second = site.start("clicks-0"), site.start("clicks-1")
    warm(coordinator, first, second)
    coordinator.grant("clicks-0", *shards)
    written = produce(site.bootstrap, topic, 4, 100)
    coordinator.wait_until(lambda: sum(coordinator.positions().values()) == 400, "the first hundred of each are durable")

    (site.sink / f"hold-{first.name}").touch()
    written += produce(site.bootstrap, topic, 4, 50, first=100)
    site.wait_until(lambda: len(site.rows()) > 400, "a micro-batch has written its rows and hangs")
    unfinished = site.counted() - Counter({record: 1 for record in written if record[1] < 100})
    first.kill()
    site.wait_until(lambda: not first.children(), "the JVM and the workers end with the driver")

    again = site.start("clicks-0", 2)
    coordinator.wait_until(
        lambda: sum(coordinator.positions().values()) == 600, "the second run finishes what the first began", START
    )
    # Its name has held its shards all the time, so what was logged is read again.
    site.wait_until(lambda: "replaying" in again.log.read_text(), "the micro-batch is replayed")
    assert site.counted() == written + unfinished

    (site.sink / f"hold-{again.name}").touch()
    written += produce(site.bootstrap, topic, 4, 10, first=150)
    site.wait_until(lambda: any(offset >= 150 for _, offset, _ in site.rows()), "another micro-batch hangs")
    twice = Counter((shard, offset) for shard, offset, _ in site.rows() if offset >= 150)
    again.kill()
    coordinator.grant("clicks-1", *shards)
    coordinator.died("clicks-0")
    coordinator.wait_until(lambda: sum(coordinator.positions().values()) == 640, "another consumer goes on")
    assert site.counted() == written + unfinished + twice


def test_available_now_reads_what_there_is_and_ends(site: Site, coordinator: ScriptedCoordinator, topic: str) -> None:
    coordinator.grant("clicks-0", *(f"{topic}/{number}" for number in range(4)))
    written = produce(site.bootstrap, topic, 4, 300)

    driver = site.start("clicks-0", TEST_AVAILABLE_NOW="yes", TEST_OPTIONS='{"maxOffsetsPerTrigger": "500"}')

    assert driver.process.wait(START) == 0, driver.log.read_text()[-3000:]
    assert site.counted() == written
    assert len(list(site.sink.glob("*.jsonl"))) == 3
    assert sum(coordinator.positions().values()) == 1200, "its last micro-batch is checkpointed too"
    assert coordinator.left == ["clicks-0"]


def minutes_away() -> str:
    """A trigger of five minutes or more, whose next time is minutes away: they come at multiples of it since 1970."""
    now = time.time()
    return f"{next(seconds for seconds in range(300, 900) if now % seconds < 30)} seconds"


def test_one_query_at_a_time_reads_and_when_the_last_one_is_stopped_its_consumer_leaves(
    site: Site, coordinator: ScriptedCoordinator, topic: str
) -> None:
    (port,) = free_ports(1)
    coordinator.grant("clicks-0", *(f"{topic}/{number}" for number in range(4)))
    written = produce(site.bootstrap, topic, 4, 50)

    driver = site.start(
        "clicks-0",
        TEST_SECOND_QUERY="yes",
        TEST_NEXT_TRIGGER=minutes_away(),
        TEST_STOPS="yes",
        SHARDHERD_METRICS_PORT=str(port),
    )

    coordinator.wait_until(lambda: sum(coordinator.positions().values()) == 200, "the first query reads", START)
    refused = site.sink / f"refused-{driver.name}"
    site.wait_until(refused.exists, "the second query ends")
    assert re.search(
        "each shard has one reader: write to all your sinks from that one query with foreachBatch", refused.read_text()
    )

    (site.sink / f"fail-{driver.name}").touch()
    written += produce(site.bootstrap, topic, 1, 1, first=50)
    coordinator.wait_until(
        lambda: sum(coordinator.positions().values()) == 201,
        "the first one fails, and what the next one reads is checkpointed minutes before its next trigger",
    )
    assert scraped(port, "shardherd_source_rows_total") == 201, "as Spark tells of its micro-batches"
    assert scraped(port, "shardherd_source_position{") == 201
    assert scraped(port, "shardherd_source_phase_seconds_total{") > 0

    (site.sink / f"stop-{driver.name}").touch()
    assert driver.process.wait(START) == 0, driver.log.read_text()[-3000:]
    assert coordinator.left == ["clicks-0"]
    assert site.counted() == written


def test_a_query_tells_that_it_waits_for_its_trigger_and_for_its_sink(
    site: Site, coordinator: ScriptedCoordinator, topic: str
) -> None:
    driver = site.start("clicks-0", TEST_TRIGGER="15 seconds")
    warm(coordinator, driver)
    heartbeats = coordinator.all_heartbeats["clicks-0"]

    def waits(since: int) -> list[Heartbeat]:
        return [each for each in heartbeats[since:] if each.phase is Phase.WAITING]

    coordinator.grant("clicks-0", f"{topic}/0")
    # There is always more to read, so it waits after every micro-batch, and not only if the trigger is far when records come.
    with Stream(site.bootstrap, topic, 1) as stream:
        coordinator.wait_until(lambda: waits(0), "it waits for its trigger")
        assert all(0.0 < each.goes_on_in <= 15.0 for each in waits(0))

        blocked, held_up = (site.sink / f"{what}-{driver.name}" for what in ("wait", "waits"))
        blocked.touch()
        site.wait_until(held_up.exists, "a micro-batch is held up before it writes")
        before = site.counted()
        coordinator.wait_until(lambda: coordinator.heartbeats["clicks-0"].phase is Phase.WRITING, "it waits for its sink")
        assert site.counted() == before

        since = len(heartbeats)
        blocked.unlink()
        coordinator.wait_until(lambda: waits(since), "it waits for its next trigger")
        written = stream.stop()
    site.wait_until(lambda: site.counted() >= written, "everything is written")
    assert driver.terminate() == 0
    assert site.counted() == written


def test_a_query_that_keeps_state_is_ended_with_an_error_that_says_what_to_do(
    site: Site, coordinator: ScriptedCoordinator, topic: str
) -> None:
    driver = site.start("clicks-0", TEST_STATE="yes")
    assert driver.process.wait(START) != 0
    said = driver.log.read_text()
    assert "this query keeps state by key (dedupe), and a ConsumerGroup moves shards between consumers without it" in said
    assert "Write the records to a topic that is partitioned by that key" in said
    assert not site.rows()
