"""The main job of the demo, step by step: what a user does, what must then be seen, and when it happened.

`dev.demo.__main__` tells it to a person, and the end-to-end tests drive the same steps. Each step waits for the condition that
it promises, with a deadline, and explains a failure with the group's conditions, events and logs. `Story.table` is its end.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dev.demo.account import Account, Line, Timeline, account, lines
from dev.demo.figures import query
from dev.demo.kube import Json, is_true
from dev.demo.lab import REPOSITORY, SYSTEM, Lab
from dev.demo.report import DemoError, Reporter, await_that
from dev.demo.sink import Sink, owners_of
from dev.demo.traffic import Traffic

NAMESPACE = "demo"
GROUP = "clickstream"
TOPIC = "clickstream"
KAFKA_GROUP = f"{NAMESPACE}.{GROUP}"
CLAIM = "clickstream-data"
MANIFEST = REPOSITORY / "spark_apps" / "clickstream" / "consumergroup.yaml"
RESOURCE = "consumergroups.shardherd.dev"
BACKLOG = 500_000
RATE = 2_000

START_S = 420.0
MOVE_S = 300.0
DRAIN_S = 300.0


@dataclass(frozen=True)
class Holding:
    """Who reads what, by the operator's metrics."""

    owners: Mapping[str, str]
    states: Mapping[str, int]

    def shards_of(self, consumer: str) -> tuple[str, ...]:
        return tuple(sorted(shard for shard, owner in self.owners.items() if owner == consumer))

    def counts(self) -> dict[str, int]:
        return {consumer: len(self.shards_of(consumer)) for consumer in sorted(set(self.owners.values()))}

    def settled(self, shards: int, consumers: int) -> bool:
        """Whether all shards are held and read, spread over so many consumers as evenly as can be."""
        sizes = sorted(self.counts().values())
        even = len(sizes) == consumers and sizes[-1] - sizes[0] <= 1
        return even and len(self.owners) == shards and self.states.get("ALREADY_ALLOC", 0) == shards

    def __str__(self) -> str:
        return ", ".join(f"{consumer}: {n}" for consumer, n in self.counts().items()) or "nobody holds a shard"


