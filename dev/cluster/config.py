"""Decides the content of every configuration file of an instance. Called by `cluster`. Pure: text in, text out.

JSON is written wherever YAML is read, since every JSON document is YAML too.
"""

from __future__ import annotations

import json
from typing import Any

from dev.cluster.paths import Layout
from dev.cluster.registry import Addresses
from dev.cluster.tools import PAUSE_IMAGE

API_PORT = 6443
KAFKA_PORT = 9092
KAFKA_CONTROLLER_PORT = 9093
KAFKA_DETOUR_PORT = 9094
BROKER_RACK = "zone-a"
PROMETHEUS_PORT = 9090
DISCOVERY_PORT = 9099
CLUSTER_DOMAIN = "cluster.local"
COREDNS_READY_PORT = 8181


def _json(content: Any) -> str:
    return json.dumps(content, indent=2) + "\n"


def containerd(layout: Layout) -> str:
    """containerd's TOML. Its own state is below /run, which is private to the instance."""
    return f"""version = 2
root = "{layout.state}/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs", "io.containerd.internal.v1.tracing"]

[grpc]
  address = "{layout.containerd_socket}"

[plugins."io.containerd.internal.v1.opt"]
  path = "{layout.state}/containerd-opt"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  # A machine without CAP_SYS_RESOURCE may not lower a process's score: its sandboxes would die at start.
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{layout.config}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
"""


def cni(addresses: Addresses) -> str:
    """Pods are routed, not bridged: `ptp` needs no bridge to name and remove, and every packet passes iptables."""
    address_management = {
        "type": "host-local",
        "ranges": [[{"subnet": addresses.pods}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    plugins = [
        {"type": "ptp", "ipMasq": False, "ipam": address_management},
        {"type": "portmap", "capabilities": {"portMappings": True}},
    ]
    return _json({"cniVersion": "0.4.0", "name": "pods", "plugins": plugins})


def kubelet(layout: Layout, addresses: Addresses, cgroup: str) -> str:
    """`cgroup` is the folder below every cgroup hierarchy under which the instance's pods live."""
    certificates = layout.certificates
    return _json(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(certificates / "ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(certificates / "kubelet-serving.crt"),
            "tlsPrivateKeyFile": str(certificates / "kubelet-serving.key"),
            "containerRuntimeEndpoint": f"unix://{layout.containerd_socket}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": cgroup,
            "failCgroupV1": False,
            "failSwapOn": False,
            "oomScoreAdj": 0,
            "clusterDNS": [addresses.node],
            "clusterDomain": CLUSTER_DOMAIN,
            "resolvConf": str(layout.config / "resolv.conf"),
            # Images come from no registry: what is deleted here cannot be pulled again.
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "serializeImagePulls": False,
            "registryPullQPS": 0,
            "eventRecordQPS": 0,
            "maxPods": 110,
            "shutdownGracePeriod": "0s",
        }
    )


def kube_proxy(layout: Layout, addresses: Addresses, node_name: str) -> str:
    return _json(
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "iptables",
            "clientConnection": {"kubeconfig": str(layout.config / "proxy.kubeconfig")},
            "clusterCIDR": addresses.pods,
            "hostnameOverride": node_name,
            # These sysctls belong to the machine and cannot be set in a network namespace.
            "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
            "iptables": {"minSyncPeriod": "100ms", "localhostNodePorts": False},
        }
    )


def corefile(layout: Layout) -> str:
    """Names of the cluster are answered from the API server; any other name does not exist (there is no way out anyway)."""
    return f"""{CLUSTER_DOMAIN} in-addr.arpa {{
    errors
    ready :{COREDNS_READY_PORT}
    kubernetes {{
        kubeconfig {layout.config}/coredns.kubeconfig
        pods insecure
        ttl 5
    }}
}}
. {{
    errors
    template ANY ANY {{
        rcode NXDOMAIN
    }}
}}
"""


KEEPS_RECORDS = {"log.retention.ms": "-1"}
"""Of every broker here: tests write records with timestamps of long ago, which else it looks for and deletes now and then."""


def kafka(layout: Layout, addresses: Addresses) -> str:
    """server.properties of one node that is broker and controller. It advertises the node's address, which pods reach too.

    The listener DETOUR advertises the machine's address instead: nobody listens there, unless somebody leads from there on.
    """
    detour = f":{KAFKA_DETOUR_PORT}"
    listeners = f"PLAINTEXT://{addresses.node}:{KAFKA_PORT},DETOUR://{addresses.node}{detour}"
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "broker.rack": BROKER_RACK,
        "controller.quorum.voters": f"1@127.0.0.1:{KAFKA_CONTROLLER_PORT}",
        "listeners": f"{listeners},CONTROLLER://127.0.0.1:{KAFKA_CONTROLLER_PORT}",
        "advertised.listeners": f"PLAINTEXT://{addresses.node}:{KAFKA_PORT},DETOUR://{addresses.machine}{detour}",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,DETOUR:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": str(layout.state / "kafka-data"),
        **KEEPS_RECORDS,
        "auto.create.topics.enable": "false",
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "8",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "8",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "share.coordinator.state.topic.num.partitions": "2",
        "group.initial.rebalance.delay.ms": "0",
        "log.segment.bytes": str(256 * 1024 * 1024),
        "num.network.threads": "2",
        "num.io.threads": "4",
    }
    return "".join(f"{key}={value}\n" for key, value in settings.items())


def prometheus() -> str:
    """Scrapes every pod that asks for it by annotation; `discovery` says which, and under which labels."""
    found = {"url": f"http://127.0.0.1:{DISCOVERY_PORT}/", "refresh_interval": "1s"}
    # A metric's own labels win: its `namespace` is that of what it tells of, not that of the pod that tells.
    pods = {"job_name": "pods", "honor_labels": True, "http_sd_configs": [found]}
    return _json(
        {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
            "scrape_configs": [pods],
        }
    )
