"""The commands of local mode, as a user types them."""

from __future__ import annotations

import json
import os
import signal
import urllib.request

import pytest

from shardherd.cli import main
from shardherd.core.model.event_reasons import REBALANCES
from shardherd.inspect import listing
from shardherd.inspect.folder import Folder
from tests.integration.local.herd import Herd


def test_a_second_operator_on_one_state_folder_is_refused_with_what_to_do(herd: Herd) -> None:
    herd.up(*herd.manifest_options(herd.declare(replicas=0)))

    refused = herd.tried("up")

    assert refused.returncode == 1
    assert refused.stderr == (
        f"shardherd: a local operator (process {herd.leader()}) runs on {herd.state} already: change what it runs by `shardherd"
        " local apply`, end it by `shardherd local down`, or give another folder by --state\n"
    )


def test_ctrl_c_drains_every_consumer_and_leaves_no_process(herd: Herd) -> None:
    operator = herd.up(*herd.manifest_options(herd.declare(replicas=2)))
    herd.write()
    herd.await_spread({"0": 3, "1": 3})
    assert len(herd.processes()) == 2

    operator.send_signal(signal.SIGINT)
    assert operator.wait(120) == 0

    assert (herd.processes(), herd.pods(), herd.leader()) == ([], {}, None)
    herd.up()
    herd.await_spread({"0": 3, "1": 3})
    written, missing, repeated = herd.account()
    assert (written > 0, missing, repeated) == (True, 0, 0)


def test_down_ends_what_a_killed_operator_left_and_forgets_the_folder(herd: Herd) -> None:
    herd.up(*herd.manifest_options(herd.declare(replicas=1)))
    herd.await_spread({"0": 6})
    herd.kill_operator()
    assert len(herd.processes()) == 1

    herd.run("down", "--forget")

    assert (herd.processes(), herd.state.exists()) == ([], False)


def test_the_background_operator_serves_metrics_and_the_page_and_tells_its_state(
    herd: Herd, capsys: pytest.CaptureFixture[str]
) -> None:
    said = herd.run("up", "--detach", *herd.manifest_options(herd.declare(replicas=1)))
    assert "it runs in the background" in said
    herd.await_spread({"0": 6})
    herd.until("it is ready", lambda: herd.condition("Ready") == "True")

    def shown() -> str | None:
        """What it says, once the operator has answered in time who holds what."""
        said = herd.run("status")
        row = next(line.split() for line in said.splitlines() if line.startswith(f"{herd.name}-0"))
        assert row[:5] == [f"{herd.name}-0", str(herd.pid(f"{herd.name}-0")), "running", "yes", "0"]
        return said if row[5] == "6" else None

    status = herd.until("six shards are shown", shown)
    assert status is not None
    assert f"the operator (process {herd.leader()}) leads" in status
    seen = Folder(herd.state, None).group(herd.name)
    assert (seen.view is not None, seen.unseen) == (True, ())
    rows = [line.split() for line in listing.shards(seen).text().splitlines()[1:]]
    assert [(row[1], row[2], row[5:8]) for row in rows] == [("ALREADY_ALLOC", f"{herd.name}-0", ["0", "0", "0"])] * 6
    metrics = next(word for word in status.split() if word.endswith("/metrics"))
    with urllib.request.urlopen(metrics, timeout=10) as answer:
        text = answer.read().decode()
    labels = f'consumer="{herd.name}-0",consumergroup="{herd.name}",namespace="demo",source="kafka"'
    assert f"shardherd_consumer_shards{{{labels}}} 6.0" in text
    assert "shardherd_leader 1.0" in text

    assert main(["page", "--local", "--state", str(herd.state)]) == 0
    page = capsys.readouterr().out.strip()
    assert f"page {page}, metrics" in status
    with urllib.request.urlopen(f"{page}document.json?group=demo/{herd.name}", timeout=10) as answer:
        group = json.load(answer)["group"]
    assert (group["ready"], [row[1:3] for row in group["shards"]]) == ("True", [["ALREADY_ALLOC", f"{herd.name}-0"]] * 6)
    assert len(group["rebalances"]) >= 1
    assert {step["reason"] for step in group["rebalances"]} <= REBALANCES.keys()

    herd.run("down")
    assert (herd.processes(), herd.leader()) == ([], None)


def test_what_a_crashing_application_said_is_in_the_logs_and_in_the_status(herd: Herd) -> None:
    broken = herd.folder / "broken.py"
    broken.write_text("raise ValueError('no such colour')\n")
    manifest = herd.declare(replicas=1, application={"mainApplicationFile": "/opt/app/broken.py"})
    herd.up("-f", str(manifest), "--bootstrap", herd.bootstrap)

    consumer = f"{herd.name}-0"
    herd.until("it was started again", lambda: restarts(herd) >= 2)

    # Its present start may not have come so far yet; the one before it has.
    herd.until("it said why", lambda: "ValueError: no such colour" in herd.run("logs", consumer))
    assert "ValueError: no such colour" in herd.run("logs", consumer, "--previous")
    herd.until("the status says so", lambda: "ValueError: no such colour" in str(herd.status()))


def test_scaling_a_group_that_chooses_its_number_itself_is_refused_as_on_a_cluster(herd: Herd) -> None:
    herd.up(*herd.manifest_options(herd.declare(scaling={"mode": "Shards", "minReplicas": 0, "maxReplicas": 1})))

    refused = herd.tried("scale", herd.name, "3")

    assert refused.returncode == 1
    assert "spec.replicas says nothing in spec.scaling.mode Shards, which chooses the number itself" in refused.stderr


def test_a_group_that_is_declared_no_more_ends_with_all_that_was_its_own(herd: Herd) -> None:
    operator = herd.up(*herd.manifest_options(herd.declare(replicas=1)))
    herd.await_spread({"0": 6})
    operator.send_signal(signal.SIGKILL)
    operator.wait()
    first, herd.name = herd.name, f"{herd.name}-b"

    herd.up(*herd.manifest_options(herd.declare(replicas=0)))
    herd.until("its objects are gone", lambda: {each["metadata"]["name"] for each in herd.objects.all()} == {herd.name})

    assert f"demo/{first} is not declared any more: its consumers drain and end" in herd.log.read_text()
    assert herd.processes() == []
    assert os.listdir(herd.state / "pods") == []  # noqa: PTH208


def restarts(herd: Herd) -> int:
    pod = herd.pods().get(f"{herd.name}-0", {"status": {}})
    return int(pod["status"].get("containerStatuses", [{}])[0].get("restartCount", 0))