@dataclass
class Story:
    """One run of the main job. Call the steps in the order in which they are written here."""

    lab: Lab
    namespace: str = NAMESPACE
    application_namespaces: tuple[str, ...] = (NAMESPACE,)
    moments: dict[str, float] = field(default_factory=dict)
    _dead: str = ""
    _dead_shards: tuple[str, ...] = ()
    produced: Mapping[str, int] = field(default_factory=dict)
    _moves: dict[str, int] = field(default_factory=dict)

    @property
    def reporter(self) -> Reporter:
        return self.lab.reporter

    @property
    def sink(self) -> Sink:
        """A fresh look at what the application wrote."""
        return Sink(self.folder / "clickstream" / "rows")

    @property
    def folder(self) -> Path:
        return self.lab.shared / self.namespace / CLAIM

    @property
    def traffic(self) -> Traffic:
        return Traffic(self.lab, TOPIC)

    # ---- the steps

    def build(self) -> None:
        """Step 1: a real cluster, and the images in it."""
        self.reporter.step("1. A real cluster on this machine (etcd, Kubernetes, Kafka, Prometheus), and two images")
        self.lab.start()

    def prepare(self) -> None:
        """Step 2: nothing left of an earlier run, the topic, the producer, the chart."""
        self.reporter.step("2. The chart, a topic of 8 partitions, and a producer of click events")
        self._clean()
        self.lab.make_namespace(SYSTEM)
        self.lab.make_namespace(self.namespace)
        folder = self.lab.make_volume(self.namespace, CLAIM)
        self.reporter.say(f"shared folder of the sink: {folder}")
        self.lab.create_topic(TOPIC, 8)
        self.traffic.start(backlog=BACKLOG, rate=RATE)
        self.lab.install(self.application_namespaces)
        self.reporter.say(f"{self.traffic.await_backlog():,} records are in the topic; from now on {RATE:,} more each second")

    def apply(self) -> None:
        """Step 3: the group, until it is Ready."""
        self.reporter.step(f"3. kubectl apply -f {MANIFEST.relative_to(REPOSITORY)}")
        self.reporter.show(self.lab.kube.run("apply", "-n", self.namespace, "-f", str(MANIFEST)))
        self.reporter.say("two Spark applications start, of 4 shards each")
        done = self.lab.kube.attempt(
            "wait", "--for=condition=Ready", f"{RESOURCE}/{GROUP}", "-n", self.namespace, f"--timeout={START_S:.0f}s",
            timeout=START_S + 10,
        )  # fmt: skip
        if done.returncode != 0:
            raise DemoError(f"the group did not become Ready: {done.stderr.strip()}\n{self.explain()}")
        self.moments["ready"] = time.time()
        self.await_settled(shards=8, consumers=2, within=60)
        await_that(
            "both applications have written rows", lambda: len(self.sink.rows().owners) == 2, within=60, seen=self.explain
        )
        self.show_group()

    def grow(self) -> None:
        """Step 4a: 12 partitions. A third application starts, shards move, no query restarts."""
        self.reporter.step("4. The topic grows to 12 partitions")
        before = self.runs()
        self.moments["grown"] = time.time()
        self.lab.grow_topic(TOPIC, 12)
        self.reporter.say("a third application starts; when it is warm, shards move to it between micro-batches")
        self.during_growth()
        self.await_settled(shards=12, consumers=3, within=START_S)
        self.reporter.say(f"12 shards are balanced {time.time() - self.moments['grown']:.0f} s after the topic grew")
        self.await_read_by_owners("growth")
        after = self.runs()
        restarted = [pod for pod, run in before.items() if after.get(pod) != run]
        if restarted:
            raise DemoError(f"growth restarted {', '.join(restarted)}: {before} became {after}\n{self.explain()}")
        self.reporter.say(f"no application restarted: {', '.join(before)} run since before")
        self.show_group()

    def during_growth(self) -> None:
        """What else happens while the group grows: nothing, here."""

    def kill(self) -> None:
        """Step 4b: one driver dies. Others read its shards, and it gets shards again after it returns."""
        self.reporter.step("   One driver is killed")
        holding = self.holding()
        self._dead = sorted(holding.counts())[-1]
        self._dead_shards = holding.shards_of(self._dead)
        pid = self.lab.child_of_init(self.namespace, self._dead)
        starts = self.runs()[self._dead]
        self.reporter.say(
            f"kubectl exec -n {self.namespace} {self._dead} -- kill -9 {pid}    (it holds {len(self._dead_shards)})"
        )
        self.moments["killed"] = time.time()
        # The shell says when it sends the signal: to get that far takes kubectl a second on a busy machine.
        done = self.lab.kube.shell(self.namespace, self._dead, f"date +%s.%N; kill -9 {pid}")
        if said := done.stdout.split():
            self.moments["killed"] = float(said[0])
        self.moments["died"] = time.time()
        if done.returncode not in (0, 137):
            raise DemoError(f"the driver of {self._dead} could not be killed: {done.stderr.strip()}")
        killed, sink = self.moments["killed"], self.sink

        def taken_over() -> bool:
            return account_of(sink, self._timeline(), self.produced).slowest_takeover is not None

        await_that("others read its shards", taken_over, within=60, every=0.5, seen=self.explain)
        slowest = account_of(sink, self._timeline(), self.produced).slowest_takeover
        self.reporter.say(f"all {len(self._dead_shards)} of them were read by others within {slowest or 0:.1f} s of the kill")
        await_that(
            f"{self._dead} has started again",
            lambda: self.runs().get(self._dead, starts) != starts,
            within=120,
            seen=self.explain,
        )
        self.await_settled(shards=12, consumers=3, within=START_S)
        self.reporter.say(f"{self._dead} is back and reads again, {time.time() - killed:.0f} s after the kill")
        self.await_read_by_owners("its return")
        self.show_group()

    def scale_in(self) -> None:
        """Step 4c: one application fewer. It drains first, so that nothing is repeated."""
        self.reporter.step("   Scale in by one: spec.scaling.maxReplicas becomes 2")
        self.moments["scaled in"] = time.time()
        patch = '{"spec":{"scaling":{"maxReplicas":2}}}'
        self.reporter.show(
            self.lab.kube.run("patch", RESOURCE, GROUP, "-n", self.namespace, "--type=merge", "-p", patch),
        )
        self.await_settled(shards=12, consumers=2, within=MOVE_S)
        await_that("the third pod is gone", lambda: len(self.pods()) == 2, within=MOVE_S, seen=self.explain)
        self.await_read_by_owners("scale-in")
        self.reporter.say(f"drained and gone after {time.time() - self.moments['scaled in']:.0f} s")
        self.show_group()

    def finish(self) -> None:
        """Step 5a: the producer stops; wait until all is read and durable."""
        self.reporter.step("5. The producer stops, and everything is counted")
        self.produced = self.traffic.stop()
        self.reporter.say(f"{sum(self.produced.values()):,} records were produced; waiting until the lag is 0")

        def all_committed() -> bool:
            # Kafka's own word comes first: a metric may be a second old, and have been 0 before the last records came.
            committed = self.lab.committed(KAFKA_GROUP)
            return {shard: offset for shard, offset in committed.items() if offset} == dict(self.produced)

        await_that("everything produced is committed", all_committed, within=DRAIN_S, every=1, seen=self.explain)
        await_that("the lag is 0", lambda: self._lag_by_metric() == 0, within=DRAIN_S, every=1, seen=self.explain)
        self.moments["ended"] = time.time()

    def table(self) -> list[Line]:
        """Step 5b: the table. A line that holds something says whether it held."""
        result = lines(account_of(self.sink, self._timeline(), self.produced))
        described = self.lab.describe_group(KAFKA_GROUP)
        ends = {shard: end for shard, (_, end, _) in described.items() if end}
        kafka_lag = sum(lag for _, _, lag in described.values())
        metric = self._lag_by_metric()
        self._note_moves()
        result.insert(
            1, Line("end offsets of the topic, summed", f"{sum(ends.values()):,}", "as produced", ends == self.produced)
        )
        result.append(Line("shards moved, by the operator's metric", f"{sum(self._moves.values()):,}"))
        result.append(Line("lag by kafka-consumer-groups --describe", f"{kafka_lag:,}"))
        result.append(
            Line(
                "lag by the operator's metric in Prometheus",
                "no such series" if metric is None else f"{metric:,}",
                "as Kafka says",
                metric == kafka_lag,
            )
        )
        return result

    # ---- what is seen

    def resource(self) -> Json:
        return self.lab.kube.get(RESOURCE, GROUP, "-n", self.namespace)

    def pods(self) -> list[Json]:
        return self.lab.kube.pods(self.namespace, f"shardherd.dev/consumergroup={GROUP},shardherd.dev/role=driver")

    def runs(self) -> dict[str, tuple[str, int]]:
        """For each running driver which run it is: the container's id and its restarts."""
        found: dict[str, tuple[str, int]] = {}
        for pod in self.pods():
            for status in pod["status"].get("containerStatuses", []):
                if status["name"] == "driver" and "running" in status["state"]:
                    found[pod["metadata"]["name"]] = (status["containerID"], status["restartCount"])
        return found

    def holding(self) -> Holding:
        """Who reads what. Counts the moves on the way, since the operator's counters begin anew with its process."""
        owners: dict[str, str] = {}
        states: dict[str, int] = {}
        for sample in self.lab.operator_metrics():
            labels = sample.labels
            if labels.get("namespace") != self.namespace or labels.get("consumergroup") != GROUP or not sample.value:
                continue
            if sample.name == "shardherd_shard_owner_info":
                owners[labels["shard"]] = labels["consumer"]
            elif sample.name == "shardherd_group_shards":
                states[labels["state"]] = int(sample.value)
        return Holding(owners, states)

    def await_settled(self, *, shards: int, consumers: int, within: float) -> Holding:
        """Wait until every shard is read, evenly, by so many consumers, and the group is Ready and Balanced."""

        last = ""

        def settled() -> Holding | None:
            nonlocal last
            try:
                self._note_moves()
                holding = self.holding()
            except DemoError as error:
                # The operator may be on its way up, or have been killed by the story itself.
                last = str(error)
                return None
            last = f"holding shards: {holding}; by state: {dict(holding.states)}"
            resource = self.resource()
            calm = is_true(resource, "Ready") and is_true(resource, "Balanced")
            return holding if calm and holding.settled(shards, consumers) else None

        found = await_that(
            f"{consumers} consumers hold {shards} shards evenly",
            settled,
            within=within,
            every=0.5,
            seen=lambda: f"{last}\n{self.explain()}",
        )
        self.reporter.say(f"holding shards: {found}")
        return found

    def await_read_by_owners(self, after: str) -> None:
        """Wait until each shard has been read by the consumer that holds it now: the move has reached the sink."""
        sink = self.sink

        def reached() -> bool:
            rows = sink.rows()
            owners = {shard: names[-1] for shard, names in owners_of(rows).items()}
            return owners == dict(self.holding().owners)

        await_that(f"after {after} every shard is read by its holder", reached, within=90, every=1, seen=self.explain)

    def explain(self) -> str:
        """What to show when a step failed."""
        return self.lab.kube.explain(self.namespace, GROUP)

    def show_group(self) -> None:
        self.reporter.say(f"kubectl get shcg -n {self.namespace}")
        self.reporter.show(self.lab.kube.run("get", "shcg", "-n", self.namespace))

    # ---- how it is done

    def _clean(self) -> None:
        """Remove what an earlier run left: its group and pods, topic, offsets and rows."""
        self.traffic.end()
        if self.lab.kube.attempt("get", "crd", RESOURCE).returncode == 0:
            self.lab.kube.run(
                "delete", RESOURCE, GROUP, "-n", self.namespace, "--ignore-not-found", "--timeout=120s", timeout=130
            )
            await_that("the last run's pods are gone", lambda: not self.pods(), within=120, seen=self.explain)
        self.lab.delete_topic(TOPIC)
        self.lab.delete_group(KAFKA_GROUP)
        if self.folder.exists():
            shutil.rmtree(self.folder)

    def _lag_by_metric(self) -> int | None:
        """The group's lag in records, as Prometheus has it from the operator."""
        found = query(
            self.lab.cluster.prometheus_url,
            f'shardherd_group_lag_records{{namespace="{self.namespace}",consumergroup="{GROUP}"}}',
        )
        return int(found[0].value) if found else None

    def _note_moves(self) -> None:
        """Remember the moves that each run of the operator has counted."""
        pod = self.lab.operator_pod()
        run = pod["status"]["containerStatuses"][0]["containerID"]
        counted = sum(
            int(sample.value)
            for sample in self.lab.operator_metrics()
            if sample.name == "shardherd_shard_moves_total"
            and sample.labels.get("namespace") == self.namespace
            and sample.labels.get("consumergroup") == GROUP
        )
        self._moves[run] = max(counted, self._moves.get(run, 0))

    def _timeline(self) -> Timeline:
        far = time.time() + 1e9
        return Timeline(
            ready=self.moments["ready"],
            grown=self.moments["grown"],
            killed=self.moments["killed"],
            died=self.moments["died"],
            scaled_in=self.moments.get("scaled in", far),
            ended=self.moments.get("ended", far),
            dead=self._dead,
            dead_shards=self._dead_shards,
        )


def account_of(sink: Sink, timeline: Timeline, produced: Mapping[str, int]) -> Account:
    """The account of what the sink holds now."""
    return account(sink.rows(), produced, timeline)


class OperatorKilled(Story):
    """The same story, but the operator's process dies while the group grows. The table must not change."""

    def during_growth(self) -> None:
        self.lab.kill_operator()
