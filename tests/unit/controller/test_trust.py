"""The authorities by which consumers believe the coordinator reach every namespace that has groups."""

from __future__ import annotations

import asyncio

import pytest

from shardherd.controller.trust import AGAIN, Trust
from tests.harness.memory_cluster import MemoryCluster
from tests.harness.simulated_clock import SimulatedClock
from tests.unit.controller.builders import resource
from tests.unit.controller.fakes import KEY, Bench
from tests.unit.core.planning.builders import IDENTITY, consumers, shards, view

PUBLISHED = ("ConfigMap", "shop", "shardherd-ca")


@pytest.fixture
async def bench() -> Bench:
    """A group that was just made, under an operator with TLS."""
    bench = Bench()
    bench.bundle = "first"
    made = resource()
    bench.cluster.put("ConsumerGroup", made)
    bench.controller.saw_group(KEY, made, gone=False)
    bench.coordination.pictures[IDENTITY] = view(shards(8), consumers=consumers(4, 4))
    return bench


async def test_they_are_there_before_the_pods_that_mount_them(bench: Bench) -> None:
    await bench.reconcile()
    assert bench.cluster.writes[0] == "apply ConfigMap shardherd-ca"
    assert bench.cluster.objects[PUBLISHED]["data"] == {"ca.crt": "first"}
    assert "ownerReferences" not in bench.cluster.objects[PUBLISHED]["metadata"]


async def test_another_authority_is_published_and_restarts_nothing(bench: Bench) -> None:
    await bench.reconcile()
    await bench.reconcile()
    bench.cluster.writes.clear()
    bench.bundle = "first second"
    await bench.reconcile(after=1.0)
    assert bench.cluster.objects[PUBLISHED]["data"] == {"ca.crt": "first second"}
    assert [write for write in bench.cluster.writes if "status" not in write] == ["apply ConfigMap shardherd-ca"]


async def test_who_may_scrape_is_published_beside_them_and_without_them() -> None:
    cluster, clock, data = MemoryCluster(), SimulatedClock(), {"bundle": "first", "scrapers": "digest"}
    trust = Trust(cluster, clock, lambda: data["bundle"], lambda: data["scrapers"])
    await trust.publish("shop")
    both = cluster.objects[PUBLISHED]["data"]
    data["bundle"] = ""
    assert not trust.current("shop")
    await trust.publish("shop")
    assert (both, cluster.objects[PUBLISHED]["data"]) == (
        {"ca.crt": "first", "scrapers.sha256": "digest"},
        {"scrapers.sha256": "digest"},
    )
    assert trust.current("shop")


async def test_it_goes_on_while_the_group_is_paused(bench: Bench) -> None:
    await bench.reconcile()
    paused = resource()
    paused["metadata"]["annotations"] = {"shardherd.dev/pause-reconcile": "true"}
    bench.cluster.put("ConsumerGroup", paused)
    bench.controller.saw_group(KEY, paused, gone=False)
    bench.bundle = "first second"
    await bench.reconcile()
    assert bench.cluster.objects[PUBLISHED]["data"] == {"ca.crt": "first second"}


async def test_what_keeps_it_from_being_published_is_told(bench: Bench) -> None:
    bench.cluster.refuse["ConfigMap"] = "configmaps is forbidden: exceeded quota"
    await bench.reconcile()
    conditions = bench.status()["conditions"]
    assert any("configmaps is forbidden: exceeded quota" in condition["message"] for condition in conditions)


async def test_groups_of_one_namespace_share_one_write() -> None:
    cluster, clock = MemoryCluster(), SimulatedClock()
    trust = Trust(cluster, clock, lambda: "first")
    assert not trust.current("shop")
    await asyncio.gather(*(trust.publish("shop") for _ in range(10)))
    assert cluster.writes == ["apply ConfigMap shardherd-ca"]
    assert trust.current("shop")
    assert not trust.current("web")


async def test_it_is_written_again_now_and_then_in_case_somebody_edited_it() -> None:
    cluster, clock = MemoryCluster(), SimulatedClock()
    trust = Trust(cluster, clock, lambda: "first")
    await trust.publish("shop")
    clock.advance(AGAIN - 1)
    assert trust.current("shop")
    clock.advance(1)
    assert not trust.current("shop")


async def test_without_tls_nothing_is_published() -> None:
    cluster = MemoryCluster()
    assert Trust(cluster, SimulatedClock()).current("shop")
