"""Nothing is lost, nothing stale is accepted, everything is owned again: under every fault that we can think of."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from shardherd.core.model import (
    CheckpointOutcome,
    CheckpointReply,
    CheckpointRequest,
    CheckpointResult,
    ConsumerId,
    Incarnation,
    ShardCheckpoint,
    ShardId,
)
from tests.harness.long import LONG
from tests.simulation.bugs import BUGS
from tests.simulation.campaign import REPLAY, ROOT, find_bugs, spread
from tests.simulation.exhaustive import explore
from tests.simulation.ledger import BrokenError, Ledger, Run, Shard
from tests.simulation.plan import FAULTS
from tests.simulation.virtual import Timeline

SCHEDULES = 100_000 if LONG else 10_000
WORKERS = os.cpu_count() or 1
T0 = ShardId("t/0")


@pytest.mark.timeout(7200)
def test_every_promise_is_kept_in_every_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    report = spread(SCHEDULES, 0, WORKERS)
    with capsys.disabled():
        print(f"\n{report.schedules} schedules in {report.seconds:.0f} s, {report.counts['messages delivered']} deliveries")
    assert [f"{what}; replay: {REPLAY} {seed}" for seed, what in report.broken] == []
    assert (report.schedules, report.never_hit()) == (SCHEDULES, [])
    assert (report.fewest_deliveries >= 300, report.shortest >= 600.0) == (True, True)
    assert set(report.faults) == set(FAULTS)
    assert report.counts["schedules over HTTP"] > SCHEDULES / 50
    assert report.counts["event OwnershipRebuilt"] > SCHEDULES / 100


@pytest.mark.timeout(3600)
def test_every_planted_bug_is_found_within_a_thousand_seeds() -> None:
    found = find_bugs(list(BUGS), 1000, WORKERS)
    assert [name for name, first in found.items() if first is None] == []
    assert len(found) >= 16


def test_one_seed_is_one_run() -> None:
    assert _replayed(7) == _replayed(7)


def _replayed(seed: int) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": f"{ROOT / 'operator'}:{ROOT}"}
    command = [sys.executable, "-W", "ignore", "-m", "tests.simulation", "--replay", str(seed)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.endswith("every promise was kept\n")
    return done.stdout


@pytest.mark.parametrize(("depth", "delays"), [(12, 0), (7, 1)], ids=["prompt messages", "a late message"])
def test_every_interleaving_of_a_small_group_keeps_the_promises(
    depth: int, delays: int, capsys: pytest.CaptureFixture[str]
) -> None:
    explored = explore(depth + LONG, delays + LONG)
    with capsys.disabled():
        print(f"\n{explored.states} states within {explored.depth} steps, {explored.steps} steps taken")
    assert explored.frontier > 0


def ledger() -> tuple[Ledger, Run]:
    books = Ledger(Timeline(), ordered=True, session_timeout=90.0, loss_limit=120.0)
    books.shards[T0] = Shard(T0, end=10)
    return books, Run(ConsumerId("g-0"), Incarnation("uid-1", 1))


def test_the_ledger_sees_a_position_above_what_was_written() -> None:
    books, run = ledger()
    books.land(T0, 0, "operator-1")
    books.write(T0, 0, 4, 1, run)
    with pytest.raises(BrokenError, match="records 4 to 5 never reached the sink"):
        books.land(T0, 5, "operator-1")


def test_the_ledger_sees_records_that_are_written_again_for_no_reason() -> None:
    books, run = ledger()
    books.write(T0, 0, 4, 1, run)
    other = Run(ConsumerId("g-1"), Incarnation("uid-2", 1))
    with pytest.raises(BrokenError, match="nothing has happened to either"):
        books.write(T0, 3, 6, 2, other)
    run.violent = "killed"
    books.write(T0, 3, 6, 2, other)


def test_the_ledger_sees_a_write_of_an_owner_that_was_replaced() -> None:
    books, run = ledger()
    books.write(T0, 0, 4, 2, run)
    with pytest.raises(BrokenError, match="under epoch 1 after a write under 2"):
        books.write(T0, 4, 5, 1, run)


def test_the_ledger_sees_a_checkpoint_of_somebody_who_holds_nothing() -> None:
    books, run = ledger()
    request = CheckpointRequest(run.consumer, run.incarnation, (ShardCheckpoint(T0, 1, 4),))
    reply = CheckpointReply((CheckpointOutcome(T0, CheckpointResult.OK, 4, 1),))
    with pytest.raises(BrokenError, match="was accepted"):
        books.accepted(request, reply)
