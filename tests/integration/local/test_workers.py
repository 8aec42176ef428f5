"""A group of plain Python consumers on this machine, as the command line runs it, on a real broker: every record is counted."""

from __future__ import annotations

import shutil
import time
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.harness.long import long
from tests.integration.local.herd import ROOT, Herd

SAVE_INTERVAL = 1.0

PYTHON: dict[str, Any] = {
    "type": "Python",
    "mainApplicationFile": None,
    "arguments": None,
    "driver": None,
    "executor": None,
    "processor": "ranges:Ranges",
    "env": [{"name": "NOTES", "value": "/notes"}],
    "worker": {
        "options": {"save_interval": f"{SAVE_INTERVAL:g}", "batch_size": "50"},
        "template": {
            "spec": {
                "containers": [{"name": "worker", "volumeMounts": [{"name": "notes", "mountPath": "/notes"}]}],
                "volumes": [{"name": "notes", "persistentVolumeClaim": {"claimName": "notes"}}],
            }
        },
    },
}


@pytest.fixture
def two(herd: Herd) -> Herd:
    """Two Python consumers that process three shards each, while records are written."""
    manifest = herd.declare(replicas=2, application=PYTHON)
    herd.up("-f", str(manifest), "--bootstrap", herd.bootstrap, "--app-dir", str(Path(__file__).parent))
    herd.write()
    herd.await_spread({"0": 3, "1": 3})
    return herd


def away(herd: Herd) -> Path:
    """The file that keeps the sink away while it exists."""
    return herd.state / "volumes" / "demo" / "notes" / "away"


def repeated(herd: Herd) -> int:
    """How many records were processed again so far."""
    found = list(herd.read())
    return len(found) - len(set(found))


def scraped(herd: Herd, consumer: str) -> str:
    """What the consumer shows to who scrapes it."""
    port = (herd.container(consumer).run / "port").read_text()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def test_a_group_grows_shrinks_loses_its_sink_and_a_consumer_and_no_record(two: Herd) -> None:
    two.run("scale", two.name, "3")
    two.await_spread({"0": 2, "1": 2, "2": 2})
    two.run("scale", two.name, "2")
    two.await_spread({"0": 3, "1": 3})
    assert repeated(two) == 0, "what moves cleanly is processed once"

    outage(two, 3.0)
    assert repeated(two) == 0, "a batch that failed has done nothing"

    victim = f"{two.name}-0"
    begun = time.monotonic()
    two.run("kill", victim)
    two.until("it is started again", lambda: two.container(victim).starts() == 2)
    two.await_spread({"0": 3, "1": 3})
    took = time.monotonic() - begun

    written, missing, again = two.account()
    # At most what its shards got since they were saved last; the rate is that of the writer, at most 200 a second.
    assert (written > 0, missing) == (True, 0)
    assert again <= 200 * (2 * SAVE_INTERVAL + took), again


@long
def test_a_sink_that_is_away_for_three_minutes_expels_nobody(two: Herd) -> None:
    starts = [two.container(f"{two.name}-{number}").starts() for number in range(2)]
    outage(two, 180.0)
    assert [two.container(f"{two.name}-{number}").starts() for number in range(2)] == starts
    written, missing, again = two.account()
    assert (written > 0, missing, again) == (True, 0, 0)


def fails(herd: Herd, consumer: str) -> bool:
    """Whether its metrics say that all three shards fail."""
    lines = scraped(herd, consumer).splitlines()
    return [line.rpartition(" ")[2] for line in lines if line.startswith("shardherd_worker_failing_shards{")] == ["3.0"]


def outage(herd: Herd, seconds: float) -> None:
    """The sink is away for a while: consumers keep their shards and say why they do not get on; then they do."""
    before = {shard["shard"]: shard["holder"] for shard in herd.shards()}
    away(herd).touch()
    for number in range(2):
        herd.until("its metrics tell", partial(fails, herd, f"{herd.name}-{number}"))
    until = time.monotonic() + seconds
    herd.until("the outage is over", lambda: time.monotonic() > until, within=seconds + 60)
    assert {shard["shard"]: shard["holder"] for shard in herd.shards()} == before
    away(herd).unlink()
    begun = len(set(herd.read()))
    herd.until("they get on", lambda: len(set(herd.read())) > begun)


def test_the_example_counts_clicks_here(herd: Herd, tmp_path: Path) -> None:
    example = shutil.copytree(ROOT / "spark_apps" / "clicks-python", tmp_path / "example")
    manifest = example / "consumergroup.yaml"
    manifest.write_text(manifest.read_text().replace("[clickstream]", f"[{herd.name}]"))
    herd.up("-f", str(manifest), "--bootstrap", herd.bootstrap)
    herd.write()
    herd.until("batches are counted", lambda: any(herd.state.rglob("counts/clicks-python-*.jsonl")), within=60)
    herd.stop_writing()
