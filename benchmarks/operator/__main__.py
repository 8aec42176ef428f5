"""`make bench-operator`: what one operator carries, on a real API server and broker, with nodes that kwok plays.

1,000 groups of three consumers are applied at once; they read ten topics. Measured are how soon each group's StatefulSet,
Service and status are right (the pods, which the StatefulSet controller makes, apart), what the operator uses, what it asks of
the API server while nothing changes, how long the groups are without a leader when it is killed, one group of 10,000 shards
of a topic, and one of as many of 2,000 topics, while others appear and vanish (`churn`). Nobody heartbeats: kwok's pods run
nothing. The control plane and the broker run on the same cores.
"""

from __future__ import annotations

import argparse
import re
import signal
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.broker import NAME
from benchmarks.operator.churn import many_topics
from benchmarks.operator.figures import Counts, Use, scrape, use
from benchmarks.operator.town import GROUPS, Operator, Town, town, wait_until
from benchmarks.operator.watching import Watching
from benchmarks.table import Row, render
from dev.cluster.config import API_PORT, KAFKA_PORT

TOPICS, CONSUMERS = 10, 3
GROUPS_GOAL, MEMORY_GOAL, PEER = 600.0, 300.0, 155.0
RECONCILES = "shardherd_reconcile_duration_seconds"
REQUESTS = "shardherd_kubernetes_requests_total"
QUIET = 10.0
"""Seconds without a request after which the operator counts as being at rest."""


def show(text: str) -> None:
    print(text, flush=True)


def requests(counts: Counts) -> float:
    """Requests so far but those that keep the Lease."""
    return counts.total(REQUESTS, but='resource="leases"')


def by_kind(before: Counts, after: Counts, groups: int) -> str:
    """Requests since `before` by method and resource, for each group; what fewer than a tenth need is left out."""
    kinds = {
        re.sub(r'method="(\w+)",resource="(\w+)"', r"\1 \2", labels): (value - before.samples.get((name, labels), 0.0)) / groups
        for (name, labels), value in after.samples.items()
        if name == REQUESTS
    }
    most = sorted(kinds.items(), key=lambda each: -each[1])
    return ", ".join(f"{kind} {each:.2f}" for kind, each in most if each >= 0.1)


def connections(used: Use) -> str:
    return (
        f"{used.threads} threads, {used.sockets.get(KAFKA_PORT, 0)} connections to Kafka,"
        f" {used.sockets.get(API_PORT, 0)} to the API server"
    )


def explain(place: Town, right: dict[str, float]) -> str:
    """A group that is not right, for a run that fails."""
    for item in place.api.call("GET", GROUPS)["items"]:
        if item["metadata"]["name"] not in right:
            return f"{item['metadata']['name']}: {item.get('status')}"
    return ""


def apply_all(place: Town, operator: Operator, count: int, within: float) -> Row:
    """All groups at once, until every one is right."""
    names = [f"group-{number:04d}" for number in range(count)]
    watching = Watching(place.cluster.api_url, place.cluster.layout.certificates, CONSUMERS, CONSUMERS)
    watching.start()
    before, used = scrape(operator.metrics_port), use(operator.pid)
    begun = time.monotonic()
    place.create_groups(names, [f"topic-{number}" for number in range(TOPICS)])
    applied = time.monotonic() - begun
    try:
        wait_until(f"{count} groups to be right", lambda: len(watching.check().right) >= count, within)
    except TimeoutError as error:
        raise SystemExit(f"{error}: {len(watching.right)} are; {explain(place, watching.right)}") from None
    took = max(watching.right.values()) - begun
    after, now = scrape(operator.metrics_port), use(operator.pid)
    reconciles = after.total(f"{RECONCILES}_count") - before.total(f"{RECONCILES}_count")
    show(
        f"{count} groups: the API server took them in {applied:.1f} s, all were right after {took:.1f} s;"
        f" the operator used {now.cpu - used.cpu:.1f} CPU seconds, {requests(after) - requests(before):,.0f} requests"
        f" and {reconciles:,.0f} reconciles, p99 at most {after.quantile(RECONCILES, 0.99, before) * 1e3:g} ms"
    )
    show(f"requests for a group: {by_kind(before, after, count)}")
    wait_until("all pods to be made", lambda: len(watching.check().pods) >= count * CONSUMERS, within)
    made = max(watching.pods.values()) - begun
    rate = 60 * len(watching.pods) / made
    show(f"{count * CONSUMERS} pods: made by the StatefulSet controller after {made:.1f} s, {rate:,.0f}/min")
    watching.stop()
    note = f"the peer's figure is the goal; Kubeflow's Spark operator publishes up to {PEER:g}/min"
    return Row("ConsumerGroups right", 60 * count / took, GROUPS_GOAL, 1.0, "/min", more_is_better=True, note=note)


