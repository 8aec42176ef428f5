"""The configuration of the daemons of an instance."""

import json
import tomllib

import pytest

from dev.cluster import config
from dev.cluster.paths import Layout
from dev.cluster.registry import Addresses


@pytest.fixture
def layout(monkeypatch: pytest.MonkeyPatch) -> Layout:
    monkeypatch.setenv("SHARDHERD_CACHE", "/cache")
    return Layout("demo")


def test_sockets_are_short_enough_for_the_kernel_whatever_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDHERD_CACHE", "/home/" + "long/" * 30)
    layout = Layout("n" * 32)
    assert max(len(str(path)) for path in (layout.control_socket, layout.containerd_socket)) < 108


def test_containerd_keeps_everything_in_the_state_of_its_instance(layout: Layout) -> None:
    content = tomllib.loads(config.containerd(layout))
    runtime = content["plugins"]["io.containerd.grpc.v1.cri"]
    assert content["root"] == "/cache/clusters/demo/containerd"
    assert content["grpc"] == {"address": "/run/shardherd/demo/containerd.sock"}
    assert runtime["cni"] == {"bin_dir": "/usr/lib/cni", "conf_dir": "/cache/clusters/demo/config/cni"}
    assert runtime["restrict_oom_score_adj"] is True


def test_the_kubelet_keeps_local_images_and_its_own_cgroup(layout: Layout) -> None:
    content = json.loads(config.kubelet(layout, Addresses(4), "/shardherd-demo"))
    assert content["imageGCHighThresholdPercent"] == 100
    assert (content["cgroupRoot"], content["clusterDNS"]) == ("/shardherd-demo", ["10.88.4.2"])


def test_pods_get_addresses_of_their_instance_only() -> None:
    plugin = json.loads(config.cni(Addresses(4)))["plugins"][0]
    assert plugin["ipam"]["ranges"] == [[{"subnet": "10.89.4.0/24"}]]


def test_the_broker_is_reached_under_the_address_that_it_advertises(layout: Layout) -> None:
    settings = dict(line.split("=", 1) for line in config.kafka(layout, Addresses(4)).splitlines())
    assert settings["advertised.listeners"] == "PLAINTEXT://10.88.4.2:9092,DETOUR://10.88.4.1:9094"
    assert settings["listeners"] == "PLAINTEXT://10.88.4.2:9092,DETOUR://10.88.4.2:9094,CONTROLLER://127.0.0.1:9093"
    assert settings["log.dirs"] == "/cache/clusters/demo/kafka-data"


def test_every_block_of_the_corefile_closes_on_a_line_of_its_own(layout: Layout) -> None:
    lines = [line.strip() for line in config.corefile(layout).splitlines()]
    opened = [line for line in lines if line.endswith("{")]
    assert lines.count("}") == len(opened)
    assert not [line for line in lines if "{" in line and not line.endswith("{")]
