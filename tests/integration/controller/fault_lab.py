"""A group that is read while its control plane is in trouble, and what a test looks at meanwhile.

One operator as a process of its own reaches the real API server through `ApiProxy`; its pods run plain consumers on the real
protocol, played by `PlayedKubelet`, which reaches the API server directly. Used by the tests of faults.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dev.cluster import Cluster
from shardherd.adapters.kubernetes.api import MERGE_PATCH, ApiError
from tests.harness.api_proxy import ApiProxy
from tests.harness.cluster import Tell
from tests.harness.kubelet import PlayedKubelet
from tests.integration.controller.bench import fill_topic, until
from tests.integration.controller.process import OperatorProcess, operating

SHARDS = 4
MISSING = "example/there-is-none:1"
"""An image that the played kubelet cannot get."""
FAR = "clicks-1"
"""The consumer that can be cut off from the operator."""

Json = dict[str, Any]


class FaultLab:
    """An operator behind a proxy, a group of two consumers that read four shards, and what a test looks at."""

    def __init__(self, operator: OperatorProcess, proxy: ApiProxy, far: ApiProxy, kubelet: PlayedKubelet, topic: str) -> None:
        self.operator = operator
        self.proxy = proxy
        """The operator's way to the API server."""
        self.far = far
        """The way of one of the consumers to the operator."""
        self.kubelet = kubelet
        self.topic = topic
        self.shards = [f"{topic}/{number}" for number in range(SHARDS)]

    def path(self, kind: str, name: str = "") -> str:
        bases = {
            "statefulsets": "/apis/apps/v1",
            "poddisruptionbudgets": "/apis/policy/v1",
            "consumergroups": "/apis/shardherd.dev/v1alpha1",
        }
        return f"{bases.get(kind, '/api/v1')}/namespaces/{self.operator.namespace}/{kind}/{name}".rstrip("/")

    def find(self, kind: str, name: str) -> Json:
        """The object; empty if there is none."""
        try:
            found: Json = self.operator.api.call("GET", self.path(kind, name))
        except ApiError as error:
            if error.status == 404:
                return {}
            raise
        return found

    def patch(self, kind: str, name: str, change: Json) -> None:
        self.operator.api.call("PATCH", self.path(kind, name), change, content_type=MERGE_PATCH)

    def delete(self, kind: str, name: str) -> None:
        self.operator.api.call("DELETE", self.path(kind, name), {"propagationPolicy": "Background"})

    def ready(self) -> bool:
        """Whether the group says that it is, of the newest generation."""
        found = self.find("consumergroups", "clicks")
        status = found.get("status", {})
        current = status.get("observedGeneration") == found["metadata"]["generation"]
        return current and any(item["type"] == "Ready" and item["status"] == "True" for item in status.get("conditions", ()))

    def condition(self, kind: str) -> tuple[str, str]:
        """Status and reason of the group's condition of this type."""
        found = self.find("consumergroups", "clicks").get("status", {}).get("conditions", ())
        return next(((item["status"], item["reason"]) for item in found if item["type"] == kind), ("", ""))

    def until_ready(self, within: float = 60.0) -> None:
        until(self.ready, self.explain, within)

    def until_read(self, since: float | None = None, within: float = 60.0) -> None:
        """Until every shard was read after that time, by default after now."""
        after = time.monotonic() if since is None else since
        until(
            lambda: all(any(each.at > after for each in self.kubelet.of(shard)) for shard in self.shards), self.explain, within
        )

    def until_read_by(self, consumers: int, within: float = 90.0) -> None:
        """Until so many consumers read the shards, each its part."""
        names = {f"clicks-{ordinal}" for ordinal in range(consumers)}
        until(lambda: set(self.owners().values()) == names, self.explain, within)

    def owners(self) -> dict[str, str]:
        """Who read each shard last."""
        return {shard: self.kubelet.of(shard)[-1].consumer for shard in self.shards}

    def pods(self) -> dict[str, str]:
        """UIDs of the group's pods by name."""
        found = self.operator.api.call("GET", self.path("pods"))["items"]
        return {
            item["metadata"]["name"]: item["metadata"]["uid"] for item in found if "deletionTimestamp" not in item["metadata"]
        }

    def pauses(self, since: float) -> float:
        """The longest time that a shard was not read since then, up to now."""
        longest = 0.0
        for shard in self.shards:
            times = [since, *(each.at for each in self.kubelet.of(shard) if each.at > since), time.monotonic()]
            longest = max(longest, *(later - earlier for earlier, later in itertools.pairwise(times)))
        return longest

    def nothing_lost_or_repeated(self) -> None:
        """Every record was read; and none was checkpointed twice."""
        for shard in self.shards:
            durable = self.kubelet.of(shard)
            assert all(later.begin >= earlier.end for earlier, later in itertools.pairwise(durable)), (shard, durable)
            fenced = [each for each in list(self.kubelet.fenced) if each.shard == shard]
            # What was fenced just now, beyond that, somebody else is about to read.
            read = {each.begin for each in (*durable, *fenced) if each.begin < durable[-1].end}
            assert read == set(range(durable[-1].end)), (shard, durable, fenced)

    def held(self) -> tuple[dict[str, str], dict[str, str]]:
        """Who reads each shard, and which pods there are."""
        return self.owners(), self.pods()

    def went_on(self, held: tuple[dict[str, str], dict[str, str]]) -> None:
        """The same pods read the same shards as then; and the group is ready, with nothing lost or repeated."""
        assert self.held() == held
        self.until_ready()
        self.nothing_lost_or_repeated()

    def explain(self) -> object:
        status = self.find("consumergroups", "clicks").get("status", {})
        return status, self.pods(), self.kubelet.failures, self.operator.log.read_text()[-6000:]


