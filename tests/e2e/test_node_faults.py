"""Faults of a real node: an image that cannot be had, a quota, an eviction, memory, a drained node; and consumers that read on.

The consumers are plain Python on the real protocol. No record is skipped, and none is read twice but by a consumer that was
killed in the middle of it. Of some faults it is asserted, too, what a person is told who may only look: by the command line
and by the page.
"""

from __future__ import annotations

import itertools
import json
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dev.demo.kube import Json, is_ready
from dev.demo.lab import Lab
from dev.demo.report import DemoError, await_that
from shardherd.core.model.nouns import Incarnation
from tests.e2e.groups import FAULTS as NAMESPACE
from tests.e2e.people import Page, Person, person
from tests.e2e.plain import (
    IMAGE,
    SAME_IMAGE,
    Plain,
    Read,
    longest_pause,
    prepare,
    reading,
    repeated,
    skipped,
)
from tests.harness.browser import chromium
from tests.harness.cluster import Tell
from tests.harness.long import long

pytestmark = pytest.mark.timeout(300)

MISSING = "shardherd/not-there:dev"


@pytest.fixture(scope="module")
def place(installed: Lab) -> Lab:
    prepare(installed)
    return installed


@pytest.fixture(scope="module")
def grace(place: Lab) -> Person:
    """Somebody who may look at the groups, and at the page."""
    made = person(place, "grace")
    made.may_view(NAMESPACE)
    made.may_see_the_page()
    return made


@contextmanager
def three(lab: Lab, name: str, **changes: object) -> Iterator[Plain]:
    """Three consumers that read six shards, two each."""
    with reading(lab, name, consumers=3, shards=6, **changes) as group:  # type: ignore[arg-type]
        group.await_calm(everybody(group))
        group.await_read_since(time.time(), set(everybody(group)))
        yield group


def everybody(group: Plain) -> dict[str, int]:
    return {f"{group.name}-{ordinal}": 2 for ordinal in range(3)}


def others(group: Plain, away: str) -> dict[str, int]:
    """What the other two hold while one is away."""
    return {name: 3 for name in everybody(group) if name != away}


def assert_each_record_was_read_once(reads: list[Read]) -> None:
    assert (skipped(reads), repeated(reads)) == ([], [])


def cannot_have(pod: str, image: str) -> re.Pattern[str]:
    """What the message says of a pod that cannot have its image, whatever the kubelet calls that."""
    return re.compile(
        rf'Pod {pod} cannot get the image "{image}" \((ErrImagePull|ImagePullBackOff)\)\. Correct spec\.application\.image,'
        r" or spec\.application\.imagePullSecrets\. The kubelet says: .*no such host"
    )


def test_an_image_that_cannot_be_had_is_named_and_once_it_is_mended_the_group_reads(
    place: Lab, grace: Person, tmp_path: Path
) -> None:
    with (
        reading(place, "imageless", consumers=1, shards=2, image=MISSING) as group,
        chromium(tmp_path) as browser,
        grace.page() as page,
    ):
        pod = f"{group.name}-0"
        why = cannot_have(pod, MISSING)
        browser.open(f"{page.url}#/{NAMESPACE}/{group.name}")
        message = group.await_condition("ConsumersReady", "False", "ImageUnavailable")
        assert why.fullmatch(message)
        assert [group.condition(kind)[:2] for kind in ("Stalled", "Ready")] == [
            ("True", "ImageUnavailable"),
            ("False", "ImageUnavailable"),
        ]
        events = group.until("has an event", lambda: [e for e in group.events() if e[1] == "ImageUnavailable"], 30)
        assert [(kind, bool(why.fullmatch(said))) for kind, _, said in events] == [("Warning", True)]

        said = grace.is_told_the_same(page, group, "ImageUnavailable")
        told, meaning, _, _ = answer(said, "Why is ConsumersReady False?")
        assert why.fullmatch(told.removeprefix("ImageUnavailable: "))
        assert meaning == "  means   the kubelet cannot get the image"
        assert remedy_of(said, "Why is ConsumersReady False?") == "correct application.image, or imagePullSecrets"
        assert is_told_of_each_shard(page, group) == [("NOT_ALLOC", None, "NoHolder: no consumer is ready")] * 2
        browser.until(lambda: why.fullmatch(browser.text("article .said").removeprefix("ImageUnavailable: ")))
        assert "What to do: correct application.image, or imagePullSecrets." in browser.text(".answers")

        group.change({"application": {"image": IMAGE}})
        group.await_calm({pod: 2})
        browser.until(lambda: "2 of 2 held" in browser.text(".tiles") and pod not in browser.text("article .said"))
        assert browser.complaints() == []
        assert is_told_of_each_shard(page, group) == [("ALREADY_ALLOC", pod, None)] * 2
        assert group.condition("ConsumersReady") == ("True", "AllReady", "1 of 1 consumer is ready.")
        assert_each_record_was_read_once(group.finish())


