"""The API server slow, wrong, forgetful or away, etcd killed; and consumers that read on.

A shard is never read by two, none is read from behind its checkpoint, and after the trouble the group is as it is declared.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from dev.cluster import Cluster
from tests.harness.api_proxy import Fault
from tests.harness.cluster import Names, Tell
from tests.harness.long import long
from tests.integration.controller.bench import unique, until
from tests.integration.controller.fault_lab import SHARDS, FaultLab, reading, undisturbed

QUICK = {f"SHARDHERD_LEASE_{name}_S": value for name, value in {"DURATION": "3", "RENEW_DEADLINE": "2", "RETRY": "0.5"}.items()}


@long
def test_while_the_api_server_is_away_for_less_than_the_lease_checkpoints_go_on(lab: FaultLab, tell: Tell) -> None:
    def away() -> None:
        lab.proxy.faults.refuse = True
        lab.proxy.cut()
        for _ in range(3):
            # Checkpoints are acknowledged meanwhile: they are Kafka's.
            lab.until_read(within=6.0)
            time.sleep(1.5)  # the trouble itself has to last
        lab.proxy.faults.refuse = False

    undisturbed(lab, away, tell, "the API server away")
    assert lab.operator.http(lab.operator.api_port, "/readyz") == 200


@long
def test_when_the_api_server_is_away_for_longer_the_operator_steps_down_and_its_next_start_goes_on(
    cluster: Cluster, names: Names, tmp_path: Path, tell: Tell
) -> None:
    with reading(cluster, unique(names, "faults"), tmp_path, settings=QUICK) as lab:
        held, begun = lab.held(), time.monotonic()
        lab.proxy.faults.refuse = True
        lab.proxy.cut()
        assert lab.operator.wait(30) == 1
        assert "may not go on" in lab.operator.log.read_text()
        lab.proxy.faults.refuse = False
        lab.operator.start(**QUICK)
        lab.until_read()
        tell(f"the API server away past the Lease: the longest that a shard was not read: {lab.pauses(begun):.1f} s")
        lab.went_on(held)


@long
def test_a_slow_api_server_slows_nobody_who_reads(lab: FaultLab, tell: Tell) -> None:
    def slow() -> None:
        lab.proxy.faults.delay = 1.5
        lab.patch("consumergroups", "clicks", {"metadata": {"annotations": {"touched": "yes"}}})
        for _ in range(4):
            lab.until_read(within=6.0)
            time.sleep(1.0)  # the trouble itself has to last
        lab.proxy.faults.delay = 0.0

    undisturbed(lab, slow, tell, "the API server slow")


@long
@pytest.mark.parametrize("status", [409, 410, 429, 500])
def test_an_error_of_the_api_server_is_tried_again(lab: FaultLab, status: int, tell: Tell) -> None:
    faults = [
        Fault("PATCH", r"/statefulsets/clicks$", status, times=2),
        Fault("PATCH", r"/consumergroups/clicks/status$", status, times=2),
        Fault("PUT", r"/configmaps/clicks-state$", status, times=2),
        Fault("GET", r"/leases/", status, times=2),
        Fault("GET", r"/(pods|services|statefulsets)", status, times=3),
    ]
    lab.proxy.faults.answers.extend(faults)
    lab.proxy.cut()
    # A third consumer, and back to two: everything is written.
    lab.patch("consumergroups", "clicks", {"spec": {"scaling": {"shardsPerConsumer": 1}}})
    until(lambda: lab.find("statefulsets", "clicks")["spec"]["replicas"] == 4, lab.explain, 90)
    lab.until_read_by(SHARDS)
    lab.patch("consumergroups", "clicks", {"spec": {"scaling": {"shardsPerConsumer": 2}}})
    until(lambda: set(lab.pods()) == {"clicks-0", "clicks-1"}, lab.explain, 90)
    lab.until_ready(120)
    lab.until_read()
    tell(f"{status}: " + ", ".join(f"{each.method} {each.path} {each.met}x" for each in faults))
    assert all(each.met for each in faults)
    lab.nothing_lost_or_repeated()


@long
def test_a_write_that_was_carried_out_although_its_answer_was_an_error_is_not_done_twice(lab: FaultLab) -> None:
    faults = [
        Fault("PATCH", r"/statefulsets/clicks$", 500, carried_out=True),
        Fault("PUT", r"/configmaps/clicks-state$", 500, carried_out=True),
        Fault("PATCH", r"/consumergroups/clicks/status$", 500, carried_out=True),
    ]
    lab.proxy.faults.answers.extend(faults)
    lab.patch("consumergroups", "clicks", {"spec": {"scaling": {"shardsPerConsumer": 1}}})
    lab.until_read_by(SHARDS)
    lab.until_ready()
    assert all(each.met == 1 for each in faults)
    lab.nothing_lost_or_repeated()


def test_watches_that_were_cut_off_and_forgotten_miss_nothing_in_the_end(lab: FaultLab) -> None:
    """What is deleted while no watch is open, and the server has forgotten it when they begin anew, is noticed."""
    lab.proxy.faults.watches = 410
    lab.proxy.cut()
    lab.delete("services", "clicks")
    lab.delete("poddisruptionbudgets", "clicks")
    lab.operator.group("gone", lab.topic, groupId=f"{lab.operator.namespace}.gone")
    lab.delete("consumergroups", "gone")
    lab.until_read()
    lab.proxy.faults.watches = 0
    until(lambda: lab.find("services", "clicks") and lab.find("poddisruptionbudgets", "clicks"), lab.explain)
    until(lambda: not lab.find("statefulsets", "gone"), lab.explain)
    lab.until_ready()
    lab.nothing_lost_or_repeated()


@long
@pytest.mark.parametrize("status", [409, 410, 429, 500])
def test_an_error_that_answers_the_opening_of_a_watch_ends_nobodys_lead(lab: FaultLab, status: int, tell: Tell) -> None:
    """Nor does one that comes in the middle of a watch."""
    faults = [Fault("GET", plural, status, watch=True) for plural in (r"/statefulsets$", r"/consumergroups$")]

    def refused() -> None:
        lab.proxy.faults.answers.extend(faults)
        lab.proxy.cut()
        until(lambda: all(each.met for each in faults), lab.explain)
        lab.proxy.faults.watches = status
        lab.proxy.cut()
        lab.until_read()
        lab.proxy.faults.watches = 0
        lab.delete("services", "clicks")
        until(lambda: lab.find("services", "clicks"), lab.explain)

    undisturbed(lab, refused, tell, f"watches answered with {status}")
    lab.patch("consumergroups", "clicks", {"spec": {"scaling": {"shardsPerConsumer": 1}}})
    until(lambda: lab.find("statefulsets", "clicks")["spec"]["replicas"] == SHARDS, lab.explain)
    assert lab.operator.http(lab.operator.api_port, "/readyz") == 200


@long
@pytest.mark.parametrize("fault", ["hangs", "is killed"])
def test_while_kafka_is_away_the_operator_says_so_and_everybody_keeps_what_he_holds(
    lab: FaultLab, cluster: Cluster, fault: str, tell: Tell
) -> None:
    def away() -> None:
        cluster.signal("kafka", signal.SIGSTOP if fault == "hangs" else signal.SIGKILL)
        try:
            until(lambda: lab.condition("SourceReachable") == ("False", "SourceUnavailable"), lab.explain)
            assert lab.condition("Ready") == ("False", "SourceUnavailable")
        finally:
            if fault == "hangs":
                cluster.signal("kafka", signal.SIGCONT)
            else:
                cluster.up(node=False, kafka=True, prometheus=False)

    undisturbed(lab, away, tell, f"Kafka {fault}")
    assert lab.condition("SourceReachable")[0] == "True"


@long
def test_a_killed_etcd_disturbs_nobody(lab: FaultLab, cluster: Cluster, tell: Tell) -> None:
    def killed() -> None:
        cluster.signal("etcd", signal.SIGKILL)
        lab.until_read(within=10.0)
        cluster.up(node=False, kafka=True, prometheus=False)

    undisturbed(lab, killed, tell, "etcd killed")
