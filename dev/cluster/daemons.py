"""Decides the command line of every process of an instance. Called by `cluster`. Pure."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from dev.cluster import config
from dev.cluster.control import Daemon
from dev.cluster.paths import REPOSITORY, SOURCES, Layout
from dev.cluster.registry import Addresses
from dev.cluster.tools import Tools

ISSUER = f"https://kubernetes.default.svc.{config.CLUSTER_DOMAIN}"
SBIN = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def _flags(**flags: str | Path) -> tuple[str, ...]:
    return tuple(f"--{name.replace('_', '-')}={value}" for name, value in flags.items())


def etcd(tools: Tools, layout: Layout) -> Daemon:
    """Without fsync: the data lives as long as the instance."""
    flags = _flags(
        data_dir=layout.state / "etcd",
        listen_client_urls="http://127.0.0.1:2379",
        advertise_client_urls="http://127.0.0.1:2379",
        listen_peer_urls="http://127.0.0.1:2380",
        initial_advertise_peer_urls="http://127.0.0.1:2380",
        initial_cluster="default=http://127.0.0.1:2380",
        log_level="warn",
    )
    return Daemon("etcd", (str(tools.etcd), *flags, "--unsafe-no-fsync"))


def apiserver(tools: Tools, layout: Layout, addresses: Addresses) -> Daemon:
    keys = layout.certificates
    flags = _flags(
        advertise_address=addresses.node,
        bind_address="0.0.0.0",
        secure_port=str(config.API_PORT),
        etcd_servers="http://127.0.0.1:2379",
        service_cluster_ip_range=addresses.services,
        client_ca_file=keys / "ca.crt",
        tls_cert_file=keys / "apiserver.crt",
        tls_private_key_file=keys / "apiserver.key",
        kubelet_client_certificate=keys / "apiserver-kubelet-client.crt",
        kubelet_client_key=keys / "apiserver-kubelet-client.key",
        kubelet_certificate_authority=keys / "ca.crt",
        kubelet_preferred_address_types="InternalIP",
        requestheader_client_ca_file=keys / "ca.crt",
        requestheader_allowed_names="front-proxy-client",
        requestheader_username_headers="X-Remote-User",
        requestheader_group_headers="X-Remote-Group",
        requestheader_extra_headers_prefix="X-Remote-Extra-",
        proxy_client_cert_file=keys / "front-proxy-client.crt",
        proxy_client_key_file=keys / "front-proxy-client.key",
        service_account_issuer=ISSUER,
        service_account_key_file=keys / "sa.pub",
        service_account_signing_key_file=keys / "sa.key",
        api_audiences=ISSUER,
        authorization_mode="Node,RBAC",
        enable_admission_plugins="NodeRestriction",
        allow_privileged="true",
        profiling="false",
    )
    return Daemon("kube-apiserver", (str(tools.kubernetes / "kube-apiserver"), *flags))


def controller_manager(tools: Tools, layout: Layout) -> Daemon:
    kubeconfig = layout.config / "controller-manager.kubeconfig"
    flags = _flags(
        kubeconfig=kubeconfig,
        authentication_kubeconfig=kubeconfig,
        authorization_kubeconfig=kubeconfig,
        root_ca_file=layout.certificates / "ca.crt",
        service_account_private_key_file=layout.certificates / "sa.key",
        use_service_account_credentials="true",
        leader_elect="false",
        # Nobody else is here to be spared: with 20 requests a second, which is the default, many pods take minutes.
        kube_api_qps="200",
        kube_api_burst="300",
        allocate_node_cidrs="false",
        # A claim of a prepared volume waits this long otherwise: 15 s by default.
        pvclaimbinder_sync_period="1s",
        # Between two looks of a HorizontalPodAutoscaler: 15 s by default.
        horizontal_pod_autoscaler_sync_period="1s",
        bind_address="127.0.0.1",
        profiling="false",
    )
    return Daemon("kube-controller-manager", (str(tools.kubernetes / "kube-controller-manager"), *flags))


def scheduler(tools: Tools, layout: Layout) -> Daemon:
    kubeconfig = layout.config / "scheduler.kubeconfig"
    flags = _flags(
        kubeconfig=kubeconfig,
        authentication_kubeconfig=kubeconfig,
        authorization_kubeconfig=kubeconfig,
        leader_elect="false",
        kube_api_qps="200",
        kube_api_burst="300",
        bind_address="127.0.0.1",
        profiling="false",
    )
    return Daemon("kube-scheduler", (str(tools.kubernetes / "kube-scheduler"), *flags))


def kwok(tools: Tools, layout: Layout) -> Daemon:
    """Plays the kubelet of every node: pods on them become ready at once, and go at once when they are deleted."""
    flags = _flags(
        kubeconfig=layout.kubeconfig,
        config=SOURCES / "kwok" / "stages.yaml",
        manage_all_nodes="true",
        node_lease_duration_seconds="40",
    )
    return Daemon("kwok", (str(tools.kwok), *flags))


def containerd(layout: Layout) -> Daemon:
    return Daemon("containerd", ("/usr/bin/containerd", "--config", str(layout.config / "containerd.toml")), (("PATH", SBIN),))


def kubelet(tools: Tools, layout: Layout, addresses: Addresses, node_name: str) -> Daemon:
    flags = _flags(
        config=layout.config / "kubelet.json",
        kubeconfig=layout.config / "kubelet.kubeconfig",
        hostname_override=node_name,
        node_ip=addresses.node,
    )
    return Daemon("kubelet", (str(tools.kubernetes / "kubelet"), *flags), (("PATH", SBIN),))


def kube_proxy(tools: Tools, layout: Layout) -> Daemon:
    program = str(tools.kubernetes / "kube-proxy")
    return Daemon("kube-proxy", (program, f"--config={layout.config}/kube-proxy.json"), (("PATH", SBIN),))


def coredns(tools: Tools, layout: Layout) -> Daemon:
    return Daemon("coredns", (str(tools.coredns), "-conf", str(layout.config / "Corefile")))


def java(tools: Tools, main: str, *arguments: str, heap: str = "256m", options: tuple[str, ...] = ()) -> tuple[str, ...]:
    """A Java program of Kafka's jars. It starts quickly and logs to standard error."""
    quick = (f"-Xmx{heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
    return (
        _java(),
        *quick,
        *options,
        "-cp",
        f"{tools.kafka}/*",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        main,
        *arguments,
    )


def kafka(tools: Tools, layout: Layout) -> Daemon:
    options = ["-Xms256m", "-Xmx640m", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=50", "-XX:-UsePerfData"]
    logging = ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true"]
    command = (_java(), *options, *logging, "-cp", f"{tools.kafka}/*", "kafka.Kafka", str(layout.config / "kafka.properties"))
    return Daemon("kafka", command)


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    return found or "/usr/bin/java"


def prometheus(layout: Layout) -> Daemon:
    flags = [
        f"--config.file={layout.config}/prometheus.yml",
        f"--storage.tsdb.path={layout.state}/prometheus-data",
        f"--web.listen-address=0.0.0.0:{config.PROMETHEUS_PORT}",
        "--web.enable-lifecycle",
        "--log.level=warn",
    ]
    return Daemon("prometheus", ("/usr/bin/prometheus", *flags))


def discovery(layout: Layout, url: str) -> Daemon:
    """The process that tells Prometheus which pods to scrape."""
    command = (sys.executable, "-m", "dev.cluster.discovery", url, str(layout.certificates), str(config.DISCOVERY_PORT))
    return Daemon("discovery", command, (("PYTHONPATH", str(REPOSITORY)),))