def answer(said: list[str], question: str) -> list[str]:
    """What the command line answers to this question, in lines."""
    return list(itertools.takewhile(bool, said[said.index(question) + 1 :]))


def remedy_of(said: list[str], question: str) -> str:
    """What the command line tells to do about it."""
    return next(line.split(maxsplit=1)[1] for line in answer(said, question) if line.startswith("  remedy "))


def is_told_of_each_shard(page: Page, group: Plain) -> list[tuple[str, str | None, str | None]]:
    """What the page has of each shard: its state, its holder, and why it does not move on."""
    return [(each[1], each[2], each[10]) for each in page.group(group)["shards"]]


@long
def test_a_broker_that_is_stopped_is_named_and_once_it_runs_again_everybody_reads_on(
    place: Lab, grace: Person, tell: Tell
) -> None:
    with three(place, "brokerless") as group, grace.page() as page:
        grants, runs, begun = group.grants(), group.runs(), time.time()
        place.cluster.stop_kafka()
        try:
            group.await_condition("SourceReachable", "False", "SourceUnavailable")
            told = time.time()
            said = grace.is_told_the_same(page, group, "SourceUnavailable")
            assert "check bootstrapServers and the way to them" in remedy_of(said, "Why is SourceReachable False?")
            assert grace.status(group)[1] == "False"
            shard = f"{group.name}/0"
            assert answer(grace.explain(group, shard), f"Does {shard} move on?")[0].startswith("SourceUnavailable: ")
            assert [state for state, _, _ in is_told_of_each_shard(page, group)] == ["ALREADY_ALLOC"] * 6
        finally:
            place.cluster.start_kafka()
        back = time.time()
        group.await_calm(everybody(group))
        group.await_read_since(back, set(everybody(group)))
        assert (group.grants(), group.runs()) == (grants, runs)
        assert grace.status(group)[1:5] == ["True", "6", "6", "3/3"]
        reads = group.finish()
        tell(f"a broker stopped: told after {told - begun:.1f} s, and it runs again after {back - begun:.1f} s")
        assert_each_record_was_read_once(reads)


@long
def test_a_rollout_to_an_image_that_cannot_be_had_is_taken_back_while_others_read(place: Lab, tell: Tell) -> None:
    deadline = {"strategy": "Drain", "progressDeadline": "10s"}
    with three(place, "rolled", rollout=deadline) as group:
        away, before, begun = f"{group.name}-2", group.runs(), time.time()
        group.change({"application": {"image": MISSING}})
        message = group.await_condition("ConsumersReady", "False", "ImageUnavailable")
        assert cannot_have(away, MISSING).fullmatch(message)
        assert group.spread() == others(group, away)
        group.await_read_since(time.time(), set(others(group, away)))
        why = group.await_condition("Stalled", "True", "RolledBack")
        generation = group.resource()["metadata"]["generation"]
        assert re.fullmatch(
            rf"What generation {generation} declares did not run within spec\.rollout\.progressDeadline \(10 s\): "
            rf"{cannot_have(away, MISSING).pattern}\. All pods went back to what ran before: change spec\.application\.",
            why,
        )
        group.until("has all consumers back", lambda: group.spread() == everybody(group), 90)
        group.await_read_since(time.time(), set(everybody(group)))
        assert group.resource()["status"]["rollout"]["state"] == "RolledBack"
        assert ("Warning", "RolledBack", why) in group.events()
        after = group.runs()
        assert {name for name in before if after[name] != before[name]} == {away}
        assert {image(pod) for pod in group.pods()} == {IMAGE}

        group.change({"application": {"image": SAME_IMAGE}})
        group.until("has rolled out", lambda: group.resource()["status"]["rollout"]["state"] == "Complete", 120)
        group.await_calm(everybody(group))
        assert {image(pod) for pod in group.pods()} == {SAME_IMAGE}
        assert group.condition("Stalled") == ("False", "NotStalled", "Nothing is in the way.")
        reads = group.finish()
        pause, restart = longest_pause(reads, begun, time.time()), absences(reads, away)[-1]
        tell(f"an image that cannot be had: longest pause of a shard {pause:.1f} s, a consumer restarts in {restart:.1f} s")
        assert pause < restart
        assert_each_record_was_read_once(reads)