def rest(operator: Operator, seconds: float, within: float) -> list[Row]:
    """What it does while nothing changes."""
    last, since = requests(scrape(operator.metrics_port)), time.monotonic()

    def quiet() -> bool:
        nonlocal last, since
        now = requests(scrape(operator.metrics_port))
        if now != last:
            last, since = now, time.monotonic()
        return time.monotonic() - since >= QUIET

    settled = wait_until("rest", quiet, within, every=2.0)
    before, used, begun = scrape(operator.metrics_port), use(operator.pid), time.monotonic()
    time.sleep(seconds)
    after, now, took = scrape(operator.metrics_port), use(operator.pid), time.monotonic() - begun
    reconciles = after.total(f"{RECONCILES}_count") - before.total(f"{RECONCILES}_count")
    asked = requests(after) - requests(before)
    show(
        f"at rest, {settled:.0f} s later: {(now.cpu - used.cpu) / took:.0%} of a core, {reconciles / took:,.0f} reconciles/s"
        f" (p99 at most {after.quantile(RECONCILES, 0.99, before) * 1e3:g} ms), {asked:,.0f} requests in {took:.0f} s;"
        f" {connections(now)}; {now.resident:.0f} MiB, at most {now.most:.0f} MiB"
    )
    # Of very many groups none may be due for as long as this.
    per_reconcile = asked / max(1.0, reconciles)
    return [
        Row("requests per reconcile at rest", per_reconcile, 0.0, 1.0, "", note="the goal is none"),
        Row("resident memory at its most", now.most, MEMORY_GOAL, 1.0, "MiB", note="the peer's figure is the goal"),
    ]


def leader_change(place: Town, count: int, within: float) -> None:
    """Kill the leader; until the other one serves every group."""
    first, second = place.operators
    second.start()
    wait_until("the second operator to stand by", lambda: second.said("waiting for the lease") > 0, within)
    before = second.said("serving group")
    begun = time.monotonic()
    first.end(signal.SIGKILL)
    wait_until("the second operator to lead", lambda: second.said('"leading"') > 0, within)
    led = time.monotonic() - begun
    wait_until("every group to be served", lambda: second.said("serving group") - before >= count, within)
    served = time.monotonic() - begun
    show(
        f"leader killed: the other led after {led:.1f} s (the Lease runs for 15 s) and served all {count} groups"
        f" {served - led:.1f} s later; {use(second.pid).most:.0f} MiB at most"
    )


def wide(place: Town, operator: Operator, shards: int, within: float) -> None:
    """One group of very many shards."""
    begun = time.monotonic()
    place.create_topics({"wide": shards})
    show(f"a topic of {shards:,} partitions was made in {time.monotonic() - begun:.1f} s")
    used, begun = use(operator.pid), time.monotonic()
    place.create_groups(["wide"], ["wide"], shardsPerConsumer=max(1, shards // CONSUMERS + 1))

    def whole() -> bool:
        status = place.api.call("GET", f"{GROUPS}/wide").get("status", {})
        return bool(status.get("shards", {}).get("total") == shards and status.get("desiredReplicas") == CONSUMERS)

    wait_until("the wide group to be right", whole, within)
    took, now = time.monotonic() - begun, use(operator.pid)
    show(f"{shards:,} shards in one group: right after {took:.1f} s and {now.cpu - used.cpu:.1f} CPU seconds")
    time.sleep(10.0)
    before, begun = use(operator.pid), time.monotonic()
    time.sleep(20.0)
    after = use(operator.pid)
    share = (after.cpu - before.cpu) / (time.monotonic() - begun)
    show(f"{shards:,} shards at rest: {share:.0%} of a core; {after.most:.0f} MiB at most")


def measure(place: Town, arguments: argparse.Namespace) -> list[Row]:
    """The rows that have goals; the other figures are printed as they come."""
    operator = place.operators[0]
    operator.start()
    wait_until("the operator to lead", lambda: operator.said('"leading"') > 0, 60)
    place.create_topics({f"topic-{number}": CONSUMERS for number in range(TOPICS)})
    rows = []
    if arguments.groups:
        rows += [apply_all(place, operator, arguments.groups, arguments.within)]
        rows += rest(operator, arguments.rest, arguments.within)
    if arguments.groups and not arguments.no_leader_change:
        leader_change(place, arguments.groups, arguments.within)
        operator = place.operators[1]
    if arguments.shards:
        wide(place, operator, arguments.shards, arguments.within)
    if arguments.topics:
        rows += many_topics(place, operator, arguments.topics, arguments.seconds, arguments.within)
    return rows


def main() -> None:
    """See the module."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended, too
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=1000, help="applied at once; 0 leaves them out")
    parser.add_argument("--shards", type=int, default=10_000, help="of the one wide group; 0 leaves it out")
    parser.add_argument("--topics", type=int, default=2000, help="of the group with a pattern; 0 leaves it out")
    parser.add_argument("--seconds", type=int, default=30, help="for which topics appear, and then vanish")
    parser.add_argument("--rest", type=float, default=60.0, help="seconds of looking at the operator at rest")
    parser.add_argument("--within", type=float, default=1200.0, help="seconds after which a part has failed")
    parser.add_argument("--no-leader-change", action="store_true")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-operator-"))
    show(f"the operators' logs are in {folder}")
    with town(NAME, folder) as place:
        rows = measure(place, arguments)
    if rows:
        print(render(rows), flush=True)


if __name__ == "__main__":
    main()
