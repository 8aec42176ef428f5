"""The example orders-kinesis on a real node, from images built with `EXTRAS=aws`, while its stream is split and merged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from dev.cluster import builder
from dev.demo.kube import Json, is_true
from dev.demo.lab import RELEASE, SYSTEM, Lab
from dev.demo.place import NAMESPACE
from shardherd.core.model.nouns import ShardState
from tests.e2e.groups import NAMESPACES, RESOURCE, Deployed
from tests.harness.kinesis import PlayedKinesis, stream
from tests.harness.long import long
from tests.harness.orders import ORDERS, STREAM, Line, Writer, events, lines, split_and_merge
from tests.harness.typed import ROOT

pytestmark = [pytest.mark.timeout(1800), long]

EXAMPLE = ROOT / "spark_apps" / "orders-kinesis" / "consumergroup.yaml"
CLAIM = "journal"
WITHIN = 180.0
"""Seconds for anything that is waited for: pods start, and others may have the machine."""

SECRET: Json = {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": {"name": "aws", "namespace": NAMESPACE, "labels": {"shardherd.dev/kafka-credentials": "true"}},
    "stringData": {"accessKeyId": "played", "secretAccessKey": "played"},
}
ALL_OVER = {ShardState.OVER: 3, ShardState.ALREADY_ALLOC: 2}
"""Of two shards one was split, and one of its children merged with the other one."""


@pytest.fixture
def operator(installed: Lab) -> Iterator[Lab]:
    """The chart with the operator's image that knows AWS; the other one comes back afterwards."""
    builder.build(tuple(builder.WITH_AWS))
    for image in builder.WITH_AWS.values():
        installed.cluster.load_image(image)
    try:
        chart = str(ROOT / "charts" / "shardherd")
        installed.cluster.helm("upgrade", RELEASE, chart, "-n", SYSTEM, "--reuse-values", "--set", "image.tag=aws")
        installed.kube.run("rollout", "status", f"deployment/{RELEASE}", "-n", SYSTEM, "--timeout=120s", timeout=130)
        yield installed
    finally:
        installed.install(NAMESPACES)


@pytest.fixture
def service(installed: Lab) -> Iterator[PlayedKinesis]:
    """Kinesis, where pods reach it."""
    with PlayedKinesis(installed.cluster.addresses.machine) as played:
        yield played


@pytest.fixture
def client(service: PlayedKinesis) -> Iterator[Any]:
    """Who writes and reshards the example's stream."""
    with stream(service, STREAM, 2) as made:
        yield made


class Orders(Deployed):
    """The example's group, with what it writes on a volume."""

    def journal(self) -> list[Line]:
        """What all consumers have written."""
        return lines((self.lab.shared / NAMESPACE / CLAIM / self.name).glob("*.jsonl"))

    def waits(self, what: str, holds: Any) -> Any:
        """Wait until this holds, and say what it was if it does not."""
        return self.until(what, holds, WITHIN, every=0.5)

    def states(self) -> Counter[ShardState]:
        """How many shards are in each state, as it is stored."""
        return Counter(record.state for record in self.ownership().shards.values())

    def kill(self, consumer: str) -> None:
        """SIGKILL to its process."""
        self.lab.kill_process(self.namespace, consumer, self.lab.child_of_init(self.namespace, consumer))


@pytest.fixture
def orders(operator: Lab, service: PlayedKinesis, client: Any) -> Iterator[Orders]:
    """The example as it stands, but for where Kinesis and its output are: two consumers of a shard each, once there are two."""
    made = yaml.safe_load(EXAMPLE.read_text())
    name = made["metadata"]["name"]
    spec = made["spec"]
    spec |= {"heartbeatInterval": "1s", "initialAssignmentDelay": "1s"}
    spec["source"]["kinesis"]["endpoint"] = service.url
    spec["scaling"] |= {"shardsPerConsumer": 1, "maxReplicas": 2}
    application = spec["application"]
    application["image"] = "shardherd/worker:aws"
    (output,) = [each for each in application["env"] if each["name"] == "OUTPUT"]
    output["value"] = f"/{CLAIM}/{name}"
    application["worker"]["template"] = {
        "spec": {
            "containers": [{"name": "worker", "volumeMounts": [{"name": CLAIM, "mountPath": f"/{CLAIM}"}]}],
            "volumes": [{"name": CLAIM, "persistentVolumeClaim": {"claimName": CLAIM}}],
        }
    }
    operator.make_volume(NAMESPACE, CLAIM)
    operator.kube.apply(SECRET, made)
    yield Orders(operator, NAMESPACE, name)
    operator.kube.run("delete", RESOURCE, name, "-n", NAMESPACE, timeout=130)


def test_no_event_of_an_order_is_lost_or_out_of_order_whatever_is_split_merged_or_killed(orders: Orders, client: Any) -> None:
    """Shards wait for their parents, end, and are read once more after a reset: transitions 2, 8 and 7."""
    writer = Writer(client)
    try:
        split_and_merge(orders.waits, orders.journal, client)
        orders.kill(f"{orders.name}-0")
        orders.lab.kill_operator()
        before = len(orders.journal())
        orders.waits("reads on", lambda: len(orders.journal()) > before + 20 * len(ORDERS))
    finally:
        writer.end()
    wanted = {each: list(range(writer.rounds)) for each in ORDERS}

    def first_reads() -> dict[str, list[int]]:
        return {each: list(dict.fromkeys(found)) for each, found in events(orders.journal()).items()}

    def again() -> int:
        return len(orders.journal()) - writer.rounds * len(ORDERS)

    orders.waits("has read all", lambda: {each: sorted(found) for each, found in first_reads().items()} == wanted)
    assert first_reads() == wanted, "each order in its order"
    assert {line["shard"] for line in orders.journal()} == {str(shard) for shard in orders.grants()}
    orders.waits("ends what was split or merged", lambda: orders.states() == ALL_OVER)
    orders.waits("is Ready and knows that it has no lag", lambda: ready_without_lag(orders.resource()))

    before = again()
    orders.change({"paused": True, "reset": {"id": "again", "to": "Earliest"}})
    orders.waits("has nothing that is over", lambda: ShardState.OVER not in orders.states())
    orders.change({"paused": False})
    orders.waits("has read all once more", lambda: again() >= before + writer.rounds * len(ORDERS))
    orders.waits("ends them again", lambda: orders.states() == ALL_OVER)


def ready_without_lag(resource: Json) -> bool:
    """Whether the status says so: in seconds, as Kinesis counts no records."""
    lag = resource["status"].get("lag", {})
    return is_true(resource, "Ready") and float(lag.get("seconds", "inf")) == 0.0 and "records" not in lag