@contextlib.contextmanager
def reading(
    cluster: Cluster,
    namespace: str,
    folder: Path,
    *,
    source: Mapping[str, Any] | None = None,
    declared: Mapping[str, Any] | None = None,
    played: Mapping[str, Any] | None = None,
    records: int = 0,
    settings: Mapping[str, str] | None = None,
) -> Iterator[FaultLab]:
    """A group whose four shards two consumers read, in a namespace that is made for it; `settings` are the operator's.

    `source` and `declared` are more of the source of Kafka and of the group, `played` of the played kubelet. Each shard has
    `records` to begin with.
    """
    with contextlib.ExitStack() as stack:
        operator = stack.enter_context(operating(cluster, namespace, folder))
        address = f"http://127.0.0.1:{operator.api_port}"
        proxy, far = ApiProxy(cluster.api_url, cluster.layout.certificates), ApiProxy(address)
        for each in (proxy, far):
            each.start()
            stack.callback(each.close)
        # Ends before the proxy does.
        stack.callback(operator.close)
        operator.reach_through(proxy.url)
        operator.start(**(settings or {}))
        topic = f"{namespace}-clicks"
        fill_topic(cluster, topic, SHARDS, records)
        more = played or {}
        kubelet = PlayedKubelet(operator.api, namespace, address, starting=0.2, missing=(MISSING,), ways={FAR: far.url}, **more)
        stack.enter_context(kubelet.running())
        lab = FaultLab(operator, proxy, far, kubelet, topic)
        operator.group("clicks", topic, declared, **(source or {}))
        lab.until_ready()
        lab.until_read()
        yield lab


def undisturbed(lab: FaultLab, trouble: Callable[[], None], tell: Tell, what: str) -> None:
    """Trouble during which every shard is read on by who held it, and after which the group is as it was."""
    held, begun = lab.held(), time.monotonic()
    trouble()
    lab.until_read()
    tell(f"{what}: for {time.monotonic() - begun:.1f} s; the longest that a shard was not read: {lab.pauses(begun):.1f} s")
    lab.went_on(held)