def image(pod: Json) -> str:
    return str(pod["spec"]["containers"][0]["image"])


def absences(reads: list[Read], consumer: str) -> list[float]:
    """Seconds from the last record that a run of this consumer read to the first of its next run."""
    theirs = [read for read in reads if read.consumer == consumer]
    return [later.at - earlier.at for earlier, later in itertools.pairwise(theirs) if later.run != earlier.run]


@long
def test_a_quota_that_refuses_the_third_pod_is_named_and_the_other_two_keep_what_they_hold(place: Lab, tell: Tell) -> None:
    with reading(place, "counted", consumers=2, shards=6) as group:
        two = {f"{group.name}-{ordinal}": 3 for ordinal in range(2)}
        group.await_calm(two)
        quota = f"only-{group.name}"
        group.until("is alone", lambda: len(place.kube.items("pods", "-n", NAMESPACE)) == 2, 90)
        place.kube.apply(quota_of(quota, 2))
        group.until(
            "has a quota that counts", lambda: place.kube.get("resourcequota", quota, "-n", NAMESPACE).get("status"), 30
        )
        try:
            grants, runs, begun = group.grants(), group.runs(), time.time()
            group.change({"replicas": 3})
            message = group.await_condition("ConsumersReady", "False", "QuotaExceeded")
            third = f"{group.name}-2"
            assert message == (
                f"Pods cannot be made: create Pod {third} in StatefulSet {group.name} failed error:"
                f' pods "{third}" is forbidden: exceeded quota: {quota}, requested: pods=1, used: pods=2,'
                " limited: pods=2. Raise the quota, or declare fewer consumers."
            )
            assert [group.condition(kind) for kind in ("Stalled", "Ready")] == [
                ("True", "QuotaExceeded", message),
                ("False", "QuotaExceeded", message),
            ]
            group.until("has an event", lambda: ("Warning", "QuotaExceeded", message) in group.events(), 30)
            group.await_read_since(time.time(), set(two))
            assert (group.grants(), group.runs()) == (grants, runs)
            place.kube.apply(quota_of(quota, 3))
            raised = time.time()
            group.await_calm(everybody(group))
            tell(f"a quota raised: evenly read by three {time.time() - raised:.1f} s later")
        finally:
            place.kube.run("delete", "resourcequota", quota, "-n", NAMESPACE)
        assert {name: group.runs()[name] for name in two} == runs
        reads = group.finish()
        tell(f"a quota used up: longest pause of a shard {longest_pause(reads, begun, raised):.1f} s")
        assert_each_record_was_read_once(reads)


def quota_of(name: str, pods: int) -> Json:
    """A quota of pods."""
    metadata = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": {"pods": str(pods)}}}


@long
def test_an_evicted_consumer_hands_over_and_gets_back_and_the_budget_lets_no_second_one_go(place: Lab, tell: Tell) -> None:
    with three(place, "evicted") as group:
        name = group.name
        group.until("may lose one", lambda: may_go(place, name) == 1, 30)
        before, theirs, begun = group.runs(), group.shards_of(f"{name}-1"), time.time()
        assert evict(place, f"{name}-1") == ""
        refused = evict(place, f"{name}-2")
        assert "Cannot evict pod as it would violate the pod's disruption budget." in refused
        group.await_replaced(f"{name}-1", before[f"{name}-1"][0])
        group.await_calm(everybody(group))
        back = time.time()
        after = group.runs()
        assert {pod for pod in before if after[pod] != before[pod]} == {f"{name}-1"}
        group.await_read_since(back, set(everybody(group)))
        reads = group.finish()
        by_others = {read.shard for read in reads if begun < read.at < back and read.consumer != f"{name}-1"}
        assert theirs <= by_others
        tell(f"a pod evicted: longest pause of a shard {longest_pause(reads, begun, back):.1f} s")
        assert_each_record_was_read_once(reads)


def may_go(lab: Lab, budget: str) -> int:
    """How many pods may be evicted now."""
    found: int = lab.kube.get("poddisruptionbudget", budget, "-n", NAMESPACE)["status"]["disruptionsAllowed"]
    return found


def evict(lab: Lab, pod: str) -> str:
    """Ask for an eviction; what was said against it, empty if it was granted."""
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": NAMESPACE}}
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}/eviction"
    return lab.kube.attempt("create", "--raw", path, "-f", "-", stdin=json.dumps(body)).stderr


