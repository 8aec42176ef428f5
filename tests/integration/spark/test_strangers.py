"""Who may join a driver as an executor, and what executors' pods are limited to."""

from __future__ import annotations

import re
import socket
import struct
import uuid
from collections.abc import Iterator

import pytest

from dev.cluster import Cluster
from tests.harness.cluster import Names
from tests.integration.spark.drivers import START, Site, produce
from tests.integration.spark.pods import HERE, SECRET, Environment, Herd
from tests.integration.spark.scripted import ScriptedCoordinator
from tests.integration.spark.test_consumers import warm

CALL = struct.pack(">qbqi", 8 + 1 + 8 + 4, 3, 7, 0)
"""A call on a connection that nobody has authenticated, as Spark frames it: length, type, number, and no content."""


def answer(port: int, frame: bytes) -> bytes:
    """The first frame of what is answered."""
    with socket.create_connection((HERE, port), timeout=30.0) as line:
        line.sendall(frame)
        received = line.makefile("rb")
        (length,) = struct.unpack(">q", received.read(8))
        return received.read(length - 8)


def without_authentication(environment: Environment) -> Environment:
    """What a pod has that knows where the driver is, and nothing else: Spark as it is by default."""
    options = ("-Dspark.authenticate", "-Dspark.network.crypto.")
    kept = {name: value for name, value in environment.items() if not value.startswith(options) and name != SECRET}
    return kept | {"SPARK_EXECUTOR_ID": "99"}


@pytest.fixture
def herd(cluster: Cluster, site: Site, names: Names) -> Iterator[Herd]:
    found = Herd(cluster, site, names.fresh(f"strangers-{uuid.uuid4().hex[:6]}"))
    yield found
    site.close()
    found.close()


@pytest.mark.timeout(900)
def test_only_an_executor_with_the_secret_of_this_run_is_taken(
    herd: Herd, site: Site, coordinator: ScriptedCoordinator, topic: str
) -> None:
    driver = herd.start()
    environment = herd.environment()

    # What they say of it differs: the driver closes the connection right after its answer, which may be lost with it. The
    # executor below shows that it is for nothing else: its environment is the same but for that.
    herd.is_refused(without_authentication(environment))
    herd.is_refused(environment | {SECRET: uuid.uuid4().hex, "SPARK_EXECUTOR_ID": "99"})
    unencrypted = {name: value for name, value in environment.items() if not value.startswith("-Dspark.network.crypto.")}
    herd.is_refused(unencrypted | {"SPARK_EXECUTOR_ID": "99"})
    for port in herd.ports:
        assert b"Unknown challenge message." in answer(port, CALL), port

    assert re.fullmatch(r"[0-9a-f]{64}", environment[SECRET])
    own = herd.run(environment)
    warm(coordinator, driver)
    assert own.joined
    coordinator.grant("clicks-0", f"{topic}/0", f"{topic}/1")
    written = produce(site.bootstrap, topic, 2, 50)
    site.wait_until(lambda: site.counted() == written, "its executor reads all records", START)
    assert driver.terminate() == 0


@pytest.mark.timeout(900)
def test_who_switches_it_off_takes_anybody(herd: Herd, site: Site) -> None:
    herd.start({"spark.authenticate": "false"})
    environment = herd.environment()
    assert SECRET not in environment
    stranger = herd.run(without_authentication(environment))
    site.wait_until(lambda: stranger.joined, "the stranger has joined", START)


@pytest.mark.timeout(900)
def test_executors_are_made_where_a_quota_asks_for_limits(herd: Herd) -> None:
    herd.has_quota({"limits.memory": "2Gi", "limits.cpu": "4"})
    herd.start(cpu_limit="2")
    assert herd.pod()["spec"]["containers"][0]["resources"] == {
        "requests": {"cpu": "250m", "memory": "1280Mi"},
        "limits": {"cpu": "2", "memory": "1280Mi"},
    }
