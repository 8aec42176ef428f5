"""Faults on one machine, with real processes and a real broker: every record is counted."""

from __future__ import annotations

import os
import signal

import pytest

from tests.integration.local.herd import Herd


@pytest.fixture
def two(herd: Herd) -> Herd:
    """Two consumers that read three shards each, while records are written."""
    herd.up(*herd.manifest_options(herd.declare(replicas=2)))
    herd.write()
    herd.await_spread({"0": 3, "1": 3})
    return herd


def test_a_consumer_that_is_killed_is_started_again_and_loses_nothing(two: Herd) -> None:
    before = two.pid(f"{two.name}-0")

    two.run("kill", f"{two.name}-0")
    two.until("its end is proven", lambda: f"start 1 of pod UID {uid_of(two, 0)} is dead" in two.log.read_text())
    two.until("it runs again", lambda: ended_with(two, 0) == (137, 1))
    two.await_spread({"0": 3, "1": 3})

    assert two.pid(f"{two.name}-0") != before
    written, missing, _ = two.account()
    assert (written > 0, missing) == (True, 0)


def test_a_consumer_that_stands_still_loses_its_shards_and_no_record(two: Herd) -> None:
    two.run("kill", f"{two.name}-1", "--signal", "STOP")
    two.await_spread({"0": 6})
    two.run("kill", f"{two.name}-1", "--signal", "CONT")
    two.await_spread({"0": 3, "1": 3})

    written, missing, _ = two.account()
    assert (written > 0, missing) == (True, 0)


def test_an_operator_that_is_killed_in_the_middle_of_a_rebalance_goes_on_with_the_same_processes(two: Herd) -> None:
    pids = [two.pid(f"{two.name}-{number}") for number in range(2)]
    two.run("scale", two.name, "3")
    two.until("shards begin to move", lambda: any(shard["state"] == "TRANSFER" for shard in two.shards()) or moved(two))

    two.kill_operator()
    assert [os.path.exists(f"/proc/{pid}") for pid in pids] == [True, True]  # noqa: PTH110
    two.up()
    two.await_spread({"0": 2, "1": 2, "2": 2})

    assert [two.pid(f"{two.name}-{number}") for number in range(2)] == pids
    written, missing, _ = two.account()
    assert (written > 0, missing) == (True, 0)


def test_a_consumer_that_ends_while_no_operator_runs_is_found_dead_and_started_again(two: Herd) -> None:
    before = two.pid(f"{two.name}-0")
    two.kill_operator()
    two.run("kill", f"{two.name}-0")
    two.until("it has ended", lambda: not os.path.exists(f"/proc/{before}"))  # noqa: PTH110

    two.up()
    two.until("it runs again", lambda: ended_with(two, 0) == (137, 1))
    two.await_spread({"0": 3, "1": 3})

    written, missing, _ = two.account()
    assert (written > 0, missing) == (True, 0)


def test_a_consumer_whose_shim_is_killed_ends_as_a_whole(two: Herd) -> None:
    name = f"{two.name}-0"
    running = two.container(name).running()
    assert running is not None

    os.kill(running.shim.pid, signal.SIGKILL)
    two.until("it runs again", lambda: ended_with(two, 0) == (137, 1))
    two.await_spread({"0": 3, "1": 3})

    # It stays in /proc until whoever it was left to has taken its exit code.
    two.until("its driver is gone", lambda: not os.path.exists(f"/proc/{running.driver.pid}"))  # noqa: PTH110
    written, missing, _ = two.account()
    assert (written > 0, missing) == (True, 0)


def test_scaling_in_drains_and_repeats_nothing(two: Herd) -> None:
    two.run("scale", two.name, "1")
    two.await_spread({"0": 6})
    two.until("its pod is gone", lambda: list(two.pods()) == [f"{two.name}-0"])

    written, missing, repeated = two.account()
    assert (written > 0, missing, repeated) == (True, 0, 0)


def test_a_rollout_replaces_every_pod_and_repeats_nothing(two: Herd) -> None:
    before = {name: pod["metadata"]["uid"] for name, pod in two.pods().items()}
    changed = two.declare(replicas=2, application={"env": [{"name": "COLOUR", "value": "blue"}]})

    two.run("apply", *two.manifest_options(changed))
    two.until("both are others", lambda: all(uid not in before.values() for uid in uids(two)) and len(uids(two)) == 2)
    two.await_spread({"0": 3, "1": 3})

    for number in range(2):
        environment = open(f"/proc/{two.pid(f'{two.name}-{number}')}/environ").read().split("\0")  # noqa: PTH123, SIM115
        assert "COLOUR=blue" in environment
    written, missing, repeated = two.account()
    assert (written > 0, missing, repeated) == (True, 0, 0)


def uid_of(herd: Herd, number: int) -> str:
    return str(herd.pods()[f"{herd.name}-{number}"]["metadata"]["uid"])


def uids(herd: Herd) -> list[str]:
    return [str(pod["metadata"]["uid"]) for pod in herd.pods().values()]


def ended_with(herd: Herd, number: int) -> tuple[int, int] | None:
    """The exit code of the consumer's last end and how often it was started again, once it runs again."""
    status = herd.pods()[f"{herd.name}-{number}"]["status"].get("containerStatuses", [{}])[0]
    if "running" not in status.get("state", {}) or "terminated" not in status["lastState"]:
        return None
    return status["lastState"]["terminated"]["exitCode"], status["restartCount"]


def moved(herd: Herd) -> bool:
    """Whether the third consumer has any shard already."""
    return f"{herd.name}-2" in herd.spread()