@long
def test_a_consumer_that_runs_out_of_memory_is_started_again_and_keeps_its_shards(place: Lab, tell: Tell) -> None:
    """With `rejoinGrace` nothing moves while the kubelet starts a container again."""
    with three(place, "greedy", limits={"memory": "512Mi"}, rejoinGrace="45s") as group:
        victim, before, begun = f"{group.name}-1", group.grants(), time.time()
        uid, _ = group.runs()[victim]
        tell_process(place, victim, "USR1")
        group.until("starts it again", lambda: group.runs()[victim] == (uid, 1), 60, every=0.5)
        group.until("has all grants back", lambda: group.grants().keys() == before.keys() and again(group, victim, uid), 60)
        group.await_calm(everybody(group))
        (pod,) = [pod for pod in group.pods() if pod["metadata"]["name"] == victim]
        ended = pod["status"]["containerStatuses"][0]["lastState"]["terminated"]
        assert (ended["exitCode"], ended["reason"], json.loads(ended["message"])) == (137, "OOMKilled", {"start": 1})
        after, back = group.grants(), time.time()
        for shard, (holder, incarnation, epoch) in before.items():
            if holder == victim:
                assert after[shard][:2] == (victim, Incarnation(uid, 2))
                assert after[shard][2] > epoch
            else:
                assert after[shard] == (holder, incarnation, epoch)
        group.await_read_since(back, set(everybody(group)))
        reads = group.finish()
        tell(f"out of memory: longest pause of a shard {longest_pause(reads, begun, back):.1f} s")
        assert {read.shard: read.consumer for read in reads} == {shard: holder for shard, (holder, _, _) in before.items()}
        assert skipped(reads) == []
        assert {(read.consumer, read.run) for read in repeated(reads)} <= {(victim, f"{uid}.2")}


def again(group: Plain, consumer: str, uid: str) -> bool:
    """Whether the second run of this pod holds what its name holds."""
    return {run for holder, run, _ in group.grants().values() if holder == consumer} == {Incarnation(uid, 2)}


@long
def test_a_node_that_is_drained_costs_one_consumer_which_waits_for_a_node(place: Lab, tell: Tell) -> None:
    """There is no other node, so the budget keeps the other two where they are."""
    node = place.cluster.node_name
    with three(place, "drained") as group:
        before, begun = group.runs(), time.time()
        try:
            refused = drain(place, node, group.name)
            waiting = group.until("has one that waits", lambda: [pod for pod in group.pods() if not placed(pod)], 60)
            assert len(waiting) == 1
            away = waiting[0]["metadata"]["name"]
            for name in others(group, away):
                assert f'error when evicting pods/"{name}" -n "{NAMESPACE}"' in refused
            assert "Cannot evict pod as it would violate the pod's disruption budget." in refused
            message = group.await_condition("ConsumersReady", "False", "Unschedulable")
            assert message == (
                f"Pod {away} has no node: 0/1 nodes are available: 1 node(s) were unschedulable. no new claims to deallocate,"
                " preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."
            )
            assert group.condition("Ready") == ("False", "Unschedulable", message)
            assert group.condition("Stalled") == ("False", "NotStalled", "Nothing is in the way.")
            assert group.spread() == others(group, away)
            group.await_read_since(time.time(), set(others(group, away)))
        finally:
            place.kube.run("uncordon", node)
        group.await_calm(everybody(group))
        back, after = time.time(), group.runs()
        assert {name for name in before if after[name] != before[name]} == {away}
        group.await_read_since(back, set(everybody(group)))
        reads = group.finish()
        tell(f"a node drained: longest pause of a shard {longest_pause(reads, begun, back):.1f} s")
        assert_each_record_was_read_once(reads)


def drain(lab: Lab, node: str, group: str) -> str:
    """`kubectl drain` of this group's pods, which gives up after a while; what it said."""
    chosen = f"--pod-selector=shardherd.dev/consumergroup={group}"
    done = lab.kube.attempt("drain", node, chosen, "--delete-emptydir-data", "--timeout=8s")
    if done.returncode == 0:
        raise DemoError(f"all pods of {group} were drained at once: {done.stdout}")
    return done.stderr


def placed(pod: Json) -> bool:
    return "nodeName" in pod["spec"]


