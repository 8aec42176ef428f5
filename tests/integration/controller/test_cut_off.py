"""Who is cut off from whom: the operator alone from Kafka, and consumers of an ordered group from the operator.

The consumers are plain ones. Where only the operator is cut off from Kafka, they ask the broker themselves what there is to
read.
"""

from __future__ import annotations

import base64
import gzip
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition

from dev.cluster import Cluster
from shardherd.adapters.kubernetes.ownership import KEY
from shardherd.core.group.ownership import loads
from tests.harness.cluster import Names, Tell
from tests.harness.long import long
from tests.harness.tcp_proxy import TcpProxy
from tests.integration.controller.bench import unique, until
from tests.integration.controller.fault_lab import FAR, SHARDS, FaultLab, reading, undisturbed
from tests.integration.controller.test_faults import QUICK

pytestmark = pytest.mark.timeout(300)

RECORDS = 5_000
"""Records of each shard: more than are read in a test."""

SESSION = 15.0
ORDERED = {"ordered": True, "heartbeatInterval": "1s", "sessionTimeout": f"{SESSION:.0f}s"}
"""Its consumers stop reading 10 s after the last heartbeat that was answered."""


class Broker:
    """What a consumer, and whoever looks, may ask the broker by the straight way. Called from any thread."""

    def __init__(self, servers: str) -> None:
        self._consumer: Any = KafkaConsumer(bootstrap_servers=servers)
        self._admin: Any = KafkaAdminClient(bootstrap_servers=servers)
        self._lock = threading.Lock()

    def end(self, shard: str) -> float:
        """How many records the shard has."""
        topic, partition = shard.rsplit("/", 1)
        with self._lock:
            asked = TopicPartition(topic, int(partition))
            return float(self._consumer.end_offsets([asked])[asked])

    def committed(self, group: str) -> dict[str, int]:
        """The durable positions of a Kafka group."""
        with self._lock:
            found = self._admin.list_group_offsets(group)[group]
        return {f"{where.topic}/{where.partition}": int(position.offset) for where, position in found.items()}

    def close(self) -> None:
        self._consumer.close(autocommit=False)
        self._admin.close()


@contextmanager
def detour(cluster: Cluster) -> Iterator[tuple[TcpProxy, str]]:
    """A way to the broker that can be cut, and the address by which it is taken."""
    address, broker = cluster.kafka_detour
    proxy = TcpProxy(address, broker)
    proxy.start()
    try:
        yield proxy, address
    finally:
        proxy.close()


def epochs(lab: FaultLab) -> dict[str, int]:
    """The epoch under which each shard is held, as it is stored."""
    stored = lab.find("configmaps", "clicks-state")["binaryData"][KEY]
    return {str(shard): row.owner_epoch for shard, row in loads(gzip.decompress(base64.b64decode(stored))).shards.items()}


def read_up_to(lab: FaultLab) -> dict[str, int]:
    """The end of what was read of each shard."""
    return {shard: lab.kubelet.of(shard)[-1].end for shard in lab.shards}


@long
@pytest.mark.parametrize("ordered", [False, True], ids=["unordered", "ordered"])
@pytest.mark.parametrize("fault", ["refuses", "hangs"])
def test_an_operator_alone_that_is_cut_off_from_kafka_withholds_checkpoints_and_moves_nothing(
    cluster: Cluster, names: Names, tmp_path: Path, fault: str, ordered: bool, tell: Tell
) -> None:
    """Heartbeats are answered, so the session of an ordered group does not end either."""
    namespace, broker = unique(names, "cutoff"), Broker(cluster.kafka_bootstrap)
    played = {"end": broker.end, "save_interval": 0.5}
    declared = ORDERED if ordered else {}
    with detour(cluster) as (way, address):
        source = {"bootstrapServers": address}
        with reading(cluster, namespace, tmp_path, source=source, declared=declared, played=played, records=RECORDS) as lab:
            group = f"{namespace}.clicks"
            until(lambda: min(broker.committed(group).values()) > 0, lab.explain)
            assert way.connections > 0
            before = epochs(lab)

            def cut_off() -> None:
                (way.refuse if fault == "refuses" else way.hang)()
                until(lambda: lab.condition("SourceReachable") == ("False", "SourceUnavailable"), lab.explain)
                assert lab.condition("Ready") == ("False", "SourceUnavailable")
                begun, durable = time.monotonic(), broker.committed(group)
                # For longer than the session: it has to last.
                while time.monotonic() - begun < SESSION + 3.0:
                    lab.until_read(within=10.0)
                assert broker.committed(group) == durable, "what is acknowledged is durable, so nothing was"
                assert all(read_up_to(lab)[shard] > durable[shard] for shard in lab.shards)
                way.open()
                until(lambda: lab.condition("SourceReachable")[0] == "True", lab.explain)

            undisturbed(lab, cut_off, tell, f"the operator cut off from Kafka, which {fault}, {declared.get('ordered', False)}")
            mark = read_up_to(lab)
            until(lambda: all(broker.committed(group)[shard] >= mark[shard] for shard in lab.shards), lab.explain)
            assert epochs(lab) == before, "no shard was granted anew"
            assert [life for life in lab.kubelet.lives if life.event == "stopped"] == []
            assert lab.kubelet.fenced == []
    broker.close()


@long
def test_while_the_api_server_is_away_for_long_an_ordered_group_stops_by_itself_and_goes_on_afterwards(
    cluster: Cluster, names: Names, tmp_path: Path, tell: Tell
) -> None:
    with reading(cluster, unique(names, "cutoff"), tmp_path, declared=ORDERED, settings=QUICK) as lab:
        held, pods = lab.held(), set(lab.pods())
        lab.proxy.faults.refuse = True
        lab.proxy.cut()
        assert lab.operator.wait(30) == 1
        ended = time.monotonic()

        def stopped() -> set[str]:
            return {life.pod for life in lab.kubelet.lives if life.event == "stopped"}

        until(lambda: stopped() == pods, lab.explain)
        last = max(lab.kubelet.of(shard)[-1].at for shard in lab.shards)
        assert last < ended + SESSION, "nobody reads when its session must have ended"
        lab.proxy.faults.refuse = False
        lab.operator.start(**QUICK)
        lab.until_read()
        tell(f"an ordered group without a coordinator: the last read was {last - ended:.1f} s after it ended")
        lab.went_on(held)


@long
def test_a_consumer_of_an_ordered_group_that_is_cut_off_stops_before_another_one_reads(
    cluster: Cluster, names: Names, tmp_path: Path, tell: Tell
) -> None:
    with reading(cluster, unique(names, "cutoff"), tmp_path, declared=ORDERED) as lab:
        shards, begun = [shard for shard, owner in lab.owners().items() if owner == FAR], time.monotonic()
        assert len(shards) == SHARDS / 2
        lab.far.faults.refuse = True
        lab.far.cut()
        lab.until_read_by(1)
        stop = next(life.at for life in lab.kubelet.lives if (life.pod, life.event) == (FAR, "stopped"))
        for shard in shards:
            ranges = lab.kubelet.of(shard)
            unsaved = [each for each in lab.kubelet.fenced if each.shard == shard]
            last = max(each.at for each in (*ranges, *unsaved) if each.consumer == FAR)
            first = min(each.at for each in ranges if each.consumer != FAR and each.at > begun)
            tell(f"{shard}: read by another {first - last:.1f} s after the one that was cut off read it last")
            assert last <= stop < first
        lab.far.faults.refuse = False
        lab.until_read_by(2)
        lab.until_ready()
        lab.nothing_lost_or_repeated()
