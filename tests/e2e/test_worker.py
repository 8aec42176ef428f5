"""A group of plain Python consumers on a real node, from the image `worker`: it grows, shrinks, is killed, loses its sink."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dev.demo.figures import page
from dev.demo.lab import Lab
from shardherd.controller.manifests import METRICS_PORT
from tests.e2e import noting
from tests.e2e.groups import FAULTS as NAMESPACE
from tests.e2e.plain import CLAIM, RATE, Plain, prepare, reading, repeated, skipped
from tests.harness.cluster import Tell
from tests.harness.long import long

pytestmark = pytest.mark.timeout(400)

IMAGE = "shardherd/worker:dev"
CODE = "noting"
FOLDER = "/opt/noting"
SAVE_INTERVAL = 1.0


def application() -> dict[str, Any]:
    """`noting`, which a ConfigMap brings, with the folder that this test reads."""
    mounts = [{"name": "notes", "mountPath": "/notes"}, {"name": "code", "mountPath": FOLDER}]
    return {
        "type": "Python",
        "image": IMAGE,
        "processor": "noting:Noting",
        "env": [{"name": "PYTHONPATH", "value": FOLDER}, {"name": "NOTES", "value": "/notes"}],
        "worker": {
            "memory": "256Mi",
            "options": {"save_interval": f"{SAVE_INTERVAL:g}"},
            "template": {
                "spec": {
                    "containers": [{"name": "worker", "volumeMounts": mounts}],
                    "volumes": [
                        {"name": "notes", "persistentVolumeClaim": {"claimName": CLAIM}},
                        {"name": "code", "configMap": {"name": CODE}},
                    ],
                }
            },
        },
    }


@pytest.fixture(scope="module")
def place(installed: Lab) -> Lab:
    prepare(installed)
    installed.cluster.load_image(IMAGE)
    code = Path(noting.__file__)
    metadata = {"name": CODE, "namespace": NAMESPACE}
    installed.kube.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {code.name: code.read_text()}})
    return installed


@contextmanager
def two_consumers(place: Lab, name: str) -> Iterator[Plain]:
    """Two Python consumers that process three shards each, while records are written."""
    with reading(place, name, consumers=2, shards=6, application=application()) as group:
        group.await_calm(each(group, 3, 2))
        yield group
        away(group).unlink(missing_ok=True)


def each(group: Plain, shards: int, consumers: int) -> dict[str, int]:
    """So many consumers with so many shards each."""
    return {f"{group.name}-{ordinal}": shards for ordinal in range(consumers)}


def away(group: Plain) -> Path:
    """The file that keeps the sink away while it exists."""
    return group.notes.with_suffix(".away")


def failing(group: Plain) -> float:
    """How many shards the consumers say fail, in their own metrics."""
    samples = [
        sample
        for pod in group.pods("consumer")
        if "deletionTimestamp" not in pod["metadata"]
        for sample in page(f"http://{pod['status']['podIP']}:{METRICS_PORT}/metrics")
        if sample.name == "shardherd_worker_failing_shards"
    ]
    return sum(sample.value for sample in samples)


def outage(group: Plain, seconds: float) -> None:
    """The sink is away for a while: consumers say so, keep their runs and their shards, and then get on."""
    before, runs = group.grants(), group.runs()
    away(group).touch()
    begun = time.time()
    group.until("tells of the outage", lambda: failing(group) == len(before), 60, every=0.5)
    group.until("was without its sink for long enough", lambda: time.time() > begun + seconds, seconds + 10, every=0.5)
    assert (group.grants(), group.runs()) == (before, runs), "nobody is expelled, and nothing moves"
    away(group).unlink()
    group.await_read_since(time.time(), {name for name, _, _ in before.values() if name is not None})
    assert failing(group) == 0


def test_a_group_of_python_consumers_grows_shrinks_loses_its_sink_and_a_consumer_and_no_record(place: Lab, tell: Tell) -> None:
    with two_consumers(place, "worker") as two:
        two.change({"replicas": 3})
        two.await_calm(each(two, 2, 3))
        two.change({"replicas": 2})
        two.await_calm(each(two, 3, 2))
        two.until("has two pods", lambda: two.runs().keys() == each(two, 3, 2).keys(), 60, every=0.5)
        outage(two, 5.0)
        two.await_read_since(time.time(), {f"{two.name}-{ordinal}" for ordinal in range(2)})
        assert repeated(two.reads()) == [], "what moves cleanly, and what fails, is processed once"

        victim = f"{two.name}-0"
        runs, begun = two.runs(), time.time()
        two.lab.kill_process(two.namespace, victim, two.lab.child_of_init(two.namespace, victim))
        two.until("is started again", lambda: two.runs()[victim][1] == runs[victim][1] + 1, 60, every=0.5)
        two.await_calm(each(two, 3, 2))
        took = time.time() - begun
        two.await_read_since(time.time(), {f"{two.name}-{ordinal}" for ordinal in range(2)})
        reads = two.finish()
        again = sum(read.end - read.begin for read in repeated(reads))
        tell(f"a Python consumer killed: it reads again after {took:.1f} s, {again} records were processed again")
        assert skipped(reads) == []
        assert {read.consumer for read in repeated(reads)} <= set(each(two, 3, 2))
        # At most what its shards got since they were saved last, of which a save may be under way.
        assert again <= RATE * 2 * SAVE_INTERVAL, again


@long
def test_a_sink_that_is_away_for_three_minutes_expels_nobody(place: Lab) -> None:
    with two_consumers(place, "outage") as two:
        outage(two, 180.0)
        reads = two.finish()
        assert (skipped(reads), repeated(reads)) == ([], [])