@long
def test_a_pod_that_the_kubelet_evicts_for_its_use_of_the_disk_is_made_anew(place: Lab, tell: Tell) -> None:
    """It asks no budget, and gives a second to drain. Who does not ends all the same, and that proves it dead."""
    with three(place, "voluminous", limits={"ephemeral-storage": "32Mi"}) as group:
        victim, before, begun = f"{group.name}-1", group.runs(), time.time()
        theirs = group.shards_of(victim)
        tell_process(place, victim, "USR2")
        group.await_replaced(victim, before[victim][0])
        group.await_calm(everybody(group))
        back, after = time.time(), group.runs()
        assert {name for name in before if after[name] != before[name]} == {victim}
        events = place.kube.items("events", "-n", NAMESPACE, f"--field-selector=involvedObject.name={victim},reason=Evicted")
        assert [event["source"]["component"] for event in events] == ["kubelet"]
        group.await_read_since(back, set(everybody(group)))
        reads = group.finish()
        assert theirs <= {read.shard for read in reads if begun < read.at < back and read.consumer != victim}
        tell(f"evicted by the kubelet: longest pause of a shard {longest_pause(reads, begun, back):.1f} s")
        assert skipped(reads) == []
        assert {read.shard for read in repeated(reads)} <= theirs


@long
def test_a_consumer_that_hangs_is_fenced_and_replaced_and_others_read_its_shards(place: Lab, grace: Person, tell: Tell) -> None:
    """Nothing proves its death; the kubelet kills it in the end, since it does not hear that it is to go."""
    settings = {"sessionTimeout": "10s", "progressTimeout": "40s", "drainTimeout": "1s"}
    with three(place, "hanging", **settings) as group, grace.page() as page:
        victim, before, grants, begun = f"{group.name}-1", group.runs(), group.grants(), time.time()
        tell_process(place, victim, "STOP")
        group.until("is read by the others", lambda: group.spread() == others(group, victim), 60, every=0.5)
        taken = time.time()
        kept = {shard: grant for shard, grant in grants.items() if grant[0] != victim}
        assert {shard: group.grants()[shard] for shard in kept} == kept
        assert group.await_condition("ConsumersReady", "False", "ConsumerSilent") == (
            f"{victim} runs, but is not ready, and the operator hears nothing more. If it stays so for spec.progressTimeout"
            " (40 s), its pod is replaced."
        )
        said = grace.is_told_the_same(page, group, "ConsumerSilent")
        assert remedy_of(said, "Why is ConsumersReady False?").startswith(
            "none: its pod is replaced if it stays so for progressTimeout."
        )
        assert answer(grace.explain(group, victim), f"How is {victim}?")[0].startswith(
            f"ConsumerSilent: The process of {victim} runs, but it is not ready any more since "
        )
        shown = page.group(group)
        assert (shown["ready"], shown["reason"], shown["consumersReady"]) == ("False", "ConsumerSilent", 2)
        assert {(holder, why) for _, holder, why in is_told_of_each_shard(page, group)} == {
            (name, None) for name in others(group, victim)
        }
        group.await_read_since(taken, set(others(group, victim)))
        group.await_replaced(victim, before[victim][0])
        group.await_calm(everybody(group))
        back, after = time.time(), group.runs()
        assert {name for name in before if after[name] != before[name]} == {victim}
        group.await_read_since(back, set(everybody(group)))
        reads = group.finish()
        pause = longest_pause(reads, begun, back)
        tell(f"a consumer that hangs: longest pause of a shard {pause:.1f} s, replaced after {back - begun:.1f} s")
        assert skipped(reads) == []
        assert {read.shard for read in repeated(reads)} <= grants.keys() - kept.keys()


@long
def test_a_kubelet_that_falls_silent_moves_no_shard_and_nobody_stops_reading(place: Lab, tell: Tell) -> None:
    """The control plane takes the node for lost, and all that is on it for not ready: the operator too."""
    node = place.cluster.node_name
    with three(place, "unheard") as group:
        grants, runs, begun = group.grants(), group.runs(), time.time()
        place.cluster.signal("kubelet", signal.SIGSTOP)
        try:
            nobody = ("False", "Starting", "0 of 3 consumers are ready.")
            group.until("has no ready consumer", lambda: group.condition("ConsumersReady") == nobody, 120)
            assert (group.grants(), group.runs()) == (grants, runs)
            group.await_read_since(time.time(), set(everybody(group)))
        finally:
            place.cluster.signal("kubelet", signal.SIGCONT)
        await_that(f"{node} is ready", lambda: is_ready(place.kube.get("node", node)), within=60)
        group.await_calm(everybody(group))
        back = time.time()
        group.await_read_since(back, set(everybody(group)))
        reads = group.finish()
        tell(f"a kubelet silent: longest pause of a shard {longest_pause(reads, begun, back):.1f} s in {back - begun:.1f} s")
        assert (group.grants(), group.runs()) == (grants, runs)
        assert_each_record_was_read_once(reads)


def tell_process(lab: Lab, pod: str, name: str) -> None:
    """Send a signal to the consumer's process."""
    lab.kube.shell(NAMESPACE, pod, f"kill -{name} {lab.child_of_init(NAMESPACE, pod)}")
